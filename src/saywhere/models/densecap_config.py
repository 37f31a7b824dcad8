"""The options of DenseCap, with today's defaults and those of the published program."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, get_args

from saywhere.models.config import Config
from saywhere.models.found import Calibration
from saywhere.vision.backbones import GROUPS, VGG16_CHANNELS
from saywhere.vision.sampling import Pooling

Shapes = tuple[tuple[float, float], ...]

POSITIVE = (
    "long_side", "multiple", "rpn_hidden", "rpn_batch", "proposals", "batch", "pool_size", "code_size", "word_size",
    "hidden_size", "max_words", "beam",
)  # fmt: skip


def pyramid_anchors(strides: tuple[int, ...] = (8, 16, 32)) -> tuple[Shapes, ...]:
    """Six shapes a level: squares, wide and tall boxes of sides 5 and 8 strides (two octaves apart from 40 px up)."""
    return tuple(
        tuple(
            (side * stride * ratio**0.5, side * stride / ratio**0.5) for side in (5.0, 8.0) for ratio in (0.5, 1.0, 2.0)
        )
        for stride in strides
    )


PUBLISHED_ANCHORS: Shapes = (
    (45, 90), (90, 45), (64, 64), (90, 180), (180, 90), (128, 128),
    (181, 362), (362, 181), (256, 256), (362, 724), (724, 362), (512, 512),
)  # fmt: skip


@dataclass(frozen=True)
class DenseCapConfig(Config):
    """Options of :class:`saywhere.models.densecap.DenseCap`; ``DenseCapConfig()`` is the good default.

    Attributes:
        backbone, strides: see :func:`saywhere.vision.backbones.build_backbone`; ``vgg16_caffe`` is the program's.
        vgg_channels: of the five stages of ``vgg16_caffe``; has no meaning for other backbones.
        conventions: ``original`` for boxes, ties, tokens and sampling as in the published program (docs/original.md).
        long_side, multiple: size of the network's input, see :class:`saywhere.images.Preprocess`.
        pyramid: channels of the feature pyramid over the strides, or 0 for the backbone's one map as it is.
        anchors: for each stride the shapes (w, h) in input pixels.
        rpn_hidden: filters of the RPN's 3x3 convolution.
        rpn_two_way: two logits an anchor (softmax) instead of one (logistic).
        rpn_positive, rpn_negative, rpn_batch: which boxes train the RPN, see :class:`RegionSampler`.
        match_proposals: RPN positives by the IoU of the regressed proposals (published) instead of the anchors'.
        inside_only: boxes that leave the picture do not train the RPN.
        rpn_nms, before_nms, proposals: suppression of proposals and how many are kept.
        shared_batch: the RPN's batch also trains the second stage (published); else proposals and truths are drawn anew
            by ``positive``, ``negative``, ``batch`` and ``positive_share``.
        pooling, pool_size: features of a box, see :mod:`saywhere.vision.sampling`.
        code_size, dropout: recognition network, two fully connected layers.
        fc_size: of the first of them; None for ``code_size``.
        word_size, hidden_size, speaker_dropout: see :class:`LstmSpeaker`.
        max_words: of a caption.
        beam, length_power: hypotheses in decoding (1 is greedy), and how length counts among them, see
            :func:`saywhere.language.decoding.decode`.
        final_nms: suppression of the final boxes.
        repeat_nms: of two regions with the same caption and an IoU above this, the better one is kept; None keeps both.
        calibration: how a score comes of the second score's logit and of the caption's confidence, see
            :meth:`saywhere.models.found.Found.regions`.
        max_log_scale: bound on the growth of a box, None for none.
        balanced: the RPN's score loss averages positives and negatives apart and adds the two.
        box_beta: where smooth L1 turns from square to straight.
        box_limit: targets beyond this do not train (the published guard), None for all.
        rpn_score_weight, rpn_box_weight, score_weight, box_weight, caption_weight: of the five losses.
        box_decay: weight of half the squared RPN offsets.
    """

    conventions: Literal["saywhere", "original"] = "saywhere"
    backbone: str = "efficientnet_lite2"
    vgg_channels: tuple[int, ...] = VGG16_CHANNELS
    strides: tuple[int, ...] = (8, 16, 32)
    long_side: int = 384
    multiple: int = 32
    pyramid: int = 128
    anchors: tuple[Shapes, ...] = pyramid_anchors()
    rpn_hidden: int = 128
    rpn_two_way: bool = False
    rpn_positive: float = 0.6
    rpn_negative: float = 0.3
    rpn_batch: int = 128
    match_proposals: bool = False
    inside_only: bool = False
    rpn_nms: float = 0.7
    before_nms: int | None = 1000
    proposals: int = 100
    shared_batch: bool = False
    positive: float = 0.5
    negative: float = 0.5
    batch: int = 64
    positive_share: float = 0.5
    pooling: Pooling = "bilinear"
    pool_size: int = 7
    code_size: int = 512
    fc_size: int | None = None
    dropout: float = 0.2
    word_size: int = 256
    hidden_size: int = 384
    speaker_dropout: float = 0.3
    max_words: int = 12
    beam: int = 1
    length_power: float = 0.0
    final_nms: float = 0.5
    repeat_nms: float | None = 0.4
    calibration: Calibration = (1.0, 0.0, 0.0)
    max_log_scale: float | None = 4.135
    balanced: bool = False
    box_beta: float = 0.11
    box_limit: float | None = None
    rpn_score_weight: float = 1.0
    rpn_box_weight: float = 1.0
    score_weight: float = 1.0
    box_weight: float = 1.0
    caption_weight: float = 0.3
    box_decay: float = 0.0

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in pairwise(self.strides))
        self.require(len(self.strides) > 0 and ascending, "strides", "one or more, ascending")
        shapes = {len(level) for level in self.anchors}
        good = len(self.anchors) == len(self.strides) and len(shapes) == 1 and shapes != {0}
        self.require(good, "anchors", "k shapes (w, h) for each stride")
        self.require(self.pyramid > 0 or len(self.strides) == 1, "pyramid", "positive with several strides")
        self.require(self.pyramid >= 0 and self.pyramid % GROUPS == 0, "pyramid", f"a multiple of {GROUPS}")
        for option in POSITIVE:
            self.require(getattr(self, option) >= 1, option, "at least 1")
        self.require(self.before_nms is None or self.before_nms >= 1, "before_nms", "at least 1, or null")
        for option in (
            "rpn_nms",
            "final_nms",
            "positive",
            "negative",
            "rpn_positive",
            "rpn_negative",
            "positive_share",
        ):
            self.require(0 <= getattr(self, option) <= 1, option, "between 0 and 1")
        self.require(self.repeat_nms is None or 0 <= self.repeat_nms <= 1, "repeat_nms", "between 0 and 1, or null")
        for option in ("dropout", "speaker_dropout"):
            self.require(0 <= getattr(self, option) < 1, option, "at least 0 and below 1")
        for option in ("rpn_score", "rpn_box", "score", "box", "caption"):
            self.require(getattr(self, f"{option}_weight") >= 0, f"{option}_weight", "at least 0")
        self.require(self.box_decay >= 0, "box_decay", "at least 0")
        self.require(self.box_beta > 0, "box_beta", "above 0")
        self.require(len(self.vgg_channels) == 5 and min(self.vgg_channels) > 0, "vgg_channels", "five widths")
        self.require(self.fc_size is None or self.fc_size >= 1, "fc_size", "at least 1, or null")
        if self.conventions == "original":
            self.require(len(self.strides) == 1, "strides", "one, with conventions=original")
            self.require(self.pooling == "bilinear", "pooling", "bilinear, with conventions=original")
        self.require(self.pooling in get_args(Pooling), "pooling", " or ".join(get_args(Pooling)))

    @classmethod
    def original(cls, backbone: str = "vgg16_caffe") -> DenseCapConfig:
        """The published program; where its code differs from the paper, the code (docs/original.md lists it all)."""
        return cls(
            conventions="original",
            backbone=backbone,
            strides=(16,),
            long_side=720,
            multiple=1,
            pyramid=0,
            anchors=(PUBLISHED_ANCHORS,),
            rpn_hidden=256,
            rpn_two_way=True,
            rpn_positive=0.7,
            rpn_negative=0.3,
            rpn_batch=256,
            match_proposals=True,
            inside_only=True,
            rpn_nms=0.7,
            before_nms=None,
            proposals=1000,
            shared_batch=True,
            pooling="bilinear",
            code_size=4096,
            dropout=0.5,
            word_size=512,
            hidden_size=512,
            speaker_dropout=0.0,
            max_words=15,
            final_nms=0.3,
            repeat_nms=None,
            max_log_scale=None,
            balanced=True,
            box_beta=1.0,
            box_limit=10.0,
            rpn_score_weight=0.1,
            rpn_box_weight=0.05,
            score_weight=0.1,
            box_weight=0.1,
            caption_weight=1.0,
            box_decay=5e-5,
        )

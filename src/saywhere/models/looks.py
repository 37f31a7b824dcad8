"""Where a captioner looks: the kinds of areas of attention (Areas of Attention, section 3.3) as one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from saywhere.models.captioner_config import CaptionerConfig
from saywhere.vision.areas import AreaFeatures
from saywhere.vision.backbones import by_shape
from saywhere.vision.cells import cell_boxes, cell_features
from saywhere.vision.positions import box_peaks, position_features
from saywhere.vision.proposer import Mapped, Proposer
from saywhere.vision.transformer import Transformer


@dataclass(frozen=True, eq=False)
class Look:
    """One picture and its areas.

    Attributes:
        whole: ``(1, D)`` what is seen in the whole picture.
        features: ``(R, D)`` what is seen in each.
        boxes: ``(R, 4)`` in pixels of the network's input; of warped areas the boxes around them.
        corners: ``(R, 4, 2)`` of warped areas; None for the other kinds.
        narrowed: whether the features have been made as small as the speaker wants them.
    """

    whole: Tensor
    features: Tensor
    boxes: Tensor
    corners: Tensor | None = None
    narrowed: bool = False


def build_finder(config: CaptionerConfig, channels: Sequence[int]) -> Proposer | Transformer | None:
    """What finds the areas of a kind that does not stand at fixed places; None for the others.

    Args:
        config: of the captioner.
        channels: of the backbone's maps.
    """
    if config.areas == "proposals":
        sizes = (config.pyramid, config.anchors, config.rpn_hidden, config.proposal_nms, config.before_nms)
        return Proposer(channels, config.strides, *sizes, config.proposals)
    if config.areas == "transformer":
        stride = config.strides[-1] if config.head else max(config.levels)
        return Transformer(config.area_size, stride, config.grid, zoom=config.zoom)
    return None


def look(
    config: CaptionerConfig,
    features: AreaFeatures,
    finder: nn.Module | None,
    narrow: Callable[[Tensor], Tensor],
    pictures: Sequence[Mapped],
    boxes: Sequence[Tensor | None],
) -> list[Look]:
    """What is seen in pictures and in their areas, which are of the kind that ``config`` says.

    Args:
        config: of the captioner.
        features: which maps of the network.
        finder: see :func:`build_finder`.
        narrow: makes features ``(..., D)`` as small as the speaker wants them; a transformer looks at these.
        pictures: N of them.
        boxes: of each picture ``(R, 4)`` in pixels of the network's input, instead of those that the finder proposes.
    """
    if config.areas == "grid" and config.pooling == "mean":
        return [_cells(features, maps, config.grid, size) for maps, size in pictures]
    wholes = [normalised(cell_features(features, maps, 0, *size)[0]) for maps, size in pictures]
    if isinstance(finder, Transformer):
        return _warped(config, features, finder, narrow, pictures, wholes)
    if isinstance(finder, Proposer):
        places = _proposed(finder, pictures, boxes)
    else:
        places = [cell_boxes(config.grid, *size)[1:].to(wholes[0].device) for _, size in pictures]
    pool = features if config.pooling == "mean" else partial(box_peaks, features)
    rows = [normalised(pool(maps, found, *size)) for (maps, size), found in zip(pictures, places, strict=True)]
    return [Look(*one) for one in zip(wholes, rows, places, strict=True)]


def _cells(features: AreaFeatures, maps: Sequence[Tensor], cells: int, size: tuple[float, float]) -> Look:
    seen, boxes = cell_features(features, maps, cells, *size)
    seen = normalised(seen)
    return Look(seen[:1], seen[1:], boxes[1:])


def _proposed(finder: Proposer, pictures: Sequence[Mapped], boxes: Sequence[Tensor | None]) -> list[Tensor]:
    """The boxes that are given, and of the other pictures those that are found."""
    missing = [number for number, given in enumerate(boxes) if given is None]
    found = dict(zip(missing, finder([pictures[number] for number in missing]), strict=True))
    return [found[number] if given is None else given for number, given in enumerate(boxes)]


def _warped(
    config: CaptionerConfig,
    features: AreaFeatures,
    finder: Transformer,
    narrow: Callable[[Tensor], Tensor],
    pictures: Sequence[Mapped],
    wholes: Sequence[Tensor],
) -> list[Look]:
    """Pictures of one size share the transformer's batch, and in training the positions that are drawn."""
    seen = [(normalised(position_features(features, maps, config.grid, *size)[0]),) for maps, size in pictures]
    found = by_shape(lambda rows: finder(narrow(rows).permute(0, 3, 1, 2)), seen)
    return [Look(whole, *one, narrowed=True) for whole, one in zip(wholes, found, strict=True)]


def normalised(features: Tensor) -> Tensor:
    """Each row with mean 0 and variance 1."""
    return functional.layer_norm(features, features.shape[-1:])

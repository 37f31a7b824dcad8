"""Where a captioner looks: the kinds of areas of attention (Areas of Attention, section 3.3) as one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn
from torch.nn import functional

from saywhere.models.captioner_config import CaptionerConfig
from saywhere.vision.areas import AreaFeatures
from saywhere.vision.cells import cell_boxes, cell_features
from saywhere.vision.positions import box_peaks, position_features
from saywhere.vision.proposer import Proposer
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
    maps: Sequence[Tensor],
    size: tuple[float, float],
    boxes: Tensor | None = None,
) -> Look:
    """What is seen in one picture and in its areas, which are of the kind that ``config`` says.

    Args:
        config: of the captioner.
        features: which maps of the network.
        finder: see :func:`build_finder`.
        narrow: makes features ``(..., D)`` as small as the speaker wants them; a transformer looks at these.
        maps: ``(C_l, H_l, W_l)``, finest first.
        size: width and height of the network's input.
        boxes: ``(R, 4)`` in its pixels, instead of those that the finder proposes.
    """
    if config.areas == "grid" and config.pooling == "mean":
        seen, cells = cell_features(features, maps, config.grid, *size)
        seen = normalised(seen)
        return Look(seen[:1], seen[1:], cells[1:])
    whole = normalised(cell_features(features, maps, 0, *size)[0])
    if isinstance(finder, Transformer):
        seen, _ = position_features(features, maps, config.grid, *size)
        found, around, corners = finder(narrow(normalised(seen)).permute(2, 0, 1)[None])
        return Look(whole, found[0], around[0], corners[0], narrowed=True)
    if boxes is not None:
        places = boxes
    elif isinstance(finder, Proposer):
        places = finder(maps, *size)
    else:
        places = cell_boxes(config.grid, *size)[1:].to(whole.device)
    pool = features if config.pooling == "mean" else partial(box_peaks, features)
    return Look(whole, normalised(pool(maps, places, *size)), places)


def normalised(features: Tensor) -> Tensor:
    """Each row with mean 0 and variance 1."""
    return functional.layer_norm(features, features.shape[-1:])

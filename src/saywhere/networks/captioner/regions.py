"""The regions that a captioner attends to: the kinds of Areas of Attention (section 3.3) as one interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional

from saywhere.configs.captioner import CaptionerConfig
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.grid import cell_boxes, cell_features
from saywhere.networks.vision.image_maps import ImageMaps
from saywhere.networks.vision.region_features import max_features, mean_features, position_features, propose_regions
from saywhere.networks.vision.spatial_transformer import SpatialTransformer


@dataclass(frozen=True, eq=False)
class ImageRegions:
    """One image and its regions.

    Attributes:
        embedding: ``(1, D)`` of the whole image.
        features: ``(R, D)`` of each region.
        boxes: ``(R, 4)`` in pixels of the network's input; of warped regions the boxes around them.
        corners: ``(R, 4, 2)`` of warped regions; None for the other kinds.
        narrowed: whether the features already have the size that the decoder takes.
    """

    embedding: Tensor
    features: Tensor
    boxes: Tensor
    corners: Tensor | None = None
    narrowed: bool = False


def extract_regions(
    config: CaptionerConfig,
    transformer: SpatialTransformer | None,
    narrow: Callable[[Tensor], Tensor],
    images: Sequence[ImageMaps],
    boxes: Sequence[Tensor | None],
) -> list[ImageRegions]:
    """Return the features of images and of their regions, which are of the kind ``config.attend_to``.

    Args:
        config: of the captioner.
        transformer: that of ``attend_to: transformer``.
        narrow: makes features ``(..., D)`` as small as the decoder takes them; a transformer moves on maps of these.
        images: N of them.
        boxes: of each image ``(R, 4)`` in pixels of the network's input, instead of its proposals.
    """
    sources = [image.sources(config.levels, config.head, config.branch) for image in images]
    if config.attend_to == "grid" and config.pooling == "mean":
        cells = [cell_features(s, config.grid, *image.size) for s, image in zip(sources, images, strict=True)]
        rows = [(normalised(features), places) for features, places in cells]
        return [ImageRegions(features[:1], features[1:], places[1:]) for features, places in rows]
    wholes = [normalised(cell_features(s, 0, *image.size)[0]) for s, image in zip(sources, images, strict=True)]
    if transformer is not None:
        rows = [position_features(s, config.grid, *image.size)[0] for s, image in zip(sources, images, strict=True)]
        return _warped(transformer, narrow, rows, wholes)
    if config.uses_proposals:
        places = _proposed(config, images, boxes)
    else:
        places = [cell_boxes(config.grid, *image.size)[1:].to(wholes[0].device) for image in images]
    pool = mean_features if config.pooling == "mean" else max_features
    return [
        ImageRegions(whole, normalised(pool(s, rows, *image.size)), rows)
        for whole, s, rows, image in zip(wholes, sources, places, images, strict=True)
    ]


def _proposed(config: CaptionerConfig, images: Sequence[ImageMaps], boxes: Sequence[Tensor | None]) -> list[Tensor]:
    """The boxes that are given, and the proposals of the other images."""
    missing = [image for image, given in zip(images, boxes, strict=True) if given is None]
    found = iter(propose_regions(missing, config.proposals))
    return [next(found) if given is None else given for given in boxes]


def _warped(
    transformer: SpatialTransformer,
    narrow: Callable[[Tensor], Tensor],
    features: Sequence[Tensor],
    wholes: Sequence[Tensor],
) -> list[ImageRegions]:
    """Images of one size share the transformer's batch, and in training the positions that are sampled."""
    rows = [(normalised(positions),) for positions in features]
    warped = by_shape(lambda positions: transformer(narrow(positions).permute(0, 3, 1, 2)), rows)
    return [ImageRegions(whole, *one, narrowed=True) for whole, one in zip(wholes, warped, strict=True)]


def normalised(features: Tensor) -> Tensor:
    """Return each row with mean 0 and variance 1."""
    return functional.layer_norm(features, features.shape[-1:])

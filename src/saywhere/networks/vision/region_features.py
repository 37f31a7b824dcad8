"""The feature maps of an image, and features of regions: averages of maps over a box, and the box's position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.configs.parts import BRANCH_STRIDES, ProposalConfig, RegionConfig
from saywhere.engines.engine import RegionMaps, RpnOutput, Source
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.trunk import Trunk


class ImageMaps(RegionMaps):
    """Maps of one image from :meth:`saywhere.networks.vision.trunk.Trunk.look`, and results computed once from them.

    ``width`` and ``height`` are those of the network's input.
    """

    def __init__(self, trunk: Trunk, maps: Sequence[Tensor], width: int, height: int):
        levels = len(trunk.backbone.strides)
        self.trunk, self.strides, self.maps = trunk, trunk.backbone.strides, tuple(maps[:levels])
        self.input_size = self.width, self.height = width, height
        self._tower = tuple(maps[levels:])
        self._pyramid: tuple[Tensor, ...] | None = None
        self._rpn: RpnOutput | None = None

    @classmethod
    def look(cls, trunk: Trunk, pixels: Sequence[Tensor]) -> list[ImageMaps]:
        """Return the maps of images ``(3, h, w)`` of any sizes."""
        found = zip(trunk.look(pixels), pixels, strict=True)
        return [cls(trunk, maps, image.shape[2], image.shape[1]) for maps, image in found]

    def level(self, stride: int) -> Tensor:
        return self.maps[self.strides.index(stride)]

    @cached_property
    def head(self) -> Tensor:
        assert self.trunk.head is not None, "this trunk was built without its head"
        return self.trunk.head(self.maps[-1])

    @cached_property
    def branch(self) -> list[Source]:
        if self.trunk.config.tower:
            seen = self._tower[0]
            rows, columns = seen.shape[1:]
            return [(seen, torch.tensor([self.width / columns, self.height / rows] * 2, device=seen.device))]
        if self.trunk.branch is None:
            return []
        found = self.trunk.branch(self.level(BRANCH_STRIDES[0]))
        return list(zip(found, BRANCH_STRIDES, strict=True))

    @cached_property
    def summary(self) -> Tensor:
        return self._tower[1].flatten() if self._tower else self.maps[0].new_zeros(0)

    @staticmethod
    def pyramids(images: Sequence[ImageMaps], together: bool = False) -> list[tuple[Tensor, ...]]:
        """Return each image's maps ``(C, H_l, W_l)`` after the feature pyramid, if there is one.

        Images of one size share a forward pass, except on a CPU, whose caches do not hold the maps of several, unless
        ``together``.
        """
        missing = list({id(image): image for image in images if image._pyramid is None}.values())
        if missing:
            pyramid, maps = missing[0].trunk.pyramid, [image.maps for image in missing]
            at_once = 1 if maps[0][0].device.type == "cpu" and not together else None
            made = maps if pyramid is None else by_shape(pyramid, maps, at_once)
            for image, levels in zip(missing, made, strict=True):
                image._pyramid = levels
        return [image._pyramid or () for image in images]

    @staticmethod
    def rpns(images: Sequence[ImageMaps]) -> list[RpnOutput]:
        """Return the output of the localization layer for each image."""
        missing = list({id(image): image for image in images if image._rpn is None}.values())
        if missing:
            layer = missing[0].trunk.localization
            assert layer is not None, "this trunk was built without proposals"
            for image, rpn in zip(missing, layer(ImageMaps.pyramids(missing)), strict=True):
                image._rpn = rpn
        return [image._rpn for image in images if image._rpn is not None]


def feature_size(trunk: Trunk, levels: Sequence[int], layout: Mapping[str, int]) -> int:
    """Return the number of features of a region: the means of ``levels``, and the parts of ``layout``."""
    channels = dict(zip(trunk.backbone.strides, trunk.backbone.channels, strict=True))
    return sum(channels[stride] for stride in levels) + sum(layout.values())


def position_features(sources: Sequence[Source], stride: int, cells: int, width: float, height: float) -> Tensor:
    """Return the means ``(H, W, D)`` of maps at every position of that of ``stride``; others are resized to its size.

    The box of a position has the size of a cell when the image is divided into ``cells`` rows and columns.
    """
    rows, columns = next(m.shape[1:] for m, own in sources if own == stride)  # a tower, the last, has two strides
    size = rows, columns
    pooled = [functional.adaptive_avg_pool2d(features, size).permute(1, 2, 0) for features, _ in sources]
    y, x = torch.meshgrid(*((torch.arange(n, dtype=torch.float32) + 0.5) * stride for n in size), indexing="ij")
    sides = torch.tensor([width / cells, height / cells]).expand(x.numel(), 2)
    boxes = geometry.from_center(torch.cat((torch.stack((x.flatten(), y.flatten()), dim=1), sides), dim=1))
    places = geometry.place(geometry.clip(boxes, width, height), width, height).to(pooled[0])
    return torch.cat((*pooled, places.reshape(*size, -1)), dim=2)


def whole_image(image: ImageMaps) -> Tensor:
    """Return the box ``(1, 4)`` of a whole image, in pixels of the network's input."""
    return torch.tensor([[0.0, 0.0, image.width, image.height]], device=image.maps[0].device)


@torch.no_grad()
def propose_regions(images: Sequence[ImageMaps], settings: ProposalConfig) -> list[Tensor]:
    """Return each image's best proposals ``(B, 4)`` (``x1 y1 x2 y2``) in pixels of the network's input, best first.

    The trunk must have a localization layer.
    """
    found: list[Tensor] = []
    for image, rpn in zip(images, ImageMaps.rpns(images), strict=True):
        layer = image.trunk.localization
        assert layer is not None
        found.append(layer.box_coder.to_xyxy(propose(layer.box_coder, rpn, image.input_size, *settings.limits)[0]))
    return found


class RegionExtractor(nn.Module):
    """Compute each image's regions from its pixels, the whole image first; training may cache them.

    Args:
        trunk: only its backbone may be trained.
        config: for :meth:`ImageMaps.features`.
        proposals: options of the trunk's localization layer; None for the whole image only.
        settings: all that the regions depend on besides weights and pixels; each value has its own cache.
    """

    def __init__(self, trunk: Trunk, config: RegionConfig, proposals: ProposalConfig | None, settings: str):
        super().__init__()
        self.trunk, self.config, self.proposals, self._settings = trunk, config, proposals, settings

    @property
    def settings(self) -> str:
        """The settings and the digest of the trunk's tower; the name of the features in a cache."""
        return self._settings + self.trunk.tower_digest

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return ``features (1, R, D)`` and ``boxes (1, R, 4)``, in input pixels, for each image ``(3, h, w)``."""
        images = ImageMaps.look(self.trunk, pixels)
        found = [whole_image(image)[:0] for image in images]
        if self.proposals is not None:
            found = propose_regions(images, self.proposals)
        regions: list[tuple[Tensor, Tensor]] = []
        for image, more in zip(images, found, strict=True):
            boxes = torch.cat((whole_image(image), more.to(image.maps[0])))
            regions.append((image.features(boxes, self.config)[None], boxes[None]))
        return regions

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune or freeze the backbone. The parts that propose boxes are never trained here."""
        self.requires_grad_(False)
        self.trunk.backbone.set_trainable(trainable)

"""The maps of an image on a trunk, and features of regions: values of maps in a box, and where the box is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.configs.parts import BRANCH_STRIDES, LAST_CHANNELS, PLACE, ProposalConfig
from saywhere.engines.engine import RpnOutput
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.trunk import Trunk

Source = tuple[Tensor, Any]
"""A map ``(C, H, W)`` that features of regions are pooled from, and its stride; see :func:`saywhere.boxes.means`."""


class ImageMaps:
    """Maps of one image, of :meth:`saywhere.networks.vision.trunk.Trunk.look`, and what is made of them once.

    ``width`` and ``height`` are those of the network's input.
    """

    def __init__(self, trunk: Trunk, maps: Sequence[Tensor], width: int, height: int):
        levels = len(trunk.backbone.strides)
        self.trunk, self.maps, self.width, self.height = trunk, tuple(maps[:levels]), width, height
        self._tower = tuple(maps[levels:])
        self._pyramid: tuple[Tensor, ...] | None = None
        self._rpn: RpnOutput | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the network's input, in pixels."""
        return self.width, self.height

    @cached_property
    def head(self) -> Tensor:
        """The map ``(C, H, W)`` of the last layer before the classifier, at the coarsest stride."""
        assert self.trunk.head is not None, "this trunk was built without its head"
        return self.trunk.head(self.maps[-1])

    @cached_property
    def branch(self) -> list[Source]:
        """The maps of the second branch, finest first, or the tower's; none if the trunk has neither."""
        if self.trunk.config.tower:
            seen = self._tower[0]
            rows, columns = seen.shape[1:]
            return [(seen, torch.tensor([self.width / columns, self.height / rows] * 2, device=seen.device))]
        if self.trunk.branch is None:
            return []
        found = self.trunk.branch(self.maps[self.trunk.backbone.strides.index(BRANCH_STRIDES[0])])
        return list(zip(found, BRANCH_STRIDES, strict=True))

    @property
    def summary(self) -> Tensor:
        """The tower's embedding of the image ``(E,)``; of no numbers if there is no tower."""
        return self._tower[1].flatten() if self._tower else self.maps[0].new_zeros(0)

    def sources(self, levels: Sequence[int], head: bool, branch: bool = False) -> list[Source]:
        """Return the maps that features of regions are pooled from: of strides, :attr:`head` and :attr:`branch`."""
        strides = self.trunk.backbone.strides
        sources = [(self.maps[strides.index(stride)], stride) for stride in levels]
        sources += [(self.head, strides[-1])] if head else []
        return [*sources, *self.branch] if branch else sources

    @staticmethod
    def pyramids(images: Sequence[ImageMaps]) -> list[tuple[Tensor, ...]]:
        """Return the maps ``(C, H_l, W_l)`` after the feature pyramid, if there is one, of each image.

        Images of one size share a pass, but for a CPU, whose caches do not hold the maps of several.
        """
        missing = list({id(image): image for image in images if image._pyramid is None}.values())
        if missing:
            pyramid, maps = missing[0].trunk.pyramid, [image.maps for image in missing]
            at_once = 1 if maps[0][0].device.type == "cpu" else None
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
            assert layer is not None
            for image, rpn in zip(missing, layer(ImageMaps.pyramids(missing)), strict=True):
                image._rpn = rpn
        return [image._rpn for image in images if image._rpn is not None]


def feature_size(trunk: Trunk, levels: Sequence[int], head: bool, branch: bool = False) -> int:
    """Return the dimensions D of features pooled from the maps of :meth:`ImageMaps.sources`."""
    channels = dict(zip(trunk.backbone.strides, trunk.backbone.channels, strict=True))
    more = (LAST_CHANNELS if head else 0) + (sum(trunk.config.branch_channels) if branch else 0)
    return sum(channels[stride] for stride in levels) + more + PLACE


def mean_features(sources: Sequence[Source], boxes: Tensor, width: float, height: float) -> Tensor:
    """Return the means of maps over ``boxes (R, 4)`` and where these are: ``(R, D)``, see :func:`feature_size`."""
    means = [geometry.means(features, boxes, stride) for features, stride in sources]
    return torch.cat((*means, geometry.place(boxes, width, height)), dim=1)


def with_summary(image: ImageMaps, features: Tensor, boxes: Tensor) -> Tensor:
    """Return features ``(R, D)`` of boxes with the tower's embedding of the image behind those of the whole image.

    The others get zeros. Without a tower they are as they were.
    """
    if not len(image.summary):
        return features
    whole = (boxes == whole_image(image).to(boxes)).all(dim=1, keepdim=True)
    return torch.cat((features, whole * image.summary), dim=1)


def context_features(image: ImageMaps, boxes: Tensor, levels: Sequence[int], embeddings: Tensor) -> Tensor:
    """Return features of regions ``boxes (R, 4)`` in their image, see :func:`context_size`.

    They are those of :func:`mean_features`, the last layer among them; its means over the whole image; the dense
    captioner's ``embeddings (R, E)``. If the trunk has a second branch or a tower, its maps take the place of the last
    layer, behind the place of the region; the tower's embedding of the image comes behind the means.
    """
    branch = image.branch
    parts = [mean_features(image.sources(levels, not branch), boxes, *image.size)]
    parts += [geometry.means(features, boxes, stride) for features, stride in branch]
    whole = [features for features, _ in branch] or [image.head]
    parts += [features.mean(dim=(1, 2)).expand(len(boxes), -1) for features in whole]
    parts.append(image.summary.expand(len(boxes), -1))
    return torch.cat((*parts, embeddings), dim=1)


def context_size(trunk: Trunk, levels: Sequence[int], embed_dim: int) -> int:
    """Return the dimensions of :func:`context_features` with embeddings of ``embed_dim``."""
    config = trunk.config
    channels = sum(config.branch_channels) or LAST_CHANNELS
    return feature_size(trunk, levels, False) + 2 * channels + config.summary_channels + embed_dim


def position_features(sources: Sequence[Source], cells: int, width: float, height: float) -> tuple[Tensor, int]:
    """Return features of every position of the coarsest map, as :func:`mean_features`; finer maps are averaged there.

    A position's place is that of a box as large as a cell of a grid of ``cells`` rows and columns over the image.

    Returns:
        ``(H, W, D)``; and the stride of that map.
    """
    stride = max(stride for _, stride in sources)
    size = next((features.shape[1], features.shape[2]) for features, its in sources if its == stride)
    pooled = [functional.adaptive_avg_pool2d(features, size).permute(1, 2, 0) for features, _ in sources]
    y, x = torch.meshgrid(*((torch.arange(n, dtype=torch.float32) + 0.5) * stride for n in size), indexing="ij")
    sides = torch.tensor([width / cells, height / cells]).expand(x.numel(), 2)
    boxes = geometry.from_center(torch.cat((torch.stack((x.flatten(), y.flatten()), dim=1), sides), dim=1))
    places = geometry.place(geometry.clip(boxes, width, height), width, height).to(pooled[0])
    return torch.cat((*pooled, places.reshape(*size, -1)), dim=2), stride


def whole_image(image: ImageMaps) -> Tensor:
    """Return the box ``(1, 4)`` of all of an image, in pixels of the network's input."""
    return torch.tensor([[0.0, 0.0, image.width, image.height]], device=image.maps[0].device)


@torch.no_grad()
def propose_regions(images: Sequence[ImageMaps], settings: ProposalConfig) -> list[Tensor]:
    """Return the best proposals ``(B, 4)`` ``x1 y1 x2 y2`` of images in pixels of the network's input, best first.

    The trunk of the images has a localization layer.
    """
    limits = settings.nms_iou, settings.pre_nms_top_n, settings.post_nms_top_n
    found: list[Tensor] = []
    for image, rpn in zip(images, ImageMaps.rpns(images), strict=True):
        layer = image.trunk.localization
        assert layer is not None
        found.append(layer.box_coder.to_xyxy(propose(layer.box_coder, rpn, image.size, *limits)[0]))
    return found


class RegionExtractor(nn.Module):
    """Turn pixels into the regions of each image, the whole image first: what training may cache.

    Args:
        trunk: its backbone may be trained, and nothing else of it.
        levels, head, branch: of :meth:`ImageMaps.sources`.
        proposals: of the trunk's localization layer; None for the whole image alone.
        settings: what the regions depend on beside the weights and the pixels; a cache of others is another cache.
    """

    def __init__(
        self,
        trunk: Trunk,
        levels: Sequence[int],
        head: bool,
        branch: bool,
        proposals: ProposalConfig | None,
        settings: str,
    ):
        super().__init__()
        self.trunk, self.levels, self.head, self.branch = trunk, tuple(levels), head, branch
        self.proposals, self._settings = proposals, settings

    @property
    def settings(self) -> str:
        """The settings, and which tower the trunk has; the name of the features in a cache."""
        return self._settings + self.trunk.tower_digest

    def forward(self, pixels: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """Return ``features (1, R, D)`` and ``boxes (1, R, 4)``, in pixels of the input, of images ``(3, h, w)``."""
        maps = self.trunk.look(pixels)
        images = [ImageMaps(self.trunk, m, x.shape[2], x.shape[1]) for m, x in zip(maps, pixels, strict=True)]
        found = [whole_image(image)[:0] for image in images]
        if self.proposals is not None:
            found = propose_regions(images, self.proposals)
        regions: list[tuple[Tensor, Tensor]] = []
        for image, more in zip(images, found, strict=True):
            boxes = torch.cat((whole_image(image), more.to(image.maps[0])))
            features = mean_features(image.sources(self.levels, self.head, self.branch), boxes, *image.size)
            regions.append((with_summary(image, features, boxes)[None], boxes[None]))
        return regions

    def set_trainable(self, trainable: bool) -> None:
        """Fine-tune the backbone, or freeze it; what proposes the boxes is never trained here."""
        self.requires_grad_(False)
        self.trunk.backbone.set_trainable(trainable)

"""The maps of one image on a trunk, and what the trunk's other parts make of them."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from saywhere.configs.parts import BRANCH_STRIDES
from saywhere.engines.engine import RpnOutput
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.trunk import Trunk

Source = tuple[Tensor, int]
"""A map ``(C, H, W)`` that features of regions are pooled from, and its stride."""


class ImageMaps:
    """The backbone's maps of one image; what else the trunk computes of them is computed once, when needed.

    Args:
        trunk: that made the maps.
        maps: of the backbone, ``(C_l, H_l, W_l)``, finest first.
        width, height: of the network's input, in pixels.
    """

    def __init__(self, trunk: Trunk, maps: Sequence[Tensor], width: int, height: int):
        self.trunk, self.maps, self.width, self.height = trunk, tuple(maps), width, height
        self._head: Tensor | None = None
        self._branch: tuple[Tensor, Tensor] | None = None
        self._pyramid: tuple[Tensor, ...] | None = None
        self._rpn: RpnOutput | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the network's input, in pixels."""
        return self.width, self.height

    @property
    def head(self) -> Tensor:
        """The map ``(C, H, W)`` of the last layer before the classifier, at the coarsest stride."""
        found = self._head
        if found is None:
            assert self.trunk.head is not None, "this trunk was built without its head"
            found = self._head = self.trunk.head(self.maps[-1])
        return found

    @property
    def branch(self) -> list[Source]:
        """The maps of the second branch, finest first; none if the trunk has no such branch."""
        if self.trunk.branch is None:
            return []
        found = self._branch
        if found is None:
            found = self._branch = self.trunk.branch(self.maps[self.trunk.backbone.strides.index(BRANCH_STRIDES[0])])
        return list(zip(found, BRANCH_STRIDES, strict=True))

    def sources(self, levels: Sequence[int], head: bool, branch: bool = False) -> list[Source]:
        """Return the maps that features of regions are pooled from.

        Args:
            levels: strides of the backbone's maps to take.
            head: whether to take that of :attr:`head` too, behind them.
            branch: whether to take those of :attr:`branch` too; they come last.
        """
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
            made = maps if pyramid is None else by_shape(pyramid, maps, _at_once(missing))
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


def _at_once(images: Sequence[ImageMaps]) -> int | None:
    return 1 if images[0].maps[0].device.type == "cpu" else None

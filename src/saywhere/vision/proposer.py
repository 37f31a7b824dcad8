"""Proposals of a trained localization layer as areas of attention, beside the paper's own kinds (section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saywhere.vision.backbones import Pyramid, by_shape
from saywhere.vision.conventions import Conventions
from saywhere.vision.localization import AnchorGenerator, LocalizationLayer, RpnHead

Mapped = tuple[tuple[Tensor, ...], tuple[int, int]]
"""A picture's maps ``(C_l, H_l, W_l)``, finest first, and the width and height of the network's input."""


class Proposer(nn.Module):
    """The best boxes of DenseCap's localization layer; nothing of it is trained.

    Args:
        channels, strides: of the backbone's maps.
        pyramid: channels of the feature pyramid; 0 for none, if there is one map.
        anchors: k shapes (w, h) in input pixels for each stride.
        hidden: of the layer's convolution.
        nms, before_nms: see :class:`saywhere.vision.localization.LocalizationLayer`.
        limit: boxes a picture. The attribute may be changed at any time: more or fewer areas in use than in training.
    """

    def __init__(
        self,
        channels: Sequence[int],
        strides: Sequence[int],
        pyramid: int,
        anchors: Sequence[Sequence[tuple[float, float]]],
        hidden: int,
        nms: float,
        before_nms: int,
        limit: int,
    ):
        super().__init__()
        self.pyramid = Pyramid(channels, pyramid) if pyramid else None
        generator = AnchorGenerator(anchors, strides)
        head = RpnHead(pyramid or channels[0], hidden, generator.per_cell, two_way=False)
        self.localization = LocalizationLayer(head, generator, Conventions(), nms, before_nms)
        self.limit = limit
        self.requires_grad_(False)

    @torch.no_grad()
    def forward(self, pictures: Sequence[Mapped]) -> list[Tensor]:
        """Boxes ``(R, 4)`` of each picture in pixels of the network's input, best first."""
        maps = [levels for levels, _ in pictures]
        maps = maps if self.pyramid is None else by_shape(self.pyramid, maps)
        pairs = zip(self.localization(maps), pictures, strict=True)
        return [self.localization.propose(rpn, *size, self.limit)[0] for rpn, (_, size) in pairs]

"""Proposals of a trained localization layer as areas of attention, beside the paper's own kinds (section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saywhere.vision.backbones import Pyramid
from saywhere.vision.conventions import Conventions
from saywhere.vision.localization import AnchorGenerator, LocalizationLayer, RpnHead


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
    def forward(self, maps: Sequence[Tensor], width: float, height: float) -> Tensor:
        """Boxes ``(R, 4)`` in pixels of the network's input, best first; maps ``(C_l, H_l, W_l)`` of one picture."""
        levels = tuple(maps)
        if self.pyramid is not None:
            levels = tuple(level[0] for level in self.pyramid(*(level[None] for level in levels)))
        (rpn,) = self.localization([levels])
        return self.localization.propose(rpn, width, height, self.limit)[0]

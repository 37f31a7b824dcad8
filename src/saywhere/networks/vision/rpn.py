"""DenseCap's localization layer (section 3.1.2): anchors, and a score and offsets of each."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.boxes import BoxCoder
from saywhere.engines.engine import RpnOutput
from saywhere.networks.vision.backbones import by_shape


class AnchorGenerator:
    """Places k anchors of given shapes on every cell of every level.

    Args:
        shapes: for each level its k pairs (w, h) in pixels of the network's input.
        strides: of each level.
        box_coder: format and order of the anchors.
    """

    def __init__(
        self,
        shapes: Sequence[Sequence[tuple[float, float]]],
        strides: Sequence[int],
        box_coder: BoxCoder | None = None,
    ):
        if len(shapes) != len(strides) or len({len(level) for level in shapes}) != 1:
            raise ValueError("anchors need the same number of shapes on every level")
        self.shapes = tuple(tuple((float(w), float(h)) for w, h in level) for level in shapes)
        self.strides = tuple(strides)
        self.per_cell = len(self.shapes[0])
        self.box_coder = box_coder or BoxCoder()

    def __call__(self, maps: Sequence[Tensor]) -> Tensor:
        """Return the anchors ``(A, 4)`` of the maps ``(C, H_l, W_l)`` of one image: by level, row, column, shape.

        They are float32 for maps in half precision, which could not hold them.
        """
        dtype = np.float64 if maps[0].dtype == torch.float64 else np.float32
        grids = [
            self.box_coder.anchors(shapes, level.shape[-2], level.shape[-1], stride, dtype)
            for shapes, level, stride in zip(self.shapes, maps, self.strides, strict=True)
        ]
        return torch.from_numpy(np.concatenate(grids)).to(maps[0].device)


class RpnHead(nn.Module):
    """A 3x3 convolution, ReLU, then scores and offsets of k anchors by 1x1 convolutions; shared by all levels.

    Offsets start at zero, so that the first proposals are the anchors. With ``two_way`` an anchor has two logits, for
    "region" and "background", whose difference is its score.

    Args:
        channels: of the maps.
        hidden_size: filters of the 3x3 convolution.
        per_cell: k.
        two_way: two logits an anchor instead of one.
        box_coder: order of the anchors.
    """

    def __init__(
        self, channels: int, hidden_size: int, per_cell: int, two_way: bool, box_coder: BoxCoder | None = None
    ):
        super().__init__()
        self.per_cell, self.box_coder = per_cell, box_coder or BoxCoder()
        self.conv = nn.Conv2d(channels, hidden_size, 3, padding=1)
        self.score = nn.Conv2d(hidden_size, per_cell * (2 if two_way else 1), 1)
        self.offset = nn.Conv2d(hidden_size, per_cell * 4, 1)
        self.two_way = two_way
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                parameter.zero_()
                if name in ("conv.weight", "score.weight"):
                    parameter.normal_(std=0.01)

    def forward(self, *maps: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, A)`` and offsets ``(B, A, 4)`` of maps ``(B, C, H_l, W_l)``, in the anchors' order."""
        scores, offsets = zip(*(self.score_and_offset(features) for features in maps), strict=True)
        both = torch.cat(scores, dim=1)
        return both[..., 0] - both[..., 1] if self.two_way else both[..., 0], torch.cat(offsets, dim=1)

    def score_and_offset(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits ``(B, A, 1 or 2)`` and offsets ``(B, A, 4)`` of the anchors of a map ``(B, C, H, W)``."""
        hidden = torch.relu(self.conv(features))
        rows, k = self.box_coder.rows, self.per_cell
        return rows(self.score(hidden), k), rows(self.offset(hidden), k)


class LocalizationLayer(nn.Module):
    """Scores the anchors of feature maps; :func:`saywhere.boxes.propose` makes proposals of that.

    Args:
        head: scores and offsets of every anchor.
        anchors: see :class:`AnchorGenerator`.
        box_coder: of boxes, the same in all parts.
    """

    def __init__(self, head: RpnHead, anchors: AnchorGenerator, box_coder: BoxCoder):
        super().__init__()
        self.head, self.anchors, self.box_coder = head, anchors, box_coder

    def forward(self, images: Sequence[tuple[Tensor, ...]]) -> list[RpnOutput]:
        """Return scores and offsets of every anchor, for images of any sizes given by their maps."""
        scored = by_shape(self.head, images)
        return [RpnOutput(self.anchors(maps), *out) for maps, out in zip(images, scored, strict=True)]

    def boxes(self, rpn: RpnOutput) -> Tensor:
        """Return the regressed box of every anchor ``(A, 4)``, not clipped, in the box coder's format."""
        return self.box_coder.decode(rpn.offsets, rpn.anchors)

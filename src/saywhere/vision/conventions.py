"""How a network writes, places, compares and cuts its boxes.

The published program does all of this in ways of its own (:mod:`saywhere.original.conventions`); the network does not
see which it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.vision.sampling import Pooling, pool_pyramid

MAX_LOG_SCALE = 4.135  # log(1000 / 16): a proposal is at most this much larger than its anchor


@dataclass(frozen=True)
class Conventions:
    """Ours: ``x1 y1 x2 y2`` from 0, the width is ``x2 - x1``; the boxes of all methods are in the network's format.

    Attributes:
        max_log_scale: bound on the growth of a box by its offsets; None for none.
    """

    max_log_scale: float | None = MAX_LOG_SCALE

    def from_ours(self, boxes: Tensor) -> Tensor:
        """Boxes ``(N, 4)`` ``x1 y1 x2 y2`` in the network's format."""
        return boxes

    def to_ours(self, boxes: Tensor) -> Tensor:
        """The inverse of :meth:`from_ours`."""
        return boxes

    def encode(self, boxes: Tensor, references: Tensor) -> Tensor:
        """Offsets ``(N, 4)`` from ``references`` to ``boxes`` (Eqs. 1 and 2)."""
        return geometry.encode(boxes, references)

    def decode(self, offsets: Tensor, references: Tensor) -> Tensor:
        """Boxes ``(N, 4)`` at ``offsets`` from ``references``."""
        return geometry.decode(offsets, references, self.max_log_scale)

    def anchors(
        self, shapes: Sequence[tuple[float, float]], height: int, width: int, stride: int, dtype: torch.dtype
    ) -> Tensor:
        """Anchors ``(A, 4)`` of the k ``shapes`` on all cells of a map, in the order of :meth:`rows`."""
        return geometry.anchor_grid(shapes, height, width, stride, dtype)

    def rows(self, features: Tensor, k: int) -> Tensor:
        """``(B, k * D, H, W)`` of a convolution as ``(B, A, D)``: by row, column, shape."""
        batch, channels = features.shape[:2]
        return features.permute(0, 2, 3, 1).reshape(batch, -1, channels // k)

    def iou(self, boxes: Tensor, truths: Tensor) -> Tensor:
        """IoU ``(A, M)`` by which boxes are drawn for training."""
        return geometry.iou(boxes, truths)

    def inside(self, boxes: Tensor, width: float, height: float) -> Tensor:
        """Mask ``(A,)`` of the boxes that do not leave the picture."""
        limits = boxes.new_tensor([width, height])
        return (boxes[:, :2] >= 0).all(dim=1) & (boxes[:, 2:] <= limits).all(dim=1)

    def pick(self, values: Tensor, rows: Tensor) -> Tensor:
        """``values[rows]``, of the boxes drawn for training."""
        return values[rows]

    def clip(self, boxes: Tensor, width: float, height: float) -> tuple[Tensor, Tensor]:
        """Boxes cut to the picture, and a mask of those that are still a pixel wide and high."""
        cut = geometry.clip(boxes, width, height)
        return cut, ((cut[:, 2:] - cut[:, :2]) >= 1).all(dim=1)

    def suppress_proposals(self, boxes: Tensor, logits: Tensor, overlap: float, limit: int) -> Tensor:
        """Indices of the proposals that survive suppression, best first, at most ``limit``."""
        return geometry.nms(boxes, logits, overlap, limit)

    def suppress_final(self, boxes: Tensor, clipped: Tensor, logits: Tensor, overlap: float) -> Tensor:
        """Indices of the final boxes that survive suppression, best first.

        Args:
            boxes: in pixels of the network's input, not clipped.
            clipped: the same as ours, in pixels of the picture and clipped to it.
            logits: second scores.
            overlap: largest IoU with a better box.
        """
        return geometry.nms(clipped, logits, overlap)

    def pool(
        self,
        maps: tuple[Tensor, ...],
        strides: tuple[int, ...],
        boxes: Tensor,
        size: int,
        how: Pooling,
        picture: tuple[int, int],
    ) -> Tensor:
        """Features ``(N, C, size, size)`` of boxes, see :func:`pool_pyramid`; ``picture`` is the input's (w, h)."""
        return pool_pyramid(maps, strides, boxes, size, how)

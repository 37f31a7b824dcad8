"""Features of fixed size from boxes of any size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from saywhere.configs.densecap import Pooling
from saywhere.ops.bilinear import bilinear

CELLS = 8
"""A box goes to the next coarser level when its side is this many strides of that level."""


def roi_align(features: Tensor, boxes: Tensor, size: int, stride: float) -> Tensor:
    """Return Mask R-CNN's RoIAlign with four samples a cell, shaped as :func:`saywhere.ops.bilinear.bilinear`.

    It is not differentiable in boxes.
    """
    from torchvision.ops import roi_align as torchvision_roi_align

    boxes = boxes.detach().to(features.dtype)
    return torchvision_roi_align(features[None], [boxes], size, 1 / stride, sampling_ratio=2, aligned=True)


def pool(features: Tensor, boxes: Tensor, size: int, stride: float, how: Pooling) -> Tensor:
    """Pool by the name of the method: ``bilinear`` or ``roi_align``."""
    return {"bilinear": bilinear, "roi_align": roi_align}[how](features, boxes, size, stride)


def pool_pyramid(maps: Sequence[Tensor], strides: Sequence[int], boxes: Tensor, size: int, how: Pooling) -> Tensor:
    """Pool each box from the level that suits its size: ``(N, C, size, size)``.

    A box goes to the coarsest level whose stride is at most an eighth of the square root of its area (the finest level
    for smaller boxes), so that the cells it covers are about as many as the points taken.

    Args:
        maps: one ``(C, H_l, W_l)`` a level, finest first.
        strides: input pixels per cell of each level.
        boxes: ``(N, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input.
        size: points per side.
        how: ``"bilinear"`` or ``"roi_align"``.
    """
    if len(maps) == 1:
        return pool(maps[0], boxes, size, strides[0], how)
    sides = (boxes.detach()[:, 2:] - boxes.detach()[:, :2]).clamp(min=0).prod(dim=1).sqrt()
    level = sum((sides >= CELLS * s).long() for s in strides[1:]) + torch.zeros_like(sides, dtype=torch.long)
    parts, order = [], []
    for i, (features, stride) in enumerate(zip(maps, strides, strict=True)):
        rows = (level == i).nonzero().flatten()
        parts.append(pool(features, boxes[rows], size, stride, how))
        order.append(rows)
    return torch.cat(parts)[torch.cat(order).argsort()]

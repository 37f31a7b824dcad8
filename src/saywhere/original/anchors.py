"""Anchors and the regressed boxes of every cell, in the program's order: shape, row, column."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from saywhere import boxes as ours
from saywhere.original.boxes import apply_box_transform


def field_center(stride: float) -> float:
    """Return where the first cell of a map stands: 8.5 for stride 16. Ours is 8: pixel 1 is centred at 0.5."""
    return stride / 2 + 0.5


def feature_map_size(height: int, width: int, halvings: int = 4) -> tuple[int, int]:
    """Return rows and columns of the map after VGG-16's poolings, which round up: 540 x 720 gives 34 x 45."""
    return -(-height // 2**halvings), -(-width // 2**halvings)


def make_anchors(
    shapes: Sequence[tuple[float, float]],
    height: int,
    width: int,
    stride: tuple[float, float] = (16, 16),
    first: tuple[float, float] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Return anchors ``(k * height * width, 4)`` as ``xcycwh``, ordered by shape, row, column.

    Ours are ordered by row, column, shape.

    Args:
        shapes: k pairs (w, h) in pixels.
        height, width: cells of the map.
        stride: pixels per cell, horizontally and vertically.
        first: the 1-based centre (x, y) of the first cell; :func:`field_center` of ``stride`` if not given.
        dtype: of the result.
    """
    first = first or (field_center(stride[0]), field_center(stride[1]))
    kind = np.float64 if dtype == torch.float64 else np.float32
    cells = torch.from_numpy(ours.anchor_grid(shapes, height, width, 1, kind)).to(dtype)
    cells = ours.to_center(cells)  # centres at 0.5, 1.5, ...
    cells = cells.reshape(height, width, len(shapes), 4).permute(2, 0, 1, 3).reshape(-1, 4)
    centers = (cells[:, :2] - 0.5) * cells.new_tensor(stride) + cells.new_tensor(first)
    return torch.cat((centers, cells[:, 2:]), dim=1)


def reshape_box_features(features: Tensor, k: int) -> Tensor:
    """Return ``(N, k * D, H, W)`` of a convolution, shape by shape, as rows ``(N, k * H * W, D)``."""
    n, channels, height, width = features.shape
    rows = features.reshape(n, k, channels // k, height, width).permute(0, 1, 3, 4, 2)
    return rows.reshape(n, k * height * width, channels // k)


def make_boxes(
    offsets: Tensor,
    shapes: Sequence[tuple[float, float]],
    stride: tuple[float, float] = (16, 16),
    first: tuple[float, float] | None = None,
) -> Tensor:
    """Return boxes ``(N, k * H * W, 4)`` as ``xcycwh`` of the box convolution's output ``(N, 4 * k, H, W)``."""
    anchors = make_anchors(shapes, *offsets.shape[-2:], stride=stride, first=first, dtype=offsets.dtype)
    return apply_box_transform(anchors.to(offsets.device), reshape_box_features(offsets, len(shapes)))

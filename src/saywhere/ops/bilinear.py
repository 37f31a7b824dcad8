"""Bilinear sampling of feature maps, differentiable in features and places."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def bilinear(features: Tensor, boxes: Tensor, size: int | tuple[int, int], stride: float) -> Tensor:
    """Sample a grid in each box: DenseCap's Eq. 3, differentiable in features and boxes.

    The outer grid points lie on the edges of the box and features outside the image count as zero, as in the original
    program. Cell (i, j) of ``features`` stands at ``((j + .5) * stride, (i + .5) * stride)`` in input pixels.

    Args:
        features: ``(C, H, W)``, the map of one image.
        boxes: ``(N, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input.
        size: points per side, or (rows, columns).
        stride: input pixels per cell.

    Returns:
        ``(N, C, rows, columns)``, rows top to bottom.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    x1, y1, x2, y2 = (boxes / stride - 0.5).unbind(-1)  # in cells, the first cell's centre at 0
    x = x1[:, None] + (x2 - x1)[:, None] * torch.linspace(0, 1, columns, dtype=boxes.dtype, device=boxes.device)
    y = y1[:, None] + (y2 - y1)[:, None] * torch.linspace(0, 1, rows, dtype=boxes.dtype, device=boxes.device)
    return sample_points(features, x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns))


def sample_points(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Sample ``features (C, H, W)`` at points ``x, y (N, h, w)`` in cells: ``(N, C, h, w)``; zero outside.

    All boxes share one copy of the map: their grids are stacked along the rows of one large grid. Maps in half
    precision are sampled in the precision of the points, whose coordinates it could not hold.
    """
    channels, height, width = features.shape
    n, h, w = x.shape
    # grid_sample counts cell centres with corners at -1 - 1/W; align_corners=False maps cell c to (2c + 1)/W - 1
    grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    dtype = torch.promote_types(features.dtype, x.dtype)
    maps, grid = features[None].to(dtype), grid.reshape(1, n * h, w, 2).to(dtype)
    values = functional.grid_sample(maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return values.to(features.dtype).reshape(channels, n, h, w).transpose(0, 1)

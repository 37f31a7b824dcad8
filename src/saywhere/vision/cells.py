"""The simplest areas of attention: the cells of a grid (Areas of Attention, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from saywhere.vision.areas import AreaFeatures, place


def cell_features(
    features: AreaFeatures, maps: Sequence[Tensor], cells: int, width: float, height: float
) -> tuple[Tensor, Tensor]:
    """Means of a picture's maps over the whole of it and over the cells of a grid.

    Args:
        features: which maps, and the network's last layer.
        maps: ``(C_l, H_l, W_l)``, finest first.
        cells: rows and columns of the grid; 0 for none.
        width, height: of the network's input.

    Returns:
        ``(1 + cells ** 2, D)`` features, those of the whole picture first, then the grid's row by row; and the boxes
        ``(1 + cells ** 2, 4)`` in pixels of the network's input.
    """
    sources = [maps[i] for i in features.levels]
    if features.head is not None:
        sources.append(features.head(maps[-1]))
    rows = [_means(source, cells) for source in sources]
    boxes = cell_boxes(cells, width, height).to(rows[0])
    return torch.cat((*rows, place(boxes, width, height)), dim=1), boxes


def _means(source: Tensor, cells: int) -> Tensor:
    """Means ``(1 + cells ** 2, C)`` of a map ``(C, H, W)`` over all of it and over each cell."""
    whole = source.mean(dim=(1, 2))[None]
    if cells == 0:
        return whole
    return torch.cat((whole, functional.adaptive_avg_pool2d(source, cells).flatten(1).T))


def cell_boxes(cells: int, width: float, height: float) -> Tensor:
    """The box of a ``width x height`` picture, and those of the ``cells`` x ``cells`` grid in it, row by row."""
    boxes = [(0.0, 0.0, width, height)]
    for row in range(cells):
        for column in range(cells):
            x1, y1, x2, y2 = column / cells, row / cells, (column + 1) / cells, (row + 1) / cells
            boxes.append((x1 * width, y1 * height, x2 * width, y2 * height))
    return torch.tensor(boxes)

"""Regions on a grid: cells of an image, and positions of an activation map (Areas of Attention, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.engines.engine import Source


def cell_features(sources: Sequence[Source], cells: int, width: float, height: float) -> tuple[Tensor, Tensor]:
    """Return the averages of an image's maps over the whole image and over the cells of a grid, row by row.

    ``cells`` is the number of rows and columns; 0 for none.

    Returns:
        Features ``(1 + cells ** 2, D)``, and boxes ``(1 + cells ** 2, 4)`` in pixels of the network's input.
    """
    rows = [_means(features, cells) for features, _ in sources]
    boxes = cell_boxes(cells, width, height).to(rows[0])
    return torch.cat((*rows, geometry.place(boxes, width, height)), dim=1), boxes


def _means(features: Tensor, cells: int) -> Tensor:
    """Return the averages ``(1 + cells ** 2, C)`` of a map ``(C, H, W)`` over all of it and over each cell."""
    whole = features.mean(dim=(1, 2))[None]
    if cells == 0:
        return whole
    return torch.cat((whole, functional.adaptive_avg_pool2d(features, cells).flatten(1).T))


def cell_boxes(cells: int, width: float, height: float) -> Tensor:
    """Return the box of a ``width x height`` image, then those of its ``cells`` x ``cells`` grid, row by row."""
    boxes = [(0.0, 0.0, width, height)]
    for row in range(cells):
        for column in range(cells):
            x1, y1, x2, y2 = column / cells, row / cells, (column + 1) / cells, (row + 1) / cells
            boxes.append((x1 * width, y1 * height, x2 * width, y2 * height))
    return torch.tensor(boxes)


def bins(length: int, wanted: int) -> list[tuple[int, int]]:
    """Divide ``length`` cells evenly into ``wanted`` adjacent groups (first, last + 1), without gaps.

    Neighbouring groups share a cell if ``wanted`` does not divide ``length``, which is the maximum.
    """
    n = min(wanted, length)
    return [(i * length // n, -((i + 1) * length // -n)) for i in range(n)]


def pick(height: int, width: int, cells: int, sample: bool, generator: torch.Generator | None = None) -> Tensor:
    """Return one position ``(row, column)`` from each of the :func:`bins` of a map: ``(R, 2)`` long, row by row.

    It is the middle one, or with ``sample`` a random one. Of two middle ones it is the first, so that ``cells`` of half
    the map's size take every second position.
    """
    rows, columns = bins(height, cells), bins(width, cells)
    edges = torch.tensor([(top, left, bottom, right) for top, bottom in rows for left, right in columns])
    if sample:
        share = torch.rand(len(edges), 2, generator=generator)
        return edges[:, :2] + (share * (edges[:, 2:] - edges[:, :2])).long()
    return (edges[:, :2] + edges[:, 2:] - 1) // 2

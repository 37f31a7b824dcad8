"""Features of fixed size from boxes of any size on a pyramid's maps."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np


class Pyramid:
    """Maps of one image as one table of cells, all levels one after the other.

    Args:
        maps: ``(C, H_l, W_l)`` a level, finest first.
        strides: input pixels per cell of each level, ascending.
    """

    def __init__(self, maps: Sequence[np.ndarray], strides: Sequence[int]) -> None:
        self.strides = np.array(strides, np.float32)
        self.heights = np.array([level.shape[1] for level in maps])
        self.widths = np.array([level.shape[2] for level in maps])
        self.starts = np.cumsum([0, *(self.heights * self.widths)[:-1]])
        self.cells = np.empty((int((self.heights * self.widths).sum()), len(maps[0])), np.float32)
        for level, start in zip(maps, self.starts.tolist(), strict=True):  # :meth:`pool` takes whole cells
            rows = level.reshape(len(level), -1).T
            self.cells[start : start + len(rows)] = rows

    def pool(self, boxes: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        """Sample a grid in each box, at the level that suits its size: ``(N, size * size, C)``, row by row.

        DenseCap's Eq. 3, as :func:`saywhere.networks.densecap.build.pool_pyramid` computes it: the outer grid
        points lie on the edges of the box, features outside the image count as zero, and a box goes to the coarsest
        level whose stride is at most an eighth of the square root of its area. All levels are sampled together: a
        level without boxes needs no case of its own.

        Args:
            boxes: ``(N, 4)`` ``x1 y1 x2 y2`` in input pixels; N may be 0.
            size: points a side.
            out: array of the result, if there is one already.
        """
        sides = np.sqrt(np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1))
        level = (sides[:, None] >= 8 * self.strides[None, 1:]).sum(axis=1)
        places = boxes / self.strides[level, None] - np.float32(0.5)  # in cells, the first cell's centre at 0
        steps = np.linspace(0, 1, size, dtype=np.float32)
        x = places[:, 0:1] + (places[:, 2:3] - places[:, 0:1]) * steps
        y = places[:, 1:2] + (places[:, 3:4] - places[:, 1:2]) * steps
        columns, across = _neighbours(x, self.widths[level])
        rows, down = _neighbours(y, self.heights[level])
        starts, widths = self.starts[level, None, None], self.widths[level, None, None]
        shape = (len(boxes), size * size, self.cells.shape[1])
        pooled = np.empty(shape, np.float32) if out is None else out
        around = pooled.reshape(len(boxes), size, size, self.cells.shape[1])
        values = np.empty_like(around)
        corners = product(zip(rows, down, strict=True), zip(columns, across, strict=True))
        for number, ((row, high), (column, wide)) in enumerate(corners):
            cells = starts + row[:, :, None] * widths + column[:, None]
            taken = values if number else around
            np.take(self.cells, cells, axis=0, out=taken, mode="clip")  # another mode would copy values
            taken *= (high[:, :, None] * wide[:, None])[..., None]
            if number:
                around += values
        return pooled


def _neighbours(place: np.ndarray, length: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the two cells beside each place ``(N, size)``, and their weights: 0 for those that do not exist."""
    low = np.floor(place)
    share = place - low
    cells, weights = [], []
    for cell, weight in ((low, 1 - share), (low + 1, share)):
        exists = (cell >= 0) & (cell < length[:, None])
        cells.append(np.where(exists, cell, 0).astype(np.int64))
        weights.append(np.where(exists, weight, np.float32(0)).astype(np.float32))
    return cells, weights


def box_means(features: np.ndarray, boxes: np.ndarray, stride: float) -> np.ndarray:
    """Return the mean of a map over each box: ``(R, C)``; a cell counts by the share of it that is inside.

    Args:
        features: ``(C, H, W)``.
        boxes: ``(R, 4)`` in pixels of the network's input. A box outside the map, or without area, has mean 0.
        stride: input pixels per cell.
    """
    places = boxes / np.float32(stride)
    across = _shares(places[:, 0], places[:, 2], features.shape[2])
    down = _shares(places[:, 1], places[:, 3], features.shape[1])
    shares = (down[:, :, None] * across[:, None, :]).reshape(len(boxes), down.shape[1] * across.shape[1])
    return shares @ features.reshape(len(features), -1).T


def _shares(low: np.ndarray, high: np.ndarray, cells: int) -> np.ndarray:
    """Return the share of each interval ``(R,)`` that lies in each cell: ``(R, cells)``, rows of sum 1 or 0."""
    left = np.arange(cells, dtype=np.float32)
    lengths = np.maximum(np.minimum(high[:, None], left + 1) - np.maximum(low[:, None], left), 0)
    total = lengths.sum(axis=1, keepdims=True)
    return np.divide(lengths, total, out=np.zeros_like(lengths), where=total > 0)


def grid_means(features: np.ndarray, cells: int) -> np.ndarray:
    """Return the means of a map ``(C, H, W)`` over each cell of a grid, row by row: ``(cells * cells, C)``.

    A cell of the grid takes all cells of the map that it touches, as adaptive average pooling does.
    """
    down, across = (_windows(length, cells) for length in features.shape[1:])
    shares = (down[:, None, :, None] * across[None, :, None, :]).reshape(cells * cells, -1)
    return shares @ features.reshape(len(features), -1).T


def _windows(length: int, cells: int) -> np.ndarray:
    """Return the windows ``(cells, length)`` of adaptive average pooling, rows of sum 1."""
    start, place = np.arange(cells) * length // cells, np.arange(length)
    stop = -(-(np.arange(cells) + 1) * length // cells)
    inside = (place >= start[:, None]) & (place < stop[:, None])
    return inside.astype(np.float32) / (stop - start)[:, None].astype(np.float32)


def grid_boxes(cells: int, width: float, height: float) -> np.ndarray:
    """Return the boxes ``(cells * cells, 4)`` of a grid on an image of that size, row by row."""
    x, y = (np.arange(cells + 1) / cells * side for side in (width, height))
    rows, columns = (index.reshape(-1) for index in np.indices((cells, cells)))
    return np.stack((x[columns], y[rows], x[columns + 1], y[rows + 1]), axis=1).astype(np.float32)


def place(boxes: np.ndarray, width: float, height: float) -> np.ndarray:
    """Return where boxes ``(R, 4)`` are in their image: ``(R, 5)``, corners and area as shares of it."""
    shares = boxes / np.array([width, height, width, height], np.float32)
    area = np.maximum(shares[:, 2:] - shares[:, :2], 0).prod(axis=1, keepdims=True)
    return np.concatenate((shares, area), axis=1)

"""The graph's maps of one image, and fixed-size features pooled from them for boxes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import product

import numpy as np

from saywhere import boxes as geometry
from saywhere.configs.parts import BRANCH_STRIDES, SUMMARY, TOWER, RegionConfig
from saywhere.engines.engine import RegionMaps, Source
from saywhere.errors import UserError
from saywhere.options import dataclass

BOXES = 16
"""Number of boxes pooled at a time, so that samples stay in the processor cache."""


class Pyramid:
    """Feature pyramid of one image as a single table of cells, level after level.

    Args:
        maps: ``(C, H_l, W_l)`` per level, finest first.
        strides: input pixels per cell of each level, ascending.
    """

    def __init__(self, maps: Sequence[np.ndarray], strides: Sequence[int]) -> None:
        self.strides = np.array(strides, np.float32)
        self.heights = np.array([level.shape[1] for level in maps])
        self.widths = np.array([level.shape[2] for level in maps])
        self.starts = np.cumsum([0, *(self.heights * self.widths)[:-1]])
        self.cells = np.empty((int((self.heights * self.widths).sum()), len(maps[0])), np.float32)
        for level, start in zip(maps, self.starts.tolist(), strict=True):  # :meth:`pool` reads whole cells
            rows = level.reshape(len(level), -1).T
            self.cells[start : start + len(rows)] = rows

    def pool(self, boxes: np.ndarray, size: int, out: np.ndarray | None = None) -> np.ndarray:
        """Sample a grid in each box, at the level that fits its size: ``(N, size * size, C)``, row by row.

        This is DenseCap's Eq. 3, as in :func:`saywhere.networks.densecap.build.pool_pyramid`: the outer grid points lie
        on the edges of the box, and features outside the image are zero. A box uses the coarsest level whose stride is
        at most an eighth of the square root of its area. All levels are sampled together, so that levels without boxes
        need no special case.

        Args:
            boxes: ``(N, 4)`` ``x1 y1 x2 y2`` in input pixels; N may be 0.
            out: existing array for the result.
        """
        sides = np.sqrt(np.maximum(boxes[:, 2:] - boxes[:, :2], 0).prod(axis=1))
        level = (sides[:, None] >= 8 * self.strides[None, 1:]).sum(axis=1)
        places = boxes / self.strides[level, None] - np.float32(0.5)  # in cells; 0 is the centre of the first
        steps = np.linspace(0, 1, size, dtype=np.float32)
        x = places[:, 0:1] + (places[:, 2:3] - places[:, 0:1]) * steps
        y = places[:, 1:2] + (places[:, 3:4] - places[:, 1:2]) * steps
        columns, across = _neighbours(x, self.widths[level])
        rows, down = _neighbours(y, self.heights[level])
        starts, widths = self.starts[level, None, None], self.widths[level, None, None]
        shape = (len(boxes), size * size, self.cells.shape[1])
        pooled = np.empty(shape, np.float32) if out is None else out
        around = pooled.reshape(len(boxes), size, size, self.cells.shape[1])
        shares = [(high[:, :, None] * wide[:, None])[..., None] for high, wide in product(down, across)]
        cells = [starts + row[:, :, None] * widths + column[:, None] for row, column in product(rows, columns)]
        values = np.empty((BOXES, *around.shape[1:]), np.float32)
        for start in range(0, len(boxes), BOXES):
            part = slice(start, start + BOXES)
            sampled = around[part]
            for number, (places, share) in enumerate(zip(cells, shares, strict=True)):
                taken = values[: len(sampled)] if number else sampled
                np.take(self.cells, places[part], axis=0, out=taken, mode="clip")  # other modes would buffer the output
                taken *= share[part]
                if number:
                    sampled += taken
        return pooled


def _neighbours(place: np.ndarray, length: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Return the two cells next to each position ``(N, size)``, and their weights; 0 for cells that do not exist."""
    low = np.floor(place)
    share = place - low
    cells, weights = [], []
    for cell, weight in ((low, 1 - share), (low + 1, share)):
        exists = (cell >= 0) & (cell < length[:, None])
        cells.append(np.where(exists, cell, 0).astype(np.int64))
        weights.append(np.where(exists, weight, np.float32(0)).astype(np.float32))
    return cells, weights


def grid_means(features: np.ndarray, cells: int) -> np.ndarray:
    """Return the means of a map ``(C, H, W)`` over the cells of a grid, row by row: ``(cells * cells, C)``.

    A grid cell includes all map cells that it touches, as in adaptive average pooling.
    """
    down, across = (_windows(length, cells) for length in features.shape[1:])
    shares = (down[:, None, :, None] * across[None, :, None, :]).reshape(cells * cells, -1)
    return shares @ features.reshape(len(features), -1).T


def _windows(length: int, cells: int) -> np.ndarray:
    """Return the windows ``(cells, length)`` of adaptive average pooling; rows sum to 1."""
    start, place = np.arange(cells) * length // cells, np.arange(length)
    stop = -(-(np.arange(cells) + 1) * length // cells)
    inside = (place >= start[:, None]) & (place < stop[:, None])
    return inside.astype(np.float32) / (stop - start)[:, None].astype(np.float32)


def grid_boxes(cells: int, width: float, height: float) -> np.ndarray:
    """Return the boxes ``(cells * cells, 4)`` of a grid on an image of this size, row by row."""
    x, y = (np.arange(cells + 1) / cells * side for side in (width, height))
    rows, columns = (index.reshape(-1) for index in np.indices((cells, cells)))
    return np.stack((x[columns], y[rows], x[columns + 1], y[rows + 1]), axis=1).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ImageMaps(RegionMaps):
    """The graph's outputs for one image, with cached values derived from them.

    Attributes:
        outputs: arrays by name, each with a batch dimension.
        strides: strides of the maps.
        input_size: width and height of the network input.
    """

    outputs: Mapping[str, np.ndarray]
    strides: tuple[int, ...]
    input_size: tuple[int, int]

    def output(self, name: str) -> np.ndarray:
        """Return an output without its batch dimension; ``UserError`` if the graph lacks it."""
        if name not in self.outputs:
            raise UserError(f"the model's graph has no {name}: an option is not what it was when it was exported")
        return self.outputs[name][0]

    @cached_property
    def regions(self) -> Pyramid:
        """The maps that regions are pooled from."""
        return Pyramid([self.output(f"region{stride}") for stride in self.strides], self.strides)

    def level(self, stride: int) -> np.ndarray:
        return self.output(f"map{stride}")

    @cached_property
    def head(self) -> np.ndarray:
        return self.output("head")

    @cached_property
    def branch(self) -> list[Source]:
        if TOWER in self.outputs:
            found = self.output(TOWER)
            return [(found, np.array(self.input_size * 2, np.float32) / (found.shape[:0:-1] * 2))]
        there = f"branch{BRANCH_STRIDES[0]}" in self.outputs
        return [(self.output(f"branch{stride}"), stride) for stride in BRANCH_STRIDES] if there else []

    def cells(self, cells: int, config: RegionConfig) -> tuple[np.ndarray, np.ndarray]:
        """Return the features ``(cells * cells, D)`` of a grid's cells that a part reads, and the cells' boxes."""
        boxes = grid_boxes(cells, *self.input_size)
        means = [grid_means(source, cells) for source, _ in self.sources(config.levels, config.head, config.branch)]
        means = np.concatenate((*means, geometry.place(boxes, *self.input_size)), axis=1)
        return self.with_summary(means, boxes, config), boxes

    def box_means(self, boxes: np.ndarray, sources: Sequence[Source]) -> list[np.ndarray]:
        """Return the averages of some maps over boxes ``(R, 4)``, cached, because several parts use the same boxes."""
        asked = boxes.tobytes()
        if (known := self._box_means.get(asked)) is None:
            self._box_means.clear()
            known = self._box_means[asked] = {}
        found: list[np.ndarray] = []
        for source, stride in sources:
            place = source.ctypes.data  # outputs do not move in memory
            if place not in known:
                known[place] = geometry.means(source, boxes, stride)
            found.append(known[place])
        return found

    @cached_property
    def _box_means(self) -> dict[bytes, dict[int, np.ndarray]]:
        """Cached means for the most recent boxes, by the address of the map."""
        return {}

    @cached_property
    def summary(self) -> np.ndarray:
        return self.output(SUMMARY) if SUMMARY in self.outputs else np.zeros(0, np.float32)


def require_size(features: np.ndarray, size: int) -> None:
    """Raise ``UserError`` if features ``(R, D)`` do not have the size that the weights need."""
    if features.shape[1] != size:
        raise UserError(
            f"the weights take {size} features of a region, and the options give {features.shape[1]}: "
            "levels, head or context are not those of training"
        )

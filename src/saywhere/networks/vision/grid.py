"""Regions on a grid: cells of an image, and positions of an activation map (Areas of Attention, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.networks.vision.region_features import Source, place

How = Literal["pick", "average", "max"]


def cell_features(sources: Sequence[Source], cells: int, width: float, height: float) -> tuple[Tensor, Tensor]:
    """Return means of an image's maps over the whole of it and over the cells of a grid.

    Args:
        sources: the maps, see :meth:`saywhere.networks.vision.region_features.ImageMaps.sources`.
        cells: rows and columns of the grid; 0 for none.
        width, height: of the network's input.

    Returns:
        ``(1 + cells ** 2, D)`` features, those of the whole image first, then the grid's row by row; and the boxes
        ``(1 + cells ** 2, 4)`` in pixels of the network's input.
    """
    rows = [_means(features, cells) for features, _ in sources]
    boxes = cell_boxes(cells, width, height).to(rows[0])
    return torch.cat((*rows, place(boxes, width, height)), dim=1), boxes


def _means(features: Tensor, cells: int) -> Tensor:
    """Means ``(1 + cells ** 2, C)`` of a map ``(C, H, W)`` over all of it and over each cell."""
    whole = features.mean(dim=(1, 2))[None]
    if cells == 0:
        return whole
    return torch.cat((whole, functional.adaptive_avg_pool2d(features, cells).flatten(1).T))


def cell_boxes(cells: int, width: float, height: float) -> Tensor:
    """Return the box of a ``width x height`` image, and those of the ``cells`` x ``cells`` grid in it, row by row."""
    boxes = [(0.0, 0.0, width, height)]
    for row in range(cells):
        for column in range(cells):
            x1, y1, x2, y2 = column / cells, row / cells, (column + 1) / cells, (row + 1) / cells
            boxes.append((x1 * width, y1 * height, x2 * width, y2 * height))
    return torch.tensor(boxes)


def bins(length: int, wanted: int | None) -> list[tuple[int, int]]:
    """Divide ``length`` cells into ``wanted`` neighbouring groups (first, last + 1), evenly and without gaps.

    Groups share a cell where ``wanted`` does not divide ``length``. No more groups than cells; one a cell for None.
    """
    n = length if wanted is None else min(wanted, length)
    return [(i * length // n, -((i + 1) * length // -n)) for i in range(n)]


def bin_boxes(height: int, width: int, cells: int | None, stride: float) -> Tensor:
    """Return the boxes ``(R, 4)`` of :func:`bins` of a map, row by row, in pixels of the network's input."""
    rows, columns = bins(height, cells), bins(width, cells)
    return torch.tensor([(left, top, right, bottom) for top, bottom in rows for left, right in columns]) * stride


def pick(height: int, width: int, cells: int | None, sample: bool, generator: torch.Generator | None = None) -> Tensor:
    """Return one position ``(row, column)`` in each of :func:`bins` of a map: ``(R, 2)`` long, row by row.

    It is the middle one (of two: the first, so that ``cells`` of half the map's size are every second position), or
    with ``sample`` a random one by ``generator``.
    """
    rows, columns = bins(height, cells), bins(width, cells)
    edges = torch.tensor([(top, left, bottom, right) for top, bottom in rows for left, right in columns])
    if sample:
        share = torch.rand(len(edges), 2, generator=generator)
        return edges[:, :2] + (share * (edges[:, 2:] - edges[:, :2])).long()
    return (edges[:, :2] + edges[:, 2:] - 1) // 2


def position_boxes(positions: Tensor, span: int, height: int, width: int, stride: float) -> Tensor:
    """Return boxes ``(R, 4)`` of ``span`` x ``span`` cells around positions ``(R, 2)``, cut to ``height x width``."""
    y, x = (positions + 0.5).unbind(1)
    boxes = geometry.from_center(torch.stack((x, y, *(torch.full_like(x, span),) * 2), dim=1)) * stride
    return geometry.clip(boxes, width * stride, height * stride)


class Grid(nn.Module):
    """The positions of an activation map as regions.

    Args:
        channels: C of the map.
        stride: input pixels per cell.
        cells: rows and columns of regions; None for one a position. A smaller map has fewer. The attribute may be
            changed at any time: more or fewer regions in use than in training (Figure 4).
        how: which feature a region has of its group of positions: ``pick``, that of one of them, in training a random
            one (as the paper makes 7 x 7 of 14 x 14); or their ``average`` or ``max``.
        filters: of a 3x3 convolution with ReLU on the map before; 0 takes the map as it is.
        span: the box of a region: 0, its group of positions, so that boxes tile the image; else, with ``pick``, this
            many cells a side around the picked one (the paper draws 3, the transformer's anchor boxes). Either is far
            smaller than the position's receptive field.

    Attributes:
        size: D of the features.

    Raises:
        ValueError: an unknown ``how``, or ``span`` without ``pick``.
    """

    def __init__(
        self, channels: int, stride: float, cells: int | None = 7, how: How = "pick", filters: int = 0, span: int = 0
    ):
        super().__init__()
        if how not in get_args(How):
            raise ValueError(f"how must be one of {', '.join(get_args(How))}, not {how!r}")
        if span and how != "pick":
            raise ValueError(f"boxes of {span} cells are around a picked position; {how} has none")
        self.stride, self.cells, self.span = stride, cells, span
        self.how: How = how
        self.filter = nn.Conv2d(channels, filters, 3, padding=1) if filters else None
        self.channels, self.size = channels, filters or channels

    def forward(self, maps: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Return features ``(B, R, size)`` and boxes ``(B, R, 4)`` of maps ``(B, C, H, W)``; all images pick alike."""
        height, width = maps.shape[2:]
        maps = maps if self.filter is None else torch.relu(self.filter(maps))
        boxes = bin_boxes(height, width, self.cells, self.stride)
        if self.how == "pick":
            positions = pick(height, width, self.cells, self.training, generator)
            features = maps[:, :, positions[:, 0], positions[:, 1]].transpose(1, 2)
            if self.span:
                boxes = position_boxes(positions, self.span, height, width, self.stride)
        else:
            pool = functional.adaptive_avg_pool2d if self.how == "average" else functional.adaptive_max_pool2d
            size = (len(bins(height, self.cells)), len(bins(width, self.cells)))
            features = pool(maps, size).flatten(2).transpose(1, 2)
        return features, boxes.to(device=maps.device, dtype=torch.float32).expand(len(maps), -1, -1)

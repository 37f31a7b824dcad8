"""Areas at the positions of an activation map: the first kind of areas of attention (section 3.3).

A map-level provider is a batched module, called with maps ``(B, C, H, W)``, that returns the areas' descriptors
``(B, R, D)`` and their boxes ``(B, R, 4)`` in pixels of the network's input; :func:`saywhere.vision.backbones.by_shape`
applies it to pictures of different sizes. The second one is in :mod:`saywhere.vision.transformer`.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry

How = Literal["pick", "average", "max"]


def bins(length: int, wanted: int | None) -> list[tuple[int, int]]:
    """``length`` cells in ``wanted`` neighbouring groups, each (first, last + 1), as even as can be and without gaps.

    Groups share a cell where ``wanted`` does not divide ``length``. No more groups than cells; one a cell for None.
    """
    n = length if wanted is None else min(wanted, length)
    return [(i * length // n, -((i + 1) * length // -n)) for i in range(n)]


def bin_boxes(height: int, width: int, cells: int | None, stride: float) -> Tensor:
    """Boxes ``(R, 4)`` of :func:`bins` of a map, row by row, in pixels of the network's input."""
    rows, columns = bins(height, cells), bins(width, cells)
    return torch.tensor([(left, top, right, bottom) for top, bottom in rows for left, right in columns]) * stride


def pick(height: int, width: int, cells: int | None, draw: bool, generator: torch.Generator | None = None) -> Tensor:
    """One position ``(row, column)`` in each of :func:`bins` of a map: ``(R, 2)`` long, row by row.

    It is the middle one (of two: the first, so that ``cells`` of half the map's size are every second position), or
    with ``draw`` any one, drawn from ``generator``.
    """
    rows, columns = bins(height, cells), bins(width, cells)
    edges = torch.tensor([(top, left, bottom, right) for top, bottom in rows for left, right in columns])
    if draw:
        share = torch.rand(len(edges), 2, generator=generator)
        return edges[:, :2] + (share * (edges[:, 2:] - edges[:, :2])).long()
    return (edges[:, :2] + edges[:, 2:] - 1) // 2


def cell_boxes(positions: Tensor, span: int, height: int, width: int, stride: float) -> Tensor:
    """Boxes ``(R, 4)`` of ``span`` x ``span`` cells around positions ``(R, 2)``, cut to the map ``height x width``."""
    y, x = (positions + 0.5).unbind(1)
    boxes = geometry.from_center(torch.stack((x, y, *(torch.full_like(x, span),) * 2), dim=1)) * stride
    return geometry.clip(boxes, width * stride, height * stride)


class Grid(nn.Module):
    """An activation map as areas.

    Args:
        channels: C of the map.
        stride: input pixels per cell.
        cells: rows and columns of areas; None for one a position. A smaller map has fewer. The attribute may be changed
            at any time: more or fewer areas in use than in training (Figure 4).
        how: what an area is of its group of positions: ``pick``, one of them, in training a random one (as the paper
            makes 7 x 7 of 14 x 14); or their ``average`` or ``max``.
        filters: of a 3x3 convolution with ReLU on the map before; 0 takes the map as it is.
        span: what the box of an area is: 0, its group of positions, so that boxes tile the picture; else, with
            ``pick``, this many cells a side around the picked one (the paper draws 3, the transformer's anchor boxes).
            Either is far smaller than what the network sees from there.

    Attributes:
        size: D of the descriptors.

    Raises:
        ValueError: an unknown ``how``, or ``span`` without ``pick``.
    """

    def __init__(
        self, channels: int, stride: float, cells: int | None = 7, how: How = "pick", filters: int = 0, span: int = 0
    ):
        super().__init__()
        if how not in get_args(How):
            raise ValueError(f"how is {', '.join(get_args(How))}, not {how!r}")
        if span and how != "pick":
            raise ValueError(f"boxes of {span} cells stand around a position that is picked; {how} has none")
        self.stride, self.cells, self.span = stride, cells, span
        self.how: How = how
        self.filter = nn.Conv2d(channels, filters, 3, padding=1) if filters else None
        self.channels, self.size = channels, filters or channels

    def forward(self, maps: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
        """Descriptors ``(B, R, size)`` and boxes ``(B, R, 4)`` of maps ``(B, C, H, W)``; all pictures pick alike."""
        height, width = maps.shape[2:]
        maps = maps if self.filter is None else torch.relu(self.filter(maps))
        boxes = bin_boxes(height, width, self.cells, self.stride)
        if self.how == "pick":
            positions = pick(height, width, self.cells, self.training, generator)
            features = maps[:, :, positions[:, 0], positions[:, 1]].transpose(1, 2)
            if self.span:
                boxes = cell_boxes(positions, self.span, height, width, self.stride)
        else:
            pool = functional.adaptive_avg_pool2d if self.how == "average" else functional.adaptive_max_pool2d
            size = (len(bins(height, self.cells)), len(bins(width, self.cells)))
            features = pool(maps, size).flatten(2).transpose(1, 2)
        return features, boxes.to(device=maps.device, dtype=torch.float32).expand(len(maps), -1, -1)

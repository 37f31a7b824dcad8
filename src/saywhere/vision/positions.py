"""What a frozen network sees at each position, and the strongest of what it sees in a box."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.vision.areas import AreaFeatures, place


def sources(features: AreaFeatures, maps: Sequence[Tensor]) -> list[tuple[Tensor, int]]:
    """The maps ``(C, H, W)`` that ``features`` are made of, and their strides; the network's last layer at the end."""
    found = [(maps[i], features.strides[i]) for i in features.levels]
    if features.head is not None:
        found.append((features.head(maps[-1]), features.strides[-1]))
    return found


def position_features(
    features: AreaFeatures, maps: Sequence[Tensor], cells: int, width: float, height: float
) -> tuple[Tensor, int]:
    """Features of every position of the coarsest map; finer maps are averaged there.

    Args:
        features: which maps, and the network's last layer.
        maps: ``(C_l, H_l, W_l)`` of one picture, finest first.
        cells: rows and columns of the grid whose cells have the size that is told as a position's place.
        width, height: of the network's input.

    Returns:
        ``(H, W, features.size)``, as :class:`AreaFeatures` has them of a box; and the stride of that map.
    """
    found = sources(features, maps)
    stride = max(stride for _, stride in found)
    size = next((source.shape[1], source.shape[2]) for source, its in found if its == stride)
    seen = [functional.adaptive_avg_pool2d(source, size).permute(1, 2, 0) for source, _ in found]
    y, x = torch.meshgrid(*((torch.arange(n, dtype=torch.float32) + 0.5) * stride for n in size), indexing="ij")
    sides = torch.tensor([width / cells, height / cells]).expand(x.numel(), 2)
    boxes = geometry.from_center(torch.cat((torch.stack((x.flatten(), y.flatten()), dim=1), sides), dim=1))
    places = place(geometry.clip(boxes, width, height), width, height).to(seen[0])
    return torch.cat((*seen, places.reshape(*size, -1)), dim=2), stride


def box_maxima(features: Tensor, boxes: Tensor, stride: float) -> Tensor:
    """The largest value of each channel of a map ``(C, H, W)`` in the cells that a box touches: ``(R, C)``.

    ``boxes (R, 4)`` are in pixels of the network's input. A box outside the map, or without area, has 0.
    """
    height, width = features.shape[1:]
    rows = []
    for x1, y1, x2, y2 in (boxes / stride).tolist():
        left, top = max(0, math.floor(x1)), max(0, math.floor(y1))
        right, bottom = min(width, math.ceil(x2)), min(height, math.ceil(y2))
        solid = x2 > x1 and y2 > y1 and left < right and top < bottom
        rows.append(
            features[:, top:bottom, left:right].amax(dim=(1, 2)) if solid else features.new_zeros(len(features))
        )
    return torch.stack(rows) if rows else features.new_zeros(0, len(features))


def box_peaks(features: AreaFeatures, maps: Sequence[Tensor], boxes: Tensor, width: float, height: float) -> Tensor:
    """As :class:`AreaFeatures`, with the largest values in the boxes instead of the means: ``(R, features.size)``."""
    peaks = [box_maxima(source, boxes, stride) for source, stride in sources(features, maps)]
    return torch.cat((*peaks, place(boxes, width, height)), dim=1)

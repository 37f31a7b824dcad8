"""The convolutional spatial transformer of Areas of Attention (section 3.3, Figure 3): regions that adapt to the image.

Each position of an activation map has an anchor box of 3x3 cells. Two convolutional layers regress its affine
transformation from the 3x3 cells around it. A 3x3 patch is sampled from the transformed box; a 3x3 filter turns it into
the region's features. Captions alone train it: bilinear sampling is differentiable in the coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.networks.vision.grid import pick


def bilinear(features: Tensor, boxes: Tensor, size: int | tuple[int, int], stride: float) -> Tensor:
    """Sample a grid in each box by bilinear interpolation (DenseCap, Eq. 3), differentiable in features and boxes.

    The outer points lie on the edges of the box. Features outside the image count as zero, as in the original program.
    Cell (i, j) of ``features (C, H, W)`` lies at ``((j + .5) * stride, (i + .5) * stride)`` in pixels of the input,
    like ``boxes (N, 4)``.

    Returns:
        ``(N, C, rows, columns)``, rows from top to bottom.
    """
    rows, columns = (size, size) if isinstance(size, int) else size
    x1, y1, x2, y2 = (boxes / stride - 0.5).unbind(-1)  # in cells; the centre of the first cell is 0
    x = x1[:, None] + (x2 - x1)[:, None] * torch.linspace(0, 1, columns, dtype=boxes.dtype, device=boxes.device)
    y = y1[:, None] + (y2 - y1)[:, None] * torch.linspace(0, 1, rows, dtype=boxes.dtype, device=boxes.device)
    return sample_points(features, x[:, None, :].expand(-1, rows, -1), y[:, :, None].expand(-1, -1, columns))


def sample_points(features: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Sample ``features (C, H, W)`` at points ``x, y (N, h, w)`` in cells: ``(N, C, h, w)``; zero outside.

    All boxes share one copy of the map: their grids are stacked as rows of one large grid. Half-precision maps are
    sampled in the precision of the points, since half cannot hold the coordinates.
    """
    channels, height, width = features.shape
    n, h, w = x.shape
    # grid_sample counts cell centres with corners at -1 - 1/W; align_corners=False maps cell c to (2c + 1)/W - 1
    grid = torch.stack(((2 * x + 1) / width - 1, (2 * y + 1) / height - 1), dim=-1)
    dtype = torch.promote_types(features.dtype, x.dtype)
    maps, grid = features[None].to(dtype), grid.reshape(1, n * h, w, 2).to(dtype)
    values = functional.grid_sample(maps, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return values.to(features.dtype).reshape(channels, n, h, w).transpose(0, 1)


IDENTITY = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
"""The affine transformation that leaves a box unchanged, row by row."""


def transform(positions: Tensor, affine: Tensor, points: Tensor) -> Tensor:
    """Transform ``points (P, 2)`` of the anchor box at each of ``positions (R, 2)``, row and column.

    Points u = (x, y) are in cells relative to the position and move to A u + t, where ``affine (..., R, 2, 3)`` is [A
    t]. The anchor box extends from -1.5 to 1.5; its cell centres are -1, 0 and 1.

    Returns:
        ``(..., R, P, 2)``, x and y in cells of the map, where the centre of the first cell is 0.
    """
    moved = points @ affine[..., :2].transpose(-1, -2) + affine[..., None, :, 2]
    return moved + positions.flip(1)[:, None].to(moved)


def patches(maps: Tensor, positions: Tensor, affine: Tensor) -> Tensor:
    """Sample a 3x3 patch from each transformed anchor box: ``(B, R, C, 3, 3)``, 0 outside the map.

    Differentiable in the maps ``(B, C, H, W)`` and the transformations ``affine (B, R, 2, 3)``.
    """
    offsets = torch.tensor([-1.0, 0.0, 1.0], device=affine.device, dtype=affine.dtype)
    y, x = torch.meshgrid(offsets, offsets, indexing="ij")
    points = transform(positions, affine, torch.stack((x.flatten(), y.flatten()), dim=1)).unflatten(2, (3, 3))
    return torch.stack([sample_points(m, *p.unbind(-1)) for m, p in zip(maps, points, strict=True)])


def corners(positions: Tensor, affine: Tensor, stride: float) -> Tensor:
    """Return the corners ``(..., R, 4, 2)`` of the transformed anchor boxes, in pixels of the network's input.

    Their order is top left, top right, bottom right, bottom left of the anchor. They may lie outside the image.
    """
    square = torch.tensor([(-1.5, -1.5), (1.5, -1.5), (1.5, 1.5), (-1.5, 1.5)], device=affine.device)
    return (transform(positions, affine, square.to(affine.dtype)) + 0.5) * stride


def around(corners: Tensor, width: float, height: float) -> Tensor:
    """Return the axis-aligned boxes ``(..., 4)`` around quadrilaterals ``(..., 4, 2)``, clipped to the image."""
    return geometry.clip(torch.cat((corners.amin(dim=-2), corners.amax(dim=-2)), dim=-1), width, height)


def apply_at_position(layer: nn.Conv2d, patches: Tensor) -> Tensor:
    """Apply a convolution to patches of its kernel size, as a matrix product, which is faster.

    Patches ``(B, R, C, 3, 3)``, or ``(B, R, C)`` for a 1x1 convolution, give ``(B, R, F)``.
    """
    return functional.linear(patches.flatten(2), layer.weight.flatten(1), layer.bias)


class SpatialTransformer(nn.Module):
    """A spatial transformer at each position of an activation map.

    Args:
        channels: C of the map.
        stride: input pixels per cell.
        cells: rows and columns of positions to use, see :func:`saywhere.networks.vision.grid.pick`.
        hidden: filters of the first localization layer.
        zoom: initial size of the regions relative to the anchor boxes. The paper's 2 leaves the local optimum of the
            grid. 1 is the grid: the 3x3 filter is initialised to pass the centre of the patch on.

    Attributes:
        size: D of the features.
    """

    def __init__(self, channels: int, stride: float, cells: int, hidden: int = 512, zoom: float = 2.0):
        super().__init__()
        self.stride, self.cells, self.size = stride, cells, channels
        first, last = nn.Conv2d(channels, hidden, 3), nn.Conv2d(hidden, 6, 1)
        self.localization = nn.Sequential(first, nn.ReLU(), last)
        self.filter = nn.Conv2d(channels, channels, 3)
        with torch.no_grad():
            last.weight.zero_()
            last.get_parameter("bias").copy_(zoom * torch.tensor(IDENTITY))
            nn.init.dirac_(self.filter.weight)
            self.filter.get_parameter("bias").zero_()

    def affine(self, maps: Tensor, positions: Tensor) -> Tensor:
        """Return the affine transformation ``(B, R, 2, 3)`` at each of ``positions (R, 2)`` of maps ``(B, C, H, W)``.

        The two layers are evaluated at these positions only.
        """
        padded = functional.pad(maps, (1, 1, 1, 1))
        three = torch.arange(3, device=maps.device)
        rows, columns = positions.to(maps.device).unbind(1)
        around = padded[:, :, (rows[:, None] + three)[:, :, None], (columns[:, None] + three)[:, None, :]]
        first, _, last = self.localization
        assert isinstance(first, nn.Conv2d) and isinstance(last, nn.Conv2d)
        regressed = apply_at_position(last, torch.relu(apply_at_position(first, around.transpose(1, 2))))
        return regressed.unflatten(2, (2, 3))

    def forward(self, maps: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the region features of maps ``(B, C, H, W)``, the boxes around the regions, and the regions' corners.

        Returns:
            ``(B, R, size)``; ``(B, R, 4)``, clipped to the image; and ``(B, R, 4, 2)``, see :func:`corners`. In
            training the positions are sampled from the cells of a grid.
        """
        height, width = maps.shape[2:]
        positions = pick(height, width, self.cells, self.training, generator).to(maps.device)
        affine = self.affine(maps, positions)
        affine = affine.to(torch.promote_types(affine.dtype, torch.float32))  # half is too coarse for coordinates
        features = apply_at_position(self.filter, patches(maps, positions, affine))
        quads = corners(positions, affine.float(), self.stride)
        boxes = around(quads, width * self.stride, height * self.stride)
        return features, boxes, quads

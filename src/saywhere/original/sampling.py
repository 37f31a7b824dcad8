"""The program's bilinear sampling of regions, as a conversion to ours."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere import boxes as ours
from saywhere.ops.bilinear import bilinear


def box_to_affine(boxes: Tensor, image_height: int, image_width: int) -> Tensor:
    """Return the affine maps ``(N, 2, 3)`` from the square [-1, 1] to each ``xcycwh`` box, y before x.

    Centres run from -1 at pixel 1 to 1 at the last pixel, but sizes are divided by the image's size, not that less 1.
    """
    xc, yc, w, h = boxes.unbind(-1)
    x, y = (2 * xc - image_width - 1) / (image_width - 1), (2 * yc - image_height - 1) / (image_height - 1)
    zero = torch.zeros_like(x)
    rows = torch.stack((h / image_height, zero, y), dim=-1), torch.stack((zero, w / image_width, x), dim=-1)
    return torch.stack(rows, dim=-2)


def roi_pooling(
    features: Tensor, boxes: Tensor, image_height: int, image_width: int, size: int | tuple[int, int] = 7
) -> Tensor:
    """Return features ``(N, C, rows, columns)`` in each ``xcycwh`` box: ``bilinear`` with another map to cells.

    The program puts the first cell on the image's first pixel, the last cell on its last pixel and the others evenly
    between. Ours stand in the middle of the pixels that they are made from, exactly a stride apart.

    Args:
        features: ``(C, H, W)`` of one image.
        boxes: ``(N, 4)`` in pixels of that image.
        image_height, image_width: its size.
        size: points per side, or (rows, columns).
    """
    affine = box_to_affine(boxes, image_height, image_width)
    height, width = features.shape[-2:]
    x, y = (affine[:, 1, 2] + 1) / 2 * (width - 1), (affine[:, 0, 2] + 1) / 2 * (height - 1)
    w, h = affine[:, 1, 1] * (width - 1), affine[:, 0, 0] * (height - 1)
    cells = ours.from_center(torch.stack((x + 0.5, y + 0.5, w, h), dim=-1))  # ours has the first cell's centre at 0.5
    return bilinear(features, cells, size, stride=1)

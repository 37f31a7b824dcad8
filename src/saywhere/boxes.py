"""Box geometry on plain tensors.

Boxes are float tensors ``(N, 4)`` of ``x1 y1 x2 y2`` in pixels, origin 0, continuous: the width is ``x2 - x1``.
The 1-based and "+1" conventions of the original DenseCap program live in :mod:`saywhere.original`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def to_center(boxes: Tensor) -> Tensor:
    """``x1 y1 x2 y2`` to centre and size ``xc yc w h``; any leading shape."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack(((x1 + x2) / 2, (y1 + y2) / 2, x2 - x1, y2 - y1), dim=-1)


def from_center(boxes: Tensor) -> Tensor:
    """Centre and size ``xc yc w h`` to ``x1 y1 x2 y2``; any leading shape."""
    xc, yc, w, h = boxes.unbind(-1)
    return torch.stack((xc - w / 2, yc - h / 2, xc + w / 2, yc + h / 2), dim=-1)


def to_size(boxes: Tensor) -> Tensor:
    """``x1 y1 x2 y2`` to corner and size ``x y w h``; any leading shape."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((x1, y1, x2 - x1, y2 - y1), dim=-1)


def from_size(boxes: Tensor) -> Tensor:
    """Corner and size ``x y w h`` to ``x1 y1 x2 y2``; any leading shape."""
    x, y, w, h = boxes.unbind(-1)
    return torch.stack((x, y, x + w, y + h), dim=-1)


def area(boxes: Tensor) -> Tensor:
    """Areas ``(N,)`` in square pixels; a box turned inside out has area 0."""
    return (boxes[..., 2] - boxes[..., 0]).clamp(min=0) * (boxes[..., 3] - boxes[..., 1]).clamp(min=0)


def iou(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union ``(N, M)`` of boxes ``a (N, 4)`` and ``b (M, 4)``; 0 where both areas are 0."""
    top_left = torch.maximum(a[:, None, :2], b[None, :, :2])
    bottom_right = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    intersection = (bottom_right - top_left).clamp(min=0).prod(dim=-1)
    union = area(a)[:, None] + area(b)[None, :] - intersection
    return torch.where(union > 0, intersection / union.clamp(min=torch.finfo(union.dtype).tiny), 0.0)


def clip(boxes: Tensor, width: float, height: float) -> Tensor:
    """Boxes cut to the picture ``[0, width] x [0, height]``; a box outside becomes empty on the border."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((x1.clamp(0, width), y1.clamp(0, height), x2.clamp(0, width), y2.clamp(0, height)), dim=-1)


def scale(boxes: Tensor, sx: float, sy: float) -> Tensor:
    """Boxes of a picture resized by ``sx`` horizontally and ``sy`` vertically."""
    return boxes * boxes.new_tensor([sx, sy, sx, sy])


def flip(boxes: Tensor, width: float) -> Tensor:
    """Boxes of a picture ``width`` pixels wide after it is mirrored left to right."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    return torch.stack((width - x2, y1, width - x1, y2), dim=-1)


def encode(boxes: Tensor, anchors: Tensor) -> Tensor:
    """Offsets ``(..., 4)`` (tx, ty, tw, th) that turn ``anchors`` into ``boxes``: the inverse of :func:`decode`.

    Both are ``x1 y1 x2 y2`` with positive width and height.
    """
    xa, ya, wa, ha = to_center(anchors).unbind(-1)
    x, y, w, h = to_center(boxes).unbind(-1)
    return torch.stack(((x - xa) / wa, (y - ya) / ha, torch.log(w / wa), torch.log(h / ha)), dim=-1)


def decode(offsets: Tensor, anchors: Tensor, max_log_scale: float | None = None) -> Tensor:
    """Boxes ``(..., 4)`` at ``offsets`` from ``anchors``: DenseCap's Eqs. 1 and 2.

    ``max_log_scale`` bounds tw and th from above before the exponential (the original does not), so that an untrained
    network cannot produce infinite boxes.
    """
    xa, ya, wa, ha = to_center(anchors).unbind(-1)
    tx, ty, tw, th = offsets.unbind(-1)
    if max_log_scale is not None:
        tw, th = tw.clamp(max=max_log_scale), th.clamp(max=max_log_scale)
    return from_center(torch.stack((xa + tx * wa, ya + ty * ha, wa * torch.exp(tw), ha * torch.exp(th)), dim=-1))


def anchor_grid(
    shapes: Sequence[tuple[float, float]],
    height: int,
    width: int,
    stride: float,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Anchors of every cell of a feature map: ``(height * width * k, 4)``, ordered by row, column, shape.

    ``shapes`` are k pairs (w, h) in input pixels; the centre of cell (i, j) is ``((j + .5) stride, (i + .5) stride)``.
    """
    sizes = torch.tensor(shapes, dtype=dtype).reshape(-1, 2)
    y = (torch.arange(height, dtype=dtype) + 0.5) * stride
    x = (torch.arange(width, dtype=dtype) + 0.5) * stride
    yc, xc = torch.meshgrid(y, x, indexing="ij")
    centers = torch.stack((xc, yc), dim=-1)[:, :, None, :].expand(-1, -1, len(sizes), -1)
    return from_center(torch.cat((centers, sizes.expand(height, width, -1, -1)), dim=-1)).reshape(-1, 4)


def nms(boxes: Tensor, scores: Tensor, threshold: float, limit: int | None = None) -> Tensor:
    """Indices of the boxes that survive greedy non-maximum suppression, best first, at most ``limit``.

    A box is dropped when its IoU with a better kept one is above ``threshold``. Differentiates nothing.
    """
    from torchvision.ops import nms as torchvision_nms

    dtype = torch.promote_types(boxes.dtype, torch.float32)  # doubles stay doubles
    return torchvision_nms(boxes.detach().to(dtype), scores.detach().to(dtype), threshold)[:limit]


def merge(boxes: Tensor, threshold: float) -> tuple[Tensor, list[list[int]]]:
    """Merge heavily overlapping boxes as DenseCap's section 4 does to its ground truth.

    Repeatedly takes the box with most neighbours of IoU >= ``threshold`` (itself among them; ties: the first), replaces
    the group by its mean and removes it. Returns the means ``(G, 4)`` and the members of each group.
    """
    close = iou(boxes, boxes) >= threshold
    close |= torch.eye(len(boxes), dtype=torch.bool, device=boxes.device)
    means, groups = [], []
    while close.any():
        members = close[int(close.sum(dim=1).argmax())].nonzero().flatten()
        means.append(boxes[members].mean(dim=0))
        groups.append(members.tolist())
        close[members, :] = False
        close[:, members] = False
    return torch.stack(means) if means else boxes.new_zeros((0, 4)), groups

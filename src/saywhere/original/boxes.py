"""Boxes as the published program writes them.

Three formats, all 1-based: ``xcycwh`` (centre and size, inside the network), ``x1y1x2y2`` (the centres of the first and
the last pixel; "corners" below) and ``xywh`` (first pixel and size). A box of one pixel has size 1 and equal corners:
corners are ``(w - 1) / 2`` from the centre and areas are ``(x2 - x1 + 1) (y2 - y1 + 1)``. Functions keep the program's
names and accept any leading shape unless they say otherwise.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from saywhere import boxes as ours
from saywhere.original.sorting import ascending_order

Format = Literal["xcycwh", "x1y1x2y2", "xywh"]


def xcycwh_to_ours(boxes: Tensor) -> Tensor:
    """Return our ``x1 y1 x2 y2`` of ``xcycwh``, without loss: pixel 1 is the interval from 0 to 1, its centre 0.5."""
    return ours.from_center(boxes - boxes.new_tensor([0.5, 0.5, 0, 0]))


def ours_to_xcycwh(boxes: Tensor) -> Tensor:
    """Invert :func:`xcycwh_to_ours`."""
    return ours.to_center(boxes) + boxes.new_tensor([0.5, 0.5, 0, 0])


def corners_to_ours(boxes: Tensor) -> Tensor:
    """Return our boxes of inclusive 1-based corners: our width is their ``x2 - x1 + 1``."""
    return boxes - boxes.new_tensor([1, 1, 0, 0])


def ours_to_corners(boxes: Tensor) -> Tensor:
    """Invert :func:`corners_to_ours`."""
    return boxes + boxes.new_tensor([1, 1, 0, 0])


def xcycwh_to_x1y1x2y2(boxes: Tensor) -> Tensor:
    """Return corners ``(w - 1) / 2`` from the centre; ours are ``w / 2`` from it."""
    return ours_to_corners(xcycwh_to_ours(boxes))


def x1y1x2y2_to_xcycwh(boxes: Tensor) -> Tensor:
    """Return centre and size ``x2 - x1``, without the 1 that :func:`xcycwh_to_x1y1x2y2` took: a pixel is lost."""
    return ours.to_center(boxes)


def xywh_to_x1y1x2y2(boxes: Tensor) -> Tensor:
    """Return corners: the last pixel of a box is ``x + w - 1``; ours ends at ``x + w``."""
    return ours.from_size(boxes) - boxes.new_tensor([0, 0, 1, 1])


def x1y1x2y2_to_xywh(boxes: Tensor) -> Tensor:
    """Invert :func:`xywh_to_x1y1x2y2`."""
    return ours.to_size(boxes + boxes.new_tensor([0, 0, 1, 1]))


def xcycwh_to_xywh(boxes: Tensor) -> Tensor:
    """Return first pixel and size; the first pixel is ``(w - 1) / 2`` before the centre."""
    return x1y1x2y2_to_xywh(xcycwh_to_x1y1x2y2(boxes))


def xywh_to_xcycwh(boxes: Tensor) -> Tensor:
    """Return a centre ``w / 2`` after the first pixel: half a pixel more than :func:`xcycwh_to_xywh` took away."""
    return ours.to_center(ours.from_size(boxes))


def scale_boxes_xywh(boxes: Tensor, factor: float) -> Tensor:
    """Return ``xywh`` boxes of an image resized by ``factor``; pixel 1 stays pixel 1."""
    first = boxes.new_tensor([1, 1, 0, 0])
    return (boxes - first) * factor + first


def true_boxes(boxes: Tensor, factor: float, long_side: int = 720) -> Tensor:
    """Return what the program trains on: ``xywh`` boxes of an image resized by ``factor``, as whole ``xcycwh``.

    Rounded to pixels (halves away from 0), then pushed and cut into the square of ``long_side``, also where the image
    is lower than that. The centre is the first pixel and half the size, rounded down.
    """
    scaled = scale_boxes_xywh(boxes, factor)
    x, y, w, h = (scaled.sign() * (scaled.abs() + 0.5).floor()).unbind(-1)
    x, y = x.clamp(1, long_side - 1), y.clamp(1, long_side - 1)
    w, h = torch.minimum(w, long_side - x), torch.minimum(h, long_side - y)
    return torch.stack((x + (w / 2).floor(), y + (h / 2).floor(), w, h), dim=-1)


def clip_boxes(
    boxes: Tensor,
    x_max: float,
    y_max: float,
    format: Format = "xcycwh",
    x_min: float = 1,
    y_min: float = 1,
) -> tuple[Tensor, Tensor]:
    """Return boxes cut to the image, and a mask of those with a size left.

    The first pixel is clamped to ``[min, max - 1]`` and the last to ``[min + 1, max]``: a box outside becomes a valid
    one on the border, where ours becomes empty. Only a box of at most one pixel that is not on the border is invalid.
    ``xcycwh`` boxes come back 1 pixel smaller, even those that were not cut, by :func:`x1y1x2y2_to_xcycwh`.
    """
    to_corners = {"xcycwh": xcycwh_to_x1y1x2y2, "xywh": xywh_to_x1y1x2y2, "x1y1x2y2": torch.clone}[format]
    x1, y1, x2, y2 = to_corners(boxes).unbind(-1)
    x1, x2 = x1.clamp(x_min, x_max - 1), x2.clamp(x_min + 1, x_max)
    y1, y2 = y1.clamp(y_min, y_max - 1), y2.clamp(y_min + 1, y_max)
    from_corners = {"xcycwh": x1y1x2y2_to_xcycwh, "xywh": x1y1x2y2_to_xywh, "x1y1x2y2": torch.clone}[format]
    return from_corners(torch.stack((x1, y1, x2, y2), dim=-1)), (x2 > x1) & (y2 > y1)


def apply_box_transform(boxes: Tensor, offsets: Tensor) -> Tensor:
    """Return ``xcycwh`` boxes moved by ``offsets``, DenseCap's Eqs. 1 and 2, without a bound."""
    return ours.to_center(ours.decode(offsets, ours.from_center(boxes)))


def invert_box_transform(anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return the offsets that turn ``anchors`` into ``boxes`` (both ``xcycwh``); a size of 0 gives infinities."""
    return ours.encode(ours.from_center(boxes), ours.from_center(anchors))


def box_iou(a: Tensor, b: Tensor) -> Tensor:
    """Return the IoU ``(..., N, M)`` of ``xcycwh`` boxes ``a (..., N, 4)``, ``b (..., M, 4)`` of the training sampler.

    Areas are ``w h``, but the intersection is between inclusive corners without the 1 that belongs to them: a box of
    10 x 10 pixels overlaps itself by 0.68. NMS, merging and evaluation have the 1 (:func:`iou_matrix`).
    """
    corners_a, corners_b = xcycwh_to_x1y1x2y2(a).unsqueeze(-2), xcycwh_to_x1y1x2y2(b).unsqueeze(-3)
    top_left = torch.maximum(corners_a[..., :2], corners_b[..., :2])
    bottom_right = torch.minimum(corners_a[..., 2:], corners_b[..., 2:])
    intersection = (bottom_right - top_left).clamp(min=0).prod(dim=-1)
    areas = a[..., 2:].prod(dim=-1).unsqueeze(-1) + b[..., 2:].prod(dim=-1).unsqueeze(-2)
    return intersection / (areas - intersection)


def iou_matrix(boxes: Tensor) -> Tensor:
    """Return the IoU ``(N, N)`` of corner boxes ``(N, 4)`` with the "+1" areas of inclusive pixels."""
    return ours.iou(corners_to_ours(boxes), corners_to_ours(boxes))


def merge_boxes(boxes: Tensor, threshold: float) -> tuple[Tensor, list[list[int]]]:
    """Return means ``(G, 4)`` and members of the groups of corner boxes ``(N, 4)``: our merging with "+1" areas.

    The program counts neighbours in a byte, so that 256 boxes that are all neighbours have none and vanish. Here they
    are one group.
    """
    means, groups = ours.merge(corners_to_ours(boxes).numpy(), threshold)
    return ours_to_corners(torch.from_numpy(means)), groups


def nms(boxes: Tensor, scores: Tensor, overlap: float, max_boxes: int | None = None) -> Tensor:
    """Return the corner boxes that survive, best first: our NMS with "+1" areas and the program's order of ties.

    Scores are compared as float32 and read from the end of an ascending sort. Boxes with IoU <= ``overlap`` stay.
    """
    best_first = ascending_order(scores.detach().float()).flip(0)
    ranks = torch.arange(len(boxes), 0, -1, device=boxes.device)
    kept = ours.nms(corners_to_ours(boxes)[best_first], ranks, overlap, max_boxes)
    return best_first[kept]

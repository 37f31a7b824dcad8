"""The steps of evaluating dense captions that the published program takes in its own way.

These are the quirks of ``protocol="original"``, repeated to the last digit. Boxes are the program's corners: float32
``x1 y1 x2 y2`` that name the first and the last pixel, so a box of equal corners has an area of 1.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from saywhere.torch7_sort import ascending_order

Array = NDArray[Any]


def overlaps(a: Array, b: Array) -> Array:
    """Return the IoU ``(N, M)``, in doubles, of corner boxes ``a (N, 4)`` and ``b (M, 4)`` of float32 values.

    Areas are ``(x2 - x1 + 1) (y2 - y1 + 1)``, also for boxes that are inside out, so an IoU may be below 0, above 1 or
    infinite.
    """
    a, b = a.astype(np.float64)[:, None], b.astype(np.float64)[None]
    width = np.minimum(a[..., 2], b[..., 2]) - np.maximum(a[..., 0], b[..., 0]) + 1
    height = np.minimum(a[..., 3], b[..., 3]) - np.maximum(a[..., 1], b[..., 1]) + 1
    common = width * height
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((width > 0) & (height > 0), common / (_area(a) + _area(b) - common), 0.0)


def _area(boxes: Array) -> Array:
    return (boxes[..., 2] - boxes[..., 0] + 1) * (boxes[..., 3] - boxes[..., 1] + 1)


def merge(boxes: Array, threshold: float, dtype: type[np.floating[Any]]) -> tuple[Array, list[list[int]]]:
    """Merge corner boxes ``(N, 4)`` as :func:`saywhere.boxes.merge`: return the means ``(G, 4)`` and members of groups.

    IoUs and the threshold are compared as ``dtype``; means are float32. Neighbours are counted in a byte: boxes with a
    multiple of 256 neighbours vanish unless another group takes them.
    """
    iou = overlaps(boxes, boxes).astype(dtype)
    np.fill_diagonal(iou, 1)
    close = iou >= dtype(threshold)
    means, groups = [], []
    while len(boxes):
        neighbours = close.sum(axis=0) % 256
        if not neighbours.any():
            break
        members = np.flatnonzero(close[neighbours.argmax()])
        means.append(np.add.accumulate(boxes[members], dtype=np.float32)[-1] / np.float32(len(members)))
        groups.append(members.tolist())
        close[members] = False
        close[:, members] = False
    return np.array(means, dtype=np.float32).reshape(-1, 4), groups


def descending_order(scores: Array) -> Array:
    """Return indices that sort ``scores (N,)`` downwards, with equal scores as the program's quicksort leaves them."""
    return ascending_order(-scores)


def recall_starts(hits: Array, positives: int, dtype: type[np.floating[Any]]) -> Array:
    """Return for each recall of the program how many of the best detections do not reach it yet.

    The program adds 0.01 until it is above 1, and rounding errors add up: there are 100 recalls, the 7th is a little
    above 0.06, the last a little below 1. Recalls and their bounds are compared as ``dtype``.

    Args:
        hits: ``(N,)`` whether the detections, best first, are true.
        positives: number of true boxes, above 0.
        dtype: float32 or float64.
    """
    bounds, bound = [], 0.0
    while bound <= 1:
        bounds.append(bound)
        bound += 0.01
    recall = np.cumsum(hits).astype(dtype) / dtype(positives)
    return np.searchsorted(recall, np.array(bounds, dtype=dtype))

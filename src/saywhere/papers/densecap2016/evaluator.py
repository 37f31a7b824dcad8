"""The published program's evaluator of dense captions, ``protocol="original"``, reproduced to the last digit.

Boxes are the program's corners: float32 ``x1 y1 x2 y2`` of the first and the last pixel, so equal corners have area 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saywhere.evaluation.dense import MERGE_IOU, Rules, first_claims, sum_in_order
from saywhere.options import dataclass

Array = NDArray[Any]

_SMALL = 10  # parts of at most this many elements, and a whole of one more, are left to the insertion sort


def ascending_order(values: ArrayLike) -> np.ndarray:
    """Return int64 indices ``(N,)`` that sort ``values (N,)`` in ascending order, with ties in the order of Torch7."""
    numbers = np.asarray(values)
    if len(np.unique(numbers)) == len(numbers):  # without ties all sorts agree
        return np.argsort(numbers, kind="stable")
    keys, order = numbers.tolist(), list(range(len(numbers)))
    parts = [(0, len(keys) - 1)] if len(keys) > _SMALL + 1 else []
    while parts:
        left, right = parts.pop()
        if right - left + 1 > _SMALL:
            parts += _partition(keys, order, left, right)
    _insertion_sort(keys, order)
    return np.array(order, np.int64)


def _partition(keys: list[float], order: list[int], left: int, right: int) -> list[tuple[int, int]]:
    """Partition elements ``left`` to ``right`` at the median of three; return the bounds of both parts."""

    def swap(i: int, j: int) -> None:
        keys[i], keys[j] = keys[j], keys[i]
        order[i], order[j] = order[j], order[i]

    swap((left + right) // 2, left + 1)
    for i, j in ((left + 1, right), (left, right), (left + 1, left)):
        if keys[i] > keys[j]:
            swap(i, j)
    pivot, i, j = keys[left], left + 1, right
    while True:
        i += 1
        while keys[i] < pivot:
            i += 1
        j -= 1
        while keys[j] > pivot:
            j -= 1
        if j < i:
            break
        swap(i, j)
    swap(left, j)
    return [(left, j - 1), (i, right)]


def _insertion_sort(keys: list[float], order: list[int]) -> None:
    """Sort a nearly sorted list, from its end; an element stops before its equals."""
    for start in range(len(keys) - 2, -1, -1):
        key, index, i = keys[start], order[start], start + 1
        while i < len(keys) and keys[i] < key:
            keys[i - 1], order[i - 1] = keys[i], order[i]
            i += 1
        keys[i - 1], order[i - 1] = key, index


@dataclass(frozen=True)
class OriginalRules(Rules):
    """The program's departures from the definition.

    Boxes are float32 corners of the first and last pixel, 1 is added to sizes, and merging counts neighbours in a byte.
    A true box is claimed by the first detection that overlaps it most, however little. A detection without overlap
    claims the last true box of the image. Precision is averaged over 100 recalls, accumulated with rounding errors.

    Attributes:
        ties: order of equal scores: that of the ``input``, or that of Torch7's unstable quicksort (``torch``),
            :func:`ascending_order`.
        precision: of IoUs in merging, of recall and of precision. The program evaluates in double and validates during
            training in float.
    """

    name: str = "original"
    ties: Literal["input", "torch"] = "input"
    precision: Literal["double", "float"] = "double"

    ordered = False  # boxes are taken as they are

    @property
    def dtype(self) -> type[np.floating[Any]]:
        return np.float32 if self.precision == "float" else np.float64

    def merge(self, boxes: Array) -> tuple[Array, list[list[int]]]:
        return merge(boxes.astype(np.float32), MERGE_IOU, self.dtype)

    def order(self, scores: Array) -> Array:
        """Sort in descending order, with ties as in ``ties``."""
        return ascending_order(-scores) if self.ties == "torch" else super().order(scores)

    def overlaps(self, boxes: Array, truths: Array) -> Array:
        return overlaps(boxes.astype(np.float32), truths)

    def claims(self, truth: Array, truths: int) -> Array:
        """Let a detection without a true box claim the last one: -1 is an index."""
        return np.where(truth < 0, truths - 1, truth)

    def claimants(self, claim: Array) -> Array:
        """Return the mask of each true box's first detection, whatever its overlap."""
        return first_claims(claim, claim >= 0)

    def hits(self, qualifies: Array, claim: Array, claimants: Array) -> Array:
        return claimants & qualifies

    def recall_starts(self, hits: Array, positives: int) -> Array:
        return recall_starts(hits, positives, self.dtype)

    def total(self, values: Sequence[float]) -> float:
        """Add up in a loop, rounding at each step."""
        return sum_in_order(values)


ORIGINAL = OriginalRules()


def overlaps(a: Array, b: Array) -> Array:
    """Return the IoU ``(N, M)``, in float64, of corner boxes ``a (N, 4)`` and ``b (M, 4)`` of float32 values.

    Areas are ``(x2 - x1 + 1) (y2 - y1 + 1)``, even if x2 < x1 or y2 < y1, so an IoU may be below 0, above 1 or
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
    """Merge corner boxes ``(N, 4)`` as :func:`saywhere.boxes.merge`; return mean boxes ``(G, 4)`` and group members.

    IoUs and threshold are compared as ``dtype``; means are float32. Neighbours are counted in a byte: boxes with a
    multiple of 256 neighbours vanish unless another group includes them.
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


def recall_starts(hits: Array, positives: int, dtype: type[np.floating[Any]]) -> Array:
    """Return for each of the program's recalls how many of the best detections ``hits (N,)`` stay below it.

    The program adds 0.01 until it exceeds 1, and rounding errors accumulate: there are 100 recalls, the 7th slightly
    above 0.06 and the last slightly below 1. Recalls and bounds are compared as ``dtype``; ``positives``, the number of
    true boxes, must be above 0.
    """
    bounds, bound = [], 0.0
    while bound <= 1:
        bounds.append(bound)
        bound += 0.01
    recall = np.cumsum(hits).astype(dtype) / dtype(positives)
    return np.searchsorted(recall, np.array(bounds, dtype=dtype))

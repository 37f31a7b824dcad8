"""The order in which the sort of Torch7, the library of the published DenseCap program, leaves equal numbers.

Torch7 sorts by a quicksort that is not stable, so in the program's suppression and evaluation boxes with equal scores
stand in the order in which that quicksort happens to leave them. Repeating its results needs the same exchanges.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

_SMALL = 10  # parts of at most so many elements are left to the insertion sort; so is a whole of one more


def ascending_order(values: ArrayLike) -> np.ndarray:
    """Return indices ``(N,)`` int64 that sort ``values (N,)`` upwards, with equal values in the order of Torch7."""
    numbers = np.asarray(values)
    if len(np.unique(numbers)) == len(numbers):  # without equal values all sorts agree
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
    """Part elements ``left`` to ``right`` at the median of first, middle and last; return the bounds of both parts."""

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
    """Sort what is nearly sorted, from the end; an element stops before its equals."""
    for start in range(len(keys) - 2, -1, -1):
        key, index, i = keys[start], order[start], start + 1
        while i < len(keys) and keys[i] < key:
            keys[i - 1], order[i - 1] = keys[i], order[i]
            i += 1
        keys[i - 1], order[i - 1] = key, index

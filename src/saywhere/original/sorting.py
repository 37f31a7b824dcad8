"""The order in which the program's sort leaves equal numbers.

Its library sorts by quicksort, which is not stable: in NMS and evaluation, boxes with equal scores stand in the
order in which that quicksort happens to leave them. To repeat such results, the same exchanges have to be made.
"""

from __future__ import annotations

import torch
from torch import Tensor

_SMALL = 10  # parts of at most so many elements are left to the insertion sort; so is a whole of one more


def ascending_order(values: Tensor) -> Tensor:
    """Indices ``(N,)`` that sort ``values (N,)`` upwards, ties as in the program; without ties, any sort will do."""
    if len(values.unique()) == len(values):
        return values.argsort()
    keys, order = values.tolist(), list(range(len(values)))
    parts = [(0, len(keys) - 1)] if len(keys) > _SMALL + 1 else []
    while parts:
        left, right = parts.pop()
        if right - left + 1 > _SMALL:
            parts += _partition(keys, order, left, right)
    _insertion_sort(keys, order)
    return torch.tensor(order, dtype=torch.long, device=values.device)


def _partition(keys: list[float], order: list[int], left: int, right: int) -> list[tuple[int, int]]:
    """Part elements ``left`` to ``right`` at the median of first, middle and last; the bounds of the two parts."""

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

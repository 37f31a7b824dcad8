"""Segments of a sentence on areas of a picture: the chain of Eqs. 10 to 12 of Deep Visual-Semantic Alignments."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Chain(NamedTuple):
    """The best alignment of each sentence: ``areas (S, T)``, -1 where padded, and its ``total (S,)`` (Eq. 10)."""

    areas: Tensor
    total: Tensor


def decode_chain(products: Tensor, words_real: Tensor, areas_real: Tensor | None = None, beta: float = 0.0) -> Chain:
    """The alignment a that maximises ``sum_j v_(a_j) . s_j + beta * (number of neighbours on the same area)``.

    Found exactly by dynamic programming over the words. (The paper calls the sum an energy and its terms
    log-probabilities; it is the largest sum that is wanted.) Coming to area i at word j, either the word before was on
    i, which is worth ``beta``, or on the best of all areas, so that a step costs R operations and not R squared.
    ``beta = 0`` aligns word by word, a large ``beta`` puts the whole sentence on one area.

    Args:
        products: ``(S, T, R)`` of each sentence's words with the areas of its picture.
        words_real: ``(S, T)``, padded on the right.
        areas_real: ``(S, R)``; all if None.
        beta: affinity to longer segments, not negative.
    """
    if beta < 0:
        raise ValueError(f"beta is at least 0, not {beta}")
    count, length, size = products.shape
    if areas_real is not None:
        products = products.masked_fill(~areas_real[:, None], -torch.inf)
    if not length or not size:
        return Chain(products.new_full((count, length), -1, dtype=torch.long), products.new_zeros(count))
    here = torch.arange(size, device=products.device)
    totals = products[:, 0].where(words_real[:, :1], 0.0)
    came_from: list[Tensor] = []
    for t in range(1, length):
        best, where = totals.max(dim=1, keepdim=True)
        stay = totals + beta >= best
        longer = torch.maximum(totals + beta, best) + products[:, t]
        real = words_real[:, t, None]
        came_from.append(torch.where(stay | ~real, here, where))
        totals = torch.where(real, longer, totals)
    total, last = totals.max(dim=1)
    path = [last]
    for back in reversed(came_from):
        path.append(back.gather(1, path[-1][:, None])[:, 0])
    areas = torch.stack(path[::-1], dim=1).masked_fill(~words_real, -1)
    return Chain(areas, total.where(words_real.any(dim=1), 0.0))


def segments(areas: list[int]) -> list[tuple[int, int, int]]:
    """Runs of equal areas as (first word, word after the last, area); words on area -1 are left out."""
    found: list[tuple[int, int, int]] = []
    for place, area in enumerate(areas):
        if found and found[-1][2] == area and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1, area)
        elif area >= 0:
            found.append((place, place + 1, area))
    return found

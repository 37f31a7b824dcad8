"""Segments of a sentence on regions of an image: the chain of Eqs. 10 to 12 of Deep Visual-Semantic Alignments."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Chain(NamedTuple):
    """The best alignment of a sentence: the region ``(T,)`` of each word, and its ``total`` (Eq. 10)."""

    regions: np.ndarray
    total: float


def decode_chain(products: np.ndarray, beta: float = 0.0) -> Chain:
    """Return the alignment a that maximises ``sum_j v_(a_j) . s_j + beta * (number of neighbours on the same region)``.

    Found exactly by dynamic programming over the words. (The paper calls the sum an energy and its terms
    log-probabilities; it is the largest sum that is wanted.) Coming to region i at word j, either the word before was
    on i, which is worth ``beta``, or on the best of all regions, so that a step costs R operations and not R squared.
    ``beta = 0`` aligns word by word, a large ``beta`` puts the whole sentence on one region.

    Args:
        products: ``(T, R)`` of the words with the regions; a region that does not count has minus infinity.
        beta: affinity to longer segments, not negative.

    Raises:
        ValueError: ``beta`` is negative.
    """
    if beta < 0:
        raise ValueError(f"beta must be at least 0, not {beta}")
    length, count = products.shape
    if not length or not count:
        return Chain(np.full(length, -1), 0.0)
    here = np.arange(count)
    totals = products[0]
    came_from: list[np.ndarray] = []
    for row in products[1:]:
        best = totals.argmax()
        stay = totals + totals.dtype.type(beta) >= totals[best]
        came_from.append(np.where(stay, here, best))
        totals = np.maximum(totals + totals.dtype.type(beta), totals[best]) + row
    path = [int(totals.argmax())]
    for back in reversed(came_from):
        path.append(int(back[path[-1]]))
    return Chain(np.array(path[::-1]), float(totals.max()))


def segments(regions: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of equal regions as (first word, word after the last, region); words on region -1 are left out."""
    found: list[tuple[int, int, int]] = []
    for place, region in enumerate(regions):
        if found and found[-1][2] == region and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1, region)
        elif region >= 0:
            found.append((place, place + 1, region))
    return found

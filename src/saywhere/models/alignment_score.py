"""How well a sentence fits a picture: the scores of Eqs. 7 and 8 of Deep Visual-Semantic Alignments."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

How = Literal["max", "fragments"]

BLOCK = 1 << 24
"""Products of an area and a word that are in memory together: 64 MB in single precision."""


def pair_scores(
    areas: Tensor, areas_real: Tensor, words: Tensor, words_real: Tensor, how: How = "max", mean: bool = False
) -> Tensor:
    """Scores ``S_kl`` of all pictures k with all sentences l, as one masked contraction.

    ``max`` is Eq. 8, the sum over the words of their best area; ``fragments`` is Eq. 7, the sum of all positive
    products. Areas that are not real are minus infinity before the maximum, words that are not real are left out of
    the sum, so that neither can change a score. A picture without areas scores 0.

    Args:
        areas: ``(K, R, D)``. areas_real: ``(K, R)``.
        words: ``(L, T, D)``. words_real: ``(L, T)``.
        how: see above.
        mean: divide by the number of the sentence's words.

    Returns:
        ``(K, L)``, differentiable in areas and words.
    """
    spoken = words[words_real]  # (W, D): padding costs no products
    sentence = torch.arange(len(words), device=words.device)[:, None].expand(words_real.shape)[words_real]
    products = (areas.flatten(0, 1) @ spoken.T).unflatten(0, areas.shape[:2])  # (K, R, W)
    hidden = ~areas_real[..., None]
    if how == "fragments":
        best = (
            torch.relu(products)
            .masked_fill(hidden, 0.0)
            .sum(dim=1, dtype=torch.promote_types(products.dtype, torch.float32))
        )
    elif areas.shape[1] == 0:
        best = products.sum(dim=1)
    else:
        best = products.masked_fill(hidden, -torch.inf).amax(dim=1)
        best = best.where(areas_real.any(dim=1, keepdim=True), 0.0)
    best = best.to(torch.promote_types(best.dtype, torch.float32))  # half precision is too coarse for long sums
    scores = best.new_zeros(len(areas), len(words)).index_add(1, sentence, best)
    return scores / words_real.sum(dim=1).clamp(min=1) if mean else scores


def blocks(
    areas: Tensor,
    areas_real: Tensor,
    words: Tensor,
    words_real: Tensor,
    how: How = "max",
    mean: bool = False,
    block: int = BLOCK,
) -> Iterator[tuple[slice, slice, Tensor]]:
    """:func:`pair_scores` of large sets a block at a time: rows, columns, and the scores of both.

    A block has at most about ``block`` products, so memory is bounded whatever the size of the sets.
    """
    width, height = max(1, areas.shape[1]), max(1, words.shape[1])
    columns = max(1, min(len(words), int((block / (width * height)) ** 0.5) * 8))
    rows = max(1, block // (width * height * columns))
    for left in range(0, len(words), columns):
        column = slice(left, min(left + columns, len(words)))
        said, real = words[column], words_real[column]
        for top in range(0, len(areas), rows):
            row = slice(top, min(top + rows, len(areas)))
            yield row, column, pair_scores(areas[row], areas_real[row], said, real, how, mean)


@torch.no_grad()
def score_matrix(
    areas: Tensor,
    areas_real: Tensor,
    words: Tensor,
    words_real: Tensor,
    how: How = "max",
    mean: bool = False,
    block: int = BLOCK,
) -> Tensor:
    """:func:`pair_scores` ``(K, L)`` of large sets, computed in blocks, without gradients."""
    scores = areas.new_empty(len(areas), len(words))
    for row, column, part in blocks(areas, areas_real, words, words_real, how, mean, block):
        scores[row, column] = part
    return scores

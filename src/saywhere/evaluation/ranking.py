"""Image-sentence ranking: who finds the right sentence, who the right picture (Alignments, section 4.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

AT = (1, 5, 10)
ROUNDING = 1e-5
"""Scores whose relative difference is smaller count as equal: they may come from products of other shapes."""

Part = tuple[slice, slice, Tensor]


@dataclass(frozen=True)
class Recall:
    """One direction.

    Attributes:
        r1, r5, r10: share of the queries whose best true answer is among the first 1, 5, 10.
        median_rank: of the best true answer; 1 is first.
        queries: how many were asked.
    """

    r1: float
    r5: float
    r10: float
    median_rank: float
    queries: int

    @classmethod
    def of(cls, ranks: Tensor) -> Recall:
        """From the rank of the best true answer of each query, counted from 1."""
        if len(ranks) == 0:
            return cls(0.0, 0.0, 0.0, 0.0, 0)
        r1, r5, r10 = (float((ranks <= k).double().mean()) for k in AT)
        ordered = ranks.sort().values.double()
        middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
        return cls(r1, r5, r10, float(middle), len(ranks))


@dataclass(frozen=True)
class RankingResult:
    """Both directions; the paper's "Image Annotation" and "Image Search".

    Attributes:
        image_to_text: the sentences ranked for each picture.
        text_to_image: the pictures ranked for each sentence.
    """

    image_to_text: Recall
    text_to_image: Recall

    def to_dict(self) -> dict[str, Any]:
        """``image_to_text`` and ``text_to_image``, each ``r1 r5 r10 median_rank`` (shares, and ranks from 1)."""
        return {name: {k: v for k, v in vars(recall).items() if k != "queries"} for name, recall in vars(self).items()}


def rank(own: Tensor, owner: Tensor, pictures: int, parts: Iterable[Part]) -> RankingResult:
    """Rank everything both ways, a block of scores at a time; the whole matrix is never needed.

    A wrong answer that scores the same as the right one, up to rounding, stands before it, so that equal scores for
    everything earn nothing. A picture without sentences is not asked for.

    Args:
        own: ``(L,)`` score of each sentence with its own picture.
        owner: ``(L,)`` row of that picture.
        pictures: K.
        parts: blocks of the scores ``(K, L)``: rows, columns and values; together each pair once.
    """
    before_picture = torch.zeros(len(owner), dtype=torch.long)  # other pictures that beat the sentence's own
    before_sentence = torch.zeros(pictures, dtype=torch.long)  # other sentences that beat the best of the picture's own
    best = torch.full((pictures,), -torch.inf, dtype=own.dtype).scatter_reduce(0, owner, own, "amax")
    own_bar, best_bar = own - ROUNDING * own.abs(), best - ROUNDING * best.abs()
    for rows, columns, scores in parts:
        others = owner[columns] != torch.arange(rows.start, rows.stop)[:, None]
        before_picture[columns] += ((scores >= own_bar[columns]) & others).sum(dim=0)
        before_sentence[rows] += ((scores >= best_bar[rows, None]) & others).sum(dim=1)
    asked = torch.isfinite(best)
    return RankingResult(Recall.of(before_sentence[asked] + 1), Recall.of(before_picture + 1))


def rank_matrix(scores: Tensor, owner: Tensor) -> RankingResult:
    """:func:`rank` for a matrix ``(K, L)`` that is there already."""
    scores = scores.detach().cpu()
    own = scores[owner, torch.arange(len(owner))]
    return rank(own, owner, len(scores), [(slice(0, len(scores)), slice(0, scores.shape[1]), scores)])

"""The choice among the hypotheses of a beam: length-normalised log-probability, and weighted reasons beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.models.decoding import Hypotheses
from saywhere.text import END, PAD, Vocabulary


@dataclass(frozen=True)
class Sentence:
    """A hypothesis: its text, and its token ids without END."""

    text: str
    token_ids: list[int]


@dataclass(frozen=True)
class Reason:
    """What speaks for a hypothesis beside its log-probability.

    Attributes:
        score: returns for each image how much speaks for each of its sentences, none of which is empty.
        weight: of this in the sum.
        shortlist: it scores only so many hypotheses of an image, the best so far, and the others are no longer chosen
            from; None for all.
    """

    score: Callable[[Sequence[Sequence[Sentence]]], Sequence[np.ndarray]]
    weight: float
    shortlist: int | None = None


class Reranker:
    """Rank hypotheses by the sum of their length-normalised log-probability and weighted reasons.

    Args:
        reasons: in this order; what costs most comes last, and may be asked about a shortlist alone.
    """

    def __init__(self, reasons: Sequence[Reason]) -> None:
        self.reasons = tuple(reasons)

    def rank(self, found: Hypotheses, vocabulary: Vocabulary) -> np.ndarray:
        """Return the sums ``(N, B)``; -inf for hypotheses that are not on a shortlist. One hypothesis needs no reason.

        Args:
            found: the hypotheses.
            vocabulary: of their words.
        """
        sums = found.ranks
        if sums.shape[1] == 1 or not self.reasons:
            return sums
        rows = [[row[(row != END) & (row != PAD)].tolist() for row in rows] for rows in found.token_ids]
        sentences = [[Sentence(vocabulary.decode(ids), ids) for ids in of_image] for of_image in rows]
        for reason in self.reasons:
            sums = _add(reason, sums, sentences)
        return sums


def _add(reason: Reason, sums: np.ndarray, sentences: Sequence[Sequence[Sentence]]) -> np.ndarray:
    best = np.argsort(-sums, axis=1, kind="stable")[:, : reason.shortlist]
    scored = [
        [b for b in sorted(row) if of_image[b].text] for row, of_image in zip(best.tolist(), sentences, strict=True)
    ]
    added = np.full_like(sums, -np.inf)
    np.put_along_axis(added, best, np.take_along_axis(sums, best, axis=1), axis=1)
    scores = reason.score([[of_image[b] for b in row] for row, of_image in zip(scored, sentences, strict=True)])
    for row, columns, values in zip(added, scored, scores, strict=True):
        row[columns] += np.float32(reason.weight) * values
    return added

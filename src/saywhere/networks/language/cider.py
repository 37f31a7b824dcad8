"""CIDEr-D of sentences of token ids, fast enough to be a reward in training.

Reports take CIDEr-D from pycocoevalcap, which counts how often words occur in the references of each report; here they
are counted once, in a corpus (Vedantam et al., CIDEr: Consensus-based Image Description Evaluation, 2015).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Tokens = tuple[int, ...]

LONGEST = 4
"""Words of the longest n-grams."""
SIGMA = 6.0
"""Of the Gaussian by which sentences of different lengths count less."""
TOP = 10.0
"""CIDEr-D of an image's only reference with itself."""


@dataclass(frozen=True, eq=False)
class _Weighted:
    """A sentence as CIDEr-D compares it: for each n the weights of its n-grams and their norm, and its bigrams."""

    weights: tuple[dict[Tokens, float], ...]
    norms: tuple[float, ...]
    bigrams: int


class Cider:
    """CIDEr-D with the document frequencies of a corpus.

    Args:
        corpus: of each image its references, each a sequence of token ids.
    """

    def __init__(self, corpus: Iterable[Sequence[Sequence[int]]]):
        self._images: Counter[Tokens] = Counter()  # whose references contain an n-gram
        count = 0
        for references in corpus:
            self._images.update({gram for reference in references for gram in _grams(reference)})
            count += 1
        self._log_count = math.log(max(count, 1))
        self._known: dict[Tokens, _Weighted] = {}  # references, which return in every epoch

    def score(self, candidate: Sequence[int], references: Sequence[Sequence[int]]) -> float:
        """Return CIDEr-D of a sentence, from 0 to 10: the mean over the references and over n from 1 to 4.

        Equal to pycocoevalcap's on the same tokens, if its references are the corpus. 0 without references.
        """
        weighted = self._weigh(tuple(candidate))
        values = [_similarity(weighted, self._reference(tuple(reference))) for reference in references]
        return TOP * sum(values) / (LONGEST * len(values)) if values else 0.0

    def knows(self, gram: Sequence[int]) -> bool:
        """Return whether the corpus contains an n-gram of one to four tokens."""
        return tuple(gram) in self._images

    def _reference(self, token_ids: Tokens) -> _Weighted:
        if token_ids not in self._known:
            self._known[token_ids] = self._weigh(token_ids)
        return self._known[token_ids]

    def _weigh(self, token_ids: Tokens) -> _Weighted:
        weights: tuple[dict[Tokens, float], ...] = tuple({} for _ in range(LONGEST))
        for gram, count in Counter(_grams(token_ids)).items():
            rarity = self._log_count - math.log(max(1, self._images[gram]))
            weights[len(gram) - 1][gram] = count * rarity
        norms = tuple(math.sqrt(sum(weight * weight for weight in row.values())) for row in weights)
        return _Weighted(weights, norms, max(0, len(token_ids) - 1))


def _grams(token_ids: Sequence[int]) -> list[Tokens]:
    return [tuple(token_ids[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(token_ids) - n + 1)]


def _similarity(candidate: _Weighted, reference: _Weighted) -> float:
    """The cosines for each n summed; an n-gram that is repeated counts no more often than in the reference."""
    total = 0.0
    for ours, theirs, norm, other in zip(
        candidate.weights, reference.weights, candidate.norms, reference.norms, strict=True
    ):
        if norm and other:
            total += sum(min(w, theirs[g]) * theirs[g] for g, w in ours.items() if g in theirs) / (norm * other)
    return total * math.exp(-((candidate.bigrams - reference.bigrams) ** 2) / (2 * SIGMA**2))

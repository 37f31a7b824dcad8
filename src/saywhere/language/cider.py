"""CIDEr-D of sentences of word numbers, fast enough to be a reward in training.

Reports take CIDEr-D from pycocoevalcap, which counts anew, in the references of each report, how often words are said;
here they are counted once, in a corpus (Vedantam et al., CIDEr: Consensus-based Image Description Evaluation, 2015).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

Words = tuple[int, ...]

LONGEST = 4
"""Words of the longest n-grams."""
SIGMA = 6.0
"""Of the Gaussian by which sentences of different lengths count less."""
TOP = 10.0
"""CIDEr-D of a picture's only reference with itself."""


@dataclass(frozen=True, eq=False)
class _Weighed:
    """A sentence as CIDEr-D compares it: for each n the weights of its n-grams and their norm, and its bigrams."""

    weights: tuple[dict[Words, float], ...]
    norms: tuple[float, ...]
    bigrams: int


class Cider:
    """CIDEr-D with the document frequencies of a corpus.

    Args:
        corpus: of each picture its references, each a sequence of word numbers.
    """

    def __init__(self, corpus: Iterable[Sequence[Sequence[int]]]):
        self._pictures: Counter[Words] = Counter()  # in whose references an n-gram is
        count = 0
        for references in corpus:
            self._pictures.update({gram for words in references for gram in _grams(words)})
            count += 1
        self._log_count = math.log(max(count, 1))
        self._known: dict[Words, _Weighed] = {}  # references, which come again in every epoch

    def score(self, candidate: Sequence[int], references: Sequence[Sequence[int]]) -> float:
        """CIDEr-D of a sentence, from 0 to 10: the mean over the references and over n from 1 to 4.

        Equal to pycocoevalcap's for words written as numbers, if its references are the corpus. 0 without references.
        """
        said = self._weigh(tuple(candidate))
        values = [_similarity(said, self._reference(tuple(words))) for words in references]
        return TOP * sum(values) / (LONGEST * len(values)) if values else 0.0

    def _reference(self, words: Words) -> _Weighed:
        if words not in self._known:
            self._known[words] = self._weigh(words)
        return self._known[words]

    def _weigh(self, words: Words) -> _Weighed:
        weights: tuple[dict[Words, float], ...] = tuple({} for _ in range(LONGEST))
        for gram, count in Counter(_grams(words)).items():
            rarity = self._log_count - math.log(max(1, self._pictures[gram]))
            weights[len(gram) - 1][gram] = count * rarity
        norms = tuple(math.sqrt(sum(weight * weight for weight in row.values())) for row in weights)
        return _Weighed(weights, norms, max(0, len(words) - 1))


def _grams(words: Sequence[int]) -> list[Words]:
    return [tuple(words[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(words) - n + 1)]


def _similarity(said: _Weighed, meant: _Weighed) -> float:
    """The cosines for each n summed; an n-gram that is said too often earns no more than in the reference."""
    total = 0.0
    for ours, theirs, norm, other in zip(said.weights, meant.weights, said.norms, meant.norms, strict=True):
        if norm and other:
            total += sum(min(w, theirs[g]) * theirs[g] for g, w in ours.items() if g in theirs) / (norm * other)
    return total * math.exp(-((said.bigrams - meant.bigrams) ** 2) / (2 * SIGMA**2))

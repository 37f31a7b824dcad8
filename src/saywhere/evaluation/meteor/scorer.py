"""METEOR for many pairs: the score of an alignment (METEOR 1.5, section 2), for ranking translations into English."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from functools import lru_cache
from types import TracebackType

from saywhere.evaluation.meteor.alignment import Language, Text, align, possible_matches
from saywhere.evaluation.meteor.program import MeteorFiles, Pair, clean

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
WEIGHTS = (1.0, 0.6, 0.8, 0.6)

Statistics = tuple[int, ...]
"""Words, and function words, of the hypothesis and of the reference; for each module the content words that match in
both, and the function words; chunks; words that match in both."""


def statistics(hypothesis: Text, reference: Text) -> Statistics:
    """Return what the score of a pair is computed from; such numbers of several pairs may be added."""
    matches, chunks = align(possible_matches(hypothesis, reference), len(reference.words))
    counts = [0] * 16
    ours, theirs = hypothesis.functions, reference.functions
    total = rtotal = 0
    for start, count, other, length, module in matches:
        functions = sum(ours[other : other + length])
        rfunctions = sum(theirs[start : start + count])
        counts[4 * module] += length - functions
        counts[4 * module + 1] += count - rfunctions
        counts[4 * module + 2] += functions
        counts[4 * module + 3] += rfunctions
        total += length
        rtotal += count
    return len(ours), len(theirs), sum(ours), sum(theirs), *counts, chunks, total, rtotal


def score(s: Sequence[int]) -> float:
    """Return the score, 0 to 1, of statistics."""
    words = DELTA * (s[0] - s[2]) + (1.0 - DELTA) * s[2]
    rwords = DELTA * (s[1] - s[3]) + (1.0 - DELTA) * s[3]
    matched = rmatched = 0.0
    for kind, share in ((4, DELTA), (6, 1.0 - DELTA)):  # content words, function words
        for weight, ours, theirs in zip(WEIGHTS, s[kind:20:4], s[kind + 1 : 20 : 4], strict=True):
            matched += weight * ours * share
            rmatched += weight * theirs * share
    if not matched or not rmatched:
        return 0.0
    precision, recall = matched / words, rmatched / rwords
    mean = 1.0 / ((1.0 - ALPHA) / precision + ALPHA / recall)
    fragmentation = _chunks(s) / ((s[21] + s[22]) / 2)
    return mean * (1.0 - GAMMA * fragmentation**BETA)


def total(statistics: Iterable[Statistics]) -> Statistics:
    """Return the statistics of all pairs together, in which a pair that matches as a whole has no chunk."""
    return tuple(map(sum, zip(*((*s[:20], _chunks(s), *s[21:]) for s in statistics), strict=True)))


def _chunks(s: Sequence[int]) -> int:
    """Return the number of chunks; none if all words match in one."""
    return 0 if s[20] == 1 and s[21] == s[0] and s[22] == s[1] else s[20]


CACHE = 100_000
TEXTS = 8192


class Meteor:
    """Score captions by METEOR 1.5; needs no Java, unlike :class:`~saywhere.evaluation.meteor.MeteorProgram`.

    With the first pair METEOR's words are read, in less than a second; the first time ever, its paraphrases are
    compiled into the user's cache. Threads may share a scorer. Scores are cached, so a repeated pair costs nothing.

    Args:
        cache: number of pairs whose scores are kept between calls, at about 0.6 kB each.

    Raises:
        UserError: pycocoevalcap is missing.

    Example:
        >>> with Meteor() as meteor:
        ...     meteor.score([("a red car", ["the red car", "a car"])])
        [0.7714285714285715]
    """

    def __init__(self, cache: int = CACHE) -> None:
        self._files = MeteorFiles.find()
        self.version = self._files.version("words")
        self._cache = cache
        self._lock = threading.Lock()
        self._open()

    def score(self, pairs: Sequence[Pair]) -> list[float]:
        """Return the score, 0 to 1, of each pair of a candidate and its references: that of the best reference.

        An empty candidate scores 0, as does one without references. Line ends become spaces, and ``|||``, which the
        authors' program takes for the end of a text, is removed.
        """
        return [
            self._best(candidate, tuple(references))[1] if candidate and any(references) else 0.0
            for candidate, references in pairs
        ]

    def corpus_score(self, pairs: Sequence[Pair]) -> float:
        """Return the score, 0 to 1, of all pairs together, from their summed statistics: what COCO reports as METEOR.

        Raises:
            ValueError: no pairs.
        """
        if not pairs:
            raise ValueError("the METEOR score of no pairs is not defined")
        return score(total(self._best(candidate, tuple(references))[0] for candidate, references in pairs))

    def close(self) -> None:
        """Forget words and scores; a later :meth:`score` reads them again."""
        self._open()

    def __enter__(self) -> Meteor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> None:
        self._language: Language | None = None
        self._text = lru_cache(TEXTS)(self._read)
        self._best = lru_cache(self._cache)(self._compare)

    def _read(self, text: str) -> Text:
        with self._lock:
            if self._language is None:
                self._language = Language.load(self._files)
        return self._language.text(clean(text))

    def _compare(self, candidate: str, references: tuple[str, ...]) -> tuple[Statistics, float]:
        """Return the statistics and the score of the first of the best references."""
        hypothesis = self._text(candidate)
        each = (statistics(hypothesis, self._text(reference)) for reference in references or ("",))
        return max(((s, score(s)) for s in each), key=lambda pair: pair[1])

"""METEOR for many pairs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import lru_cache
from types import TracebackType

from saywhere.evaluation.meteor.matches import Language, Text
from saywhere.evaluation.meteor.package import MeteorFiles, Pair, clean
from saywhere.evaluation.meteor.statistics import Statistics, score, statistics, total

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

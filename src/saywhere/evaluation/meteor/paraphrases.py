"""The paraphrase table of METEOR 1.5 as arrays: which phrases mean the same as a phrase."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
LONGEST = 7
"""Words of the longest phrase of the table."""
KEPT = 100_000

Hashes = NDArray[np.uint64]
Ids = NDArray[np.uint32]


def byte_values() -> Hashes:
    """Return a number for each byte, of which a text's number is made."""
    values, state = [], 0
    for _ in range(256):  # splitmix64
        state = (state + STEP) & MASK
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & MASK
        values.append(mixed ^ mixed >> 31)
    return np.array(values, np.uint64)


class Paraphrases:
    """Look up phrases and what they mean.

    Args:
        hashes: the number of each phrase, ascending; its rank is the phrase's id.
        starts: where the targets of each phrase begin, and the end of the last.
        targets: ids, in the order of the table.
    """

    def __init__(self, hashes: Hashes, starts: Ids, targets: Ids) -> None:
        self._hashes, self._starts, self._targets = hashes, starts, targets
        self._values = byte_values().tolist()
        self._space = self._values[ord(" ")]
        self._word = lru_cache(KEPT)(self._number)
        self.targets = lru_cache(KEPT)(self._ranked_targets)

    def phrases(self, words: Sequence[str]) -> list[tuple[int, int, int]]:
        """Return start, number of words and id of each known phrase in a text, by start, then length."""
        spans: list[tuple[int, int]] = []
        hashes: list[int] = []
        numbers = [self._word(word) for word in words]
        for start in range(len(words)):
            total, factor = 0, 1
            for count, (number, power) in enumerate(numbers[start : start + LONGEST], 1):
                total = (total + number * factor) & MASK
                spans.append((start, count))
                hashes.append(total)
                factor = factor * power & MASK
                total += self._space * factor
                factor = factor * STEP & MASK
        asked = np.array(hashes, np.uint64)
        ids = np.searchsorted(self._hashes, asked)
        ids[ids == len(self._hashes)] = 0
        found = np.flatnonzero(self._hashes[ids] == asked)
        return [(*spans[k], int(i)) for k, i in zip(found.tolist(), ids[found].tolist(), strict=True)]

    def _ranked_targets(self, phrase: int) -> dict[int, int]:
        """Return the ids of the phrases that a phrase may be replaced by, each with its rank."""
        ids = self._targets[self._starts[phrase] : self._starts[phrase + 1]].tolist()
        return {target: rank for rank, target in enumerate(ids)}

    def _number(self, word: str) -> tuple[int, int]:
        """Return the number of a word and the factor that its length stands for."""
        number, factor = 0, 1
        for byte in word.encode():
            number = (number + self._values[byte] * factor) & MASK
            factor = factor * STEP & MASK
        return number, factor

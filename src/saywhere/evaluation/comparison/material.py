"""The pictures, phrases and boxes of a comparison, the same for all systems and seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from saywhere.data.sample import Sample
from saywhere.text import tokenize
from saywhere.training.region_rnn import Crop

CHOICE = 0
"""Seed of the choice of crops: the same crops train the baselines of all seeds."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """Crops and for each the phrases that can be said of it."""

    crops: list[Crop]
    phrases: list[tuple[str, ...]]


def region_lessons(samples: Sequence[Sample], most: int | None) -> Lessons:
    """True regions, at most ``most`` of a picture, drawn at random: first one of each picture, then the second ones...

    So the crops of a smaller ``most`` are the first of those of a larger one, and need not be computed again.
    """
    orders = [numpy.random.default_rng((CHOICE, i)).permutation(len(s.boxes)).tolist() for i, s in enumerate(samples)]
    longest = max(map(len, orders), default=0)
    lessons = Lessons([], [])
    for rank in range(longest if most is None else min(most, longest)):
        for sample, order in zip(samples, orders, strict=True):
            if rank < len(order):
                x1, y1, x2, y2 = sample.boxes[order[rank]].tolist()
                lessons.crops.append(Crop(sample.image, (x1, y1, x2, y2)))
                lessons.phrases.append(sample.phrases[order[rank]])
    return lessons


def sentence_lessons(samples: Sequence[Sample], longest: int) -> Lessons:
    """Whole pictures with those of their sentences that have one to ``longest`` words."""
    lessons = Lessons([], [])
    for sample in samples:
        fitting = tuple(text for text in sample.sentences if 0 < len(tokenize(text)) <= longest)
        if fitting:
            lessons.crops.append(Crop(sample.image, (0.0, 0.0, float(sample.width), float(sample.height))))
            lessons.phrases.append(fitting)
    return lessons


def most_frequent_phrase(samples: Sequence[Sample]) -> str:
    """The phrase that most training regions have, words compared; of equals the first in the alphabet."""
    counts = Counter(
        " ".join(tokenize(phrase)) for sample in samples for references in sample.phrases for phrase in references
    )
    return min(counts, key=lambda phrase: (-counts[phrase], phrase))

"""The images, phrases and boxes of a comparison, the same for all systems and seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.data.sample import Sample
from saywhere.text import tokenize
from saywhere.training.systems.region_rnn import Crop

CHOICE = 0
"""Seed of the choice of crops: the same crops train the baselines of all seeds."""


@dataclass(frozen=True, eq=False)
class CropTexts:
    """Hold crops, and for each the phrases that describe it."""

    crops: list[Crop]
    phrases: list[tuple[str, ...]]


def region_crops(samples: Sequence[Sample], most: int | None) -> CropTexts:
    """Return true regions, at most ``most`` of an image, drawn at random: first one of each image, then others.

    So the crops of a smaller ``most`` are the first of those of a larger one, and need not be computed again.
    """
    orders = [np.random.default_rng((CHOICE, i)).permutation(len(s.boxes)).tolist() for i, s in enumerate(samples)]
    longest = max(map(len, orders), default=0)
    found = CropTexts([], [])
    for rank in range(longest if most is None else min(most, longest)):
        for sample, order in zip(samples, orders, strict=True):
            if rank < len(order):
                x1, y1, x2, y2 = sample.boxes[order[rank]].tolist()
                found.crops.append(Crop(sample.image, (x1, y1, x2, y2)))
                found.phrases.append(sample.phrases[order[rank]])
    return found


def sentence_crops(samples: Sequence[Sample], longest: int) -> CropTexts:
    """Return whole images with those of their sentences that have one to ``longest`` words."""
    found = CropTexts([], [])
    for sample in samples:
        fitting = tuple(text for text in sample.sentences if 0 < len(tokenize(text)) <= longest)
        if fitting:
            found.crops.append(Crop(sample.image, (0.0, 0.0, float(sample.width), float(sample.height))))
            found.phrases.append(fitting)
    return found


def most_frequent_phrase(samples: Sequence[Sample]) -> str:
    """Return the phrase that most training regions have, words compared; of equals the first in the alphabet."""
    counts = Counter(
        " ".join(tokenize(phrase)) for sample in samples for references in sample.phrases for phrase in references
    )
    return min(counts, key=lambda phrase: (-counts[phrase], phrase))

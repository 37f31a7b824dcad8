"""Which words and areas have long vectors, and which have short ones (supplement of Deep Visual-Semantic Alignments).

Scores are dot products, so a long vector has a say in them and a short one has none: words that can be seen grow long,
and words that say nothing of the picture shrink.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch

from saywhere.models.aligner import SENTENCES_AT_ONCE, Aligner
from saywhere.models.alignment import Box, PictureVectors
from saywhere.text import tokenize


class WordMagnitude(NamedTuple):
    """The mean length of a word's vectors over the ``places`` where it was read."""

    word: str
    magnitude: float
    places: int


class AreaMagnitude(NamedTuple):
    """The length of an area's vector; ``box`` is in pixels of the picture ``image``."""

    image: str
    box: Box
    magnitude: float


@torch.no_grad()
def word_magnitudes(model: Aligner, sentences: Sequence[str], min_count: int = 5) -> list[WordMagnitude]:
    """The words that stand at least ``min_count`` times in ``sentences``, longest vector first.

    Words that the model does not know are left out: to it they are all the same.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(sentences), SENTENCES_AT_ONCE):
        part = sentences[start : start + SENTENCES_AT_ONCE]
        lengths = model.read(part).vectors.norm(dim=2)
        for text, row in zip(part, lengths.tolist(), strict=True):
            for word, length in zip(tokenize(text), row, strict=False):
                if word in model.vocabulary:
                    found[word].append(length)
    rows = [WordMagnitude(w, sum(v) / len(v), len(v)) for w, v in found.items() if len(v) >= min_count]
    return sorted(rows, key=lambda row: (-row.magnitude, row.word))


def area_magnitudes(pictures: Iterable[PictureVectors]) -> list[AreaMagnitude]:
    """All areas of embedded pictures, longest vector first."""
    rows = [
        AreaMagnitude(picture.name, tuple(box), length)
        for picture in pictures
        for box, length in zip(picture.boxes.tolist(), picture.vectors.norm(dim=1).tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -row.magnitude)

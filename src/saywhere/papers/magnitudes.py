"""Which words and regions have long vectors, and which short ones (supplement of Deep Visual-Semantic Alignments).

Similarities are dot products, so a long vector has a strong influence on them and a short one has none: words for
visible things grow long, and words that say nothing about the image shrink.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from saywhere.models.aligner import TEXTS_AT_ONCE, Box, ImageVectors, require_words, token_ids
from saywhere.models.model import Model
from saywhere.text import tokenize


class WordMagnitude(NamedTuple):
    """The mean length of a word's vectors over the ``places`` where it occurs."""

    word: str
    magnitude: float
    places: int


class RegionMagnitude(NamedTuple):
    """The length of a region's vector; ``box`` is in pixels of the image ``image``."""

    image: str
    box: Box
    magnitude: float


def word_magnitudes(model: Model, sentences: Sequence[str], min_count: int = 5) -> list[WordMagnitude]:
    """Return the words that occur at least ``min_count`` times in ``sentences``, longest vector first.

    The vectors are those of Eqs. 2 to 6, before they are weighted for the similarity of a sentence. Words that the
    model does not know are left out: to the model they are all the same.

    Raises:
        UserError: the model has no aligner of words, or a sentence has no word.
    """
    aligner = model.require("aligner", "embed words")
    require_words(aligner)
    found: dict[str, list[float]] = defaultdict(list)
    for start in range(0, len(sentences), TEXTS_AT_ONCE):
        part = sentences[start : start + TEXTS_AT_ONCE]
        lengths = np.linalg.norm(aligner.text_vectors(token_ids(aligner, part)).vectors, axis=2)  # (S, T)
        for text, row in zip(part, lengths.tolist(), strict=True):
            for word, length in zip(tokenize(text), row, strict=False):  # rows are padded
                if word in aligner.vocabulary:
                    found[word].append(length)
    rows = [WordMagnitude(w, sum(v) / len(v), len(v)) for w, v in found.items() if len(v) >= min_count]
    return sorted(rows, key=lambda row: (-row.magnitude, row.word))


def region_magnitudes(images: Iterable[ImageVectors]) -> list[RegionMagnitude]:
    """Return all regions of embedded images, longest vector first."""
    rows = [
        RegionMagnitude(image.image, tuple(box), length)
        for image in images
        for box, length in zip(image.boxes.tolist(), np.linalg.norm(image.vectors, axis=1).tolist(), strict=True)
    ]
    return sorted(rows, key=lambda row: -row.magnitude)

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from saywhere.calibration import Calibration
from saywhere.configs.aligner import AlignerConfig
from saywhere.engines.engine import EncodedText
from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.papers.magnitudes import RegionMagnitude, WordMagnitude, region_magnitudes, word_magnitudes
from saywhere.text import Vocabulary


class StubAligner:
    """A word's vector is (place in the sentence from 0, its number in the vocabulary)."""

    vocabulary = Vocabulary({"a": 3, "dog": 2, "runs": 1})
    config = AlignerConfig()  # with END, and the mean over the words

    def text_vectors(self, token_ids):
        places = np.broadcast_to(np.arange(token_ids.shape[1]), token_ids.shape)
        return EncodedText(np.stack((places, token_ids), axis=-1).astype(np.float32), token_ids > 0)


def model(aligner=None) -> Model:
    parts = {"densecap": None, "aligner": aligner, "captioner": None, "nouns": None}
    return Model(SimpleNamespace(trunk=None, calibration=Calibration(), **parts), "stub")


def test_words_by_the_mean_length_of_their_vectors():
    sentences = ["A dog runs", "a zebra, a dog", "A a"]
    rows = word_magnitudes(model(StubAligner()), sentences, min_count=2)
    # "a" is token 4 at the places 0; 0 and 2; 0 and 1. "dog" is token 5 at 1 and 3. "runs" is once, the zebra unknown.
    a = (4 + 4 + np.hypot(2, 4) + 4 + np.hypot(1, 4)) / 5
    dog = (np.hypot(1, 5) + np.hypot(3, 5)) / 2
    assert rows == [WordMagnitude("dog", pytest.approx(dog), 2), WordMagnitude("a", pytest.approx(a), 5)]
    once = word_magnitudes(model(StubAligner()), sentences, min_count=1)
    assert [row.word for row in once] == ["runs", "dog", "a"]


def test_a_model_without_an_aligner_is_refused():
    with pytest.raises(UserError, match="stub cannot embed words: that needs a model with the part aligner"):
        word_magnitudes(model(), ["a dog"])


def test_regions_by_the_length_of_their_vectors():
    def image(name, *lengths):
        boxes = np.arange(4.0 * len(lengths)).reshape(-1, 4)
        vectors = np.array([[0.0, length] for length in lengths])
        return ImageVectors(9, 9, boxes, vectors, name, np.zeros(len(lengths)))

    rows = region_magnitudes([image("a", 1, 3), image("b", 2)])
    assert rows == [
        RegionMagnitude("a", (4, 5, 6, 7), 3),
        RegionMagnitude("b", (0, 1, 2, 3), 2),
        RegionMagnitude("a", (0, 1, 2, 3), 1),
    ]

"""Phrases placed by an aligner, by a dense captioner, and by controls that do not read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tiny_aligner import aligner_model, tiny_aligner
from tiny_densecap import tiny_model

from saywhere.data.entities import MarkedImage, MarkedPhrase, MarkedSentence
from saywhere.engines.torch import TorchEngine
from saywhere.evaluation.grounding.run import PRIOR, AlignerView, DetectorView, control, ground
from saywhere.models.aligner import ImageVectors
from saywhere.models.phrase_scores import score_regions
from saywhere.regions import Regions

BOXES = [[0.0, 0, 100, 50], [0, 0, 40, 40], [60, 10, 90, 30]]
NO_KIND = dict.fromkeys(("red shirt", "green grass", "white house"), np.zeros(1, np.float32))


def image(*truths: tuple[float, ...] | None) -> MarkedImage:
    """An image with a sentence of two words a phrase."""
    phrases = tuple(
        MarkedPhrase(2 * i, 2 * i + 2, str(i), ("other",), None if box is None else np.array(box, np.float32))
        for i, box in enumerate(truths)
    )
    words = ("red", "shirt", "green", "grass", "white", "house")[: 2 * len(truths)]
    return MarkedImage(Path("a.jpg"), 100, 50, (MarkedSentence(words, phrases),))


def view(boxes: list[list[float]], vectors: np.ndarray, kinds=NO_KIND, **options) -> AlignerView:
    aligner = aligner_model(tiny_aligner(**options)).aligner
    logits = np.zeros(len(boxes), np.float32)
    return AlignerView(aligner, ImageVectors(100, 50, np.array(boxes, np.float32), vectors, "a", logits), kinds)


def test_the_region_that_fits_the_words_best_is_the_answer():
    sentence = aligner_model(tiny_aligner()).embed_text("red shirt green grass").vectors
    both = np.stack((sentence[:2].sum(axis=0), sentence[2:4].sum(axis=0)))
    apart = np.linalg.pinv(both) @ np.array([1.0, -1.0])  # product 1 with one phrase, -1 with the other
    seen = view(BOXES, np.stack((0 * apart, apart, -apart)).astype(np.float32))
    marked = image((0.0, 0, 40, 40), (60.0, 10, 90, 30))
    assert ground([marked], [seen]).accuracy == 1.0
    other = image((60.0, 10, 90, 30), (0.0, 0, 40, 40))
    assert ground([other], [seen]).accuracy == 0.0


@pytest.mark.parametrize("row", [0, 1, 2])
def test_the_classes_have_a_say_where_the_aligner_places_phrases(row):
    kinds = {"red shirt": np.where(np.arange(3) == row, -1, -9).astype(np.float32), "green grass": np.zeros(3)}
    vectors = np.random.default_rng(0).standard_normal((3, 16), np.float32)
    (sentence,) = image(tuple(BOXES[0]), tuple(BOXES[0])).sentences
    asked, of_no_kind = (
        view(BOXES, vectors, kinds, grounding={"similarity_kind_weight": weight}).find(sentence, sentence.phrases)
        for weight in (1e4, 0)
    )
    assert asked[0].tolist() == BOXES[row]
    assert asked[1].tolist() == of_no_kind[1].tolist()
    assert of_no_kind.tolist() == view(BOXES, vectors).find(sentence, sentence.phrases).tolist()


def test_phrases_without_a_box_are_not_asked_for():
    seen = view(BOXES, np.random.default_rng(0).standard_normal((3, 16), np.float32))
    assert ground([image(None, (0.0, 0, 40, 40), None)], [seen]).phrases == 1
    assert ground([image(None)], [seen]).phrases == 0


def test_controls_do_not_read():
    seen = view(BOXES, np.zeros((3, 2), np.float32))
    whole, large, small = (image(tuple(box)) for box in BOXES)
    assert [control("whole image", [p], [seen]).accuracy for p in (whole, large, small)] == [1, 0, 0]
    assert [control("largest region", [p], [seen]).accuracy for p in (whole, large, small)] == [0, 1, 0]
    many = [large] * 200
    share = control("random region", many, [seen] * 200).accuracy
    assert 0.35 < share < 0.65 and share == control("random region", many, [seen] * 200).accuracy
    assert any(share != control("random region", many, [seen] * 200, seed=seed).accuracy for seed in (1, 2, 3))
    alone = view(BOXES[:1], np.zeros((1, 2), np.float32))
    assert control("random region", [whole], [alone]).accuracy == 1.0


@pytest.mark.parametrize(("bonus", "expected"), [(1.0, [1, 0, 0]), (-1.0, [0, 0, 1])])
def test_what_is_best_before_reading_is_a_control(bonus, expected):
    whole, large, small = (image(tuple(box)) for box in BOXES)
    seen = view(BOXES, np.random.default_rng(0).standard_normal((3, 16), np.float32), size_bonus=bonus)
    assert [control(PRIOR, [p], [seen]).accuracy for p in (whole, large, small)] == expected
    assert control(PRIOR, [image(None)], [seen]).phrases == 0


def regions(scores: list[float], features: np.ndarray) -> Regions:
    return Regions(100, 50, np.array(BOXES[1:])[: len(scores)], np.array(scores), features=features)


def test_a_dense_captioner_takes_the_region_that_is_there_and_is_called_so():
    network = tiny_model()
    detector = TorchEngine({"densecap": network}).densecap
    features = np.random.default_rng(1).standard_normal((2, network.config.embed_dim), np.float32)
    texts = ["red shirt", "green grass"]
    log_probs = score_regions(detector.decoder, detector.vocabulary, regions([0.5, 0.5], features), texts).log_probs
    for scores in ([0.5, 0.5], [0.9, 0.1], [1e-30, 1.0]):
        seen = DetectorView(detector, regions(scores, features))
        best = (log_probs + np.log(scores)[:, None]).argmax(axis=0).tolist()
        assert ground([image(*(tuple(BOXES[1 + row]) for row in best))], [seen]).accuracy == 1.0
        assert control(PRIOR, [image(tuple(BOXES[1 + scores.index(max(scores))]))], [seen]).accuracy == 1.0
    assert best == [1, 1]
    nothing = DetectorView(detector, regions([], features[:0]))
    for name in (PRIOR, "largest region"):
        assert control(name, [image(tuple(BOXES[0]))], [nothing]).accuracy == 1.0
    assert ground([image(tuple(BOXES[0]), tuple(BOXES[1]))], [nothing]).accuracy == 0.5

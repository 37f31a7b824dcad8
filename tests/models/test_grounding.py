"""Words and regions as a user gets them: the verbs embed, align and ground of an aligner."""

from __future__ import annotations

import math

import numpy as np
import pytest
from photographs import noise
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

from saywhere import boxes as geometry
from saywhere.models.model import Model

IMAGES = [noise(96, 64, 0), noise(64, 96, 1), noise(96, 96, 2), noise(120, 64, 3)]


def tiny(**options) -> Model:
    return aligner_model(tiny_aligner(**options))


def test_regions_may_earn_a_bonus_for_what_they_are():
    plain, words = tiny(), len(SENTENCES[0].split())
    image = plain.embed(IMAGES[0])
    assert np.abs(image.logits[1:]).min() > 0
    base = plain.align(IMAGES[0], SENTENCES[0]).products
    scored = tiny(score_bonus=0.3).align(IMAGES[0], SENTENCES[0]).products
    np.testing.assert_allclose(scored - base, 0.3 * np.tile(image.logits, (words, 1)), atol=1e-5, rtol=1e-4)
    box = [[0.0, 0, 48, 32]]
    sized = tiny(size_bonus=2.0).align(IMAGES[0], SENTENCES[0], box).products
    given = plain.align(IMAGES[0], SENTENCES[0], box).products
    np.testing.assert_allclose(sized - given, [[0.0, 2 * math.log(0.25)]] * words, atol=1e-5, rtol=1e-4)


def test_words_may_be_placed_in_regions_that_are_closer_together():
    usual = tiny()
    close = tiny(grounding={"nms_iou": 0.9})
    np.testing.assert_array_equal(close.embed(IMAGES[0]).boxes, usual.embed(IMAGES[0]).boxes)
    boxes = close.align(IMAGES[0], SENTENCES[0]).boxes
    assert len(boxes) == len(usual.align(IMAGES[0], SENTENCES[0]).boxes)
    overlaps = [
        geometry.iou(b[1:], b[1:])[np.triu_indices(len(b) - 1, 1)] for b in (boxes, usual.embed(IMAGES[0]).boxes)
    ]
    assert overlaps[0].max() > 0.5 >= overlaps[1].max() - 1e-3


def test_a_sentence_is_cut_into_phrases_and_each_is_grounded_alone():
    model = tiny()
    assert model.ground(IMAGES[0], SENTENCES[0]).captions == ("a man", "a red shirt", "a horse")
    phrases = model.ground(IMAGES[0], ["a red shirt", "a horse"])
    assert phrases.captions == ("a red shirt", "a horse") and phrases.scores is None
    alone = model.align(IMAGES[0], "a horse", beta=0.0)
    region = int(alone.products.sum(axis=0).argmax())
    np.testing.assert_allclose(phrases.boxes[1], alone.boxes[region])
    assert phrases.similarities[1] == pytest.approx(alone.products[:, region].mean(), abs=1e-5)

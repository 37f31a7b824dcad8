"""Any phrase against the regions of an image: the verb ``score`` and what it returns."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tiny_classes
from photographs import noise
from refusals import refuses
from stubs import calibrated
from tiny_densecap import VOCABULARY, tiny_detector

from saywhere.engines.torch import TorchEngine
from saywhere.models.model import Model
from saywhere.models.phrase_scores import PhraseScores
from saywhere.regions import Regions
from saywhere.text import UNKNOWN

PHRASES = ("a red square", "a dog", "the blue sky", "a red dog")
IMAGE = noise(120, 80)


def test_the_regions_are_those_of_describe_and_given_boxes_as_they_are():
    model = tiny_detector()
    own, boxes = model.score(IMAGE, ["a dog"]), np.array([[60.0, 10, 110, 70], [0, 0, 120, 80]])
    assert own.regions.to_dict() == model.describe(IMAGE).to_dict()
    given = model.score(model.encode(IMAGE), ["a dog"], boxes)
    assert given.regions.boxes.tolist() == boxes.tolist()
    backwards = model.score(IMAGE, ["a dog"], boxes[::-1])
    np.testing.assert_allclose(backwards.log_probs, given.log_probs[::-1], rtol=1e-4, atol=1e-5)
    assert model.score(IMAGE, ["a dog"], np.zeros((0, 4))).log_probs.shape == (0, 1)
    assert model.score(IMAGE, []).log_probs.shape == (len(own.regions), 0)
    assert repr(given) == "PhraseScores(1 phrase, 2 regions of <image>)"


def test_unknown_words_are_reported_and_count_as_the_unknown_word():
    found = tiny_detector().score(IMAGE, ["a zebra", "a giraffe", "a dog", "zebra ZEBRA crossing"])
    assert found.unknown == (("zebra",), ("giraffe",), (), ("zebra", "crossing"))
    assert found.log_probs[:, 0].tolist() == found.log_probs[:, 1].tolist() != found.log_probs[:, 2].tolist()
    assert VOCABULARY.encode("a zebra")[1] == UNKNOWN


def scores(probabilities: list[list[float]], phrases: tuple[str, ...], of_regions: Any = None) -> PhraseScores:
    """Of regions that are 1, 2, 3 ... pixels wide."""
    boxes = [[0.0, 0, side, side] for side in range(1, len(probabilities) + 1)]
    regions = Regions(10, 10, boxes, of_regions, ["x"] * len(boxes))
    with np.errstate(divide="ignore"):
        log_probs = np.log(np.array(probabilities, np.float32))
    return PhraseScores(regions, phrases, log_probs, ((),) * len(phrases))


def widths(regions: Regions) -> list[float]:
    return regions.boxes[:, 2].tolist()


def test_find_gives_the_best_regions_of_a_phrase():
    found = scores([[0.1, 0.5], [0.4, 0.25], [0.2, 0.5]], ("a cat", "a dog"))
    cats, dog = found.find("a cat"), found.find("a dog", top=1)
    assert widths(cats) == widths(found.find("a cat", top=0)) == [2, 3, 1] and cats.captions == ("a cat",) * 3
    assert cats.scores.tolist() == pytest.approx([0.4, 0.2, 0.1])
    assert widths(dog) == [1], "of equals the first"
    refuses("'a bird' was not scored, only 'a cat', 'a dog'", found.find, "a bird")


def test_a_region_that_is_hardly_there_is_found_late():
    found = scores([[0.1], [0.4], [1.0]], ("a cat",), [0.5, 0.1, 0.0])
    assert np.exp(found.joint[:, 0]).tolist() == pytest.approx([0.05, 0.04, 0])
    cats = found.find("a cat")
    assert widths(cats) == [1, 2, 3] and cats.scores.tolist() == pytest.approx([0.05, 0.04, 0])
    assert scores([[0.1], [0.4]], ("a cat",)).joint.tolist() == scores([[0.1], [0.4]], ("a cat",)).log_probs.tolist()


def test_the_best_region_of_each_phrase():
    best = scores([[0.1, 0.4, 0.2], [0.5, 0.4, 0.5]], ("a", "b", "c"), [0.5, 0.2]).best()
    assert widths(best) == [2, 1, 1] and best.captions == ("a", "b", "c"), "of equals the first"
    assert best.scores.tolist() == pytest.approx([0.1, 0.2, 0.1])
    assert len(scores([], ("a",)).best()) == 0
    assert len(scores([[], []], ()).best()) == 0


def test_classes_say_which_region_is_of_the_kind_of_a_phrase():
    """The decoder likes the first region for both phrases; "a thing" names no kind that the classes know."""
    found = scores([[0.4, 0.4], [0.1, 0.1]], ("a cat", "a thing"))
    with_kinds = replace(found, kinds=np.log(np.array([[0.01, 1], [0.9, 1]], np.float32)))
    assert widths(with_kinds.find("a cat")) == [2, 1]
    assert with_kinds.find("a cat").scores.tolist() == pytest.approx([0.9 * 0.1**0.3, 0.01 * 0.4**0.3])
    assert with_kinds.find("a thing").scores.tolist() == found.find("a thing").scores.tolist()


def test_a_model_with_classes_asks_them():
    model = tiny_classes.tiny_model()
    found = model.score(IMAGE, ["a dog", "a zyzzyva"])
    (posterior,) = model.nouns.posteriors([model.encode(IMAGE)], [found.regions.boxes])
    dog = model.nouns.lookup("a dog")
    assert dog is not None
    np.testing.assert_allclose(np.exp(found.kinds[:, 0]), model.nouns.probability(posterior, dog), rtol=1e-4)
    assert (found.kinds[:, 1] == 0).all()
    assert tiny_detector().score(IMAGE, ["a dog"]).kinds is None


def test_the_probability_of_words_is_that_of_the_described_phrases_alone():
    fits = calibrated(caption=(0, 0, 0, 0, 0))
    model = Model(TorchEngine(tiny_classes.tiny_networks(), fits))
    assert model.describe(IMAGE).caption_scores.tolist() == [0.5] * len(model.describe(IMAGE))
    assert model.describe(IMAGE, [[0, 0, 60, 60]])[0].caption_score == 0.5
    scored = model.score(IMAGE, ["a dog"])
    assert scored.regions.caption_scores is not None and len(scored.best()) == 1
    for found in (scored.best(), scored.find("a dog"), model.ground(IMAGE, ["a dog"], part="densecap")):
        assert found.captions is not None and found.caption_scores is None

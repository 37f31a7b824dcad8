"""How probable it is that a found image shows all of a query."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from photographs import noise
from tiny_aligner import aligner_model, tiny_aligner

import saywhere
from saywhere.models.model import Model
from saywhere.search.commonness import Commonness
from saywhere.search.phrases import PhrasesInImages, probabilities
from saywhere.search.query import Query
from saywhere.text import Vocabulary

PRESENCE = (0.05, 0.0, 0.0, 0.3)
HIT = (0.02, 0.7, 0.3, 0.4)


def model(**grounding) -> Model:
    return aligner_model(tiny_aligner(grounding=grounding))


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("album")
    for number in range(3):
        noise(96, 64, number).save(folder / f"{number}.png")
    return folder


def expected(made: Model, path: str, wanted: list[str], unwanted: list[str], phrases: list[str]) -> float:
    """The probability by the model's own answers."""
    there, others = (made.ground(path, each, part="aligner", threshold=0).scores for each in (phrases, unwanted))
    chances = np.log([*there, *(1 - others)])
    similarity = made.similarity([made.embed(path)], made.embed_text(wanted)).mean()
    rarest = Commonness(made.require("aligner", "search").vocabulary).rarest(phrases)
    return float(1 / (1 + np.exp(-(np.dot(HIT[:3], (similarity, chances.sum(), rarest)) + HIT[3]))))


@pytest.mark.parametrize(
    ("query", "wanted", "unwanted", "phrases"),
    [
        ("Two dogs run on the green grass.", ["Two dogs run on the green grass."], [], ["Two dogs", "the green grass"]),
        ("two dogs + a horse - a man", ["two dogs", "a horse"], ["a man"], ["two dogs", "a horse"]),
    ],
)
def test_a_hit_has_the_probability_of_all_that_is_asked_for(album, tmp_path, query, wanted, unwanted, phrases) -> None:
    made = model(presence=PRESENCE, hit=HIT)
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        for hit in index.search(query):
            assert hit.probability == pytest.approx(expected(made, hit.image, wanted, unwanted, phrases), abs=2e-3)
            assert 0 < hit.probability < 1
            assert hit.to_dict()["probability"] == round(hit.probability, 5)
        image = index.search(image=str(album / "0.png"))[0]
        assert image.probability is None and "probability" not in image.to_dict()


def test_a_phrase_of_unknown_words_is_not_found(album, tmp_path) -> None:
    with saywhere.Index(tmp_path / "i", model(presence=(0.0, 0.0, 0.0, 9.0), hit=HIT)) as index:
        index.add(album)
        for query, found, missing in (("xyzzy", [], ["xyzzy"]), ("a horse + xyzzy", ["a horse"], ["xyzzy"])):
            for hit in index.search(query):
                assert [[*(hit.regions.captions or ())], [*hit.regions.not_found]] == [found, missing]


def test_without_calibration_there_is_no_probability(album) -> None:
    for grounding, judged in (({}, False), ({"presence": PRESENCE}, True), ({"hit": HIT}, False)):
        made = model(**grounding)
        placed = PhrasesInImages(made, Query(("two dogs",))).find(made.embed(str(album / "0.png")))
        assert placed.probability is None and (placed.evidence is not None) == judged


def test_a_probability_is_logistic_and_never_overflows() -> None:
    evidence = np.array([[[0.0, 0.0, 0.0], [10.0, -4.0, 1.0]], [[1e9, 0.0, 0.0], [-1e9, 0.0, 0.0]]])
    found = probabilities(evidence, (0.5, 1.0, 2.0, -3.0))
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(3)), 0.5], [1, 0]], atol=1e-12)


def test_what_is_said_more_often_is_commoner_by_whatever_word() -> None:
    counts = {"a": 900, "dog": 60, "dogs": 30, "puppy": 9, "man": 199, "frisbee": 3, "grass": 50, "runs": 400}
    common = Commonness(Vocabulary(counts))
    assert common.rarest(["a dog"]) == common.rarest(["two puppies"]) == pytest.approx(math.log(100 / 200))
    assert common.rarest(["a man", "a dog", "a frisbee"]) == pytest.approx(math.log(4 / 200))
    assert common.rarest(["a zebra"]) == pytest.approx(math.log(1 / 200)) and common.rarest(["a man"]) == 0
    assert common.rarest([]) == Commonness(Vocabulary({})).rarest(["a dog"]) == 0

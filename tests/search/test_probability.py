"""How probable it is that a found image shows all of a query."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from photographs import noise
from tiny_aligner import aligner_model, tiny_aligner

import saywhere
from saywhere.models.model import Model
from saywhere.search.phrases import PhrasesInImages, probabilities
from saywhere.search.query import Query

PRESENCE = (0.05, 0.0, 0.0, 0.3)
HIT = (0.02, 0.7, 0.4)


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
    return float(1 / (1 + np.exp(-(HIT[0] * similarity + HIT[1] * chances.sum() + HIT[2]))))


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


def test_without_calibration_there_is_no_probability(album) -> None:
    for grounding, judged in (({}, False), ({"presence": PRESENCE}, True), ({"hit": HIT}, False)):
        made = model(**grounding)
        placed = PhrasesInImages(made, Query(("two dogs",))).find(made.embed(str(album / "0.png")))
        assert placed.probability is None and (placed.evidence is not None) == judged


def test_a_probability_is_logistic_and_never_overflows() -> None:
    evidence = np.array([[[0.0, 0.0], [10.0, -2.0]], [[1e9, 0.0], [-1e9, 0.0]]])
    found = probabilities(evidence, (0.5, 1.0, -3.0))
    np.testing.assert_allclose(found, [[1 / (1 + np.exp(3)), 0.5], [1, 0]], atol=1e-12)

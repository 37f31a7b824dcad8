"""Queries: how they are read, and how probable hits are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from albums import write_noise
from photographs import noise
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner

import saywhere
from saywhere import UserError
from saywhere.calibration import Logistic
from saywhere.models.layout import Layout
from saywhere.models.model import Model
from saywhere.search.phrases import (
    UNWANTED,
    Commonness,
    PhrasesInImages,
    Query,
    fit_in_index,
    hit_evidence,
    in_index_evidence,
    in_index_probability,
    with_actions,
)
from saywhere.text import Vocabulary


@pytest.mark.parametrize(
    ("text", "wanted", "unwanted"),
    [
        ("a dog in the snow", ["a dog in the snow"], []),
        ("a dog + snow - people", ["a dog", "snow"], ["people"]),
        ("  + a dog   -  a t-shirt + well-known", ["a dog", "well-known"], ["a t-shirt"]),
        ("rock+roll -5", ["rock+roll -5"], []),
        ("a cat -people in a house +snow", ["a cat", "snow"], ["people in a house"]),
        ("+a cat -t-shirt", ["a cat"], ["t-shirt"]),
        ("a cat --people", ["a cat --people"], []),
        ("a man without a hat", ["a man"], ["a hat"]),
        ("A street with no cars + trees", ["A street", "trees"], ["cars"]),
        ("a beach, no people and no dogs", ["a beach"], ["people", "dogs"]),
        ("a dog but not a cat or people", ["a dog"], ["a cat", "people"]),
        ("snow + no people - without any", ["snow"], ["people", "without any"]),
        ("a no parking sign, not on a pole", ["a no parking sign, not on a pole"], []),
    ],
)
def test_signs_after_a_space_part_phrases(text: str, wanted: list[str], unwanted: list[str]) -> None:
    query = Query.parse(text)
    assert (list(query.wanted), list(query.unwanted)) == (wanted, unwanted)
    assert list(query.phrases) == wanted + unwanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- people", "a phrase that is wanted"), ("No people", "a phrase that is wanted"),
        ("", "has no word"), ("a dog +", "no phrase follows the [+]; say"),
        ("+", "no phrase follows the [+]"), ("a dog - + snow", "no phrase follows the -"),
        ("a dog - ...", "'...'"),
        ("a dog - the", "the phrase 'the' names nothing"), ("on the", "'on the' names nothing"),
    ],
)  # fmt: skip
def test_a_query_that_names_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Query.parse(text)


@pytest.mark.parametrize(
    ("text", "phrases", "unused"),
    [
        ("a person surfing", ["a person", "surfing"], []),
        ("someone surfing", ["someone", "surfing"], []),
        ("a dog that is running on the left", ["a dog", "running"], []),
        ("a boy jumps", ["a boy", "jumps"], []),
        ("a dog runs", ["a dog", "runs"], []),
        ("two dogs running", ["two dogs", "running"], []),
        ("a dog not running", ["a dog"], ["not running"]),
        ("a person arguing", ["a person"], ["arguing"]),
        ("a running dog", ["a running dog"], []),
        ("a pair of skis", ["a pair of skis"], []),
        ("a building", ["a building"], []),
        ("a person surfing a wave", ["a person", "a wave", "surfing"], []),
        ("a dog jumps over a man skiing on snow", ["a dog", "a man", "snow", "jumps", "skiing"], []),
        ("a man is not surfing a wave", ["a man", "a wave"], ["not surfing"]),
        ("a man and this thing", ["a man", "this thing"], []),
        ("running quickly", ["running quickly"], []),
    ],
)
def test_what_things_do_is_a_phrase(text: str, phrases: list[str], unused: list[str]) -> None:
    words = Vocabulary.build(["surfing running jumping jumps runs skiing skis building is on left not in quickly"])
    layout = with_actions(Layout.parse(text), words)
    assert (list(layout.phrases), list(layout.unused)) == (phrases, unused)


PHRASE = (0.05, 0.0, 0.0, 0.3)
HIT = (0.02, 0.6, 0.7, 0.3, 0.5, 0.2, 0.4)
ANYWHERE = {"chance": (0.4, 0.3), "meant": (0.02, -0.5)}


def model(**numbers) -> Model:
    made = aligner_model(tiny_aligner())
    made.calibration = calibrated(**numbers)
    return made


@pytest.fixture(scope="module")
def album(tmp_path_factory) -> Path:
    return write_noise(tmp_path_factory.mktemp("album"), 3)


def expected(
    made: Model, path: str, wanted: list[str], text: str | list[str], phrases: list[str], lead: float
) -> float:
    """The probability by the model's own answers."""
    scores = made.ground(path, text, part="aligner", threshold=0).scores
    similarity = made.similarity([made.embed(path)], made.embed_text(wanted)).mean()
    together = Commonness(made.require("aligner", "search").vocabulary).together(phrases)
    beyond = 1 - 1 / len(phrases)
    prior = np.log(np.exp(together) + 1 / 3)
    evidence = np.log(scores / (1 - scores)).mean(), 1, similarity * beyond, beyond, prior, lead * 3 / 103  # no classes
    return float(1 / (1 + np.exp(-(np.dot(HIT[:6], evidence) + HIT[6]))))


SENTENCE_AND_PHRASES = pytest.mark.parametrize(
    ("query", "wanted", "phrases"),
    [
        ("Two dogs run on the green grass.", ["Two dogs run on the green grass."], ["Two dogs", "the green grass"]),
        ("two dogs + a horse", ["two dogs", "a horse"], ["two dogs", "a horse"]),
    ],
)


@SENTENCE_AND_PHRASES
def test_a_hit_has_the_probability_of_all_that_is_asked_for(album, tmp_path, query, wanted, phrases) -> None:
    made = model(phrase=PHRASE, hit=HIT)
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        hits = index.search(query)
        values = np.array([hit.similarity for hit in hits])
        for hit, lead in zip(hits, (values - values.mean()) / values.std(), strict=True):
            text = query if len(wanted) == 1 else phrases
            assert hit.probability == pytest.approx(expected(made, hit.image, wanted, text, phrases, lead), abs=2e-3)
            assert 0 < hit.probability < 1
            assert hit.to_dict()["probability"] == round(hit.probability, 5)
        image = index.search(image=str(album / "0.png"))[0]
        assert image.probability is None and "probability" not in image.to_dict()


@SENTENCE_AND_PHRASES
def test_a_search_knows_whether_any_image_shows_what_is_wanted(album, tmp_path, query, wanted, phrases) -> None:
    made = model(phrase=PHRASE, **ANYWHERE)
    common = Commonness(made.require("aligner", "search").vocabulary)
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        hits = index.search(query)
        similarity = made.similarity([made.embed(hits[0].image)], made.embed_text(wanted)).mean()
        by_chance = math.exp(0.4 * (common.together(phrases) + math.log(3)) + 0.3)
        expected = 1 - math.exp(-by_chance) / (1 + math.exp(0.02 * similarity - 0.5))
        assert [hit.in_index_probability for hit in hits] == [pytest.approx(expected, abs=2e-3)] * 3
        assert (
            hits[0].to_dict()["in_index_probability"] == round(hits[0].in_index_probability, 5)
            and hits[0].probability is None
        )
        image = index.search(image=str(album / "0.png"))[0]
        assert image.in_index_probability is None and "in_index_probability" not in image.to_dict()


def test_the_evidence_of_a_hit() -> None:
    odds, kinds = np.array([1.0, 3.0]), np.log([0.25, 1.0])
    found = hit_evidence(odds, kinds, 40.0, math.log(0.01), 2.0, 100)
    assert found == pytest.approx((2.0, 0.5, 20.0, 0.5, math.log(0.02), 1.0))
    assert hit_evidence(odds[:1], kinds[:1], 40.0, -9, 2.0, 1)[1:4] == pytest.approx((0.25, 0, 0))


def test_what_is_looked_for_is_there_by_chance_or_was_meant() -> None:
    evidence = np.array([[[-100.0, -1e9], [100.0, -1e9]], [[-100.0, 1e9], [0.0, 0.0]]])
    found = in_index_probability(evidence, *anywhere(1.0, 0.0, 1.0, 0.0))
    np.testing.assert_allclose(found, [[0, 1], [1, 1 - math.exp(-1) / 2]], atol=1e-9)
    more = [
        float(in_index_probability(in_index_evidence(-5, n, 30.0), *anywhere(0.4, 0.3, 0.02, -0.5)))
        for n in (0, 1, 10, 100)
    ]
    assert more[0] == more[1] and more[1:] == sorted(more[1:])


@pytest.mark.parametrize("way", ["query", "without"])
def test_images_that_show_what_is_not_wanted_are_left_out_and_counted(album, tmp_path, way, monkeypatch) -> None:
    made = model(phrase=PHRASE, hit=HIT)
    paths = [str(path) for path in sorted(album.iterdir())]
    chances = np.array([made.ground(path, ["a man"], part="aligner", threshold=0).scores[0] for path in paths])
    middle = float(np.median(chances))
    raised = math.log(UNWANTED / (1 - UNWANTED)) - math.log(middle / (1 - middle)) + 1e-3
    made.calibration = calibrated(phrase=(*PHRASE[:3], PHRASE[3] + raised), hit=HIT)
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        everything = [hit.image for hit in index.search("two dogs")]
        query, without = ("two dogs - a man", ()) if way == "query" else ("two dogs", "a man")
        wanted = [path for path in everything if chances[paths.index(path)] < middle]
        hits = index.search(query, without=without)
        assert [hit.image for hit in hits] == wanted
        assert {hit.to_dict()["left_out"] for hit in hits} == {len(paths) - len(wanted)}
        monkeypatch.setattr("saywhere.search.index.TOP", 1)
        best = [hit.image for hit in index.search("two dogs", top=len(paths))]
        (first,) = index.search(query, without=without, top=1)
        assert first.left_out == best.index(first.image), "those that fit better than the only hit"
        assert "left_out" not in index.search("two dogs")[0].to_dict()


def test_without_calibration_there_is_no_probability(album) -> None:
    for numbers, judged in (({}, False), ({"phrase": PHRASE}, True), ({"hit": HIT}, False)):
        made = model(**numbers)
        placed = PhrasesInImages(made, Query(("two dogs",))).find(made.embed(str(album / "0.png")))
        assert placed.probability is None and (placed.evidence is not None) == judged


def test_what_is_said_more_often_is_commoner_by_whatever_word() -> None:
    counts = {"a": 900, "dog": 60, "dogs": 30, "puppy": 9, "man": 199, "frisbee": 3, "grass": 50, "runs": 400}
    common = Commonness(Vocabulary(counts))
    assert common.together(["a dog"]) == common.together(["two puppies"]) == pytest.approx(math.log(100 / 200))
    assert common.together(["a zebra"]) == pytest.approx(math.log(1 / 200)) and common.together(["a man"]) == 0
    assert common.together(["an animal"]) == common.together(["a dog"]) and common.together(["a person"]) == 0
    each = [common.together([phrase]) for phrase in ("a dog", "a frisbee")]
    assert common.together(["a dog", "two puppies", "a frisbee", "a man"]) == pytest.approx(sum(each))
    assert common.together(["a skateboarder"]) == common.together(["a person", "two nurses"]) == math.log(0.05)
    assert common.together([]) == Commonness(Vocabulary({})).together(["a dog"]) == 0


# The fit of whether any image shows what is looked for

WEIGHTS = (0.6, 0.2, 0.015, -4.0)


def anywhere(*numbers: float) -> tuple[Logistic, Logistic]:
    fits = calibrated(chance=numbers[:2], meant=numbers[2:])
    assert fits.chance is not None and fits.meant is not None
    return fits.chance, fits.meant


def numbers_of(fits: tuple[Logistic, Logistic]) -> list[float]:
    return [value for fit in fits for value in fit.to_dict().values()]


def queries(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Evidence like that of an index, and a truth drawn with the probabilities of ``WEIGHTS``."""
    generator = np.random.default_rng(4)
    evidence = np.stack((generator.uniform(-15, 5, count), generator.uniform(50, 500, count)), axis=1)
    return evidence, generator.random(count) < in_index_probability(evidence, *anywhere(*WEIGHTS))


def test_the_weights_that_made_the_truth_are_found() -> None:
    evidence, shown = queries(60_000)
    found = fit_in_index(evidence, shown)
    np.testing.assert_allclose(numbers_of(found), WEIGHTS, rtol=0.1, atol=0.05)
    assert in_index_probability(evidence, *found).mean() == pytest.approx(shown.mean(), abs=2e-3)


def test_the_weights_are_those_of_the_largest_likelihood() -> None:
    evidence, shown = queries(400)

    def likelihood(weights: np.ndarray) -> float:
        found = in_index_probability(evidence, *anywhere(*weights.tolist()))
        return float(np.log(np.where(shown, found, 1 - found)).mean())

    found = np.array(numbers_of(fit_in_index(evidence, shown)))
    for number, step in enumerate((0.1, 0.2, 0.003, 0.5)):
        for sign in (-1, 1):
            other = found.copy()
            other[number] += sign * step
            assert likelihood(found) > likelihood(other)


def test_evidence_that_says_nothing_gives_the_share() -> None:
    found = fit_in_index(np.zeros((100, 2)), np.arange(100) < 70)
    assert in_index_probability(np.zeros(2), *found) == pytest.approx(0.7, abs=1e-3)


def test_how_much_better_another_region_fits_counts_by_the_weight_fitted_for_boxes() -> None:
    """The dog on the right is there if another dog fits better."""
    agree: list[list[float]] = []
    for share in (1.0, 0.5):
        model = aligner_model(tiny_aligner())
        model.calibration = calibrated(phrase=(0.02, 0.0, 0.0, 0.0), aligner_place=(share, 0.0, 0.0))
        images = model.embed([noise(96, 64, number) for number in range(4)])
        asked = [PhrasesInImages(model, Query((f"a dog on the {side}",))) for side in ("left", "right")]
        agree.append([phrases.find(image).agree for image in images for phrases in asked])
    full, half = np.array(agree)
    assert (half >= full).all() and (half > full).any()

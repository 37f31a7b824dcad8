"""Queries: how they are read, and how probable hits are."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from albums import write_noise
from photographs import noise
from refusals import refuses
from stubs import calibrated
from tiny_aligner import aligner_model, tiny_aligner

import saywhere
from saywhere.models.layout import Layout
from saywhere.models.model import Model
from saywhere.search.phrases import (
    UNNAMED,
    UNWANTED_HIT,
    Commonness,
    PhrasesInImages,
    Query,
    hit_evidence,
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
        ("a baby --without a teddy bear", ["a baby"], ["a teddy bear"]),  # an option inside the quotes
        ("A street with no cars + trees", ["A street", "trees"], ["cars"]),
        ("a beach, no people and no dogs", ["a beach"], ["people", "dogs"]),
        ("a dog but not a cat or people", ["a dog"], ["a cat", "people"]),
        ("snow + no people - without any", ["snow"], ["people", "without any"]),
        ("a no parking sign, not on a pole", ["a no parking sign, not on a pole"], []),
        ("no snow but a dog", ["a dog"], ["snow"]),
        ("a man without a hat, a woman without a bag", ["a man, a woman"], ["a hat", "a bag"]),
        ("two dogs, no cats and three birds", ["two dogs and three birds"], ["cats"]),
        ("no dogs allowed sign", ["no dogs allowed sign"], []),
        ("no people and a stop sign", ["a stop sign"], ["people"]),
        ("pictures without people", [], ["people"]),
        ("every picture with no people", [], ["people"]),
        ("Show me all my photos without people or cars", [], ["people", "cars"]),
        ("photos where there is no dog", [], ["dog"]),
        ("images that show no people - a car", [], ["people", "a car"]),
        ("a dog without photos of people", ["a dog"], ["people"]),
        ("all the pictures of a show", ["a show"], []),
        ("photos of no parking signs", ["no parking signs"], []),
        ("Show me all photos that show a cat", ["a cat"], []),
        ("image with two dogs - photos of snow", ["two dogs"], ["snow"]),
        (
            "a photo on a wall + a man with a picture of a dog",
            ["a photo on a wall", "a man with a picture of a dog"],
            [],
        ),
        ("photos of", ["photos of"], []),
    ],
)
def test_signs_after_a_space_part_phrases(text: str, wanted: list[str], unwanted: list[str]) -> None:
    query = Query.parse(text)
    assert (list(query.wanted), list(query.unwanted)) == (wanted, unwanted)
    assert list(query.phrases) == wanted + unwanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no word"), ("a dog +", "no phrase follows the [+]; say"),
        ("+", "no phrase follows the [+]"), ("a dog - + snow", "no phrase follows the -"),
        ("a dog - ...", "'...'"),
        ("a dog - the", "the phrase 'the' names nothing"), ("on the", "'on the' names nothing"),
    ],
)  # fmt: skip
def test_a_query_that_names_nothing_is_refused(text: str, message: str) -> None:
    refuses(message, Query.parse, text)


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
            scores = hit.regions.scores
            assert scores is None if len(phrases) == 1 else scores.min() >= hit.probability - 1e-6
            assert hit.to_dict()["probability"] == round(hit.probability, 5)
        image = index.search(image=str(album / "0.png"))[0]
        assert image.probability is None and "probability" not in image.to_dict()


def test_the_evidence_of_a_hit() -> None:
    odds, kinds = np.array([1.0, 3.0]), np.log([0.25, 1.0])
    found = hit_evidence(odds, kinds, 40.0, math.log(0.01), 2.0, 100)
    assert found == pytest.approx((2.0, 0.5, 20.0, 0.5, math.log(0.02), 1.0))
    assert hit_evidence(odds[:1], kinds[:1], 40.0, -9, 2.0, 1)[1:4] == pytest.approx((0.25, 0, 0))


@pytest.mark.parametrize("way", ["query", "without"])
def test_images_that_show_what_is_not_wanted_are_left_out_and_counted(album, tmp_path, way, monkeypatch) -> None:
    made = model(phrase=PHRASE, hit=HIT)
    paths = [str(path) for path in sorted(album.iterdir())]
    chances = np.array([made.ground(path, ["a man"], part="aligner", threshold=0).scores[0] for path in paths])
    middle = float(np.median(chances))
    raised = math.log(UNNAMED / (1 - UNNAMED)) - math.log(middle / (1 - middle)) + 1e-3
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
        similar = {hit.image: hit.similarity for hit in index.search("a man")}
        for text in ("photos without a man", "any picture - a man", "- a man"):  # the least alike first
            hits = index.search(text, top=len(paths))
            assert {hit.image for hit in hits} == {*wanted} and {hit.probability for hit in hits} == {None}
            assert [hit.image for hit in hits] == sorted(wanted, key=lambda path: similar[path])
        assert [hit.image for hit in index.search("pictures", without="a man")] == [hit.image for hit in hits]


def test_something_unwanted_in_a_place_is_not_unwanted_elsewhere(album, tmp_path) -> None:
    """Of two unwanted things, an image that is left out has both, where they are asked for."""
    made = model(phrase=(*PHRASE[:3], 9.0), hit=HIT)  # all is there
    paths = [str(path) for path in sorted(album.iterdir())]
    kept = dict[str, set[str]]()
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        assert not index.search("two dogs", without="a man")
        for text in ("a man on the left", "the right man", "a man above a dog"):
            asked = PhrasesInImages(made, Query((text,)))
            elsewhere = {path for path in paths if asked.find(made.embed(path)).agree < math.log(UNWANTED_HIT)}
            kept[text] = {hit.image for hit in index.search("two dogs", top=len(paths), without=text)}
            assert kept[text] == elsewhere
    assert any(map(len, kept.values())) and len({*map(frozenset, kept.values())}) > 1


def test_alternatives_are_unwanted_one_by_one_and_unknown_things_not_at_all(album, tmp_path) -> None:
    for text in ("a dog or a cat", "a dog, a cat", "dogs, cats or a man"):
        parts = Query(("two dogs",)).less(text).unwanted
        assert len(parts) == text.count(" or ") + text.count(",") + 1 and Query.parse(f"x - {text}").unwanted == parts
    assert Query(("x",)).less("a red, white and blue shirt").unwanted == ("a red, white and blue shirt",)
    made = model(phrase=(*PHRASE[:3], 9.0), hit=HIT)  # all is there
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        assert index.search("two dogs", without="zzyx") and not index.search("two dogs", without="a man and a zzyx")


def test_unwanted_things_outside_the_noun_tree_are_judged_by_similarity_alone(album, tmp_path) -> None:
    made = model(phrase=PHRASE, hit=HIT)
    with saywhere.Index(tmp_path / "i", made) as index:
        index.add(album)
        everything = len(index.search("two dogs"))
        for constant, kept in ((-9.0, everything), (9.0, 0)):
            made.calibration = calibrated(phrase=(*PHRASE[:3], -constant), hit=HIT, unwanted_phrase=(0.0, constant))
            assert len(index.search("two dogs", without="the plays")) == kept


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

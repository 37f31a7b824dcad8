"""Phrases placed and found by hand: made evidence, and a tiny model with made weights."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from photographs import noise
from refusals import refuses
from stubs import calibrated
from tiny_bundle import bundle_model

import saywhere
from saywhere import Regions
from saywhere import boxes as geometry
from saywhere.calibration import Calibration, Logistic, logistic
from saywhere.configs.aligner import GroundingConfig
from saywhere.models import placing
from saywhere.models.details import Details
from saywhere.models.layout import Layout
from saywhere.models.lexicon import Lexicon, asked_colours, captioned, familiar, noun_words
from saywhere.models.nouns import COLOUR_NAMES, noun_tree
from saywhere.models.placing import UNREAD, Evidence, Placer, cut_phrases, unused_words
from saywhere.text import Vocabulary

IMAGE = noise(130, 90, 0)
PHRASES = ["a red shirt", "a dog"]
BOXES = [[0.0, 0, 10, 10], [0, 0, 20, 20], [5, 5, 40, 40]]


def evidence(fits: list[list[float]], kinds: list[list[float]], rare: list[bool], by: str = "densecap") -> Evidence:
    count = len(rare)
    return Evidence(
        Regions(50, 50, BOXES), np.array(fits, np.float32).T, np.array(kinds, np.float32).T,
        np.array([any(row) for row in kinds]), np.array(rare), np.arange(count, dtype=np.float32), by,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def model(phrase: tuple[float, ...] | None = None, **options: object) -> saywhere.Model:
    made = bundle_model(densecap={}, aligner={"grounding": options})
    made.calibration = Calibration() if phrase is None else calibrated(phrase=phrase)
    return made


def test_the_classes_have_a_say_by_their_weight():
    both = evidence([[0, 2, 1], [0, 2, 1]], [[-1, -5, -1], [-1, -5, -1]], [False, True])
    assert both.rows(GroundingConfig()).tolist() == [1, 1]
    assert both.rows(GroundingConfig(kind_weight=1.0)).tolist() == [2, 2]
    assert replace(both, bare=np.array([False, True])).rows(GroundingConfig(bare_kind_share=0.7)).tolist() == [1, 2]
    scored = replace(both, regions=replace(both.regions, scores=np.array([0.9, 0.01, 0.5], np.float32)))
    assert scored.rows(GroundingConfig()).tolist() == [1, 1]  # the fits have the scores once
    assert scored.rows(GroundingConfig(score_weight=2.0)).tolist() == [2, 2]
    by_aligner = replace(both, by="aligner")
    assert by_aligner.rows(GroundingConfig(kind_weight=1.0)).tolist() == [1, 1]
    assert by_aligner.rows(GroundingConfig(similarity_kind_weight=1.0)).tolist() == [2, 2]


def test_a_number_is_judged_by_the_region_that_would_be_the_last_of_so_many() -> None:
    sure, unsure, none = np.log([0.9, 0.06, 0.01])
    four = evidence([[0, 0, 0, 0]] * 3, [[sure, sure, unsure, none], [sure, none, none, none], [0] * 4], [False] * 3)
    apart = [[0.0, 0, 10, 10], [2, 0, 12, 10], [20, 20, 30, 30], [40, 40, 50, 50]]
    found = replace(four, regions=Regions(50, 50, apart, [1.0, 1, 0.25, 1]), named=np.array([True, True, False]))
    assert [found.things(0, number) for number in (1, 2, 3, 4)] == pytest.approx(
        [sure, unsure + np.log(0.5), none, 1.5 * np.log(1e-4)]  # two that overlap are one
    )
    assert found.things(1, 2) == pytest.approx(none)
    pair = Regions(50, 50, [[0.0, 0, 40, 20], [1, 1, 18, 19], [20, 1, 39, 19], [42, 42, 50, 50]], np.ones(4))
    two = replace(found, regions=pair, kinds=np.log([[0.9] * 3, [0.6] * 3, [0.5] * 3, [0.01] * 3]))
    assert [two.things(0, n) for n in (1, 2)] == pytest.approx(np.log([0.6, 0.5]))  # the first is both of them
    two = replace(two, kinds=np.log([[0.9] * 3, [0.6] * 3, [0.2] * 3, [0.01] * 3]))
    assert two.things(0, 2) == pytest.approx(np.log(0.01))  # a thing with parts
    wheel = replace(found, regions=Regions(50, 50, [[0.0, 0, 10, 10], [1, 1, 5, 5], [12, 12, 14, 14], apart[3]]))
    wheel = replace(wheel, regions=replace(wheel.regions, scores=np.ones(4, np.float32)))
    assert wheel.things(0, 2) == pytest.approx(unsure)  # a part of the first is no second
    assert found.things(2, 1) is None  # names no kind
    people = replace(found, counted=np.full((4, 3), np.log(0.8)))
    assert people.things(0, 2) == people.things(1, 2) == pytest.approx(np.log(0.8))  # whoever they are
    assert people.first(1).things(0, 3) == people.things(0, 3)
    numbers = {"two dogs": 2, "three dogs": 3, "four dogs": 4, "ten dogs": 10, "50 dogs": 50}
    details = Details([*numbers], Vocabulary.build(["two three four ten many dogs dog a"]))
    assert [each.value for each in details.compared] == [*numbers.values()]
    fits = Calibration(asked_number=Logistic({"words": 0.02, "region": 1.0, "number": -1.0}, 2.0))
    more = np.where([text == "a dog" for text in details.texts], -10.0, 0.0)
    asked = list[tuple[int, int]]()

    def things(phrase: int, number: int) -> float | None:
        asked.append((phrase, number))
        return None if phrase == 4 else -number / 2

    chances = details.log_probs(fits, more, None, things)
    assert asked == [*enumerate(numbers.values())]
    wanted = [0.2 - each / 2 - np.log(each) + 2 for each in (2, 3, 4, 10)]
    np.testing.assert_allclose(np.exp(chances), [*logistic(np.array(wanted)), 1], rtol=1e-4)
    assert (
        not details.log_probs(fits, more, None).any() and not details.log_probs(Calibration(), more, None, things).any()
    )


def test_colours_are_compared_with_others_and_numbers_with_the_singular() -> None:
    phrases = ["a big red car", "a black man", "two black and white dogs", "a golden dog", "a dog"]
    details = Details(phrases, Vocabulary.build(["a big red blue black white car cars man two dogs dog and"]))
    found = [(each.question, each.phrase, details.texts[each.text]) for each in details.compared]
    dogs = "two black and white dogs"
    assert found == [("asked_colour", 0, "a big red car"), ("asked_number", 2, dogs), *[("asked_colour", 2, dogs)] * 2]
    others, one = ([details.texts[row] for row in each.others] for each in details.compared[:2])
    assert len(others) == 14 and {"a big blue car", "a big black car"} < {*others} and "a big red car" not in others
    assert one == ["a black and white dog"]


@pytest.mark.parametrize(("phrase", "found"), [("blue gray", {0: "blue"}), ("a red gold", {1: "red"}), ("red", {})])
def test_a_phrase_of_nothing_but_colours_is_read(phrase, found):
    assert asked_colours(phrase) == found
    Details([phrase], Vocabulary.build([phrase]))  # raises nothing


def test_a_colour_counts_by_words_and_pixels_and_the_least_probable_of_several():
    phrases = ["a red car", "a black and white dog"]
    details = Details(phrases, Vocabulary.build(["a red blue black white car dog and"]))
    fits = Calibration(asked_colour=Logistic({"words": 0.1, "pixels": 1.0}, 1.0))
    similar = np.where([text == "a red car" for text in details.texts], 10.0, 0.0)
    colours = np.full((2, len(COLOUR_NAMES)), -5.0)
    colours[0, COLOUR_NAMES.index("red")], colours[1, COLOUR_NAMES.index("black")] = -0.5, -1.0
    asked = list[tuple[list[int], list[str]]]()

    def seen(phrases: list[int], nouns: list[str]) -> np.ndarray:
        asked.append((phrases, nouns))
        return colours[phrases]

    chances = np.exp(details.log_probs(fits, similar, seen))
    assert asked == [([0, 1, 1], ["car", "dog", "dog"])]
    np.testing.assert_allclose(chances, logistic(np.array([1.5, -4.0])))
    for left_out in (
        details.log_probs(fits, similar, None),
        details.log_probs(Calibration(), similar, seen),
    ):
        assert left_out.tolist() == [0, 0]


def test_of_colours_with_or_between_them_the_most_probable_counts():
    """A car that is certainly red is "a red or blue car"; it is no "red and blue car"."""
    phrases = ["a red or blue car", "a red and blue car", "two red cars"]
    details = Details(phrases, Vocabulary.build(["a two three red blue black car cars or and"]))
    each = [(one.phrase, details.texts[one.text]) for one in details.compared if one.question == "asked_colour"]
    assert each[:2] == [(0, "a red car"), (0, "a blue car")] and each[-1] == (2, "two red cars")
    fits = Calibration(asked_colour=Logistic({"words": 0.0, "pixels": 1.0}, 1.0))
    colours = np.full((3, len(COLOUR_NAMES)), -5.0)
    colours[:, COLOUR_NAMES.index("red")] = -0.5
    chances = np.exp(details.log_probs(fits, np.zeros(len(details.texts)), lambda asked, _: colours[asked]))
    np.testing.assert_allclose(chances, logistic(np.array([0.5, -4.0, 0.5])))


def test_rare_words_for_colours_are_judged_as_the_nearest_of_those_with_a_name():
    """Few captions say "maroon", so the comparison is made with "red", even if the word is unknown."""
    details = Details(["a maroon car", "a reddish brown car"], Vocabulary.build(["a red brown blue car"]))
    found = [(one.phrase, details.texts[one.text], COLOUR_NAMES[one.value]) for one in details.compared]
    assert found == [(0, "a red car", "red"), (1, "a reddish brown car", "brown")]


@pytest.mark.parametrize("phrase", ["a green-eyed cat", "a black and white headed bird", "a white-tailed deer"])
def test_colours_of_parts_are_not_asked_of_the_whole(phrase: str):
    assert asked_colours(phrase) == {}


@pytest.mark.parametrize("by", ["densecap", "aligner"])
def test_the_calibration_of_boxes_says_how_much_less_another_thing_of_a_kind_may_fit(by: str):
    """Of two dogs the decoder is too sure which one "a dog" is: the one on the right is there, too."""
    two = evidence([[0, -9, -1]], [[0, 0, 0]], [False], by)
    two = replace(two, regions=Regions(50, 50, [[0, 0, 10, 10], [20, 0, 30, 10], [40, 0, 50, 10]]))
    config, right = GroundingConfig(similarity_kind_weight=1.0), Layout.parse("a dog on the right")
    place = np.log(1 / (1 + np.exp(12 * (0.1 - 0.4))))
    for calibration, lost in (
        (None, -1.0),
        (Calibration(), -1.0),
        (calibrated(**{f"{by}_place": (0.25, 1, 0)}), -0.25),
        (calibrated(**{f"{by}_place": (3, 1, 0)}), -1.0),
    ):
        rows, agree = two.place(config, right, calibration)
        assert rows.tolist() == [2] and agree == pytest.approx([place + lost], abs=1e-6)


def test_what_is_known_of_a_phrase_is_weighed():
    both = evidence([[0, 0, 0], [0, 0, 0]], [[-3, -2, -1], [0, 0, 0]], [False, False])
    likeliest = np.log(np.exp(-1) / (1 - np.exp(-1)))
    assert {name: column.tolist() for name, column in both.inputs.items()} == {
        "similarity": [0, 1], "region": [pytest.approx(likeliest), 0], "named": [1, 0], "fit": [0, 0],
    }  # fmt: skip
    assert both.best_kinds.tolist() == [-1, 0]
    fits = replace(both, fits=np.array([[0, 0], [10, 10], [1, 1]], np.float32))
    second = np.log(np.exp(-2) / (1 - np.exp(-2)))
    for by, expected in (("densecap", second + 0.3 * 10), ("aligner", likeliest + 0.01)):
        assert replace(fits, by=by).inputs["region"].tolist() == [pytest.approx(expected), 0], "of one region both"
    assert both.presence(Calibration()) is None
    common = calibrated(phrase=(1.0, 2.0, 3.0, -1.0))
    assert both.presence(common) == pytest.approx([1 / (1 + np.exp(-z)) for z in (2 * likeliest + 3 - 1, 1 - 1)])
    unnamed = replace(common, unnamed_phrase=Logistic({"similarity": 1.0, "fit": 2.0}, 0.5))
    odds = [2 * (second + 3) + 3 - 1, 1 + 2 * 0.3 * 10 + 0.5]
    assert fits.presence(unnamed) == pytest.approx([1 / (1 + np.exp(-z)) for z in odds])
    by_aligner = replace(fits, by="aligner")  # whose fits are of another size
    assert by_aligner.presence(unnamed).tolist() == by_aligner.presence(common).tolist()
    rare = replace(both, rare=np.array([False, True]))
    other = calibrated(phrase=(1.0, 2.0, 3.0, -1.0), rare_phrase=(0.0, 0.0, 0.0, 2.0))
    assert rare.presence(common).tolist() == both.presence(common).tolist()
    assert rare.presence(other) == pytest.approx([common.phrase.apply(both.inputs)[0], 1 / (1 + np.exp(-2))])
    by_classes = replace(both, lacking=np.array([True, False]))  # the aligner lacks the word: the classes tell alone
    assert by_classes.presence(common) == pytest.approx([np.exp(-1), common.phrase.apply(both.inputs)[1]])
    sure = replace(by_classes, kinds=np.zeros_like(both.kinds), named=np.array([True, True]))
    assert 0.9 < sure.presence(other)[0] < 0.95  # what an index keeps as 1 is rounded


def test_a_box_is_probable_where_no_other_place_fits_as_well():
    both = evidence([[0, 5, -9], [5, 4, 5]], [[0, 0, 0], [0, 0, 0]], [False, False])
    both = replace(both, regions=replace(both.regions, scores=np.array([0.1, 0.8, 0.5], np.float32)))
    config = GroundingConfig()
    inputs = both.place_inputs(config, both.rows(config))
    shares = [1 / (1 + np.exp(-5) + np.exp(-14)), np.exp(5) / (2 * np.exp(5) + np.exp(4))]  # no two boxes match
    np.testing.assert_allclose(inputs["share"], [np.log(share / (1 - share)) for share in shares])
    np.testing.assert_allclose(inputs["box"], [np.log(4), np.log(1 / 9)], rtol=1e-6)
    nearer = replace(both, regions=replace(both.regions, boxes=[[0, 0, 10, 10], [0, 0, 20, 20], [0, 0, 10, 11]]))
    share = nearer.place_inputs(config, nearer.rows(config))["share"][1]
    assert share == pytest.approx(np.log(2 * np.exp(5) / np.exp(4))), "boxes that match share one place"
    fit = calibrated(densecap_place=(1.0, 0, 0), aligner_place=(0, 1.0, 0))
    assert both.box_probability(fit, config, both.rows(config)) == pytest.approx(shares)
    assert replace(both, by="aligner").box_probability(fit, config, np.array([1, 1])) == pytest.approx([0.8, 0.8])
    assert both.box_probability(Calibration(), config, both.rows(config)).tolist() == [1, 1]


def test_phrases_may_be_placed_in_more_regions_than_are_described():
    plain, more = model(), model(nms_iou=0.95)
    seen = [m.placer().evidence(m.encode(IMAGE), PHRASES).regions for m in (plain, more)]
    usual = plain.describe(IMAGE)
    np.testing.assert_array_equal(seen[0].boxes, usual.boxes)
    np.testing.assert_array_equal(more.describe(IMAGE).boxes, usual.boxes)
    assert len(seen[1]) > len(usual)
    overlaps = geometry.iou(seen[1].boxes, seen[1].boxes)[np.triu_indices(len(seen[1]), 1)]
    assert 0.5 < overlaps.max() <= 0.95
    assert (
        model(nms_iou=0.95).ground(IMAGE, PHRASES, BOXES).boxes.tolist()
        == plain.ground(IMAGE, PHRASES, BOXES).boxes.tolist()
    )


def test_a_phrase_below_the_threshold_is_not_found():
    plain = model().ground(IMAGE, PHRASES)
    assert plain.captions == tuple(PHRASES) and plain.not_found == ()
    asked = [familiar(phrase, model().aligner.vocabulary) for phrase in PHRASES]
    similarities = model().similarity([model().embed(IMAGE)], model().embed_text(asked))[0]
    middle = float(similarities.mean())
    judge = model(phrase=(1.0, 0.0, 0.0, -middle))
    likely = 1 / (1 + np.exp(middle - similarities))
    found = judge.ground(IMAGE, PHRASES)
    assert found.captions == tuple(p for p, s in zip(PHRASES, likely, strict=True) if s >= 0.5)
    assert found.not_found == tuple(p for p, s in zip(PHRASES, likely, strict=True) if s < 0.5) != ()
    everything = judge.ground(IMAGE, PHRASES, threshold=0)
    assert everything.scores == pytest.approx(likely, abs=1e-4) and everything.not_found == ()
    assert everything.boxes.tolist() == plain.boxes.tolist()
    assert len(judge.ground(IMAGE, PHRASES, threshold=1)) == 0
    strict = model(phrase=(1.0, 0.0, 0.0, -middle), threshold=1.0)
    assert strict.ground(IMAGE, PHRASES).not_found == tuple(PHRASES)
    by_aligner = judge.ground(IMAGE, PHRASES, part="aligner", threshold=0)
    assert by_aligner.scores == pytest.approx(likely, abs=1e-4) and by_aligner.similarities is not None
    judge.calibration = replace(judge.calibration, densecap_place=calibrated(densecap_place=(0, 0, 0)).densecap_place)
    halved = judge.ground(IMAGE, PHRASES)
    assert halved.captions == found.captions, "what is found is decided by the phrase alone"
    assert halved.scores == pytest.approx(found.scores / 2)
    everywhere, presence, _ = judge.placer().find(judge.encode(IMAGE), Layout(tuple(PHRASES)))
    assert presence == pytest.approx(likely, abs=1e-4) and everywhere.scores == pytest.approx(likely / 2, abs=1e-4)
    row = found.to_dict()
    assert row["not_found"] == list(found.not_found) and Regions.from_dict(row).not_found == found.not_found
    assert found[:0].not_found == found.not_found


def test_places_count_in_listed_phrases_as_in_a_sentence():
    judge, texts = model(phrase=(0.0, 0.0, 0.0, 2.0)), ["a dog on the left", "a dog on the right", "a dog"]
    listed = judge.ground(IMAGE, texts, threshold=0)
    alone = [judge.ground(IMAGE, text, threshold=0) for text in texts]
    assert listed.captions == tuple(texts)
    assert listed.boxes.tolist() == [found.boxes[0].tolist() for found in alone]
    assert listed.scores == pytest.approx([found.scores[0] for found in alone])
    left, right = (listed.boxes[:2, 0] + listed.boxes[:2, 2]) / 2
    assert left < right
    assert judge.ground(IMAGE, ["a dog left of a shirt", "a dog"]).unused == ("left of",)


def test_a_phrase_of_unknown_words_is_not_found():
    judge = model(phrase=(0.0, 0.0, 0.0, 2.0))
    found = judge.ground(IMAGE, ["a dog", "the blorb", "a blorb dog", "a big blorb"])
    assert (found.captions, found.not_found) == (("a dog", "a blorb dog"), ("the blorb", "a big blorb"))
    assert found.unknown == Regions.from_dict(found.to_dict()).unknown == ("blorb", "big")
    assert judge.ground(IMAGE, "a blorb dog").unknown == ("blorb",) and judge.ground(IMAGE, "a dog").unknown == ()
    everything = judge.ground(IMAGE, ["a dog", "the blorb"], threshold=0)
    assert everything.scores == pytest.approx([1 / (1 + np.exp(-2)), 0])


def test_several_are_no_more_probable_than_one() -> None:
    judge = model(phrase=(-1.0, 0.0, 0.0, 0.0))  # the less similar, the more probable: several are more than one
    texts = ["a dog", "three red shirts", "two dogs"]
    one, shirts, two = judge.placer().evidence(judge.encode(IMAGE), texts).presence(judge.calibration)
    (shirt,) = judge.placer().evidence(judge.encode(IMAGE), ["a red shirt"]).presence(judge.calibration)
    assert two > one and shirts > shirt
    assert judge.ground(IMAGE, texts, threshold=0).scores == pytest.approx([one, shirt, one])


def test_a_threshold_is_a_probability_and_needs_a_calibration():
    refuses("threshold must be a probability, not 1.5", model().ground, IMAGE, PHRASES, threshold=1.5)
    refuses("threshold must be a number", model().ground, IMAGE, PHRASES, threshold="high")
    refuses("saywhere calibrate makes it so", model().ground, IMAGE, PHRASES, threshold=0.5)
    assert len(model().ground(IMAGE, PHRASES, threshold=0)) == 2


def test_rare_and_unknown_nouns():
    placer = model(rare=1).placer()
    known = placer.aligner.vocabulary.tokens[4]
    assert not placer.lexicon.is_rare(f"a {known}") and placer.lexicon.is_rare("a xylophone")
    assert model(rare=10**6).placer().lexicon.is_rare(f"a {known}")
    vocabulary = placer.densecap.vocabulary
    assert "my" not in vocabulary and "xylophone" not in vocabulary
    assert [*placer.lexicon.unknown(["my xylophone", vocabulary.tokens[4]])] == ["xylophone"]
    assert noun_words("two big dogs on the grass") == ("dogs",)


def test_a_word_that_only_fine_tuning_taught_is_unknown_where_nothing_translates_it() -> None:
    made = bundle_model(densecap={"own_words": {"square": ""}}, aligner={})
    made.calibration = calibrated(phrase=(0.0, 0.0, 0.0, 9.0))
    found = made.ground(IMAGE, ["a square"])
    assert (found.not_found, found.unknown) == (("a square",), ("square",))
    assert bundle_model(densecap={}, aligner={}).placer().lexicon.is_unknown("a square") is False


def test_a_narrower_noun_is_no_more_probable_than_its_kind_and_two_than_one(monkeypatch: pytest.MonkeyPatch):
    placer = model(phrase=(1.0, 0.0, 0.0, 0.0)).placer()
    likely = {"a mug": 0.9, "two mugs": 0.8, "a cup": 0.3, "a dog": 0.6, "two cups": 0.7}
    asked: list[tuple[str, ...]] = []

    def give_evidence(_: Placer, __: object, phrases: tuple[str, ...], *___: object) -> Evidence:
        asked.append(tuple(phrases))
        made = evidence([[0, 0, 0]] * len(phrases), [[0, 0, 0]] * len(phrases), [False] * len(phrases))
        odds = [np.log(likely[phrase] / (1 - likely[phrase])) for phrase in phrases]
        return replace(made, similarity=np.array(odds))

    monkeypatch.setattr(Placer, "evidence", give_evidence)
    monkeypatch.setattr(Lexicon, "is_unknown", lambda *_: False)
    _, found = placer.presence(SimpleNamespace(), ["a mug", "a dog", "two mugs"])  # pyright: ignore[reportArgumentType]
    assert found == pytest.approx([0.3, 0.6, 0.3])
    assert asked == [("a mug", "a dog", "two mugs", "a cup", "a cup")]


def test_a_noun_that_was_hardly_read_is_doubted_unless_the_tree_has_its_kind():
    assert noun_tree().find_kind("the plays") is None
    for least, doubted in ((1, ()), (2, ("the plays",))):
        made = model(phrase=(0.0, 0.0, 0.0, 9.0), least_seen=least)
        found = made.ground(IMAGE, ["the plays", "a horse"])
        assert found.not_found == doubted
        assert [*made.placer("aligner").lexicon.unknown(["the plays"])] == (["plays"] if doubted else [])
        _, presence = made.placer().presence(made.encode(IMAGE), ["the plays", "a horse"])
        assert presence == pytest.approx([UNREAD if doubted else 1, 1], abs=1e-3)


@pytest.mark.parametrize("part", ["densecap", "aligner"])
def test_articles_and_unknown_first_words_change_nothing(part) -> None:
    made = model((0.0, 0.0, 0.1, 0.0))
    asked = ("a dog", "this dog", "an dog", "my dog", "xyzzy dog", "dog")
    found = made.ground(IMAGE, asked, part=part, threshold=0)
    assert found.captions == asked and found.scores is not None
    assert len({tuple(box) for box in found.boxes[:4].tolist()}) == len({*found.scores[:4].tolist()}) == 1
    assert found.boxes[4].tolist() == found.boxes[5].tolist() and found.scores[4] == found.scores[5]
    assert found.unknown == ("xyzzy",) and found.scores.min() > 0


def test_the_more_usual_form_of_a_rare_noun_is_read():
    vocabulary = Vocabulary({"eggs": 9, "egg": 2, "dog": 9, "dogs": 2, "foxes": 2, "fox": 1, "us": 1, "use": 9})
    assert captioned("an egg near us", vocabulary) == "an eggs near us" and captioned("dogs", vocabulary) == "dog"
    assert captioned("a fox", vocabulary) == "a fox" and captioned("two eggs", vocabulary) == "many eggs"


def test_a_noun_that_only_the_classes_know_is_placed_and_judged_by_them():
    made = model(phrase=(0.0, 0.0, 0.0, 9.0))
    tree, rows = noun_tree(), noun_tree().find("a raccoon").leaves

    def log_kinds(_, regions, phrases):
        named = np.array([tree.find(phrase) is not None for phrase in phrases])
        kinds = np.full((len(regions), len(phrases)), np.log(0.01), np.float32) * named
        kinds[-1, named] = np.log(0.4)
        return kinds, named

    made.nouns = SimpleNamespace(
        log_kinds=log_kinds, lookup=tree.find, tells=lambda noun: {*noun.leaves} == {*rows},
        translate=lambda text: text.replace("night bandit", "raccoon"), named=lambda text: None,
    )  # fmt: skip
    for part in ("densecap", "aligner"):
        found = made.ground(IMAGE, ["a raccoon", "two racoons", "a violin"], part=part, threshold=0)
        assert found.scores == pytest.approx([0.4, 0.4, 0], abs=1e-4) and found.captions[0] == "a raccoon"
        assert made.ground(IMAGE, ["a raccoon"], part=part).not_found == ("a raccoon",)
        own = made.ground(IMAGE, ["a night bandit"], part=part, threshold=0)
        assert own.captions == ("a night bandit",) and own.scores == pytest.approx([0.4], abs=1e-4)
        lexicon = made.placer(part).lexicon
        assert "raccoon" not in lexicon.unknown(["a raccoon"]) and "violin" in lexicon.unknown(["a violin"])
        assert lexicon.needs_classes("a raccoon") and not lexicon.needs_classes("a violin")


def test_a_mere_person_is_asked_for_as_people_by_who_learnt_from_captions():
    known = Vocabulary({"a": 1, "person": 9, "people": 9, "dog": 1, "dogs": 1})
    asked = ("a person", "Person", "the person", "a tall person", "two persons", "people", "a puppy")
    assert [captioned(text, known) for text in asked] == ["people"] * 3 + [familiar(text, known) for text in asked[3:]]
    assert captioned("a person", Vocabulary({"a": 1, "person": 9})) == "a person"


def test_a_plural_finds_what_its_singular_finds():
    """A word that the vocabulary has only in its other number is asked as that; other words stay as they are."""
    known = Vocabulary({"a": 9, "two": 9, "zebra": 9, "knife": 9, "policeman": 9, "puppy": 9, "socks": 9, "bus": 9})
    asked = ["two zebras", "Knives", "policemen", "puppies", "a sock", "buses", "a bus", "a violin", "a zebra's bus"]
    wanted = ["two zebra", "knife", "policeman", "puppy", "a socks", "bus", "a bus", "a violin", "a zebra bus"]
    assert [familiar(text, known) for text in asked] == wanted
    made = model((1.0, 0.0, 0.0, 0.0))
    assert all("sky" in part.vocabulary and "skies" not in part.vocabulary for part in (made.densecap, made.aligner))
    seen = made.encode(IMAGE)
    for part in ("densecap", "aligner"):
        one, many = (made.ground(seen, [text], part=part, threshold=0) for text in ("sky", "skies"))
        assert (one.boxes == many.boxes).all() and one.scores == many.scores
        assert many.captions == ("skies",)
        assert not made.placer(part).lexicon.unknown(["skies"])


@pytest.mark.parametrize(
    ("text", "phrases", "unused"),
    [
        ("the man by the left", ["the man"], ("by the left",)),
        ("a man beside a dog and a cat", ["a man", "a dog", "a cat"], ("beside",)),
        ("two dogs and a cat", ["two dogs", "a cat"], ()),
        ("the cup near the top right and", ["the cup"], ("near the top right",)),
        ("behind", ["behind"], ()),
    ],
)
def test_words_that_place_no_phrase_are_said(text, phrases, unused):
    assert cut_phrases(text) == phrases and unused_words(text) == unused
    found = model().ground(IMAGE, text)
    assert found.unused == unused and found[:0].unused == unused
    assert found.to_dict().get("unused", []) == list(unused) and Regions.from_dict(found.to_dict()).unused == unused
    assert model().ground(IMAGE, [text]).unused == ()


def test_a_text_without_phrases_is_one():
    assert cut_phrases("A man in a red shirt") == ["a man", "a red shirt"]
    assert cut_phrases("running") == ["running"]


@pytest.mark.parametrize("part", ["densecap", "aligner"])
def test_an_image_that_shows_a_man_shows_somebody(part, monkeypatch: pytest.MonkeyPatch):
    made = model(phrase=(0.3, 0.3, 0, 0))
    placer, encoding = made.placer(part), made.encode(IMAGE)

    def found(*phrases: str) -> list[float]:
        presence = placer.find(encoding, Layout.of(phrases))[1]
        return presence.tolist()

    monkeypatch.setattr(Lexicon, "is_unknown", lambda _, phrase: phrase in ("a boy", "a girl"))
    men = found("a man", "a woman")
    for people in ("a person", "two people", "someone"):
        both, dog = found(people, "a dog")
        assert both == pytest.approx(max(both, *men)) and dog == pytest.approx(found("a dog")[0])
    tall = found("a tall person")
    monkeypatch.setattr(placing, "PEOPLE", ())
    alone = found("a person")[0]
    assert tall == found("a tall person")
    monkeypatch.undo()
    monkeypatch.setattr(Lexicon, "is_unknown", lambda _, phrase: phrase in ("a boy", "a girl"))
    assert found("a person")[0] == pytest.approx(max(alone, *men))

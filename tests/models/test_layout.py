"""Counts, places and relations: how they are read, and what boxes they choose."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.models.layout import RELATIONS, Layout, as_many, count_of, one_of

SIZE = (100, 100)


@pytest.mark.parametrize(
    ("text", "phrases", "places", "relations", "unused"),
    [
        ("the man on the left", ["the man"], [(0, "left")], [], ()),
        ("on the left a dog", ["a dog"], [(0, "left")], [], ()),
        ("a cup at the top right of the image", ["a cup"], [(0, "top"), (0, "right")], [], ()),
        ("a lamp in the upper left corner", ["a lamp"], [(0, "top"), (0, "left")], [], ()),
        ("trees at the right edge of the photo", ["trees"], [(0, "right")], [], ()),
        ("the tree on the left-hand side", ["the tree"], [(0, "left")], [], ()),
        ("rocks on the lower half", ["rocks"], [(0, "bottom")], [], ()),
        ("a book on the upper shelf", ["a book", "the upper shelf"], [], [("on", 0, 1)], ()),
        ("a person in the middle", ["a person"], [(0, "middle")], [], ()),
        ("a man left of a dog", ["a man", "a dog"], [], [("left of", 0, 1)], ()),
        ("a dog to the left of a man", ["a dog", "a man"], [], [("left of", 0, 1)], ()),
        ("a dog on the right side of a man", ["a dog", "a man"], [], [("right of", 0, 1)], ()),
        ("a cup on a table", ["a cup", "a table"], [], [("on", 0, 1)], ()),
        ("a cup standing on a table", ["a cup", "a table"], [], [("on", 0, 1)], ("standing",)),
        ("a man under a tree", ["a man", "a tree"], [], [("under", 0, 1)], ()),
        ("a dog in front of a house", ["a dog", "a house"], [], [("in front of", 0, 1)], ()),
        ("clouds over mountains", ["clouds", "mountains"], [], [("above", 0, 1)], ()),
        ("a tree above jeans", ["a tree", "jeans"], [], [("above", 0, 1)], ()),
        ("a dog underneath chairs", ["a dog", "chairs"], [], [("under", 0, 1)], ()),
        ("an over sized chair", ["an over sized chair"], [], [], ()),
        ("a zebra eating grass", ["a zebra", "grass"], [], [], ("eating",)),
        ("behind", ["behind"], [], [], ()),
        ("a dog or a cat", ["a dog", "a cat"], [], [], ("or",)),
        ("dogs or cats on a bed", ["dogs", "cats", "a bed"], [], [("on", 1, 2)], ("or",)),
        ("a street with no cars", ["a street"], [], [], ("with no cars",)),
        ("a man without a hat and a dog", ["a man", "a dog"], [], [], ("without a hat",)),
        ("a man with no hat on the left of a woman", ["a man", "a woman"], [], [("left of", 0, 1)], ("with no hat",)),
        ("a street without cars or people, and trees", ["a street", "trees"], [], [], ("without cars or people",)),
        ("no snow, a dog", ["a dog"], [], [], ("no snow",)),
        ("no people, a dog, a cat, no cars", ["a dog", "a cat"], [], [], ("no people", "no cars")),
        ("No parking sign, a street", ["parking sign", "a street"], [], [], ("no",)),
        ("at least two dogs", ["at least two dogs"], [], [], ()),
        ("more than two dogs and a cat", ["more than two dogs", "a cat"], [], [], ()),
        ("two or more dogs", ["at least two dogs"], [], [], ()),
        ("no fewer than three dogs on grass", ["at least three dogs", "grass"], [], [("on", 0, 1)], ()),
        ("at least a dog and a cat", ["a dog", "a cat"], [], [], ()),
        ("at most two dogs", ["dogs"], [], [], ("at most two",)),
        ("no more than 3 dogs on the left", ["dogs"], [(0, "left")], [], ("no more than 3",)),
        ("a ladder leaning up to two windows", ["a ladder", "two windows"], [], [], ("leaning up to",)),
        ("no people", ["people"], [], [], ("no",)),
    ],
)
def test_what_a_text_says_of_places_is_read(text, phrases, places, relations, unused) -> None:
    layout = Layout.parse(text)
    assert [*layout.phrases] == phrases and layout.unused == unused
    assert [*layout.places] == places and [tuple(asked) for asked in layout.relations] == relations


def test_what_is_not_found_is_said_with_what_was_asked_of_it() -> None:
    """A dog that is there, but not on the left, is no missing dog."""
    for text, scores, agree, missing in (
        ("a dog on the left", [0.4], [-0.8], ("a dog on the left",)),
        ("a dog on the left", [0.1], [-0.1], ("a dog",)),
        ("a cup at the top right", [0.1], [-2], ("a cup at the top on the right",)),
        ("a man left of a dog", [0.1, 0.9], [-2, 0], ("a man left of a dog",)),
        ("a man left of a dog", [0.1, 0.1], [-2, -2], ("a man left of a dog",)),
        ("a man left of a dog", [0.9, 0.1], [0, 0], ("a dog",)),
        ("two dogs and a cat", [0.1, 0.9], [-2, 0], ("two dogs",)),
        ("a dog", [0.9], [0], ()),
    ):
        assert Layout.parse(text).missing(np.array(scores), np.array(agree, float), 0.5) == missing, text


def test_the_side_of_a_thing_is_its_place() -> None:
    layout = Layout.parse("the left elephant and a man with his left hand behind the right tree")
    assert layout.phrases == ("the elephant", "a man", "his left hand", "the tree")
    assert layout.places == ((0, "left"), (3, "right")) and layout.unused == ()


def test_phrases_can_be_left_out_of_a_layout() -> None:
    layout = Layout.parse("two dogs left of a zzyx on a bench at the top")
    found = layout.only([True, False, True])
    assert found.phrases == ("two dogs", "a bench") and not found.relations and found.places == ((1, "top"),)
    assert found.unused == ("a zzyx on a bench",) and layout.only([True] * 3) == layout


@pytest.mark.parametrize(
    ("text", "phrase", "places", "unused"),
    [
        ("the man on the left", "the man", ["left"], ()),
        ("The man in a red coat on the right side", "the man in a red coat", ["right"], ()),
        ("a cup at the top right of the image", "a cup", ["top", "right"], ()),
        ("rocks in the bottom left corner", "rocks", ["bottom", "left"], ()),
        ("A man in a coat", "A man in a coat", [], ()),
        ("on the left", "on the left", [], ()),
        ("a man in the middle of the road", "a man in the middle of the road", [], ()),
        ("the man left of the dog", "the man left of the dog", [], ("left of",)),
        ("a man on the right of a dog", "a man on the right of a dog", [], ("right of",)),
        ("a cup on a table", "a cup on a table", [], ()),
        ("a dog behind a fence", "a dog behind a fence", [], ("behind",)),
        ("no umbrella on the left", "umbrella", ["left"], ("no",)),
        ("the left elephant", "the elephant", ["left"], ()),
        ("The Left Elephant", "The Elephant", ["left"], ()),
        ("the right brown dog on a bench", "the brown dog on a bench", ["right"], ()),
        ("left dog", "dog", ["left"], ()),
        ("the far upper-left dog", "the dog", ["top", "left"], ()),
        ("the right-hand dog", "the dog", ["right"], ()),
        ("the leftmost black dog", "the black dog", ["left"], ()),
        ("the left-most dog", "the dog", ["left"], ()),
        ("the lower window", "the window", ["bottom"], ()),
        ("the middle child", "the child", ["middle"], ()),
        ("the left hand", "the left hand", [], ()),
        ("the top shelf", "the top shelf", [], ()),
        ("a top hat", "a top hat", [], ()),
        ("a left dog", "a left dog", [], ()),
        ("the middle eastern man", "the middle eastern man", [], ()),
        ("middle school students", "middle school students", [], ()),
        ("the right car door", "the right car door", [], ()),
        ("the upper body of a man", "the upper body of a man", [], ()),
        ("the bottom row of books", "the bottom row of books", [], ()),
        ("the top view of a dog", "the top view of a dog", [], ()),
        ("a left handed man", "a left handed man", [], ()),
        ("a middle-aged man", "a middle-aged man", [], ()),
        ("the top of a tree", "the top of a tree", [], ()),
        ("the left xyzzy", "the left xyzzy", [], ()),
        ("no", "no", [], ()),
        ("", "", [], ()),
    ],
)
def test_a_listed_phrase_is_one_phrase_with_its_place(text, phrase, places, unused) -> None:
    layout = Layout.of(["a cat", text])
    assert layout.phrases == ("a cat", phrase) and layout.captions == ("a cat", text)
    assert [*layout.places] == [(1, place) for place in places] and layout.unused == unused and not layout.relations
    assert layout.missing(np.array([0.9, 0.4]), np.array([0, -2.0]), 0.5) == (text,)
    assert layout.only([False, True]).captions == (text,)


def test_of_two_that_fit_alike_the_place_decides() -> None:
    boxes = np.array([[0, 40, 20, 60], [80, 40, 100, 60]], np.float32)
    fits = np.array([[-1.0], [-1.1]])
    for text, row in (("a man on the left", 0), ("a man on the right", 1)):
        rows, agree = Layout.parse(text).choose(fits, boxes, SIZE)
        assert rows.tolist() == [row] and agree[0] > np.log(0.85)
    far = np.array([[-1.0], [-30.0]])  # what hardly fits is not chosen for its place
    rows, agree = Layout.parse("a man on the right").choose(far, boxes, SIZE)
    assert rows.tolist() == [0] and agree[0] < np.log(0.1)


def test_the_dog_on_the_left_is_the_left_one_of_two() -> None:
    """Both are in the right half; a part of one of them is no second dog."""
    boxes = np.array([[55, 10, 65, 90], [80, 10, 90, 90], [80, 10, 84, 90]], np.float32)
    fits = np.array([[-1.1], [-1.0], [-1.0]])
    for text, count, row, found in (
        ("the dog on the left", 2, 0, True), ("a dog on the left", 2, 0, False), ("the dog on the right", 2, 1, True),
        ("the left dog", 2, 0, True), ("the dog at the top", 2, 1, False),
    ):  # fmt: skip
        rows, agree = Layout.parse(text).choose(fits[:count], boxes[:count], SIZE)
        assert rows[0] == row and (agree[0] > np.log(0.8)) == found, text
    _, agree = Layout.parse("the dog on the left").choose(fits[1:], boxes[1:], SIZE)
    assert agree[0] < np.log(0.3)


def test_two_phrases_are_placed_together() -> None:
    boxes = np.array([[0, 40, 20, 60], [40, 40, 60, 60], [80, 40, 100, 60]], np.float32)
    fits = np.array([[-1.0, -9], [-9, -1.0], [-1.2, -9]])  # two men with a dog between them
    for text, row in (("a man left of a dog", 0), ("a man right of a dog", 2)):
        rows, agree = Layout.parse(text).choose(fits, boxes, SIZE)
        assert rows.tolist() == [row, 1] and agree[0] > np.log(0.8) and agree[1] == 0


@pytest.mark.parametrize(
    ("name", "one", "other"),
    [
        ("left of", [0, 0, 10, 10], [50, 0, 60, 10]), ("right of", [50, 0, 60, 10], [0, 0, 10, 10]),
        ("above", [0, 0, 10, 10], [0, 50, 10, 60]), ("below", [0, 50, 10, 60], [0, 0, 10, 10]),
        ("on", [40, 30, 50, 50], [20, 45, 80, 90]), ("under", [20, 45, 80, 90], [40, 30, 50, 50]),
        ("in front of", [30, 50, 60, 95], [20, 20, 70, 70]), ("behind", [20, 20, 70, 70], [30, 50, 60, 95]),
    ],
)  # fmt: skip
def test_a_relation_is_true_one_way(name, one, other) -> None:
    shares = [np.array([box]) / 100 for box in (one, other)]
    assert RELATIONS[name](*shares)[0, 0] > 0.75 and RELATIONS[name](*shares[::-1])[0, 0] < 0.25


def test_what_is_beside_a_table_is_not_on_it() -> None:
    cup, table = np.array([[0.0, 0.3, 0.1, 0.5]]), np.array([[0.4, 0.45, 0.9, 0.9]])
    assert RELATIONS["on"](cup, table)[0, 0] == 0


@pytest.mark.parametrize(
    ("phrase", "count", "one"),
    [
        ("two brown dogs", 2, "a brown dog"), ("the three children", 3, "a child"), ("a few dogs", 3, "a dog"),
        ("at least two dogs", 2, "a dog"), ("more than two brown dogs", 3, "a brown dog"),
        ("more than one brown dog", 2, "a brown dog"), ("more than 12 people", 13, "a person"),
        ("many people", 4, "a person"),
        ("a couple of oranges", 2, "an orange"), ("both men", 2, "a man"), ("5 cups", 5, "a cup"),
        ("two uniforms", 2, "a uniform"), ("12 dogs", 12, "a dog"), ("the eleven boys", 11, "a boy"),
        ("a lot of people", 4, "a person"), ("hundreds of birds", 200, "a bird"), ("a dozen apples", 12, "an apple"),
        ("two hundred sheep", 24, "a sheep"),
    ],
)  # fmt: skip
def test_a_number_is_read(phrase, count, one) -> None:
    assert count_of(phrase) == count and one_of(phrase) == one
    assert count_of(one) == 1


@pytest.mark.parametrize(
    ("phrase", "said"),
    [
        ("12 dogs", "many dogs"), ("the eleven players", "the many players"), ("hundreds of birds", "many birds"),
        ("five hundred dogs", "many dogs"), ("ten dogs", "ten dogs"), ("a lot of dogs", "a lot of dogs"),
        ("more than two brown dogs", "many brown dogs"), ("more than nine dogs", "ten dogs"),
        ("more than one brown dog", "many brown dogs"), ("more than ten dogs", "many dogs"),
        ("an 18 wheeler", "an 18 wheeler"), ("18 wheeler", "18 wheeler"), ("a dozen", "a dozen"), ("12", "12"),
    ],
)  # fmt: skip
def test_of_more_things_than_captions_count_there_are_many(phrase, said) -> None:
    assert as_many(phrase, ["ten", "a", "lot", "of", "18"]) == said
    # an unknown number
    assert as_many("the nine brown dogs", ("ten", "dogs")) == "the many brown dogs"
    assert as_many("a zebra", ()) == "a zebra"


def test_listed_phrases_are_read_alike() -> None:
    layout = Layout.of(["more than two dogs", "a man without a hat", "at most 5 cars"])
    assert layout.phrases == ("more than two dogs", "a man", "cars")
    assert layout.unused == ("without a hat", "at most 5")
    assert layout.captions == ("more than two dogs", "a man without a hat", "at most 5 cars")


@pytest.mark.parametrize("place", ["in front", "at the front", "in the far back", "at the end", "in the rear"])
def test_a_position_without_a_thing_is_no_phrase(place: str):
    layout = Layout.parse(f"a white car {place}")
    assert layout.phrases == ("a white car",) and layout.unused == (place,)
    assert Layout.parse("a man at the back of a truck").phrases[-1] != "a man"
    assert Layout.parse("the front").phrases == ("the front",)


def test_two_things_of_a_kind_are_two_boxes_and_no_part_of_one():
    """A man, his upper half to the left, and another man with a smaller fit to the right."""
    boxes = np.array([[10, 0, 40, 100], [5, 0, 30, 45], [60, 0, 90, 100]], np.float32)
    fits = np.log(np.array([[0.5, 0.5], [0.45, 0.45], [0.05, 0.05]]))
    rows, _ = Layout.parse("a man left of a man").choose(fits, boxes, (100, 100))
    assert rows.tolist() == [0, 2]
    assert Layout.parse("a hat left of a man").choose(fits, boxes, (100, 100))[0].tolist() == [1, 0]
    alone, agree = Layout.parse("a man left of a man").choose(fits[:2], boxes[:2], (100, 100))
    assert sorted(alone.tolist()) == [0, 1] and agree.sum() < -1.5, "there is only one man"

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere import Region, Regions

BOXES = [[0.0, 0.0, 10.0, 20.0], [5.0, 6.0, 30.0, 20.0], [1.5, 2.25, 3.0, 4.0]]
CAPTIONS = ("a dog", "", "the sky")


def regions(**changes):
    parts = {"scores": [0.9, 0.5, 0.25], "captions": CAPTIONS, "features": torch.eye(3), "image": "a.jpg", **changes}
    return Regions(30, 20, torch.tensor(BOXES), **parts)


def test_rows_are_plain_values():
    rows = list(regions())
    assert len(rows) == len(regions()) == 3
    assert rows[1] == Region((5.0, 6.0, 30.0, 20.0), 0.5, "")
    assert next(iter(Regions(30, 20, BOXES))) == Region((0.0, 0.0, 10.0, 20.0), None, None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": [0.9]}, "a.jpg: 1 scores for 3 boxes"),
        ({"captions": ["x"] * 4}, "a.jpg: 4 captions for 3 boxes"),
        ({"features": torch.zeros(2, 5)}, "a.jpg: 2 features for 3 boxes"),
        ({"scores": [0.1, 1.1, 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [0.1, -0.1, 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [0.1, float("nan"), 0.5]}, "a.jpg: a score is not a probability"),
        ({"scores": [2.0, 0.1, 0.2], "image": None}, "a score is not a probability"),
    ],
)
def test_parts_that_do_not_fit(changes, message):
    with pytest.raises(ValueError) as caught:
        regions(**changes)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[0, 0, 1, float("nan")]], "a box has a number that is not finite"),
        ([[0, 0, float("inf"), 1]], "a box has a number that is not finite"),
        ([[0, 0, 1, 1], [0, 0, 31, 5]], "box 1 [0.0, 0.0, 31.0, 5.0] is not inside the 30 x 20 picture"),
        ([[0, 0, 5, 21]], "box 0 [0.0, 0.0, 5.0, 21.0] is not inside the 30 x 20 picture"),
        ([[-1, 0, 5, 5]], "box 0 [-1.0, 0.0, 5.0, 5.0] is not inside the 30 x 20 picture"),
        ([[0, -2, 5, 5]], "box 0 [0.0, -2.0, 5.0, 5.0] is not inside the 30 x 20 picture"),
        ([[6, 0, 5, 5]], "box 0 [6.0, 0.0, 5.0, 5.0] is not inside the 30 x 20 picture"),
        ([[0, 6, 5, 5]], "box 0 [0.0, 6.0, 5.0, 5.0] is not inside the 30 x 20 picture"),
        (torch.zeros(4, 5), "boxes need four numbers each, (N, 4); these are (4, 5)"),
        (torch.zeros(8), "boxes need four numbers each, (N, 4); these are (8,)"),
    ],
)
def test_boxes_that_cannot_be(boxes, message):
    with pytest.raises(ValueError) as caught:
        Regions(30, 20, boxes)
    assert str(caught.value) == message


def test_a_rounding_error_outside_is_allowed():
    assert len(Regions(30, 20, [[-0.0005, 0.0, 30.0005, 20.0]])) == 1


@pytest.mark.parametrize(
    ("rows", "chosen"),
    [
        (1, [1]),
        (-1, [2]),
        (slice(None, 2), [0, 1]),
        (slice(None, None, -1), [2, 1, 0]),
        (slice(5, None), []),
        ([2, 0], [2, 0]),
        ([-1], [2]),
        ([], []),
        ([True, False, True], [0, 2]),
        (torch.tensor([False, True, True]), [1, 2]),
        (torch.tensor([False, False, False]), []),
        (torch.tensor([1, 1]), [1, 1]),
        (torch.tensor(2), [2]),
    ],
)
def test_slicing(rows, chosen):
    part = regions()[rows]
    assert (part.width, part.height, part.image) == (30, 20, "a.jpg")
    assert part.boxes.tolist() == [BOXES[i] for i in chosen]
    assert part.captions == tuple(CAPTIONS[i] for i in chosen)
    assert torch.equal(part.scores, torch.tensor([0.9, 0.5, 0.25])[chosen])
    assert torch.equal(part.features, torch.eye(3)[chosen])


@pytest.mark.parametrize("rows", [3, -4, [3], torch.tensor([True, False])])
def test_slicing_beyond_the_end(rows):
    with pytest.raises(IndexError):
        regions()[rows]


def test_slicing_without_the_optional_parts():
    part = Regions(30, 20, BOXES)[1:]
    assert len(part) == 2 and part.scores is None and part.captions is None and part.features is None


@pytest.mark.parametrize("boxes", [[], torch.zeros(0, 4)])
def test_none_at_all(boxes):
    empty = Regions(30, 20, boxes, [], [], torch.zeros(0, 7), image="a.jpg")
    assert len(empty) == 0 and list(empty) == [] and empty.boxes.shape == (0, 4)
    assert len(empty[[]]) == len(empty[:5]) == len(empty[torch.zeros(0, dtype=torch.bool)]) == 0
    assert empty[:0].features.shape == (0, 7)
    row = {"image": "a.jpg", "width": 30, "height": 20, "boxes": [], "scores": [], "captions": []}
    assert empty.to_dict() == row
    assert len(Regions.from_dict(row)) == 0


def test_json_form():
    row = regions(scores=[0.123456789, 1, 0]).to_dict()
    assert list(row) == ["image", "width", "height", "boxes", "scores", "captions"]
    assert row["boxes"] == BOXES and row["scores"] == [0.12346, 1.0, 0.0] and row["captions"] == list(CAPTIONS)
    assert Regions(30, 20, BOXES).to_dict() == {"image": None, "width": 30, "height": 20, "boxes": BOXES}


hundredths = st.integers(0, 6400).map(lambda n: n / 100)


@given(
    st.lists(
        st.tuples(
            st.lists(hundredths, min_size=2, max_size=2).map(sorted),
            st.lists(hundredths, min_size=2, max_size=2).map(sorted),
            st.integers(0, 100000).map(lambda n: n / 100000),
            st.text(),
        ),
        max_size=6,
    )
)
def test_json_round_trip(rows):
    boxes = [[x1, y1, x2, y2] for (x1, x2), (y1, y2), _, _ in rows]
    before = Regions(64, 64, boxes, [row[2] for row in rows], [row[3] for row in rows], image="photo ü.jpg")
    after = Regions.from_dict(json.loads(json.dumps(before.to_dict())))
    assert (after.width, after.height, after.image, after.captions) == (64, 64, "photo ü.jpg", before.captions)
    assert torch.equal(after.boxes, before.boxes) and torch.equal(after.scores, before.scores)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"width": 3, "boxes": []}, "height"),
        ({}, "width"),
        (None, "missing"),
        ({"width": 3, "height": 3, "boxes": "none"}, "invalid data type"),
        ({"width": "3", "height": 3, "boxes": [[0, 0, 1, 1]]}, "str"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1, 1]], "captions": 7}, "iterable"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 1]]}, r"\(1, 3\)"),
        ({"width": 3, "height": 3, "boxes": [[0, 0, 9, 1]]}, "not inside the 3 x 3 picture"),
    ],
)
def test_json_that_is_something_else(row, message):
    with pytest.raises(ValueError, match=message):
        Regions.from_dict(row)

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from saywhere.boxes import iou
from saywhere.data.flickr import MarkedImage, read_marked
from saywhere.evaluation.attention import (
    AttentionCorrectness,
    Mention,
    correctness,
    entity_boxes,
    generated_mentions,
    given_mentions,
    names,
    shares_inside,
    union_pieces,
    warped_shares_inside,
)

BOXES = {"1": np.array([0.0, 0, 20, 20]), "2": np.array([10.0, 0, 40, 20])}
LINES = (
    "[/EN#1/people A young boy] holds [/EN#2/other a ball] .",
    "[/EN#1/people A child] and [/EN#3/other the wind]",
    "[/EN#2/other A red ball] near [/EN#1/people a boy]",
)


def image() -> MarkedImage:
    return MarkedImage(Path("1.jpg"), 40, 40, tuple(read_marked(line, BOXES) for line in LINES))


def test_the_union_of_boxes_in_pieces():
    boxes = np.array([[0.0, 0, 4, 4], [2, 2, 6, 6], [2, 2, 3, 3]])
    pieces = union_pieces(boxes)
    assert (pieces[:, 2:] - pieces[:, :2]).prod(axis=1).sum() == 16 + 16 - 4
    overlaps = [iou(a[None], b[None]).item() for a, b in combinations(pieces, 2)]
    assert len(pieces) > 3 and not any(overlaps)
    assert union_pieces(np.zeros((0, 4))).shape == (0, 4)
    assert union_pieces(np.array([[3.0, 3, 3, 8]])).shape == (0, 4)


def test_shares_by_hand():
    areas = np.array([[0.0, 0, 10, 10], [10, 0, 20, 10], [5, 5, 15, 15], [3, 3, 3, 9]])
    shares, sizes = shares_inside(areas, np.array([[0.0, 0, 10, 10], [5, 0, 12, 10]]))
    assert sizes.tolist() == [100, 100, 100, 0]
    assert shares == pytest.approx([1, 0.2, (25 + 10) / 100, 0])


def test_warped_areas_by_hand():
    upright = np.array([[[0.0, 0], [12, 0], [12, 12], [0, 12]]])
    turned = np.array([[[0.0, 6], [6, 0], [12, 6], [6, 12]]])  # on its corner: half the size
    beside = np.array([[[-12.0, 0], [12, 0], [12, 12], [-12, 12]]])  # its left half is outside
    outside = np.array([[[-9.0, -9], [-3, -9], [-3, -3], [-9, -3]]])
    corners = np.concatenate((upright, turned, beside, outside))
    shares, sizes = warped_shares_inside(corners, np.array([[0.0, 0, 6, 12]]), 40, 40)
    assert shares == pytest.approx([0.5, 0.5, 0.5, 0], abs=0.03)
    assert sizes.tolist() == [144, 72, 144, 0]
    exact, _ = shares_inside(np.array([[0.0, 0, 12, 12]]), np.array([[0.0, 0, 6, 12]]))
    assert shares[0] == exact[0]


def test_warped_is_upright_where_nothing_is_warped():
    random = np.random.default_rng(0)
    low = 40 * random.random((20, 2))
    areas = np.concatenate((low, low + 5 + 30 * random.random((20, 2))), axis=1)
    quads = areas[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    boxes = np.array([[10.0, 10, 30, 50], [20, 5, 60, 30]])
    exact, sizes = shares_inside(areas, boxes)
    sampled, same = warped_shares_inside(quads, boxes, 100, 100)
    assert sampled == pytest.approx(exact, abs=0.05)
    assert same == pytest.approx(sizes)
    assert exact.min() < 0.1 < 0.9 < exact.max()


def test_correctness_by_hand():
    weights = np.array([[0.7, 0.2, 0.1], [0, 0, 1]])
    shares, sizes = np.array([1.0, 0.5, 0]), np.array([10.0, 40, 20])
    assert correctness(weights, shares, sizes) == pytest.approx([0.8, 0])
    # on every pixel: (7 + 4) of (7 + 8 + 2)
    assert correctness(weights, shares, sizes, "pixel") == pytest.approx([11 / 17, 0])
    assert correctness(weights, shares, np.array([10.0, 0, 20])) == pytest.approx([0.7 / 0.8, 0])
    assert correctness(weights, shares, np.zeros(3)).tolist() == [0, 0]


def test_mentions_of_given_sentences():
    first, second, third = image().sentences
    assert given_mentions(first) == [Mention(2, "1"), Mention(5, "2")]  # "boy", "ball"
    assert given_mentions(second) == [Mention(1, "1")]  # the wind has no box
    assert given_mentions(third) == [Mention(2, "2"), Mention(5, "1")]


def test_mentions_of_generated_sentences():
    named = names(image())
    assert named == {"boy": ["1"], "ball": ["2"], "child": ["1"]}
    said = ["a", "boy", "with", "a", "ball", "and", "a", "boy", "in", "the", "wind"]
    assert generated_mentions(said, named) == [Mention(1, "1"), Mention(4, "2"), Mention(7, "1")]
    two = MarkedImage(
        Path("2.jpg"), 40, 40, (read_marked("[/EN#1/people a man] sees [/EN#2/people a tall man]", BOXES),)
    )
    assert generated_mentions(["man"], names(two)) == [Mention(0, "1"), Mention(0, "2")]


def test_the_measure_over_sentences():
    boxes = entity_boxes(image())
    assert {entity: box.tolist() for entity, box in boxes.items()} == {"1": [[0, 0, 20, 20]], "2": [[10, 0, 40, 20]]}
    quarters = np.array([[0.0, 0, 20, 20], [20, 0, 40, 20], [0, 20, 20, 40], [20, 20, 40, 40]])
    weights = np.array([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], [0.6, 0.4, 0, 0]])
    mentions = [Mention(0, "1"), Mention(1, "2"), Mention(2, "2"), Mention(3, "1"), Mention(0, "9")]
    for areas in (quarters, quarters[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 4, 2)):
        measure = AttentionCorrectness()
        measure.add(weights, mentions, areas, boxes, (40, 40))
        assert measure.found == pytest.approx([0.1, 0.5, 0.6 * 0.5 + 0.4])
        assert measure.control == pytest.approx([0.25, 0.375, 0.375])  # the share of the image
        assert measure.mean == pytest.approx(1.3 / 3)
        assert measure.to_dict() == {
            "correctness": measure.mean, "uniform": measure.uniform, "mentions": 3, "spread": "area"
        }  # fmt: skip
    assert AttentionCorrectness().mean == AttentionCorrectness().uniform == 0


def test_larger_areas_count_more_by_pixel():
    boxes = {"1": np.array([[0.0, 0, 10, 10]])}
    areas = np.array([[0.0, 0, 10, 10], [0, 0, 40, 40]])
    found = []
    for spread in ("area", "pixel"):
        measure = AttentionCorrectness(spread)
        measure.add(np.array([[0.5, 0.5]]), [Mention(0, "1")], areas, boxes, (40, 40))
        found += measure.found
    assert found == pytest.approx([(1 + 1 / 16) / 2, (100 + 100) / 1700])


def test_what_lies_outside_the_image_is_not_attended_to():
    measure = AttentionCorrectness()
    areas = np.array([[-20.0, 0, 20, 20], [20, 0, 40, 40]])
    measure.add(np.array([[0.5, 0.5]]), [Mention(0, "1")], areas, {"1": np.array([[0.0, 0, 20, 20]])}, (40, 40))
    assert measure.found == [0.5]

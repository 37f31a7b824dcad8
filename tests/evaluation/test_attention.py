from __future__ import annotations

from pathlib import Path

import pytest
import torch

from saywhere.data.entities import MarkedPicture, read_marked
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

BOXES = {"1": torch.tensor([0.0, 0, 20, 20]), "2": torch.tensor([10.0, 0, 40, 20])}
LINES = (
    "[/EN#1/people A young boy] holds [/EN#2/other a ball] .",
    "[/EN#1/people A child] and [/EN#3/other the wind]",
    "[/EN#2/other A red ball] near [/EN#1/people a boy]",
)


def picture() -> MarkedPicture:
    return MarkedPicture(Path("1.jpg"), 40, 40, tuple(read_marked(line, BOXES) for line in LINES))


def test_the_union_of_boxes_in_pieces():
    boxes = torch.tensor([[0.0, 0, 4, 4], [2, 2, 6, 6], [2, 2, 3, 3]])
    pieces = union_pieces(boxes)
    areas = (pieces[:, 2:] - pieces[:, :2]).prod(dim=1)
    assert areas.sum() == 16 + 16 - 4
    assert union_pieces(torch.zeros(0, 4)).shape == (0, 4)
    assert union_pieces(torch.tensor([[3.0, 3, 3, 8]])).shape == (0, 4)


def test_shares_by_hand():
    areas = torch.tensor([[0.0, 0, 10, 10], [10, 0, 20, 10], [5, 5, 15, 15], [3, 3, 3, 9]])
    shares, sizes = shares_inside(areas, torch.tensor([[0.0, 0, 10, 10], [5, 0, 12, 10]]))
    assert sizes.tolist() == [100, 100, 100, 0]
    torch.testing.assert_close(shares, torch.tensor([1, 0.2, (25 + 10) / 100, 0]))


def test_warped_areas_by_hand():
    upright = torch.tensor([[[0.0, 0], [12, 0], [12, 12], [0, 12]]])
    turned = torch.tensor([[[0.0, 6], [6, 0], [12, 6], [6, 12]]])  # on its corner: half the size
    beside = torch.tensor([[[-12.0, 0], [12, 0], [12, 12], [-12, 12]]])  # its left half is outside
    outside = torch.tensor([[[-9.0, -9], [-3, -9], [-3, -3], [-9, -3]]])
    corners = torch.cat((upright, turned, beside, outside))
    shares, sizes = warped_shares_inside(corners, torch.tensor([[0.0, 0, 6, 12]]), 40, 40)
    torch.testing.assert_close(shares, torch.tensor([0.5, 0.5, 0.5, 0]), atol=0.03, rtol=0)
    torch.testing.assert_close(sizes, torch.tensor([144.0, 72, 144, 0]))
    exact, _ = shares_inside(torch.tensor([[0.0, 0, 12, 12]]), torch.tensor([[0.0, 0, 6, 12]]))
    assert shares[0] == exact[0]


def test_warped_is_upright_where_nothing_is_warped():
    rng = torch.Generator().manual_seed(0)
    low = 40 * torch.rand(20, 2, generator=rng)
    areas = torch.cat((low, low + 5 + 30 * torch.rand(20, 2, generator=rng)), dim=1)
    quads = areas[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
    boxes = torch.tensor([[10.0, 10, 30, 50], [20, 5, 60, 30]])
    exact, sizes = shares_inside(areas, boxes)
    sampled, same = warped_shares_inside(quads, boxes, 100, 100)
    torch.testing.assert_close(sampled, exact, atol=0.05, rtol=0)
    torch.testing.assert_close(same, sizes)


def test_correctness_by_hand():
    weights = torch.tensor([[0.7, 0.2, 0.1], [0, 0, 1]])
    shares, sizes = torch.tensor([1.0, 0.5, 0]), torch.tensor([10.0, 40, 20])
    torch.testing.assert_close(correctness(weights, shares, sizes), torch.tensor([0.8, 0]))
    # on every pixel: (7 + 4) of (7 + 8 + 2)
    torch.testing.assert_close(correctness(weights, shares, sizes, "pixel"), torch.tensor([11 / 17, 0]))
    torch.testing.assert_close(correctness(weights, shares, torch.tensor([10.0, 0, 20])), torch.tensor([0.7 / 0.8, 0]))
    assert correctness(weights, shares, torch.zeros(3)).tolist() == [0, 0]


def test_mentions_of_given_sentences():
    first, second, third = picture().sentences
    assert given_mentions(first) == [Mention(2, "1"), Mention(5, "2")]  # "boy", "ball"
    assert given_mentions(second) == [Mention(1, "1")]  # the wind has no box
    assert given_mentions(third) == [Mention(2, "2"), Mention(5, "1")]


def test_mentions_of_generated_sentences():
    named = names(picture())
    assert named == {"boy": ["1"], "ball": ["2"], "child": ["1"]}
    said = ["a", "boy", "with", "a", "ball", "and", "a", "boy", "in", "the", "wind"]
    assert generated_mentions(said, named) == [Mention(1, "1"), Mention(4, "2"), Mention(7, "1")]
    two = MarkedPicture(
        Path("2.jpg"), 40, 40, (read_marked("[/EN#1/people a man] sees [/EN#2/people a tall man]", BOXES),)
    )
    assert generated_mentions(["man"], names(two)) == [Mention(0, "1"), Mention(0, "2")]


def test_the_measure_over_sentences():
    boxes = entity_boxes(picture())
    assert {entity: box.tolist() for entity, box in boxes.items()} == {"1": [[0, 0, 20, 20]], "2": [[10, 0, 40, 20]]}
    quarters = torch.tensor([[0.0, 0, 20, 20], [20, 0, 40, 20], [0, 20, 20, 40], [20, 20, 40, 40]])
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4], [1, 0, 0, 0], [0.6, 0.4, 0, 0]])
    mentions = [Mention(0, "1"), Mention(1, "2"), Mention(2, "2"), Mention(3, "1"), Mention(0, "9")]
    for areas in (quarters, quarters[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(4, 4, 2)):
        measure = AttentionCorrectness()
        measure.add(weights, mentions, areas, boxes, (40, 40))
        assert measure.found == pytest.approx([0.1, 0.5, 0.6 * 0.5 + 0.4])
        assert measure.control == pytest.approx([0.25, 0.375, 0.375])  # the share of the picture
        assert measure.mean == pytest.approx(1.3 / 3)
        assert measure.to_dict() == {
            "correctness": measure.mean, "uniform": measure.uniform, "mentions": 3, "spread": "area"
        }  # fmt: skip
    assert AttentionCorrectness().mean == AttentionCorrectness().uniform == 0


def test_larger_areas_count_more_by_pixel():
    boxes = {"1": torch.tensor([[0.0, 0, 10, 10]])}
    areas = torch.tensor([[0.0, 0, 10, 10], [0, 0, 40, 40]])
    found = []
    for spread in ("area", "pixel"):
        measure = AttentionCorrectness(spread)
        measure.add(torch.tensor([[0.5, 0.5]]), [Mention(0, "1")], areas, boxes, (40, 40))
        found += measure.found
    assert found == pytest.approx([(1 + 1 / 16) / 2, (100 + 100) / 1700])


def test_what_lies_outside_the_picture_is_not_attended_to():
    measure = AttentionCorrectness()
    areas = torch.tensor([[-20.0, 0, 20, 20], [20, 0, 40, 40]])
    measure.add(torch.tensor([[0.5, 0.5]]), [Mention(0, "1")], areas, {"1": torch.tensor([[0.0, 0, 20, 20]])}, (40, 40))
    assert measure.found == [0.5]

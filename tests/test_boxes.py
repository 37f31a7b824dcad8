import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere import boxes

SIDE = 64  # pixels; boxes are made in quarters of a pixel, so that sums and differences are exact
quarters = st.integers(0, 4 * SIDE).map(lambda n: n / 4)


@st.composite
def box_sets(draw, min_size=0, max_size=12, positive=False):
    """Double boxes (N, 4), ordered corners, inside a SIDE x SIDE picture; ``positive``: with width and height."""
    rows = []
    for _ in range(draw(st.integers(min_size, max_size))):
        (x1, x2), (y1, y2) = (sorted(draw(st.tuples(quarters, quarters))) for _ in range(2))
        grow = 0.25 if positive else 0
        rows.append([x1, y1, x2 + grow, y2 + grow])
    return torch.tensor(rows, dtype=torch.float64).reshape(-1, 4)


@given(box_sets())
def test_formats_round_trip(b):
    assert torch.equal(boxes.from_center(boxes.to_center(b)), b)
    assert torch.equal(boxes.from_size(boxes.to_size(b)), b)


def test_formats_by_hand():
    b = torch.tensor([[10.0, 20.0, 30.0, 60.0]])
    assert boxes.to_center(b).tolist() == [[20, 40, 20, 40]]
    assert boxes.to_size(b).tolist() == [[10, 20, 20, 40]]
    assert boxes.area(b).tolist() == [800]


def test_area_of_a_box_inside_out_is_zero():
    assert boxes.area(torch.tensor([[5.0, 5, 3, 9], [5, 5, 3, 3]])).tolist() == [0, 0]


def test_iou_by_hand():
    a = torch.tensor([[0.0, 0, 10, 10]])
    b = torch.tensor([[5.0, 0, 15, 10], [0, 0, 10, 10], [10, 0, 20, 10], [2, 2, 4, 4]])
    torch.testing.assert_close(boxes.iou(a, b), torch.tensor([[50 / 150, 1, 0, 4 / 100]]))


def test_iou_of_points_is_zero():
    assert boxes.iou(torch.tensor([[3.0, 3, 3, 3]]), torch.tensor([[3.0, 3, 3, 3]])).tolist() == [[0]]


@given(box_sets(), box_sets())
def test_iou_is_symmetric_and_between_0_and_1(a, b):
    iou = boxes.iou(a, b)
    assert iou.shape == (len(a), len(b))
    assert torch.equal(iou, boxes.iou(b, a).T)
    assert bool(((iou >= 0) & (iou <= 1)).all())


@given(box_sets(positive=True))
def test_iou_with_itself_is_1(b):
    assert torch.equal(boxes.iou(b, b).diagonal(), torch.ones(len(b), dtype=b.dtype))


@given(box_sets(), st.integers(1, SIDE), st.integers(1, SIDE))
def test_clip_is_idempotent_and_stays_inside(b, width, height):
    clipped = boxes.clip(b - 8, width, height)
    assert torch.equal(boxes.clip(clipped, width, height), clipped)
    assert bool((clipped >= 0).all() and (clipped[:, 2:] <= torch.tensor([width, height])).all())
    assert bool((clipped[:, :2] <= clipped[:, 2:]).all())


@given(box_sets())
def test_clip_leaves_boxes_inside_alone(b):
    assert torch.equal(boxes.clip(b, SIDE, SIDE), b)


def test_clip_empties_a_box_outside():
    assert boxes.clip(torch.tensor([[-9.0, 5, -3, 8]]), 20, 10).tolist() == [[0, 5, 0, 8]]


@given(box_sets())
def test_flip_is_an_involution_that_keeps_areas(b):
    flipped = boxes.flip(b, SIDE)
    assert torch.equal(boxes.flip(flipped, SIDE), b)
    assert torch.equal(boxes.area(flipped), boxes.area(b))


def test_flip_by_hand():
    assert boxes.flip(torch.tensor([[1.0, 2, 4, 8]]), 10).tolist() == [[6, 2, 9, 8]]


def test_scale_by_hand():
    assert boxes.scale(torch.tensor([[1.0, 2, 4, 8]]), 2, 0.5).tolist() == [[2, 1, 8, 4]]


@given(st.data())
def test_encode_and_decode_are_inverse(data):
    b = data.draw(box_sets(min_size=1, positive=True))
    anchors = data.draw(box_sets(min_size=len(b), max_size=len(b), positive=True))
    torch.testing.assert_close(boxes.decode(boxes.encode(b, anchors), anchors), b, rtol=0, atol=1e-9)
    torch.testing.assert_close(boxes.encode(anchors, anchors), torch.zeros_like(anchors))
    torch.testing.assert_close(boxes.decode(torch.zeros_like(anchors), anchors), anchors)


def test_encode_by_hand():
    anchor, box = torch.tensor([[0.0, 0, 10, 20]]), torch.tensor([[5.0, 0, 25, 20]])
    torch.testing.assert_close(boxes.encode(box, anchor), torch.tensor([[1.0, 0.0, math.log(2), 0.0]]))


def test_decode_bounds_the_scale_only_from_above():
    anchor, offsets = torch.tensor([[0.0, 0, 10, 10]]), torch.tensor([[0.0, 0, 500, -500]])
    size = boxes.to_size(boxes.decode(offsets, anchor, max_log_scale=math.log(8)))[0, 2:]
    torch.testing.assert_close(size, torch.tensor([80.0, 0.0]))
    assert torch.isinf(boxes.decode(offsets, anchor)).any()


def test_decode_gradients():
    offsets = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    anchors = torch.tensor([[0, 0, 4, 8], [3, 1, 9, 5], [2, 2, 3, 7]], dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(boxes.decode, (offsets, anchors))
    targets = (anchors.detach() + torch.tensor([1, 0, 2, 1])).requires_grad_()
    assert torch.autograd.gradcheck(boxes.encode, (targets, anchors))


def test_anchor_grid_order_and_centres():
    anchors = boxes.anchor_grid([(4, 8), (6, 2)], height=2, width=3, stride=16)
    rows = boxes.to_center(anchors).reshape(2, 3, 2, 4)
    assert rows[0, 0].tolist() == [[8, 8, 4, 8], [8, 8, 6, 2]]
    assert rows[1, 2].tolist() == [[40, 24, 4, 8], [40, 24, 6, 2]]
    assert boxes.anchor_grid([(4, 8)], 0, 3, 16).shape == (0, 4)


def test_anchor_grid_dtype():
    exact = boxes.anchor_grid([(1 / 3, 1)], 1, 1, 1, torch.float64)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact[0, 2] - exact[0, 0], torch.tensor(1 / 3, dtype=torch.float64), rtol=0, atol=1e-15)


def brute_force_nms(b, scores, threshold):
    """Greedy suppression as its definition reads."""
    iou, left, kept = boxes.iou(b, b), scores.argsort(descending=True, stable=True).tolist(), []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [row for row in left if iou[best, row] <= threshold]
    return kept


@given(box_sets(max_size=20, positive=True), st.data())
def test_nms_is_greedy_suppression(b, data):
    scores = torch.tensor(data.draw(st.permutations(range(len(b)))), dtype=torch.float64) / 32
    threshold = data.draw(st.floats(0.05, 0.95))
    kept = boxes.nms(b, scores, threshold)
    assert kept.tolist() == brute_force_nms(b, scores, threshold)
    assert boxes.nms(b, scores, threshold, limit=3).tolist() == kept[:3].tolist()


def test_nms_keeps_doubles_apart_that_floats_cannot():
    b = torch.tensor([[0, 0, 1, 1], [0, 0, 1, 1]], dtype=torch.float64)
    assert boxes.nms(b, torch.tensor([0.5, 0.5 + 1e-12], dtype=torch.float64), 0.5).tolist() == [1]
    assert boxes.nms(b.half(), torch.tensor([0.5, 0.75]).half(), 0.5).tolist() == [1]


def test_nms_at_the_threshold_keeps():
    b = torch.tensor([[0.0, 0, 2, 2], [0, 0, 2, 1]])  # IoU exactly .5
    assert boxes.nms(b, torch.tensor([0.9, 0.8]), 0.5).tolist() == [0, 1]


@given(box_sets(), st.floats(0.05, 1))
def test_merge_partitions_its_input(b, threshold):
    means, groups = boxes.merge(b, threshold)
    assert sorted(row for group in groups for row in group) == list(range(len(b)))
    assert means.shape == (len(groups), 4)
    for mean, group in zip(means, groups, strict=True):
        torch.testing.assert_close(mean, b[group].mean(dim=0))
        neighbours = (boxes.iou(b[group], b[group]) >= threshold) | torch.eye(len(group), dtype=torch.bool)
        assert bool(neighbours.all(dim=1).any())  # one member of the group is the neighbour of all


def test_merge_takes_the_box_with_most_neighbours_first():
    chain = torch.tensor([[0.0, 0, 100, 100], [10, 0, 110, 100], [20, 0, 120, 100], [30, 0, 130, 100]])
    means, groups = boxes.merge(chain, 0.7)
    assert groups == [[0, 1, 2], [3]]
    assert means.tolist() == [[10, 0, 110, 100], [30, 0, 130, 100]]


@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_nothing_in_nothing_out(threshold):
    none = torch.zeros(0, 4)
    means, groups = boxes.merge(none, threshold)
    assert means.shape == (0, 4) and groups == []
    assert boxes.nms(none, torch.zeros(0), threshold).shape == (0,)
    assert boxes.iou(none, torch.zeros(3, 4)).shape == (0, 3)
    assert boxes.encode(none, none).shape == boxes.decode(none, none).shape == boxes.clip(none, 5, 5).shape == (0, 4)

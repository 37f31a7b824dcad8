"""Box geometry, the same for numpy arrays and torch tensors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere import boxes

SIDE = 64  # pixels; boxes are made in quarters of a pixel, so that sums and differences are exact
quarters = st.integers(0, 4 * SIDE).map(lambda n: n / 4)
libraries = pytest.mark.parametrize("lib", [np.asarray, torch.as_tensor], ids=["numpy", "torch"])


@st.composite
def box_sets(draw, min_size=0, max_size=12, positive=False) -> np.ndarray:
    """Double boxes (N, 4), ordered corners, inside a SIDE x SIDE image; ``positive``: with width and height."""
    rows = []
    for _ in range(draw(st.integers(min_size, max_size))):
        (x1, x2), (y1, y2) = (sorted(draw(st.tuples(quarters, quarters))) for _ in range(2))
        grow = 0.25 if positive else 0
        rows.append([x1, y1, x2 + grow, y2 + grow])
    return np.array(rows, np.float64).reshape(-1, 4)


def close(actual: Any, expected: Any, atol: float = 1e-9) -> None:
    np.testing.assert_allclose(np.asarray(actual), np.asarray(expected), rtol=1e-6, atol=atol)


@libraries
@given(b=box_sets())
def test_formats_round_trip(lib, b):
    b = lib(b)
    assert (boxes.from_center(boxes.to_center(b)) == b).all()
    assert (boxes.from_size(boxes.to_size(b)) == b).all()


@libraries
def test_by_hand(lib):
    b = lib([[10.0, 20.0, 30.0, 60.0]])
    assert boxes.to_center(b).tolist() == [[20, 40, 20, 40]]
    assert boxes.to_size(b).tolist() == [[10, 20, 20, 40]]
    assert boxes.area(b).tolist() == [800]
    assert boxes.area(lib([[5.0, 5, 3, 9], [5, 5, 8, 3], [5, 5, 3, 3]])).tolist() == [0, 0, 0]  # inside out
    a = lib([[0.0, 0, 10, 10]])
    b = lib([[5.0, 0, 15, 10], [0, 0, 10, 10], [10, 0, 20, 10], [2, 2, 4, 4]])
    close(boxes.iou(a, b), [[50 / 150, 1, 0, 4 / 100]])
    assert boxes.iou(lib([[3.0, 3, 3, 3]]), lib([[3.0, 3, 3, 3]])).tolist() == [[0]]  # points
    assert boxes.clip(lib([[-9.0, 5, -3, 8]]), 20, 10).tolist() == [[0, 5, 0, 8]]  # outside: without width
    assert boxes.flip(lib([[1.0, 2, 4, 8]]), 10).tolist() == [[6, 2, 9, 8]]
    assert boxes.scale(lib([[1.0, 2, 4, 8]]), 2, 0.5).tolist() == [[2, 1, 8, 4]]
    anchor, box = lib([[0.0, 0, 10, 20]]), lib([[5.0, 0, 25, 20]])
    close(boxes.encode(box, anchor), [[1.0, 0.0, math.log(2), 0.0]])


@libraries
@given(a=box_sets(), b=box_sets())
def test_iou_is_symmetric_and_between_0_and_1(lib, a, b):
    iou = boxes.iou(lib(a), lib(b))
    assert iou.shape == (len(a), len(b))
    assert (iou == boxes.iou(lib(b), lib(a)).T).all()
    assert bool(((iou >= 0) & (iou <= 1)).all())


@given(a=box_sets(), b=box_sets())
def test_both_libraries_agree(a, b):
    x, y = torch.as_tensor(a), torch.as_tensor(b)
    close(boxes.iou(a, b), boxes.iou(x, y))
    close(boxes.clip(a - 8, 20, 30), boxes.clip(x - 8, 20, 30))
    close(boxes.flip(boxes.scale(a, 2, 0.5), 99), boxes.flip(boxes.scale(x, 2, 0.5), 99))
    close(boxes.decode(b[: len(a)] / SIDE, a[: len(b)], 0.5), boxes.decode(y[: len(a)] / SIDE, x[: len(b)], 0.5))


@libraries
@given(b=box_sets(), width=st.integers(1, SIDE), height=st.integers(1, SIDE))
def test_clip_is_idempotent_and_stays_inside(lib, b, width, height):
    clipped = boxes.clip(lib(b) - 8, width, height)
    assert (boxes.clip(clipped, width, height) == clipped).all()
    assert bool((clipped >= 0).all() and (clipped[:, 2:] <= lib([width, height])).all())
    assert bool((clipped[:, :2] <= clipped[:, 2:]).all())


@libraries
@given(b=box_sets())
def test_flip_is_an_involution_that_keeps_areas(lib, b):
    b = lib(b)
    flipped = boxes.flip(b, SIDE)
    assert (boxes.flip(flipped, SIDE) == b).all()
    assert (boxes.area(flipped) == boxes.area(b)).all()


def test_containment_is_a_share_of_the_smaller_box():
    found = boxes.containment(np.array([[0.0, 0, 4, 4], [1, 1, 3, 3], [2, 0, 6, 4], [5, 5, 5, 5]]))
    np.testing.assert_allclose(found[:3, :3], [[1, 1, 0.5], [1, 1, 0.5], [0.5, 0.5, 1]])
    assert (found[3] == 0).all()


@libraries
@given(data=st.data())
def test_encode_and_decode_are_inverse(lib, data):
    b = lib(data.draw(box_sets(min_size=1, positive=True)))
    anchors = lib(data.draw(box_sets(min_size=len(b), max_size=len(b), positive=True)))
    close(boxes.decode(boxes.encode(b, anchors), anchors), b)
    close(boxes.encode(anchors, anchors), anchors * 0)
    close(boxes.decode(anchors * 0, anchors), anchors)


@pytest.mark.filterwarnings("ignore:overflow")
@libraries
def test_decode_bounds_the_scale_only_from_above(lib):
    anchor, offsets = lib([[0.0, 0, 10, 10]]), lib([[0.0, 0, 800, -800]])
    size = boxes.to_size(boxes.decode(offsets, anchor, max_log_scale=math.log(8)))[0, 2:]
    close(size, [80.0, 0.0])
    assert not np.isfinite(np.asarray(boxes.decode(offsets, anchor))).all()


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
    exact = boxes.anchor_grid([(1 / 3, 1)], 1, 1, 1, np.float64)
    assert exact.dtype == np.float64 and boxes.anchor_grid([(1 / 3, 1)], 1, 1, 1).dtype == np.float32
    assert exact[0, 2] - exact[0, 0] == pytest.approx(1 / 3, abs=1e-15)


def brute_force_nms(b, scores, threshold):
    """Greedy suppression as its definition reads."""
    iou, left, kept = boxes.iou(b, b), np.argsort(-scores, kind="stable").tolist(), []
    while left:
        best = left.pop(0)
        kept.append(best)
        left = [row for row in left if iou[best, row] <= threshold]
    return kept


@libraries
@given(b=box_sets(max_size=20, positive=True), data=st.data())
def test_nms_is_greedy_suppression(lib, b, data):
    scores = np.array(data.draw(st.permutations(range(len(b)))), np.float64) / 32
    threshold = data.draw(st.floats(0.05, 0.95))
    kept = boxes.nms(lib(b), lib(scores), threshold)
    assert kept.tolist() == brute_force_nms(b, scores, threshold)
    assert boxes.nms(lib(b), lib(scores), threshold, limit=3).tolist() == kept[:3].tolist()


@libraries
def test_nms_keeps_doubles_apart_that_floats_cannot(lib):
    b = lib(np.array([[0, 0, 1, 1], [0, 0, 1, 1]], np.float64))
    assert boxes.nms(b, lib(np.array([0.5, 0.5 + 1e-12])), 0.5).tolist() == [1]
    halves = [lib(np.asarray(values, np.float16)) for values in (b, [0.5, 0.75])]
    assert boxes.nms(*halves, 0.5).tolist() == [1]


@libraries
def test_nms_at_the_threshold_keeps_and_of_equal_scores_the_first(lib):
    b = lib([[0.0, 0, 2, 2], [0, 0, 2, 1]])  # IoU exactly .5
    assert boxes.nms(b, lib([0.9, 0.8]), 0.5).tolist() == [0, 1]
    assert boxes.nms(b, lib([0.5, 0.5]), 0.4).tolist() == [0]
    lines = lib([[3.0, 3, 3, 9], [3, 3, 3, 9], [0, 0, 9, 9]])  # without area, so nothing overlaps them
    assert boxes.nms(lines, lib([0.9, 0.8, 0.7]), 0.0).tolist() == [0, 1, 2]
    b, scores = lib([[0.0, 0, 4, 4], [0, 0, 4, 4], [1, 1, 9, 9], [20, 20, 21, 21]]), lib([0.1, 0.3, 0.9, 0.2])
    assert boxes.nms(b, scores, 1.0).tolist() == [2, 1, 3, 0]
    assert boxes.nms(b, scores, 0.0).tolist() == [2, 3]
    assert boxes.nms(b, scores, 1.0, limit=0).shape == (0,)


@given(box_sets(), st.floats(0.05, 1))
def test_merge_partitions_its_input(b, threshold):
    means, groups = boxes.merge(b, threshold)
    assert sorted(row for group in groups for row in group) == list(range(len(b)))
    assert means.shape == (len(groups), 4)
    for mean, group in zip(means, groups, strict=True):
        close(mean, b[group].mean(axis=0))
        neighbours = (boxes.iou(b[group], b[group]) >= threshold) | np.eye(len(group), dtype=bool)
        assert neighbours.all(axis=1).any()  # one member of the group is the neighbour of all


def test_merge_takes_the_box_with_most_neighbours_first():
    chain = np.array([[0.0, 0, 100, 100], [10, 0, 110, 100], [20, 0, 120, 100], [30, 0, 130, 100]])
    means, groups = boxes.merge(chain, 0.7)
    assert groups == [[0, 1, 2], [3]]
    assert means.tolist() == [[10, 0, 110, 100], [30, 0, 130, 100]]


@libraries
@pytest.mark.parametrize("threshold", [0.3, 0.7])
def test_nothing_in_nothing_out(lib, threshold):
    none = lib(np.zeros((0, 4)))
    assert boxes.nms(none, lib(np.zeros(0)), threshold).shape == (0,)
    assert boxes.iou(none, lib(np.zeros((3, 4)))).shape == (0, 3)
    assert boxes.encode(none, none).shape == boxes.decode(none, none).shape == boxes.clip(none, 5, 5).shape == (0, 4)
    means, groups = boxes.merge(np.zeros((0, 4)), threshold)
    assert means.shape == (0, 4) and groups == []

from __future__ import annotations

from dataclasses import astuple

import numpy as np
import pytest

from saywhere.evaluation.dense.calibration import CalibrationMeter, reliability


def test_figures_by_hand():
    # Bins of a quarter: 0.1 and 0.2 (one of two matches), 0.5 (none), 0.9 and 1.0 (both).
    found = reliability([0.9, 0.1, 1.0, 0.2, 0.5], [True, False, True, True, False], bins=4)
    bins = [(0.0, 0.25, 2, 0.15, 0.5), (0.5, 0.75, 1, 0.5, 0.0), (0.75, 1.0, 2, 0.95, 1.0)]
    assert [astuple(one) for one in found.bins] == [pytest.approx(row) for row in bins]
    assert found.ece == pytest.approx((2 * 0.35 + 0.5 + 2 * 0.05) / 5)
    # Equally many, in order: {0.1, 0.2}, {0.5}, {0.9}, {1.0}.
    assert found.adaptive_ece == pytest.approx((2 * 0.35 + 0.5 + 0.1 + 0) / 5)
    assert found.brier == pytest.approx((0.01 + 0.01 + 0 + 0.64 + 0.25) / 5)
    assert found.boxes == 5


def test_fewer_boxes_than_bins():
    found = reliability([0.25], [True])
    assert (found.ece, found.adaptive_ece, found.brier) == (0.75, 0.75, 0.5625)
    assert [(one.count, one.matched) for one in found.bins] == [(1, 1)]


@pytest.mark.parametrize(("power", "least", "most"), [(1, 0, 0.02), (2, 0.15, 0.18)])
def test_probabilities_have_no_error_and_their_squares_one_of_a_sixth(power, least, most):
    # The mean distance of p from p squared over 0 to 1 is 1/2 - 1/3.
    random = np.random.default_rng(0)
    p = random.random(20_000)
    found = reliability(p**power, random.random(20_000) < p)
    assert least <= found.ece <= most and least <= found.adaptive_ece <= most
    assert found.bins[0].low == 0 and found.bins[-1].high == 1 and len(found.bins) == 15


BOXES = np.array([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [50, 50, 60, 60]])


def test_a_box_matches_a_true_one_at_an_iou_of_a_half_whoever_else_does():
    meter = CalibrationMeter()
    meter.add(BOXES, np.array([0.75, 0.75, 0.25, 0.25]), np.array([[0.0, 0, 10, 10], [50, 50, 90, 90]]))
    meter.add(BOXES[:1], np.array([0.75]), np.empty((0, 4)))
    meter.add(np.empty((0, 4)), None, BOXES)
    found = meter.result()
    assert found and found.boxes == 5
    assert [(one.count, one.score, one.matched) for one in found.bins] == [
        (2, 0.25, 0),
        (3, 0.75, pytest.approx(2 / 3)),
    ]


def test_scores_that_are_no_probabilities_are_not_measured():
    meter = CalibrationMeter()
    assert meter.result() is None
    meter.add(BOXES, np.array([0.5, 0.5, 0.5, 0.5]), BOXES)
    assert meter.result() is not None
    meter.add(BOXES[:1], np.array([1.5]), BOXES)
    meter.add(BOXES[:1], np.array([0.5]), BOXES)
    assert meter.result() is None

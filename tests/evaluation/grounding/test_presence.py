from __future__ import annotations

import numpy as np
import pytest

from saywhere.evaluation.grounding.presence import area_under_curve, calibration_error, measure_presence


def test_the_area_is_the_share_of_pairs_in_order():
    assert area_under_curve(np.array([0.9, 0.4]), np.array([0.1, 0.4, 0.5])) == pytest.approx((3 + 1.5) / 6)
    assert area_under_curve(np.zeros(0), np.ones(3)) == 0.0


def test_probabilities_are_compared_with_shares_bin_by_bin():
    scores = np.array([0.15, 0.15, 0.95, 1.0])
    there = np.array([False, True, True, True])
    assert calibration_error(scores, there) == pytest.approx(0.5 * 0.35 + 0.5 * 0.025)


def test_what_is_found_right_and_what_is_refused():
    own, others = np.array([0.9, 0.6, 0.2]), np.array([0.1, 0.5])
    result = measure_presence(own, others, np.array([True, False, True]), 0.5)
    assert (result.found, result.refused, result.accuracy) == pytest.approx((2 / 3, 1 / 2, 1 / 3))
    assert (result.phrases, result.others) == (3, 2) and result.auc == pytest.approx(5 / 6)
    assert result.to_dict()["auc"] == result.auc

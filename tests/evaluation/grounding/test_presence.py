from __future__ import annotations

import numpy as np
import pytest

from saywhere.evaluation.grounding import area_under_curve, measure_presence


def test_the_area_is_the_share_of_pairs_in_order():
    assert area_under_curve(np.array([0.9, 0.4]), np.array([0.1, 0.4, 0.5])) == pytest.approx((3 + 1.5) / 6)
    assert area_under_curve(np.zeros(0), np.ones(3)) == 0.0


def test_what_is_found_right_and_what_is_refused():
    own, others = np.array([0.9, 0.6, 0.2]), np.array([0.1, 0.5])
    result = measure_presence(own, others, np.array([True, False, True]), 0.5)
    assert (result.found, result.refused, result.accuracy) == pytest.approx((2 / 3, 1 / 2, 1 / 3))
    assert result.calibration_error == pytest.approx((0.1 + 0.4 + 0.8 + 0.1 + 0.5) / 5)  # each in a bin of its own
    assert (result.phrases, result.others) == (3, 2) and result.auc == pytest.approx(5 / 6)
    assert result.to_dict()["auc"] == result.auc

from __future__ import annotations

import numpy as np
import pytest

from saywhere.boxes import iou
from saywhere.evaluation.grounding import judge, measure, pair_ious

FOUND = np.array([[0, 0, 10, 10], [0, 0, 10, 10], [0, 0, 10, 10], [20, 20, 30, 30]], np.float32)
TRUTH = np.array([[0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 4.9], [0, 0, 10, 10]], np.float32)


def test_right_is_an_iou_of_at_least_a_half_and_pointing_goes_by_the_centre():
    right, inside = judge(FOUND, TRUTH)
    assert right.tolist() == [True, True, False, False]
    assert inside.tolist() == [True, True, False, False]


@pytest.mark.parametrize("count", [0, 1, 64, 65, 200])
def test_ious_of_pairs(count):
    random = np.random.default_rng(count)
    low = random.uniform(0, 50, (2, count, 2))
    a, b = np.concatenate((low, low + random.uniform(0, 50, (2, count, 2))), axis=2).astype(np.float32)
    assert pair_ious(a, b).tolist() == np.diagonal(iou(a, b)).tolist()
    with pytest.raises(ValueError, match=f"{count} boxes cannot be paired with {count + 1}"):
        pair_ious(a, np.zeros((count + 1, 4), np.float32))


def test_shares_in_all_and_by_type():
    result = measure(FOUND, TRUTH, [("people",), ("people", "clothing"), ("clothing",), ("people",)])
    assert (result.accuracy, result.pointing, result.phrases) == (0.5, 0.5, 4)
    assert {name: (s.phrases, s.accuracy, s.pointing) for name, s in result.by_type.items()} == {
        "people": (3, pytest.approx(2 / 3), pytest.approx(2 / 3)),
        "clothing": (2, 0.5, 0.5),
    }
    assert list(result.by_type) == ["people", "clothing"], "the most frequent first"
    assert result.to_dict()["by_type"]["clothing"] == {"phrases": 2, "accuracy": 0.5, "pointing": 0.5}
    nothing = measure([], [], [])
    assert (nothing.phrases, nothing.accuracy, nothing.by_type) == (0, 0, {})


def test_pointing_may_be_right_where_the_box_is_not():
    result = measure([[4, 4, 6, 6]], [[0, 0, 10, 10]], [()])
    assert (result.accuracy, result.pointing) == (0, 1)

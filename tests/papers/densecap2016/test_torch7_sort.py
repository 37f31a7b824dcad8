from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from saywhere.papers.densecap2016.torch7 import ascending_order


@given(st.lists(st.integers(0, 6), max_size=80))
def test_it_sorts(numbers):
    values = np.array(numbers, np.float32)
    order = ascending_order(values)
    assert order.dtype == np.int64 and sorted(order.tolist()) == list(range(len(numbers)))
    assert values[order].tolist() == sorted(numbers)
    if len(numbers) <= 11:  # left to the insertion sort, which is stable
        assert order.tolist() == np.argsort(values, kind="stable").tolist()


def test_equal_numbers_are_left_as_the_library_leaves_them():
    """The orders in which the library, compiled, leaves 24 equal numbers and 12 pairs of 0 and 1."""
    equal = [18, 19, 15, 16, 17, 13, 11, 20, 21, 22, 14, 0, 12, 5, 6, 2, 3, 4, 1, 10, 7, 8, 9, 23]
    pairs = [0, 20, 12, 18, 10, 8, 16, 6, 4, 22, 2, 14, 21, 19, 17, 11, 15, 13, 1, 9, 7, 5, 3, 23]
    assert ascending_order(np.zeros(24)).tolist() == equal
    assert ascending_order(np.arange(24) % 2).tolist() == pairs
    assert ascending_order(np.zeros(11)).tolist() == list(range(11))
    assert ascending_order([0] * 12).tolist() != list(range(12))


@given(st.lists(st.integers(0, 10**6), unique=True, max_size=60))
def test_different_numbers_need_no_quicksort(numbers):
    twice = ascending_order([*numbers, *numbers])  # equal numbers: takes the long way
    assert ascending_order(np.array(numbers, float)).tolist() == [row for row in twice if row < len(numbers)]

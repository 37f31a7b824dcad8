"""The chain of Eqs. 10 to 12, against all alignments there are."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saywhere.models.aligner import decode_chain, segments


def energy(products: np.ndarray, regions: tuple[int, ...], beta: float) -> float:
    """Eq. 10."""
    unary = sum(float(products[t, r]) for t, r in enumerate(regions))
    return unary + beta * sum(a == b for a, b in itertools.pairwise(regions))


def brute_force(products: np.ndarray, beta: float) -> float:
    length, count = products.shape
    return max(energy(products, regions, beta) for regions in itertools.product(range(count), repeat=length))


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0, 4.0]), st.integers(0, 10_000))
def test_it_finds_the_best_of_all_alignments(length, count, beta, seed):
    products = np.random.default_rng(seed).normal(size=(length, count))
    chain = decode_chain(products, beta)
    assert chain.total == pytest.approx(brute_force(products, beta))
    assert energy(products, tuple(chain.regions.tolist()), beta) == pytest.approx(chain.total)


def test_a_region_that_does_not_count_is_never_chosen():
    products = np.random.default_rng(0).normal(size=(7, 5))
    products[:, [1, 4]] = -np.inf
    chain, fewer = decode_chain(products, 0.7), decode_chain(products[:, [0, 2, 3]], 0.7)
    assert chain.regions.tolist() == [[0, 2, 3][r] for r in fewer.regions.tolist()]
    assert chain.total == pytest.approx(fewer.total) and np.isfinite(chain.total)


def test_beta_goes_from_word_by_word_to_one_region():
    products = np.array([[2.0, 0, 0], [0, 2, 1.5], [1, 0, 0.9], [0, 0, 2]])
    assert decode_chain(products).regions.tolist() == products.argmax(axis=1).tolist() == [0, 1, 0, 2]
    assert decode_chain(products, 0.8).regions.tolist() == [0, 2, 2, 2]
    assert decode_chain(products, 100.0).regions.tolist() == [int(products.sum(axis=0).argmax())] * 4


def test_of_equal_alignments_the_one_that_stays_and_the_first_region_are_chosen():
    assert decode_chain(np.zeros((3, 2))).regions.tolist() == [0, 0, 0]
    assert decode_chain(np.array([[0.0, 1], [1, 1], [0, 1]])).regions.tolist() == [1, 1, 1]


def test_beta_is_not_negative():
    with pytest.raises(ValueError, match="beta must be at least 0, not -1"):
        decode_chain(np.zeros((2, 2)), -1.0)


def test_no_words_and_no_regions():
    assert decode_chain(np.zeros((0, 3))).regions.shape == (0,)
    none = decode_chain(np.zeros((2, 0)))
    assert none.regions.tolist() == [-1, -1] and none.total == 0


def test_segments_are_runs_of_one_region():
    assert segments([3, 3, 0, 3, -1, -1]) == [(0, 2, 3), (2, 3, 0), (3, 4, 3)]
    assert segments([2, -1, 2]) == [(0, 1, 2), (2, 3, 2)]
    assert segments([]) == []

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere.models.mrf import decode_chain, segments


def energy(products: torch.Tensor, areas: tuple[int, ...], beta: float) -> float:
    """Eq. 10."""
    unary = sum(float(products[t, a]) for t, a in enumerate(areas))
    return unary + beta * sum(a == b for a, b in itertools.pairwise(areas))


def brute_force(products: torch.Tensor, beta: float) -> float:
    length, size = products.shape
    return max(energy(products, areas, beta) for areas in itertools.product(range(size), repeat=length))


@given(st.integers(1, 5), st.integers(1, 4), st.sampled_from([0.0, 0.3, 1.0, 4.0]), st.integers(0, 10_000))
def test_it_finds_the_best_of_all_alignments(length, size, beta, seed):
    products = torch.randn(length, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chain = decode_chain(products[None], torch.ones(1, length, dtype=torch.bool), None, beta)
    assert float(chain.total[0]) == pytest.approx(brute_force(products, beta))
    assert energy(products, tuple(chain.areas[0].tolist()), beta) == pytest.approx(float(chain.total[0]))


def test_a_batch_is_each_alone_whatever_the_padding():
    products = torch.randn(6, 7, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    lengths, sizes = [7, 1, 3, 5, 2, 0], [5, 3, 1, 4, 2, 5]
    words_real = torch.arange(7) < torch.tensor(lengths)[:, None]
    areas_real = torch.arange(5) < torch.tensor(sizes)[:, None]
    together = decode_chain(products, words_real, areas_real, 0.7)
    for i, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
        alone = decode_chain(products[i : i + 1, :length, :size], torch.ones(1, length, dtype=torch.bool), None, 0.7)
        assert together.areas[i].tolist() == alone.areas[0].tolist() + [-1] * (7 - length)
        assert float(together.total[i]) == pytest.approx(float(alone.total[0]))


def test_beta_goes_from_word_by_word_to_one_area():
    products = torch.tensor([[[2.0, 0, 0], [0, 2, 1.5], [1, 0, 0.9], [0, 0, 2]]])
    real = torch.ones(1, 4, dtype=torch.bool)
    assert decode_chain(products, real, None, 0.0).areas.tolist() == products.argmax(dim=2).tolist()
    assert decode_chain(products, real, None, 0.8).areas.tolist() == [[0, 2, 2, 2]]
    best = int(products.sum(dim=1).argmax())
    assert decode_chain(products, real, None, 100.0).areas.tolist() == [[best] * 4]


def test_beta_is_not_negative():
    with pytest.raises(ValueError, match="beta is at least 0"):
        decode_chain(torch.zeros(1, 2, 2), torch.ones(1, 2, dtype=torch.bool), None, -1.0)


def test_no_words_and_no_areas():
    assert decode_chain(torch.zeros(2, 0, 3), torch.zeros(2, 0, dtype=torch.bool)).areas.shape == (2, 0)
    none = decode_chain(torch.zeros(1, 2, 0), torch.ones(1, 2, dtype=torch.bool))
    assert none.areas.tolist() == [[-1, -1]] and none.total.tolist() == [0]


def test_segments_are_runs_of_one_area():
    assert segments([3, 3, 0, 3, -1, -1]) == [(0, 2, 3), (2, 3, 0), (3, 4, 3)]
    assert segments([2, -1, 2]) == [(0, 1, 2), (2, 3, 2)]
    assert segments([]) == []

"""Eqs. 7 and 8 against loops, whatever the blocks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from saywhere.models.aligner import similarity_blocks, similarity_matrix

SCORES = ("max", "fragments")
counts = st.lists(st.integers(0, 5), max_size=7)


def vectors(lengths: Sequence[int], seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, so that sums are exact in any order."""
    random = np.random.default_rng(seed)
    return [random.integers(-4, 5, (length, 3)).astype(np.float32) for length in lengths]


def plainly(regions: list[np.ndarray], words: list[np.ndarray], score: str) -> list[list[float]]:
    """The equations as they read."""
    table: list[list[float]] = []
    for image in regions:
        row: list[float] = []
        for sentence in words:
            products = [[float(region @ word) for region in image] for word in sentence]
            if score == "max":  # Eq. 8
                row.append(sum(max(of_word, default=0.0) for of_word in products))
            else:  # Eq. 7
                row.append(sum(max(0.0, product) for of_word in products for product in of_word))
        table.append(row)
    return table


@pytest.mark.parametrize("score", SCORES)
@given(images=counts, sentences=counts, block=st.integers(1, 60), seed=st.integers(0, 99))
def test_it_is_the_equation_in_blocks_of_any_size(score, images, sentences, block, seed):
    regions, words = vectors(images, seed), vectors(sentences, seed + 1)
    matrix = similarity_matrix(regions, words, score, block)
    assert matrix.shape == (len(images), len(sentences)) and matrix.dtype == np.float32
    assert matrix.tolist() == plainly(regions, words, score)


def test_by_hand():
    regions, words = [np.array([[1.0, 0], [0, 2]])], [np.array([[3.0, 1], [-1, -2]])]
    # products: word 1 with the regions 3, 2; word 2 with them -1, -4
    assert similarity_matrix(regions, words).tolist() == [[3 - 1]]
    assert similarity_matrix(regions, words, "fragments").tolist() == [[3 + 2]]


@pytest.mark.parametrize("score", SCORES)
def test_no_regions_and_no_words_have_similarity_0(score):
    matrix = similarity_matrix(vectors([0, 2, 0, 3]), vectors([2, 0, 1]), score, 4)
    assert not matrix[[0, 2]].any() and not matrix[:, 1].any() and matrix[1, 0] and matrix[3, 2]
    assert similarity_matrix([], vectors([2]), score).shape == (0, 1)
    assert similarity_matrix(vectors([2]), [], score).shape == (1, 0)
    assert not similarity_matrix(vectors([0, 0]), vectors([2, 1]), score).any()
    assert not similarity_matrix(vectors([2, 1]), vectors([0, 0]), score).any()


def test_blocks_cover_each_pair_once_and_hold_few_products():
    regions, words = vectors([3, 1, 4, 1, 5, 2, 6]), vectors([2, 7, 1, 8, 2])
    seen = np.zeros((7, 5), int)
    for row, column, block in similarity_blocks(regions, words, block=64):
        seen[row, column] += 1
        sizes = [sum(map(len, some[part])) for some, part in ((regions, row), (words, column))]
        assert sizes[0] * sizes[1] <= 64 or len(block) == 1 or block.shape[1] == 1
    assert (seen == 1).all()

"""Products of bytes against plain integers, and of half precision against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.search.scan import WORD, byte_products, half_products, to_bytes


@pytest.mark.parametrize(("rows", "size", "words"), [(1, 1, 1), (7, 64, 9), (500, 24, 20), (33, 300, 1)])
def test_products_are_those_of_integers(rows, size, words) -> None:
    generator = np.random.default_rng(rows)
    codes = generator.integers(-127, 128, (rows, size)).astype(np.int8)
    columns = generator.integers(-WORD, WORD + 1, (size, words)).astype(np.int8)
    found = byte_products(codes, columns)
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, codes.astype(np.int64) @ columns.astype(np.int64))


@pytest.mark.parametrize("sign", [-1, 1])
def test_the_largest_numbers_do_not_overflow(sign) -> None:
    codes = np.full((5, 128), 127, np.int8)
    columns = np.full((128, 3), sign * WORD, np.int8)
    np.testing.assert_array_equal(byte_products(codes, columns), np.full((5, 3), sign * 127 * WORD * 128))
    np.testing.assert_array_equal(byte_products(-codes, columns), np.full((5, 3), -sign * 127 * WORD * 128))


@pytest.mark.parametrize(("rows", "size", "words"), [(1, 1, 1), (21, 24, 3), (320, 300, 9)])
def test_products_of_half_precision_are_those_of_single(rows, size, words) -> None:
    generator = np.random.default_rng(rows)
    vectors = generator.standard_normal((rows, size)).astype(np.float16)
    vectors.flat[0] = 1e-7  # which only half precision calls subnormal
    columns = generator.standard_normal((size, words)).astype(np.float32)
    found = half_products(vectors, columns)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, vectors.astype(np.float64) @ columns, rtol=1e-4, atol=1e-4)


def test_words_are_rounded_each_by_its_own_size() -> None:
    words = np.random.default_rng(1).standard_normal((4, 30)).astype(np.float32) * np.float32([[1], [100], [1e-3], [0]])
    columns, worth = to_bytes(words)
    assert columns.shape == (30, 4) and np.abs(columns[:, :3]).max(axis=0).tolist() == [WORD] * 3
    np.testing.assert_allclose((columns * worth).T, words, atol=np.abs(words).max(axis=1).max() / WORD / 2 + 1e-9)
    assert (np.abs((columns * worth).T - words) <= worth[:, None] / 2 * 1.001 + 1e-9).all()


def test_codes_of_a_part_of_a_file_are_taken() -> None:
    codes = np.random.default_rng(2).integers(-127, 128, (40, 16)).astype(np.int8)
    columns = np.eye(16, dtype=np.int8)[:, :3]
    np.testing.assert_array_equal(byte_products(codes[5:9], columns), codes[5:9, :3])

"""How well sentences fit images: the scores of Eqs. 7 and 8 of Deep Visual-Semantic Alignments, in blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from saywhere.configs.aligner import Score

BLOCK = 1 << 24
"""Products of a region and a word that are in memory together: 64 MB in single precision."""


def similarity_blocks(
    regions: Sequence[np.ndarray], words: Sequence[np.ndarray], score: Score = "max", block: int = BLOCK
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield the similarities of K images and L sentences a block at a time: rows, columns, and ``(k, l)`` of both.

    ``max`` is Eq. 8, the sum over the words of their best region; ``fragments`` is Eq. 7, the sum of all positive
    products. An image without regions, or a sentence without words, has similarity 0. A block has at most about
    ``block`` products, so that memory is bounded whatever the size of the sets.

    Args:
        regions: of each image the vectors ``(R, D)`` of its regions.
        words: of each sentence the vectors ``(T, D)`` of its words, weighted.
        score: see above.
        block: bound on the products in memory.
    """
    columns = _parts([len(vectors) for vectors in words], round(block**0.5) * 2)
    for row in _parts([len(vectors) for vectors in regions], max(1, block // (round(block**0.5) * 2))):
        tall = np.concatenate(regions[row])
        for column in columns:
            wide = np.concatenate(words[column])
            best = over_regions(tall @ wide.T, [len(v) for v in regions[row]], score)
            yield row, column, _sums(best.T, [len(v) for v in words[column]]).T


def similarity_matrix(
    regions: Sequence[np.ndarray], words: Sequence[np.ndarray], score: Score = "max", block: int = BLOCK
) -> np.ndarray:
    """Return the similarities ``(K, L)`` of :func:`similarity_blocks` together."""
    matrix = np.zeros((len(regions), len(words)), np.float32)
    for row, column, part in similarity_blocks(regions, words, score, block):
        matrix[row, column] = part
    return matrix


def _parts(lengths: Sequence[int], most: int) -> list[slice]:
    """Cut items of such lengths into runs of about ``most`` in all, at least one item each."""
    parts: list[slice] = []
    start = total = 0
    for number, length in enumerate(lengths):
        if number > start and total + length > most:
            parts.append(slice(start, number))
            start, total = number, 0
        total += length
    return [*parts, slice(start, len(lengths))] if lengths else []


def over_regions(products: np.ndarray, counts: Sequence[int] | np.ndarray, score: Score) -> np.ndarray:
    """Reduce products ``(sum of R, W)`` to ``(K, W)``: the best region of each image, or the sum of all positive."""
    if score == "fragments":
        return _sums(np.maximum(products, 0), counts)
    full = np.flatnonzero(counts)
    best = np.zeros((len(counts), products.shape[1]), products.dtype)
    if len(full) and products.shape[1]:
        best[full] = np.maximum.reduceat(products, _starts(counts)[full], axis=0)
    return best


def _sums(values: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Sum runs of rows ``(sum of counts, X)`` to ``(K, X)``; a run of none is 0."""
    full = np.flatnonzero(counts)
    sums = np.zeros((len(counts), values.shape[1]), values.dtype)
    if len(full) and values.shape[1]:
        sums[full] = np.add.reduceat(values, _starts(counts)[full], axis=0)
    return sums


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts

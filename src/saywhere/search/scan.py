"""Every image of an index compared with queries: the similarity of Eq. 8, on vectors in half precision or on codes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from saywhere.configs.aligner import Score
from saywhere.models.similarity import over_regions
from saywhere.search.vectors import Snapshot

NUMBERS = 1 << 18
"""Numbers that are unpacked together: they stay in a processor's cache."""
EXPONENTS = np.float32(2.0**112)
"""Between numbers in half precision whose bits stand where single precision has them, and what they mean."""
BITS = np.int32(-0x70000001)
"""All but the three bits of the exponent that half precision does not have; they hold copies of the sign."""
ALONE = 1 << 18
"""Multiplications up to which OpenBLAS, which NumPy brings, uses one thread."""
FEW = 8
"""Rows that are worth a multiplication of their own; large questions are not searches, but evaluations."""
TOGETHER = 16
"""Candidates that are compared together, for the same reason."""
CANDIDATES = 2000
"""Images, at least, that the codes put first and that are compared by their whole vectors."""
EACH = 50
"""Such images for each hit that is asked for, where that is more."""


@dataclass(frozen=True, eq=False)
class Question:
    """Hold what images are compared with: one query or several.

    Attributes:
        words: ``(T, D)`` of all queries.
        weights: ``(T, Q)`` by which each word counts in each query: -1 for one that is not wanted.
        score: see :func:`saywhere.models.similarity.similarity_blocks`.
    """

    words: np.ndarray
    weights: np.ndarray
    score: Score = "max"


def similarities(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return the similarity of each image of a snapshot with each query ``(E, Q)``; ``-inf`` for forgotten ones."""
    found = np.empty((snapshot.extent.entries, question.weights.shape[1]), np.float32)
    _scan(
        snapshot, question, (0, len(found)), lambda rows: unpack(snapshot.vectors[rows]), question.words, found, threads
    )
    found[~snapshot.alive] = -np.inf
    return found


def estimates(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return :func:`similarities` by the codes of the vectors, where there are codes: nearly the same, much sooner."""
    found = np.empty((snapshot.extent.entries, question.weights.shape[1]), np.float32)
    coded, words = snapshot.extent.coded, question.words @ snapshot.decoder
    _scan(snapshot, question, (0, coded), lambda rows: snapshot.codes[rows].astype(np.float32), words, found, threads)
    rest = (coded, len(found))
    _scan(snapshot, question, rest, lambda rows: unpack(snapshot.vectors[rows]), question.words, found, threads)
    found[~snapshot.alive] = -np.inf
    return found


def nearest(
    snapshot: Snapshot, question: Question, top: int, *, exact: bool = False, threads: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the entries of the highest similarity with one query, best first, and their similarities.

    Args:
        snapshot: of the index.
        question: of one query.
        top: at most this many.
        exact: compare all images by their whole vectors; else, if there are codes, only those that they put first.
        threads: that share the images.
    """
    wanted = max(CANDIDATES, EACH * top)
    if exact or not snapshot.extent.coded or snapshot.extent.entries <= 2 * wanted:
        values = similarities(snapshot, question, threads)[:, 0]
        chosen = best(values, top)
        return chosen, values[chosen]
    candidates = np.sort(best(estimates(snapshot, question, threads)[:, 0], wanted))
    parts = np.array_split(candidates, -(-len(candidates) // TOGETHER))
    with ThreadPoolExecutor(threads) as pool:
        values = np.concatenate(list(pool.map(lambda part: _compare(snapshot, question, part.tolist()), parts)))
    chosen = best(values, top)
    return candidates[chosen], values[chosen]


def _compare(snapshot: Snapshot, question: Question, entries: list[int]) -> np.ndarray:
    """The similarities of some images with one query, by their whole vectors."""
    vectors = np.concatenate([snapshot.vectors[snapshot.rows(entry)] for entry in entries])
    products = multiply(unpack(vectors), np.ascontiguousarray(question.words.T))
    return over_regions(products, snapshot.entries["count"][entries], question.score) @ question.weights[:, 0]


def _scan(
    snapshot: Snapshot,
    question: Question,
    entries: tuple[int, int],
    load: Callable[[slice], np.ndarray],
    words: np.ndarray,
    found: np.ndarray,
    threads: int,
) -> None:
    """Fill ``found`` from one entry to another: ``load`` gives the vectors of some regions, ``words`` are like them."""
    starts, columns = snapshot.starts, np.ascontiguousarray(words.T, np.float32)
    counts = snapshot.entries["count"].astype(np.int64)
    step = max(1, NUMBERS // max(columns.shape))
    edges = np.searchsorted(starts, np.arange(starts[entries[0]], starts[entries[1]] + step, step)).clip(*entries)
    pairs = [(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True) if a < b]

    def compare(part: Sequence[tuple[int, int]]) -> None:
        for first, last in part:
            products = multiply(load(slice(int(starts[first]), int(starts[last]))), columns)
            found[first:last] = over_regions(products, counts[first:last], question.score) @ question.weights

    if threads == 1 or len(pairs) < 2 * threads:
        compare(pairs)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(compare, [pairs[number::threads] for number in range(threads)]))


def multiply(vectors: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the product of ``(N, D)`` and ``(D, T)``, in parts that BLAS computes without threads of its own.

    A search shares the images among its threads; threads below those make it ten times slower where other programs run.
    """
    rows = ALONE // max(1, columns.size)
    if rows < FEW:
        return vectors @ columns
    products = np.empty((len(vectors), columns.shape[1]), np.float32)
    whole = len(vectors) // rows * rows
    stacked = vectors[:whole].reshape(-1, rows, len(columns))
    np.matmul(stacked, columns, out=products[:whole].reshape(-1, rows, columns.shape[1]))
    np.matmul(vectors[whole:], columns, out=products[whole:])
    return products


def unpack(half: np.ndarray) -> np.ndarray:
    """Return numbers in half precision as single precision, bit by bit: four times faster than NumPy does it."""
    bits = np.empty(half.shape, np.int32)
    np.left_shift(half.view(np.int16), 13, out=bits, dtype=np.int32, casting="unsafe")
    bits &= BITS
    values = bits.view(np.float32)
    values *= EXPONENTS
    return values


def best(values: np.ndarray, top: int) -> np.ndarray:
    """Return the indices of the largest values but ``-inf``, best first, at most ``top``; of equal ones the first."""
    top = min(top, int((values > -np.inf).sum()))
    if top == 0:
        return np.zeros(0, np.int64)
    bar = np.partition(values, -top)[-top]
    chosen = np.flatnonzero(values >= bar)
    return chosen[np.argsort(-values[chosen], kind="stable")][:top]

"""Every image of an index compared with queries: the similarity of Eq. 8, on vectors in half precision or on codes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from saywhere.configs.aligner import Score
from saywhere.engines.onnx import import_runtime
from saywhere.models.aligner import TextVectors, over_regions
from saywhere.search.vectors import Snapshot

WORD = 63
"""Largest number of a word: where a processor adds two products in 16 bits, these still fit."""
SHIFT = np.uint8(128)
"""Between a signed byte and an unsigned one: the fast kernels want the codes unsigned."""
FLOATS, BYTES, SIGNED, INTEGERS, HALVES = 1, 2, 3, 6, 10
"""Types of numbers in ONNX: float32, uint8, int8, int32 and float16."""
INTEGER = 2
"""Type of an attribute that is a whole number."""
IR, OPERATORS = 8, 13
"""Versions of the format and of the set of operators: old ones, that every ONNX Runtime knows."""


def to_bytes(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return words ``(T, P)`` as columns of whole numbers ``(P, T)``, and what each is worth ``(T,)``."""
    worth = np.maximum(np.abs(words).max(axis=1, initial=0), np.float32(1e-30)) / WORD
    return np.ascontiguousarray(np.round(words / worth[:, None]).T, np.int8), worth.astype(np.float32)


def byte_products(codes: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the products ``(N, T)``, in int32, of codes ``(N, P)`` and the columns ``(P, T)`` of :func:`to_bytes`."""
    return _session(_byte_model).run(None, {"codes": codes.view(np.uint8) ^ SHIFT, "columns": columns})[0]


def half_products(vectors: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the products ``(N, T)`` of vectors ``(N, D)`` in half precision and columns ``(D, T)`` in single."""
    return _session(_half_model).run(None, {"vectors": vectors, "columns": columns})[0]


@functools.cache
def _session(model: Callable[[], bytes]) -> Any:
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # a search has threads of its own
    options.log_severity_level = 3
    return runtime.InferenceSession(model(), options, providers=["CPUExecutionProvider"])


def _byte_model() -> bytes:
    """``products = MatMulInteger(codes, columns, SHIFT)``."""
    shift = _field(2, BYTES) + _field(8, "shift") + _field(9, SHIFT.tobytes())
    graph = _field(1, _node("MatMulInteger", "codes", "columns", "shift")) + _field(5, shift)
    graph += _field(11, _value("codes", BYTES, "NP")) + _field(11, _value("columns", SIGNED, "PT"))
    return _model(graph, INTEGERS)


def _half_model() -> bytes:
    """``products = MatMul(Cast(vectors), columns)``."""
    single = _field(1, "to") + _field(3, FLOATS) + _field(20, INTEGER)
    graph = _field(1, _node("Cast", "vectors", output="floats") + _field(5, single))
    graph += _field(1, _node("MatMul", "floats", "columns"))
    graph += _field(11, _value("vectors", HALVES, "ND")) + _field(11, _value("columns", FLOATS, "DT"))
    return _model(graph, FLOATS)


def _model(graph: bytes, kind: int) -> bytes:
    """A graph that ends in ``products``, in the protocol buffers of ONNX, by their field numbers."""
    graph += _field(2, "products") + _field(12, _value("products", kind, "NT"))
    return _field(1, IR) + _field(7, graph) + _field(8, _field(1, "") + _field(2, OPERATORS))


def _node(kind: str, *inputs: str, output: str = "products") -> bytes:
    return b"".join(_field(1, name) for name in inputs) + _field(2, output) + _field(4, kind)


def _value(name: str, kind: int, sizes: str) -> bytes:
    shape = b"".join(_field(1, _field(2, size)) for size in sizes)
    return _field(1, name) + _field(2, _field(1, _field(1, kind) + _field(2, shape)))


def _field(number: int, value: int | str | bytes) -> bytes:
    """A field of a message: a small number, or what is preceded by its length."""
    if isinstance(value, int):
        return _digits(number << 3) + _digits(value)
    data = value.encode() if isinstance(value, str) else value
    return _digits(number << 3 | 2) + _digits(len(data)) + data


def _digits(value: int) -> bytes:
    """A number, seven bits a byte, the lowest ones first."""
    return bytes([value]) if value < 128 else bytes([value & 127 | 128]) + _digits(value >> 7)


NUMBERS = 1 << 18
"""Numbers that are unpacked, or products that are made, together: they stay in a processor's cache."""
EXPONENTS = np.float32(2.0**112)
"""Between numbers in half precision whose bits stand where single precision has them, and what they mean."""
BITS = np.int32(-0x70000001)
"""All but the three bits of the exponent that half precision does not have; they hold copies of the sign."""
ALONE = 1 << 18
"""Multiplications up to which OpenBLAS, which NumPy brings, uses one thread."""
S = TypeVar("S", bound=Sequence[Any])
FEW = 8
"""Rows that are worth a multiplication of their own; large questions are not searches, but evaluations."""
TOGETHER = 16
"""Candidates that are compared together, for the same reason."""
CANDIDATES = 1000
"""Images, at least, that the codes put first and that are compared by their whole vectors."""
EACH = 50
"""Such images for each hit that is asked for, where that is more."""


@dataclass(frozen=True, eq=False)
class Question:
    """What images are compared with: one query or several.

    Attributes:
        words: ``(T, D)`` of all queries, as :func:`saywhere.search.vectors.with_hubness` has them.
        weights: ``(T, Q)`` by which each word counts in each query: -1 for one that is not wanted.
        score: see :func:`saywhere.models.aligner.similarity_blocks`.
    """

    words: np.ndarray
    weights: np.ndarray
    score: Score = "max"

    @classmethod
    def of(cls, texts: Sequence[TextVectors], weights: np.ndarray, score: Score) -> Question:
        """Return the question of N texts, with weights ``(N, Q)``; images' hubness counts once for each text.

        The hubness of texts is left out: it is the same for all images.
        """
        words = [np.pad(text.vectors, ((0, 0), (0, 1))) for text in texts]
        for rows in words:
            rows[-1, -1] = 1
        return cls(np.concatenate(words), np.repeat(weights, [len(rows) for rows in words], axis=0), score)


def similarities(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return the similarity of each image of a snapshot with each query ``(E, Q)``; ``-inf`` for forgotten ones."""
    found = np.empty((snapshot.extent.entries, question.weights.shape[1]), np.float32)
    _scan_vectors(snapshot, question, 0, found, threads)
    found[~snapshot.alive] = -np.inf
    return found


def estimates(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return :func:`similarities` by the codes of the vectors, where there are codes: nearly the same, much sooner."""
    found = np.empty((snapshot.extent.entries, question.weights.shape[1]), np.float32)
    coded = snapshot.extent.coded
    columns, worth = to_bytes(question.words @ snapshot.decoder)
    weighed = replace(question, weights=question.weights * worth[:, None])
    step = NUMBERS // max(1, columns.shape[1])
    _scan(
        snapshot, weighed, (0, coded), lambda rows: byte_products(snapshot.codes[rows], columns), step, found, threads
    )
    _scan_vectors(snapshot, question, coded, found, threads)
    found[~snapshot.alive] = -np.inf
    return found


class Nearest(NamedTuple):
    """What a search finds.

    Attributes:
        entries: ``(K,)`` best first.
        values: ``(K,)`` their similarities.
        mean, deviation: of the similarities of all images, by the codes where there are codes.
    """

    entries: np.ndarray
    values: np.ndarray
    mean: float
    deviation: float


def spread(values: np.ndarray) -> tuple[float, float]:
    """Return mean and standard deviation of similarities ``(E,)``; those of forgotten images are ``-inf``."""
    alive = values[values > -np.inf].astype(np.float64)
    return (float(alive.mean()), float(alive.std())) if len(alive) else (0.0, 0.0)


def lead(value: float, mean: float, deviation: float) -> float:
    """Return by how many standard deviations a similarity is above the mean; 0 where all are alike."""
    return (value - mean) / deviation if deviation > 1e-6 else 0.0


def nearest(snapshot: Snapshot, question: Question, top: int, *, exact: bool = False, threads: int = 1) -> Nearest:
    """Return the entries of the highest similarity with one query, best first.

    Args:
        snapshot: of the index.
        question: of one query.
        top: at most this many.
        exact: compare all images by their whole vectors; else, if there are codes, only those that they put first.
        threads: that share the images.
    """
    wanted = max(CANDIDATES, EACH * top)
    if exact or not snapshot.extent.coded or snapshot.extent.entries <= wanted:
        values = similarities(snapshot, question, threads)[:, 0]
        chosen = best(values, top)
        return Nearest(chosen, values[chosen], *spread(values))
    estimated = estimates(snapshot, question, threads)[:, 0]
    candidates = np.sort(best(estimated, wanted))
    snapshot.expect(candidates)
    values = np.empty(len(candidates), np.float32)

    def compare(part: range) -> None:
        for start in part:
            some = slice(start, start + TOGETHER)
            values[some] = _compare(snapshot, question, candidates[some])

    _share(compare, range(0, len(candidates), TOGETHER), threads)
    chosen = best(values, top)
    return Nearest(candidates[chosen], values[chosen], *spread(estimated))


def _compare(snapshot: Snapshot, question: Question, entries: np.ndarray) -> np.ndarray:
    """The similarities of some images with one query, by their whole vectors."""
    counts = snapshot.entries["count"][entries].astype(np.int64)
    offsets = snapshot.starts[entries] - (np.cumsum(counts) - counts)
    rows = np.repeat(offsets, counts) + np.arange(counts.sum())
    vectors = snapshot.vectors.take(rows, axis=0, mode="clip")  # unlike concatenate, other threads go on meanwhile
    products = half_products(vectors, np.ascontiguousarray(question.words.T, np.float32))
    return best_regions(products, counts, question.score) @ question.weights[:, 0]


def best_regions(products: np.ndarray, counts: np.ndarray, score: Score) -> np.ndarray:
    """Return :func:`saywhere.models.aligner.over_regions`; other threads go on meanwhile if all counts are equal."""
    size = int(counts[0]) if len(counts) else 0
    if score != "max" or not size or (counts != size).any():
        return over_regions(products, counts, score)
    left = products.reshape(len(counts), size, -1)
    while (size := left.shape[1]) > 1:
        half = size // 2
        folded = np.maximum(left[:, :half], left[:, half : 2 * half])
        if size % 2:
            np.maximum(folded[:, 0], left[:, -1], out=folded[:, 0])
        left = folded
    return left[:, 0]


def _scan_vectors(snapshot: Snapshot, question: Question, first: int, found: np.ndarray, threads: int) -> None:
    """Fill ``found`` by whole vectors, from one entry on."""
    columns = np.ascontiguousarray(question.words.T, np.float32)

    def products(rows: slice) -> np.ndarray:
        return multiply(unpack(snapshot.vectors[rows]), columns)

    _scan(snapshot, question, (first, len(found)), products, NUMBERS // max(columns.shape), found, threads)


def _scan(
    snapshot: Snapshot,
    question: Question,
    entries: tuple[int, int],
    products: Callable[[slice], np.ndarray],
    step: int,
    found: np.ndarray,
    threads: int,
) -> None:
    """Fill ``found`` from one entry to another; ``products`` gives those of some regions, about ``step``, and words."""
    starts, step = snapshot.starts, max(1, step)
    counts = snapshot.entries["count"].astype(np.int64)
    edges = np.searchsorted(starts, np.arange(starts[entries[0]], starts[entries[1]] + step, step)).clip(*entries)
    pairs = [(a, b) for a, b in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True) if a < b]

    def compare(part: Sequence[tuple[int, int]]) -> None:
        for first, last in part:
            rows = slice(int(starts[first]), int(starts[last]))
            found[first:last] = best_regions(products(rows), counts[first:last], question.score) @ question.weights

    _share(compare, pairs, threads)


def _share(work: Callable[[S], None], parts: S, threads: int) -> None:
    """Do the parts of some work, by threads if there are enough of them; a thread takes its parts at once."""
    if threads == 1 or len(parts) < 2 * threads:
        work(parts)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, [parts[number::threads] for number in range(threads)]))


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

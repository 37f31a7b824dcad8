"""Exhaustive comparison of an index's images with queries by Eq. 8, on half-precision vectors or on codes."""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from saywhere.boxes import largest
from saywhere.configs.aligner import Score
from saywhere.engines.onnx import import_runtime
from saywhere.errors import UserError
from saywhere.files import sync
from saywhere.models.aligner import ImageVectors, TextVectors, over_regions
from saywhere.models.nouns import COLOUR_NAMES, KEPT, NO_LEAF, log_kinds, packed_kinds
from saywhere.options import dataclass

ENTRY = np.dtype([("count", "<i4"), ("width", "<i4"), ("height", "<i4")])
"""An image: its number of regions, which follow those of the previous image, and its size in pixels."""
REGION = np.dtype([
    ("box", "<f4", (4,)), ("logit", "<f4"), ("nouns", "<u2", (KEPT,)), ("colours", "u1", (len(COLOUR_NAMES),)),
    ("spare", "u1"),
])  # fmt: skip
"""A region; colours are zeros if the image has none."""
VECTOR = np.dtype("<f2")
KINDS = (ENTRY, REGION, VECTOR)
LARGEST = float(np.finfo(VECTOR).max)


@dataclass(frozen=True)
class Extent:
    """Valid lengths of the index files; what a killed run wrote beyond them is ignored.

    Attributes:
        generation: number in the file names; compaction writes a new generation.
        entries, regions: number of images, including removed ones, and of their regions.
        size: length of a vector.
        components: length of a code; 0 without codes.
        coded: number of images with codes, counted from the first.
        fitted: number of images when the basis was fitted.
        coding: number in the names of code files; each new basis starts new files.
        basis_sum, codes_sum: CRC-32 of the basis and of the codes.
    """

    generation: int
    entries: int
    regions: int
    size: int
    components: int = 0
    coded: int = 0
    fitted: int = 0
    coding: int = 0
    basis_sum: int = 0
    codes_sum: int = 0

    def files(self, folder: Path) -> dict[Path, int]:
        """Return the files of images, regions and vectors, with their valid lengths in bytes."""
        each = (
            self.entries * ENTRY.itemsize,
            self.regions * REGION.itemsize,
            self.regions * self.size * VECTOR.itemsize,
        )
        names = (folder / f"{name}-{self.generation}.bin" for name in ("images", "regions", "vectors"))
        return dict(zip(names, each, strict=True))

    def code_files(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of the basis and of the codes."""
        basis, codes = (folder / f"{name}-{self.generation}-{self.coding}.bin" for name in ("basis", "codes"))
        return basis, codes


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Immutable contents of an index at one moment.

    Attributes:
        entries: ``(E,)`` of :data:`ENTRY`.
        regions: ``(R,)`` of :data:`REGION`.
        vectors: ``(R, D)`` in half precision, see :func:`with_hubness`.
        alive: ``(E,)`` whether an image is still in the index.
        codes: ``(C, P)`` int8 codes of the first C regions: products of their vectors with the basis.
        basis: ``(D, P)``.
    """

    extent: Extent
    entries: np.ndarray
    regions: np.ndarray
    vectors: np.ndarray
    alive: np.ndarray
    codes: np.ndarray
    basis: np.ndarray

    @classmethod
    def open(cls, folder: Path, extent: Extent, dead: Sequence[int]) -> Snapshot:
        """Map the files of an index into memory.

        Raises:
            FileNotFoundError: the files belong to a removed generation.
            UserError: a file is too short, or the files are inconsistent.
        """
        names = list(extent.files(folder))
        shapes = ((extent.entries,), (extent.regions,), (extent.regions, extent.size))
        maps = [_mapped(*parts) for parts in zip(names, KINDS, shapes, strict=True)]
        counts = maps[0]["count"]
        if counts.min(initial=1) < 1 or counts.sum(dtype=np.int64) != extent.regions:
            raise UserError(damage(names[0], f"its images do not have {extent.regions} regions"))
        alive = np.ones(extent.entries, bool)
        alive[np.asarray(dead, np.int64)] = False
        basis, codes = extent.code_files(folder)
        components = extent.components if extent.coded else 0
        columns = _mapped(basis, np.dtype("<f4"), (extent.size, components))
        coded = _mapped(codes, np.dtype(np.int8), (int(counts[: extent.coded].sum(dtype=np.int64)), components))
        return cls(extent, maps[0], maps[1], maps[2], alive, coded, columns)

    def __len__(self) -> int:
        return int(self.alive.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        """``(E + 1,)`` index of each image's first region, and total number of regions."""
        return np.append(0, np.cumsum(self.entries["count"], dtype=np.int64))

    def rows(self, entry: int) -> slice:
        """Return the slice of an image's regions."""
        return slice(int(self.starts[entry]), int(self.starts[entry + 1]))

    def load(self, entry: int, name: str) -> ImageVectors:
        """Return an image as :meth:`saywhere.Model.embed` returned it, rounded to half precision."""
        row, rows = self.entries[entry], self.rows(entry)
        regions, (vectors, hubness) = self.regions[rows], without_hubness(self.vectors[rows].astype(np.float32))
        boxes, logits, nouns, colours = (np.array(regions[part]) for part in ("box", "logit", "nouns", "colours"))
        return ImageVectors(
            int(row["width"]), int(row["height"]), boxes, vectors, name, logits, hubness, nouns,
            colours if colours.any() else None,
        )  # fmt: skip

    @cached_property
    def decoder(self) -> np.ndarray:
        """``(D, P)`` matrix that projects a word so that its products with codes are those with the vectors."""
        return self.basis / np.square(self.basis).sum(axis=0)

    def check_codes(self, folder: Path, basis_alone: bool = False) -> None:
        """Check the basis and, unless ``basis_alone``, the codes against their checksums; ``UserError`` if they differ.

        For a gigabyte of codes, about 800,000 images, this takes a third of a second.
        """
        extent = self.extent
        sums = ((extent.basis_sum, self.basis), (extent.codes_sum, self.codes))
        for path, (known, array) in list(zip(extent.code_files(folder), sums, strict=True))[: 1 if basis_alone else 2]:
            if extent.coded and known != zlib.crc32(array.data):
                raise UserError(damage(path, "a checksum differs"))

    def expect(self, entries: np.ndarray) -> None:
        """Advise the operating system which vectors are read next, so that the disk reads them concurrently.

        Otherwise reads from a file larger than memory would wait for one another.
        """
        mapping: object = self.vectors
        while isinstance(mapping, np.ndarray):
            mapping = mapping.base
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED"):
            width = self.vectors.shape[1] * VECTOR.itemsize
            starts, ends = self.starts[entries] * width, self.starts[entries + 1] * width
            starts -= starts % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # only advice
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                    mapping.madvise(mmap.MADV_WILLNEED, start, end - start)

    def checksum(self, entry: int) -> int:
        """Return the CRC-32 of an image's data in all files."""
        rows = self.rows(entry)
        return checksum(self.entries[entry], self.regions[rows], self.vectors[rows])


def checksum(entry: np.ndarray, regions: np.ndarray, vectors: np.ndarray) -> int:
    """Return the CRC-32 of an image's entry, regions and vectors."""
    found = 0
    for part in (entry, regions, vectors):
        found = zlib.crc32(part.tobytes(), found)
    return found


def to_arrays(image: ImageVectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an image's entry, regions and vectors as they are stored.

    ``UserError`` if a vector has numbers beyond half precision.
    """
    vectors = with_hubness(image)
    if not (np.abs(vectors) <= LARGEST).all():
        raise UserError(f"{image.image}: the model gives vectors with numbers beyond {LARGEST:g}: it cannot be indexed")
    regions = np.zeros(len(image), REGION)
    regions["box"], regions["logit"] = image.boxes, image.logits
    regions["nouns"] = NO_LEAF if image.nouns is None else image.nouns
    regions["colours"] = 0 if image.colours is None else image.colours
    entry = np.array((len(image), image.width, image.height), ENTRY)
    return entry, regions, vectors.astype(VECTOR)


def with_hubness(image: ImageVectors) -> np.ndarray:
    """Return an image's vectors ``(R, D + 1)`` with minus its hubness as the last component.

    The last vector of a text has 1 there and the others 0, so that their products sum to the similarity. The scan thus
    needs no special treatment of hubness.
    """
    return np.pad(image.vectors, ((0, 0), (0, 1)), constant_values=-image.hubness)


def without_hubness(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Undo :func:`with_hubness`: return the vectors ``(R, D)`` and the hubness."""
    return np.ascontiguousarray(vectors[:, :-1]), -float(vectors[0, -1])


def append(folder: Path, extent: Extent, images: Sequence[ImageVectors]) -> tuple[Extent, list[int]]:
    """Append images at ``extent``, sync them to disk, and return the new extent and the checksums."""
    parts = [to_arrays(image) for image in images]
    columns = [np.concatenate([np.atleast_1d(part[i]) for part in parts]) for i in range(3)]
    for (path, end), column in zip(extent.files(folder).items(), columns, strict=True):
        write_at(path, end, column)
    after = replace(extent, entries=extent.entries + len(images), regions=extent.regions + len(columns[1]))
    return after, [checksum(*part) for part in parts]


def compact(folder: Path, snapshot: Snapshot, batch: int = 1024) -> tuple[Extent, np.ndarray]:
    """Write the images that are alive as the next generation; return its extent and the old entry of each new one."""
    old = snapshot.extent
    extent = replace(old, generation=old.generation + 1, entries=0, regions=0, coded=0, fitted=0)
    kept = np.flatnonzero(snapshot.alive)
    for path in extent.files(folder):
        write_at(path, 0, np.zeros(0, np.int8))
    for first in range(0, len(kept), batch):
        images = [snapshot.load(entry, "") for entry in kept[first : first + batch].tolist()]
        extent, _ = append(folder, extent, images)
    return extent, kept


def write_at(path: Path, end: int, column: np.ndarray) -> None:
    """Write an array at a position in a file, truncate the rest, and sync to disk."""
    new = not path.exists()
    try:
        with open(path, "xb" if new else "r+b") as stream:
            stream.truncate(end)
            stream.seek(end)
            stream.write(column.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            sync(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise


def _mapped(path: Path, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    wanted = int(np.prod(shape)) * kind.itemsize
    if not wanted:
        return np.zeros(shape, kind)
    if (size := path.stat().st_size) < wanted:
        raise UserError(damage(path, f"has {size} bytes instead of {wanted}"))
    return np.memmap(path, kind, "r", shape=shape).view(np.ndarray)


def damage(path: Path, what: str) -> str:
    """Return the message about a damaged file, with the way out."""
    return f"{path}: is damaged ({what}); saywhere index PATH... --index {path.parent} --repair embeds what is lost"


WORD = 63
"""Largest value of a quantised word: sums of two products still fit into 16 bits, which some processors use."""
SHIFT = np.uint8(128)
"""Offset between signed and unsigned bytes: the fast kernels need unsigned codes."""


def to_bytes(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise words ``(T, P)`` to int8 columns ``(P, T)``; also return their scales ``(T,)``."""
    worth = np.maximum(np.abs(words).max(axis=1, initial=0), np.float32(1e-30)) / WORD
    return np.ascontiguousarray(np.round(words / worth[:, None]).T, np.int8), worth.astype(np.float32)


def byte_products(codes: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the int32 products ``(N, T)`` of codes ``(N, P)`` and the columns ``(P, T)`` of :func:`to_bytes`."""
    return _session("byte_products").run(None, {"codes": codes.view(np.uint8) ^ SHIFT, "columns": columns})[0]


def half_products(vectors: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the products ``(N, T)`` of half-precision vectors ``(N, D)`` and single-precision columns ``(D, T)``."""
    return _session("half_products").run(None, {"vectors": vectors, "columns": columns})[0]


@functools.cache
def _session(graph: str) -> Any:
    """Open an ONNX graph beside this file: one or two operators that NumPy lacks or is slow at."""
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1  # the search itself is multithreaded
    options.log_severity_level = 3
    data = Path(__file__).with_name(f"{graph}.onnx").read_bytes()
    return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


NUMBERS = 1 << 18
"""Number of values unpacked, or products computed, at a time; they fit into the processor cache."""
EXPONENTS = np.float32(2.0**112)
"""Factor that corrects the exponent after half-precision bits were shifted to single-precision positions."""
BITS = np.int32(-0x70000001)
"""Mask without the three exponent bits that half precision lacks, which hold copies of the sign."""
ALONE = 1 << 18
"""Number of multiplications up to which NumPy's OpenBLAS uses a single thread."""
S = TypeVar("S", bound=Sequence[Any])
FEW = 8
"""Minimum number of rows of a separate multiplication; larger questions are evaluations, not searches."""
TOGETHER = 16
"""Number of candidates compared at a time, for the same reason."""
CANDIDATES = 1000
"""Minimum number of candidates, selected by codes, that are compared by full vectors."""
EACH = 50
"""Number of candidates per requested hit, if that gives more."""


@dataclass(frozen=True, eq=False)
class Question:
    """One or several queries to compare images with.

    Attributes:
        words: ``(T, D)`` word vectors of all queries, in the format of :func:`saywhere.search.scan.with_hubness`.
        weights: ``(T, Q)`` weight of each word in each query; negative for unwanted words.
        score: see :func:`saywhere.models.aligner.similarity_blocks`.
        kinds: ``(C, 65536)`` tables of nouns for the noun classifier, see :func:`saywhere.models.nouns.leaf_tables`;
            None: no nouns.
        kind_weights: ``(C, 1)`` weight in ranking of the log-probability of each noun in an image's best region, added
            to the similarity.
    """

    words: np.ndarray
    weights: np.ndarray
    score: Score = "max"
    kinds: np.ndarray | None = None
    kind_weights: np.ndarray | None = None

    @classmethod
    def of(cls, texts: Sequence[TextVectors], weights: np.ndarray, score: Score) -> Question:
        """Return the question for N texts with weights ``(N, Q)``; an image's hubness counts once per text.

        The hubness of texts is left out, because it is equal for all images.
        """
        words = [np.pad(text.vectors, ((0, 0), (0, 1))) for text in texts]
        for rows in words:
            rows[-1, -1] = 1
        return cls(np.concatenate(words), np.repeat(weights, [len(rows) for rows in words], axis=0), score)

    def opposite(self) -> Question:
        """Return the question whose best images are the worst of this one."""
        weights = None if self.kind_weights is None else -self.kind_weights
        return replace(self, weights=-self.weights, kind_weights=weights)


def similarities(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return the similarity ``(E, Q)`` of each image of a snapshot with each query; ``-inf`` for removed images."""
    found = np.empty((snapshot.extent.entries, question.weights.shape[1]), np.float32)
    _scan_vectors(snapshot, question, 0, found, threads)
    found[~snapshot.alive] = -np.inf
    return found


def estimates(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Approximate :func:`similarities` by codes where there are some, which is much faster."""
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


def kind_bonus(snapshot: Snapshot, question: Question, threads: int = 1) -> np.ndarray:
    """Return what the noun classifier adds to the ranking score of each image ``(E,)``; 0 without nouns."""
    kinds, weights = question.kinds, question.kind_weights
    if kinds is None or weights is None:
        return np.zeros(snapshot.extent.entries, np.float32)
    found = np.empty((snapshot.extent.entries, len(kinds)), np.float32)
    each = replace(question, weights=np.eye(len(kinds), dtype=np.float32), score="max")
    nouns = snapshot.regions["nouns"]
    _scan(
        snapshot, each, (0, len(found)), lambda rows: packed_kinds(nouns[rows], kinds), NUMBERS // KEPT, found, threads
    )
    return (log_kinds(found) @ weights)[:, 0]


class Nearest(NamedTuple):
    """Result of a search.

    Attributes:
        entries: ``(K,)`` entries, best first.
        values: ``(K,)`` their similarities, without the noun classifier's part of the ranking score.
        leads: ``(K,)`` leads of their ranking scores, see :func:`leads`; relative to estimates from codes if there are
            codes.
    """

    entries: np.ndarray
    values: np.ndarray
    leads: np.ndarray


def leads(values: np.ndarray, of_all: np.ndarray) -> np.ndarray:
    """Return how many standard deviations ``values (K,)`` are above the mean of all; 0 if all are equal.

    ``of_all (E,)`` are the values of all searched images, ``-inf`` for removed ones.
    """
    alive = of_all[of_all > -np.inf].astype(np.float64)
    deviation = alive.std() if len(alive) else 0.0
    return (values - alive.mean()) / deviation if deviation > 1e-6 else np.zeros(len(values))


def nearest(snapshot: Snapshot, question: Question, top: int, *, exact: bool = False, threads: int = 1) -> Nearest:
    """Return the best entries for one query, by similarity plus the noun classifier's bonus.

    ``exact`` compares all images by full vectors. Otherwise, with codes, only the best candidates by codes.
    """
    wanted, bonus = max(CANDIDATES, EACH * top), kind_bonus(snapshot, question, threads)
    if exact or not snapshot.extent.coded or snapshot.extent.entries <= wanted:
        values = similarities(snapshot, question, threads)[:, 0]
        order = values + bonus
        chosen = best(order, top)
        return Nearest(chosen, values[chosen], leads(order[chosen], order))
    estimated = estimates(snapshot, question, threads)[:, 0] + bonus
    candidates = np.sort(best(estimated, wanted))
    snapshot.expect(candidates)
    values = np.empty(len(candidates), np.float32)

    def compare(part: range) -> None:
        for start in part:
            some = slice(start, start + TOGETHER)
            values[some] = _compare(snapshot, question, candidates[some])

    _share(compare, range(0, len(candidates), TOGETHER), threads)
    order = values + bonus[candidates]
    chosen = best(order, top)
    return Nearest(candidates[chosen], values[chosen], leads(order[chosen], estimated))


def _compare(snapshot: Snapshot, question: Question, entries: np.ndarray) -> np.ndarray:
    """Return the similarities of some images with one query, by full vectors."""
    counts = snapshot.entries["count"][entries].astype(np.int64)
    offsets = snapshot.starts[entries] - (np.cumsum(counts) - counts)
    rows = np.repeat(offsets, counts) + np.arange(counts.sum())
    vectors = snapshot.vectors.take(rows, axis=0, mode="clip")  # unlike concatenate, releases the interpreter lock
    products = half_products(vectors, np.ascontiguousarray(question.words.T, np.float32))
    return best_regions(products, counts, question.score) @ question.weights[:, 0]


def best_regions(products: np.ndarray, counts: np.ndarray, score: Score) -> np.ndarray:
    """Compute :func:`saywhere.models.aligner.over_regions`; releases the interpreter lock if all counts are equal."""
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
    """Fill ``found`` by full vectors, from an entry on."""
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
    """Fill ``found`` for a range of entries; ``products`` gives region-word products of about ``step`` regions."""
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
    """Divide work among threads if there is enough of it; each thread gets all its parts in one call."""
    if threads == 1 or len(parts) < 2 * threads:
        work(parts)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(work, [parts[number::threads] for number in range(threads)]))


def multiply(vectors: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the product of ``(N, D)`` and ``(D, T)``, in parts small enough for BLAS to use a single thread.

    Searches divide images among threads; nested BLAS threads would make them ten times slower beside other programs.
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
    """Convert half precision to single precision by bit operations, four times faster than NumPy."""
    bits = np.empty(half.shape, np.int32)
    np.left_shift(half.view(np.int16), 13, out=bits, dtype=np.int32, casting="unsafe")
    bits &= BITS
    values = bits.view(np.float32)
    values *= EXPONENTS
    return values


def best(values: np.ndarray, top: int) -> np.ndarray:
    """Return the indices of the ``top`` largest values, best first, without ``-inf``; ties in order."""
    return largest(values, min(top, int((values > -np.inf).sum())))

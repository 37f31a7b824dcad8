"""The paraphrases of METEOR 1.5: compiled once into memory-mapped arrays, and looked up there."""

from __future__ import annotations

import gzip
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from saywhere.files import cache_folder, put_in_place

MASK = (1 << 64) - 1
STEP = 0x9E3779B97F4A7C15
LONGEST = 7
"""Words in the longest phrase of the table."""
KEPT = 100_000

Hashes = NDArray[np.uint64]
Ids = NDArray[np.uint32]


def byte_values() -> Hashes:
    """Return a 64-bit number for each byte, from which text hashes are computed."""
    values, state = [], 0
    for _ in range(256):  # splitmix64
        state = (state + STEP) & MASK
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & MASK
        values.append(mixed ^ mixed >> 31)
    return np.array(values, np.uint64)


class Paraphrases:
    """Look up phrases and their paraphrases.

    Args:
        hashes: hash of each phrase, ascending; its rank is the phrase's id.
        starts: start of each phrase's targets, and the end of the last.
        targets: ids, in the order of the table.
    """

    def __init__(self, hashes: Hashes, starts: Ids, targets: Ids) -> None:
        self._hashes, self._starts, self._targets = hashes, starts, targets
        self._values = byte_values().tolist()
        self._space = self._values[ord(" ")]
        self._word = lru_cache(KEPT)(self._number)
        self.targets = lru_cache(KEPT)(self._ranked_targets)

    def phrases(self, words: Sequence[str]) -> list[tuple[int, int, int]]:
        """Return start, number of words and id of each known phrase in a text, by start, then length."""
        spans: list[tuple[int, int]] = []
        hashes: list[int] = []
        numbers = [self._word(word) for word in words]
        for start in range(len(words)):
            total, factor = 0, 1
            for count, (number, power) in enumerate(numbers[start : start + LONGEST], 1):
                total = (total + number * factor) & MASK
                spans.append((start, count))
                hashes.append(total)
                factor = factor * power & MASK
                total += self._space * factor
                factor = factor * STEP & MASK
        asked = np.array(hashes, np.uint64)
        ids = np.searchsorted(self._hashes, asked)
        ids[ids == len(self._hashes)] = 0
        found = np.flatnonzero(self._hashes[ids] == asked)
        return [(*spans[k], int(i)) for k, i in zip(found.tolist(), ids[found].tolist(), strict=True)]

    def _ranked_targets(self, phrase: int) -> dict[int, int]:
        """Return the ids of a phrase's paraphrases, each with its rank."""
        ids = self._targets[self._starts[phrase] : self._starts[phrase + 1]].tolist()
        return {target: rank for rank, target in enumerate(ids)}

    def _number(self, word: str) -> tuple[int, int]:
        """Return the hash of a word and the factor for its length."""
        number, factor = 0, 1
        for byte in word.encode():
            number = (number + self._values[byte] * factor) & MASK
            factor = factor * STEP & MASK
        return number, factor


NAMES = ("hashes", "starts", "targets")
CHECKSUM = "checksum"
FORMAT = 1
CHUNK = 1 << 22


def load_paraphrases(source: Path) -> Paraphrases:
    """Return the paraphrases of a file from the user's cache, compiling them into it if necessary.

    If the cache is not writable, they are compiled each time.
    """
    folder = cache_folder() / f"meteor-paraphrases-{FORMAT}-{source.stat().st_size}"
    if kept := _read(folder):
        return Paraphrases(*kept)
    print("METEOR: compiling the paraphrases, which takes half a minute, once", file=sys.stderr)
    arrays = compile_table(source)
    try:
        _write(folder, arrays)
    except OSError as error:
        if not _read(folder):  # another process may have been faster
            print(f"METEOR: the paraphrases are not kept: {error}", file=sys.stderr)
    return Paraphrases(*arrays)


def _read(folder: Path) -> tuple[Hashes, Ids, Ids] | None:
    """Memory-map the arrays in a folder; None if they are incomplete or damaged."""
    try:
        hashes, starts, targets = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in NAMES)
        stored = (folder / CHECKSUM).read_text(encoding="ascii")
    except (OSError, ValueError, EOFError):
        return None
    arrays = hashes, starts, targets
    return arrays if stored == _checksum(arrays) else None


def _write(folder: Path, arrays: tuple[Hashes, Ids, Ids]) -> None:
    """Write the arrays into a folder, which appears only once it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".meteor-", ignore_cleanup_errors=True) as temporary:
        part = Path(temporary) / "part"
        part.mkdir()
        for name, array in zip(NAMES, arrays, strict=True):
            np.save(part / f"{name}.npy", array)
        (part / CHECKSUM).write_text(_checksum(arrays), encoding="ascii")
        shutil.rmtree(folder, ignore_errors=True)  # damaged
        put_in_place(part, folder)


def _checksum(arrays: tuple[Hashes, Ids, Ids]) -> str:
    """Return the CRC-32 of the arrays with their types and shapes; takes some hundredths of a second for 52 MB."""
    value = 0
    for array in arrays:
        value = zlib.crc32(f"{array.dtype} {array.shape}".encode(), value)
        value = zlib.crc32(array.data, value)
    return f"{value:08x}"


def compile_table(source: Path) -> tuple[Hashes, Ids, Ids]:
    """Return the arrays of :class:`Paraphrases`, from alternating lines: a probability, a phrase and its paraphrase."""
    values, parts, seen = byte_values(), list[Hashes](), 0
    for block in _blocks(source):
        hashes = line_hashes(block, values)
        parts.append(hashes[(np.arange(len(hashes)) + seen) % 3 > 0])
        seen += len(hashes)
    pairs = np.concatenate(parts)
    hashes, ids = np.unique(pairs[: len(pairs) // 2 * 2], return_inverse=True)
    ids = ids.reshape(-1, 2).astype(np.uint32)
    order = np.argsort(ids[:, 0], kind="stable")
    starts = np.searchsorted(ids[order, 0], np.arange(len(hashes) + 1)).astype(np.uint32)
    return hashes, starts, ids[order, 1]


def _blocks(source: Path) -> Iterator[bytes]:
    """Yield blocks of whole lines."""
    rest = b""
    with gzip.open(source) as stream:
        while block := stream.read(CHUNK):
            whole, end, rest = (rest + block).rpartition(b"\n")
            if end:
                yield whole + end
    if rest:
        yield rest + b"\n"


def line_hashes(block: bytes, values: Hashes) -> Hashes:
    """Return the hash of each line: the sum of its bytes' values, multiplied by one more factor with each byte."""
    text = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(text == ord("\n"))
    begins = np.concatenate(([0], ends[:-1] + 1))
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(values[text] * _powers(STEP, len(text)))))
    return (sums[ends] - sums[begins]) * _powers(pow(STEP, -1, 1 << 64), len(text))[begins]


def _powers(base: int, count: int) -> Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    return np.multiply.accumulate(factors)

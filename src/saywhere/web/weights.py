"""Weights as a browser fetches them: in half precision, or rounded to steps of the spread of their row.

A file of a part is one gzip stream of planes, because bytes that are alike compress better together: the upper bytes of
all numbers in half precision, then their lower bytes; the upper bytes of all rounded numbers, then their lower four
bits, two numbers a byte; then numbers in single precision: a factor for each row of these arrays, and the arrays that
are stored so, in order. ``engine/files.js`` reads it.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Kind = Literal["half", "rounded", "single"]
STEPS = 48
"""A rounded weight is a multiple of its row's root mean square divided by this."""
LARGEST = 2047
"""Of a rounded weight, in steps: twelve bits with the sign."""


@dataclass(frozen=True, eq=False)
class Packed:
    """An array as it is stored.

    Attributes:
        kind: half precision times a factor a row; rounded, whole numbers times a factor a row; or single precision.
        shape: of the array.
        values: of float16, int16 or float32.
        factors: of the rows, float32; of ``single`` none.
    """

    kind: Kind
    shape: tuple[int, ...]
    values: np.ndarray
    factors: np.ndarray

    def unpacked(self) -> np.ndarray:
        """Return the array as the browser computes with it."""
        rows = self.values.reshape(len(self.factors) or 1, -1).astype(np.float32)
        return (rows * self.factors[:, None] if len(self.factors) else rows).reshape(self.shape)


def half(values: np.ndarray, factors: np.ndarray | None = None) -> Packed:
    """Store an array of half precision as it is, each row times a factor."""
    ones = np.ones(len(values), np.float32)
    return Packed("half", values.shape, values.astype(np.float16), ones if factors is None else factors)


def rounded(values: np.ndarray, steps_a_spread: int = STEPS) -> Packed:
    """Store a matrix in steps of a 48th of each row's root mean square, about eight bits a weight; or in finer ones."""
    rows = values.astype(np.float32).reshape(len(values), -1)
    spread = np.sqrt((rows**2).mean(axis=1))
    steps = np.maximum(spread / steps_a_spread, np.abs(rows).max(axis=1) / LARGEST).astype(np.float32)
    steps[steps == 0] = 1
    return Packed("rounded", values.shape, np.round(rows / steps[:, None]).astype(np.int16), steps)


def single(values: np.ndarray) -> Packed:
    """Store an array in single precision."""
    return Packed("single", values.shape, values.astype(np.float32), np.zeros(0, np.float32))


def pack(arrays: Mapping[str, Packed]) -> bytes:
    """Return the file of a part."""
    of = {kind: [a.values.reshape(-1) for a in arrays.values() if a.kind == kind] for kind in ("half", "rounded")}
    halves, whole = (_joined(of[kind], dtype) for kind, dtype in (("half", np.float16), ("rounded", np.int16)))
    bits, lower = halves.view(np.uint16), (whole & 15).astype(np.uint8)
    lower = np.append(lower, np.zeros(len(lower) % 2, np.uint8))
    floats = [part for a in arrays.values() for part in (a.factors, a.values if a.kind == "single" else a.factors[:0])]
    planes = (
        (bits >> 8).astype(np.uint8),
        (bits & 255).astype(np.uint8),
        (whole >> 4).astype(np.int8),
        lower[::2] << 4 | lower[1::2],
        _joined(floats, np.dtype("<f4")),
    )
    data = b"".join(plane.tobytes() for plane in planes)
    return compress(data, zlib.Z_HUFFMAN_ONLY)  # looking for what repeats would make it larger


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(part.reshape(-1).astype(dtype) for part in parts)])


def compress(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return a gzip stream, the same for the same data."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 9, strategy)
    return stream.compress(data) + stream.flush()


def describe(arrays: Mapping[str, Packed]) -> list[dict[str, Any]]:
    """Return what ``engine/files.js`` must know of the arrays of a part."""
    return [{"name": name, "kind": array.kind, "shape": list(array.shape)} for name, array in arrays.items()]

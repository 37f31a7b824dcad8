"""Weights in the format for browsers: half precision, or rounded to steps relative to the spread of each row.

The file of a part is a gzip stream of planes, because similar bytes compress better together: the upper bytes of all
half-precision numbers, then their lower bytes; the upper bytes of all rounded numbers, then their lower four bits, two
numbers per byte; then single-precision numbers: the row factors of these arrays and the arrays in single precision, in
order. ``engine/files.js`` reads it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from saywhere.options import dataclass

Kind = Literal["half", "rounded", "single"]
STEPS = 48
"""Number of steps per root mean square of a row; rounded weights are multiples of a step."""
LARGEST = 2047
"""Maximum absolute value of a rounded weight, in steps: twelve bits with the sign."""


@dataclass(frozen=True, eq=False)
class Packed:
    """An array in stored form.

    Attributes:
        kind: ``half`` (times a factor per row), ``rounded`` (integers times a factor per row), or ``single`` precision.
        shape: shape of the array.
        values: float16, int16 or float32 values.
        factors: float32 factors of the rows; empty for ``single``.
    """

    kind: Kind
    shape: tuple[int, ...]
    values: np.ndarray
    factors: np.ndarray

    def unpacked(self) -> np.ndarray:
        """Return the float32 array that the browser computes with."""
        rows = self.values.reshape(len(self.factors) or 1, -1).astype(np.float32)
        return (rows * self.factors[:, None] if len(self.factors) else rows).reshape(self.shape)


def half(values: np.ndarray, factors: np.ndarray | None = None) -> Packed:
    """Store an array in half precision, with a factor per row."""
    ones = np.ones(len(values), np.float32)
    return Packed("half", values.shape, values.astype(np.float16), ones if factors is None else factors)


def rounded(values: np.ndarray, steps_a_spread: int = STEPS) -> Packed:
    """Round a matrix to steps of 1/48 of each row's root mean square (about eight bits per weight), or finer ones."""
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
    return compress(data, zlib.Z_HUFFMAN_ONLY)  # matching repetitions would make it larger


def _joined(parts: Sequence[np.ndarray], dtype: Any) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype), *(part.reshape(-1).astype(dtype) for part in parts)])


def compress(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    """Return a gzip stream, which is deterministic."""
    stream = zlib.compressobj(9, zlib.DEFLATED, 16 + zlib.MAX_WBITS, 9, strategy)
    return stream.compress(data) + stream.flush()


def describe(arrays: Mapping[str, Packed]) -> list[dict[str, Any]]:
    """Return the description of a part's arrays for ``engine/files.js``."""
    return [{"name": name, "kind": array.kind, "shape": list(array.shape)} for name, array in arrays.items()]


GRAPH, INITIALIZER, NAME, EXTERNAL, LOCATION = 7, 5, 8, 13, 14
"""Field numbers: the model's graph, the graph's initializers, and an initializer's name, external data and location."""
BYTES = 2
"""Wire type of length-delimited fields."""
SIZES = {1: 8, 5: 4}
"""Size in bytes of fields of fixed length, by wire type."""


# ``trunk.onnx`` names its weights without their location, because the engine onnx passes them one by one. ONNX Runtime
# in the browser takes a file instead, which contains them one after the other. Of the file's format (protocol buffers)
# only the few fields that lead to the weights' locations are parsed; all others are copied.


def place_weights(model: bytes, location: str, places: Mapping[str, tuple[int, int]]) -> bytes:
    """Return an ONNX model with the named weights in an external file, at the given offsets and lengths in bytes."""

    def weight(content: bytes) -> bytes:
        name = next((value.decode() for number, _, value in _fields(content) if number == NAME), "")
        if name not in places:
            return content
        start, length = places[name]
        kept = b"".join(raw for number, raw, _ in _fields(content) if number not in (EXTERNAL, LOCATION))
        entries = {"location": location, "offset": str(start), "length": str(length)}
        placed = b"".join(_field(EXTERNAL, _field(1, k.encode()) + _field(2, v.encode())) for k, v in entries.items())
        return kept + placed + _varint(LOCATION << 3) + _varint(1)

    def graph(content: bytes) -> bytes:
        return b"".join(
            _field(INITIALIZER, weight(value)) if number == INITIALIZER else raw
            for number, raw, value in _fields(content)
        )

    return b"".join(_field(GRAPH, graph(value)) if number == GRAPH else raw for number, raw, value in _fields(model))


def _fields(content: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield the fields of a message: number, all bytes, and the bytes of the value."""
    place = 0
    while place < len(content):
        start = place
        key, place = _read_varint(content, place)
        if key & 7 == BYTES:
            length, place = _read_varint(content, place)
            value = content[place : place + length]
            place += length
        elif key & 7 in SIZES:
            value = content[place : place + SIZES[key & 7]]
            place += SIZES[key & 7]
        else:
            begin = place
            _, place = _read_varint(content, place)
            value = content[begin:place]
        yield key >> 3, content[start:place], value


def _read_varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, place


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | BYTES) + _varint(len(value)) + value

"""Weights as a browser fetches them: in half precision, or rounded to steps of the spread of their row.

A file of a part is one gzip stream of planes, because bytes that are alike compress better together: the upper bytes of
all numbers in half precision, then their lower bytes; the upper bytes of all rounded numbers, then their lower four
bits, two numbers a byte; then numbers in single precision: a factor for each row of these arrays, and the arrays that
are stored so, in order. ``engine/files.js`` reads it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
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


GRAPH, INITIALIZER, NAME, EXTERNAL, LOCATION = 7, 5, 8, 13, 14
"""Numbers of fields: the model's graph, the graph's weights, and of a weight its name, its place and where that is."""
BYTES = 2
"""How the format marks a field of bytes with their length before them."""
SIZES = {1: 8, 5: 4}
"""Bytes of the fields of fixed length, by their mark."""


# ``trunk.onnx`` names its weights without places, because the engine onnx hands them over one by one; ONNX Runtime in
# the browser takes a file instead, in which they stand one after the other. Of the file's format (protocol buffers)
# only the few fields on the way to the places of the weights are read; all others are copied.


def place_weights(model: bytes, location: str, places: Mapping[str, tuple[int, int]]) -> bytes:
    """Return an ONNX model with weights at other places: of each named one first byte and length in a file."""

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
    """The fields of a message: number, all of its bytes, and the bytes of its value."""
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

"""The trunk's graph for the browser: its weights stand one after the other in one file.

``trunk.onnx`` names its weights without places, because the engine onnx hands them over one by one; ONNX Runtime in the
browser takes a file instead. Of the file's format (protocol buffers) only the few fields on the way to the places of
the weights are read; all others are copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

GRAPH, INITIALIZER, NAME, EXTERNAL, LOCATION = 7, 5, 8, 13, 14
"""Numbers of fields: the model's graph, the graph's weights, and of a weight its name, its place and where that is."""
BYTES = 2
"""How the format marks a field of bytes with their length before them."""
SIZES = {1: 8, 5: 4}
"""Bytes of the fields of fixed length, by their mark."""


def place_weights(model: bytes, location: str, places: Mapping[str, tuple[int, int]]) -> bytes:
    """Return a model whose weights are at other places.

    Args:
        model: of ONNX.
        location: name of the file with the weights.
        places: for each weight the first byte and the length in that file; weights that are not named stay.
    """

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

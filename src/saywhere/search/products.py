"""Products of numbers that NumPy is slow with, by ONNX Runtime: bytes, and numbers in half precision.

It has kernels for the instructions that processors have for them. Its graphs of a node or two are written here, for the
core has no package that writes graphs.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from saywhere.engines.onnx import import_runtime

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

"""Torch7's binary files, read without executing anything in them.

The package ``torchfile`` parses the format. This module makes it safe for untrusted files: sizes are checked against
the file before use, tensors are views of the file on disk (gradients are never loaded), and functions are skipped.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy
from torchfile import T7Reader, TorchObject

from saywhere.errors import UserError

TORCH, FUNCTIONS = 4, (6, 7, 8)
MOST_DIMENSIONS = 16
LAYERS_DEEP = 200
KINDS = {
    "Byte": numpy.uint8,
    "Char": numpy.int8,
    "Short": numpy.int16,
    "Int": numpy.int32,
    "Long": numpy.int64,
    "Float": numpy.float32,
    "Double": numpy.float64,
    "Cuda": numpy.float32,
    "CudaDouble": numpy.float64,
}
STORAGES = {f"torch.{name}Storage".encode(): numpy.dtype(kind) for name, kind in KINDS.items()}
TENSORS = {f"torch.{name}Tensor".encode(): numpy.dtype(kind) for name, kind in KINDS.items()}


class Torch7Error(ValueError):
    """The bytes are not a Torch7 file, or only part of one."""


class _Reader(T7Reader):
    """``torchfile`` with limits."""

    def __init__(self, file: IO[bytes], path: Path):
        super().__init__(file, use_list_heuristic=False, utf8_decode_strings=True)
        self.path, self.size, self.depth = path, os.fstat(file.fileno()).st_size, 0

    def left(self) -> int:
        """Return the number of bytes after the current position."""
        return self.size - self.f.tell()

    def take(self, length: int) -> bytes:
        """Return the next ``length`` bytes; raise if the file has fewer."""
        if not 0 <= length <= self.left():
            raise Torch7Error("it ends before it is complete" if length > 0 else f"a length is {length}")
        return self.f.read(length)

    def _read(self, fmt: str) -> tuple[Any, ...]:
        return struct.unpack(fmt, self.take(struct.calcsize(fmt)))

    def read_long(self) -> int:
        return self._read("<q")[0]

    def read_long_array(self, n: int) -> list[int]:
        return [self.read_long() for _ in range(n)]

    def read_string(self, disable_utf8: bool = False) -> Any:
        data = self.take(self.read_int())
        return data if disable_utf8 else data.decode("utf-8", "replace")

    def read_obj(self) -> Any:
        self.depth += 1
        if self.depth > LAYERS_DEEP:
            raise Torch7Error(f"its objects are nested more than {LAYERS_DEEP} deep")
        try:
            return self._read_guarded()
        finally:
            self.depth -= 1

    def _read_guarded(self) -> Any:
        """Read tensors, storages and functions here; leave everything else to ``torchfile``, from the same position."""
        start = self.f.tell()
        kind = self.read_int()
        if kind in FUNCTIONS:
            index = self.read_int()
            if index not in self.objects:
                self.objects[index] = None
                self.take(self.read_int())
                self.read_obj()
            return None
        if kind == TORCH:
            index = self.read_int()
            if index in self.objects:
                return self.objects[index]
            name = self.read_string(disable_utf8=True)
            name = self.read_string(disable_utf8=True) if name.startswith(b"V ") else name
            if name in STORAGES or name in TENSORS:
                self.objects[index] = None
                read = self._read_storage if name in STORAGES else self._read_tensor
                self.objects[index] = read(name)
                return self.objects[index]
            if b"Half" in name or name.startswith(b"tds."):
                raise Torch7Error(f"it has a {name.decode('ascii', 'replace')}, which is not supported")
        self.f.seek(start)
        return super().read_obj()

    def _read_storage(self, name: bytes) -> numpy.ndarray[Any, Any]:
        count, dtype = self.read_long(), STORAGES[name]
        if not 0 <= count <= self.left() // dtype.itemsize:
            raise Torch7Error("it ends before it is complete" if count > 0 else f"a storage has {count} numbers")
        if count == 0:
            return numpy.zeros(0, dtype)
        place = self.f.tell()
        self.f.seek(place + count * dtype.itemsize)
        return numpy.memmap(self.path, dtype, "r", place, (count,))

    def _read_tensor(self, name: bytes) -> numpy.ndarray[Any, Any]:
        dimensions, dtype = self.read_int(), TENSORS[name]
        if not 0 <= dimensions <= MOST_DIMENSIONS:
            raise Torch7Error(f"a tensor has {dimensions} dimensions")
        shape, strides = self.read_long_array(dimensions), self.read_long_array(dimensions)
        first = self.read_long() - 1
        storage = self.read_obj()
        if storage is None or not shape or 0 in shape:
            return numpy.zeros([0] if not shape else [max(n, 0) for n in shape], dtype)
        if not isinstance(storage, numpy.ndarray) or storage.dtype != dtype:
            raise Torch7Error(f"a {name.decode('ascii')} has no numbers of its kind")
        last = first + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if min(shape) < 0 or min(strides) < 0 or first < 0 or last >= len(storage):
            raise Torch7Error("a tensor reaches beyond its numbers")
        steps = [dtype.itemsize * step for step in strides]
        return numpy.lib.stride_tricks.as_strided(storage[first:], shape, steps, writeable=False)


@contextmanager
def _one_line(path: Path) -> Iterator[None]:
    """Convert whatever errors a broken file causes to one-line ``UserError``."""
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
    except UserError:
        raise
    except Torch7Error as error:
        raise UserError(f"{path}: not a Torch7 file that can be read: {error}") from error
    except (MemoryError, RecursionError):
        raise UserError(f"{path}: not a Torch7 file that can be read: too large") from None
    except Exception as error:  # torchfile trusts its input: struct.error, TypeError, KeyError and others
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise UserError(f"{path}: not a Torch7 file ({reason})") from error


def read(path: str | Path) -> Any:
    """Return the contents of a Torch7 binary file: dicts for tables, :class:`Torch7Object`, and file views for tensors.

    Strings that are not UTF-8 get replacement characters; functions become None.

    Raises:
        UserError: no such file, or not a complete Torch7 file; one line that names it.
    """
    path = Path(path)
    with _one_line(path), path.open("rb") as file:
        return _Reader(file, path).read_obj()


Torch7Object = TorchObject

"""Images decoded for the server: no more at a time than there is memory for, and none that stops everything else."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import BinaryIO

from PIL import Image

from saywhere.images import FORMATS, ImageError, LoadedImage, read_image
from saywhere.serve.limits import Budget, Limits

PIXEL, JPEG_PIXEL = 16, 8
"""Bytes of memory that a pixel takes: copies in four channels on the way to upright RGB. A JPEG is decoded smaller,
but a progressive one keeps all its coefficients."""


class Decoder:
    """Decode the images of requests, on several threads."""

    def __init__(self, limits: Limits) -> None:
        self._limits, self._memory = limits, Budget(limits.decoding)

    def decode(self, data: bytes, name: str, long_side: int) -> LoadedImage:
        """Decode what was sent, see :func:`saywhere.images.read_image`.

        Raises:
            ImageError: it is not an image, damaged, too large, or in a format that is not read here.
        """
        kind, memory = _needs(io.BytesIO(data))
        if kind == "JPEG2000":  # Pillow decodes it without letting other threads run, for seconds
            way_out = "send a JPEG or PNG"
            raise ImageError(f"{name}: JPEG 2000 is not read by the server, where others would wait for it; {way_out}")
        with self._memory.waiting(memory):
            return read_image(data, name, long_side, self._limits.pixels)

    @contextlib.contextmanager
    def room(self, file: BinaryIO) -> Iterator[None]:
        """Wait until there is memory to read an image file whole, and to decode it."""
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        with self._memory.waiting(_needs(file)[1] + size):
            yield


def _needs(file: BinaryIO) -> tuple[str | None, int]:
    """The format of an image file, and the bytes that it takes to decode it, by its header."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.init()
            with Image.open(file, formats=[name for name in FORMATS if name in Image.OPEN]) as image:
                pixels = image.size[0] * image.size[1]
                return image.format, pixels * (JPEG_PIXEL if image.format in ("JPEG", "MPO") else PIXEL)
    except Exception:  # on damaged files Pillow raises anything: who decodes it says what is wrong
        return None, 0
    finally:
        file.seek(0)

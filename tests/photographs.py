"""Images for the tests: sound, strange and damaged ones, made on the spot."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy
from PIL import Image

CORNERS = ((250, 20, 20), (20, 240, 20), (30, 30, 245), (245, 245, 20))
"""Colours of the four quarters of :func:`quarters`: top left, top right, bottom left, bottom right."""


def quarters(width: int = 64, height: int = 32) -> Image.Image:
    """Four quarters in four colours, so that each turn and flip shows."""
    image = Image.new("RGB", (width, height))
    for colour, (x, y) in zip(CORNERS, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        image.paste(colour, (x * width // 2, y * height // 2, (x + 1) * width // 2, (y + 1) * height // 2))
    return image


def png(width: int, height: int, depth: int, colour: int, rows: bytes) -> bytes:
    """A PNG file of raw ``rows`` (with their filter bytes); for depths and sizes that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = (chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def huge_png_header() -> bytes:
    """A PNG that claims 20,000 x 20,000 pixels and has next to none."""
    return png(20_000, 20_000, 8, 2, b"\0" * 100)


def jpeg(image: Image.Image, **options: object) -> bytes:
    """``image`` as a JPEG file."""
    stream = io.BytesIO()
    image.save(stream, "JPEG", **options)
    return stream.getvalue()


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Random pixels: a JPEG of them is long enough to be cut."""
    values = numpy.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
    return Image.fromarray(values)


def write_album(folder: Path, count: int, damaged: int) -> tuple[list[str], list[str]]:
    """Write ``count`` small images below ``folder``, ``damaged`` of them broken: all names, and those of the broken.

    The sound ones are of many kinds, in two subfolders that share their file names; half of them are plain JPEGs.
    """
    kinds = (_plain, _plain, _cmyk, _plain, _deep, _plain, _animated, _plain, turned, _plain)
    broken = (_cut, _empty, _text, _claims_much)
    every = max(1, count // max(1, damaged))
    half = (count + 1) // 2
    names, bad = [], []
    for number in range(count):
        is_bad = number % every == every - 1 and len(bad) < damaged
        make = broken[len(bad) % len(broken)] if is_bad else kinds[number % len(kinds)]
        data, suffix = make(number)
        path = folder / ("first" if number < half else "second") / f"{number % half:04}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        names.append(str(path))
        if is_bad:
            bad.append(str(path))
    return sorted(names), sorted(bad)


def _plain(number: int) -> tuple[bytes, str]:
    return jpeg(quarters(40 + number % 7, 30)), ".jpg"


def _cmyk(number: int) -> tuple[bytes, str]:
    return jpeg(quarters().convert("CMYK")), ".jpg"


def _deep(number: int) -> tuple[bytes, str]:
    stream = io.BytesIO()
    Image.fromarray(numpy.full((20, 30), 40_000, dtype=numpy.uint16)).save(stream, "PNG")
    return stream.getvalue(), ".png"


def _animated(number: int) -> tuple[bytes, str]:
    stream = io.BytesIO()
    frames = [Image.new("RGB", (30, 20), colour) for colour in CORNERS]
    frames[0].save(stream, "GIF", save_all=True, append_images=frames[1:])
    return stream.getvalue(), ".gif"


def turned(number: int) -> tuple[bytes, str]:
    """Stored 64 x 32, shown 32 x 64."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return jpeg(quarters(64, 32), exif=exif), ".jpg"


def _cut(number: int) -> tuple[bytes, str]:
    data = jpeg(noise(80, 60, number))
    return data[: len(data) // 2], ".jpg"


def _empty(number: int) -> tuple[bytes, str]:
    return b"", ".jpg"


def _text(number: int) -> tuple[bytes, str]:
    return b"I am not an image.\n" * 10, ".jpg"


def _claims_much(number: int) -> tuple[bytes, str]:
    return huge_png_header(), ".png"

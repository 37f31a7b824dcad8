"""Images for the tests: sound, strange and damaged ones, made on the spot."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from pathlib import Path

import numpy
from PIL import Image

CORNERS = ((250, 20, 20), (20, 240, 20), (30, 30, 245), (245, 245, 20))
"""Colours of the four quarters of :func:`quarters`: top left, top right, bottom left, bottom right."""
TURNED = {
    2: Image.Transpose.FLIP_LEFT_RIGHT, 3: Image.Transpose.ROTATE_180, 4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE, 6: Image.Transpose.ROTATE_90, 7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}  # fmt: skip
"""How an upright image is stored, by its EXIF orientation."""


def quarters(width: int = 64, height: int = 32) -> Image.Image:
    """Four quarters in four colours, so that each turn and flip shows."""
    image = Image.new("RGB", (width, height))
    for colour, (x, y) in zip(CORNERS, ((0, 0), (1, 0), (0, 1), (1, 1)), strict=True):
        image.paste(colour, (x * width // 2, y * height // 2, (x + 1) * width // 2, (y + 1) * height // 2))
    return image


def png(width: int, height: int, depth: int, colour: int, rows: bytes, transparent: bytes = b"") -> bytes:
    """A PNG file of raw ``rows`` (with their filter bytes); for depths and sizes that Pillow does not write."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    trns = [chunk(b"tRNS", transparent)] if transparent else []
    parts = (chunk(b"IHDR", header), *trns, chunk(b"IDAT", zlib.compress(rows)), chunk(b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def tiff(
    values: numpy.ndarray,
    photometric: int,
    *,
    planes: int = 1,
    packed: bool = False,
    extra: int | None = None,
    bits: int | None = None,
    data: bytes | None = None,
) -> bytes:
    """A TIFF file as the specification has it, for kinds of pixels that Pillow does not write.

    Args:
        values: ``(H, W)`` or ``(H, W, C)``; the order of bytes of the file is that of their type.
        photometric: 0 white is the least value, 1 black is, 2 RGB, 6 YCbCr.
        planes: 1 colours beside one another, 2 one plane after the other; in strips of 3 rows.
        packed: compressed by deflate.
        extra: what the last channel is: 0 nothing, 1 premultiplied alpha, 2 alpha.
        bits, data: of a value and of the whole image, if not those of the array.
    """
    order = ">" if values.dtype.byteorder == ">" else "<"
    height, width = values.shape[:2]
    channels = 1 if values.ndim == 2 else values.shape[2]
    layers = [values] if planes == 1 else [values[:, :, channel] for channel in range(channels)]
    strips = [layer[top : top + 3].tobytes() for layer in layers for top in range(0, height, 3)]
    strips = [zlib.compress(strip) if packed else strip for strip in (strips if data is None else [data])]
    kind = {"u": 1, "i": 2, "f": 3}[values.dtype.kind]
    entries: dict[int, tuple[int, list[int]]] = {  # by their numbers: type 3 SHORT or 4 LONG, and the values
        256: (4, [width]),
        257: (4, [height]),
        258: (3, [bits or 8 * values.dtype.itemsize] * channels),
        259: (3, [8 if packed else 1]),
        262: (3, [photometric]),
        273: (4, list(itertools.accumulate((len(strip) for strip in strips[:-1]), initial=8))),
        277: (3, [channels]),
        278: (4, [height if data is not None else 3]),
        279: (4, [len(strip) for strip in strips]),
        284: (3, [planes]),
        339: (3, [kind] * channels),
        **({338: (3, [extra])} if extra is not None else {}),
    }
    body = b"".join(strips)
    place = 8 + len(body)
    outside = place + 2 + 12 * len(entries) + 4
    table, behind = struct.pack(order + "H", len(entries)), b""
    for number, (form, numbers) in sorted(entries.items()):
        packed_numbers = struct.pack(f"{order}{len(numbers)}{'H' if form == 3 else 'I'}", *numbers)
        table += struct.pack(order + "HHI", number, form, len(numbers))
        if len(packed_numbers) <= 4:
            table += packed_numbers.ljust(4, b"\0")
        else:
            table += struct.pack(order + "I", outside + len(behind))
            behind += packed_numbers
    mark = b"MM\0*" if order == ">" else b"II*\0"
    return mark + struct.pack(order + "I", place) + body + table + bytes(4) + behind


def dng(image: Image.Image, preview: bytes, orientation: int = 1, size: tuple[int, int] | None = None) -> bytes:
    """A RAW file as the DNG specification has it: a JPEG preview, and a sensor with a mosaic of red, green and blue.

    Args:
        image: what the sensor saw, as it lies in the camera; both sides even.
        preview: the JPEG; none if empty.
        orientation: how EXIF turns it.
        size: that the file says the sensor has, if not that of ``image``.
    """
    values = numpy.asarray(image.convert("RGB")).astype(numpy.uint16) * 256
    mosaic = values[:, :, 1].copy()
    mosaic[::2, ::2], mosaic[1::2, 1::2] = values[::2, ::2, 0], values[1::2, 1::2, 2]
    width, height = size or image.size
    body = struct.pack("<4sI", b"II*\0", 0) + preview + b"\0" * (len(preview) % 2)
    at = len(body)
    body += mosaic.astype("<u2").tobytes()

    def directory(entries: dict[int, tuple[str, tuple[int, ...]]], place: int) -> bytes:
        table, behind = struct.pack("<H", len(entries)), b""
        for number, (form, numbers) in sorted(entries.items()):
            kind, count = {"B": 1, "s": 2, "H": 3, "I": 4, "q": 10}[form], len(numbers)
            if form in "qs":
                packed = struct.pack(f"<{count}i", *numbers) if form == "q" else bytes(numbers)
                count = count // 2 if form == "q" else count
            else:
                packed = struct.pack(f"<{count}{form}", *numbers)
            table += struct.pack("<HHI", number, kind, count)
            if len(packed) > 4:
                table += struct.pack("<I", place + 2 + 12 * len(entries) + 4 + len(behind))
                behind += packed + b"\0" * (len(packed) % 2)
            else:
                table += packed.ljust(4, b"\0")
        return table + bytes(4) + behind

    sensor = directory({
        254: ("I", (0,)), 256: ("I", (width,)), 257: ("I", (height,)), 258: ("H", (16,)), 259: ("H", (1,)),
        262: ("H", (32803,)), 273: ("I", (at,)), 277: ("H", (1,)), 278: ("I", (height,)),
        279: ("I", (2 * image.width * image.height,)), 33421: ("H", (2, 2)), 33422: ("B", (0, 1, 1, 2)),
        50714: ("H", (0,)), 50717: ("I", (65535,)),
    }, len(body))  # fmt: skip
    sub, body = len(body), body + sensor
    entries: dict[int, tuple[str, tuple[int, ...]]] = {
        254: ("I", (1,)), 271: ("s", tuple(b"Tests\0")), 272: ("s", tuple(b"Camera\0")), 274: ("H", (orientation,)),
        330: ("I", (sub,)), 50706: ("B", (1, 4, 0, 0)), 50708: ("s", tuple(b"Tests Camera\0")),
        50721: ("q", (1, 1, 0, 1, 0, 1, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1, 1, 1)), 50778: ("H", (21,)),
    }  # fmt: skip
    if preview:
        with Image.open(io.BytesIO(preview)) as small:
            entries |= {256: ("I", (small.width,)), 257: ("I", (small.height,)), 258: ("H", (8, 8, 8))}
        entries |= {259: ("H", (7,)), 262: ("H", (6,)), 273: ("I", (8,)), 277: ("H", (3,)), 279: ("I", (len(preview),))}
    place = len(body)
    return body[:4] + struct.pack("<I", place) + body[8:] + directory(entries, place)


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

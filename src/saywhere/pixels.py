"""The pixels of opened image files: upright and in RGB, also where Pillow gives others, in a bounded part of memory.

Files of phones and cameras are opened for Pillow here: HEIF by pillow-heif, and the previews of RAW files by LibRaw
(rawpy).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""What shows an image upright, by its EXIF orientation."""
LYING = (5, 6, 7, 8)
"""EXIF orientations whose upright image has width and height exchanged."""

ORIENTATION = 0x0112
"""The EXIF tag of the turn, 1 to 8, that shows an image upright."""

TIFF_WIDTH, TIFF_HEIGHT, TIFF_BITS, TIFF_PHOTOMETRIC = 256, 257, 258, 262
TIFF_BYTES, TIFF_PLANES, TIFF_FORMAT = 279, 284, 339

BUDGET = 1 << 30
"""Bytes that all decoders of this process together may take; an image that needs more is decoded alone."""
STRIP = 1 << 20
"""Pixels that are converted at a time."""

_COPIES = {"WEBP": 4, "AVIF": 3, "HEIF": 3, "JPEG2000": 5, "TIFF": 2, "RAW": 5}
"""How many times the size of the image a format's decoder takes, measured; once if it is not here."""
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes that Pillow takes for a pixel; 4 for other modes."""
_COEFFICIENTS = 8
"""Bytes for each pixel of a progressive JPEG, which is kept whole however small it is decoded."""

_NATIVE = {"I;16BS": "I;16NS", "I;32B": "I;32N", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Raw modes of TIFF files in the order of bytes that libtiff gives, whatever that of the file is."""
_KEYS = {"1": (1, 1), "L;2": (3, 85), "L;4": (15, 17), "L": (255, 1), "RGB": (255, 1)}
"""The bits that count of a PNG's transparent value by its raw mode, and by how much Pillow multiplies its pixels."""


_BELOW_ZERO = [*range(128), *([0] * 128)]
"""What becomes of bytes that are numbers with a sign."""


class Budget:
    """Share a number of bytes among threads; who asks first is served first."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.reset()

    def reset(self) -> None:
        """Forget who holds bytes: in a process that was forked off, these threads are not there."""
        self._free = self._total
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextlib.contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Wait until ``amount`` bytes are free, or all of them if it is more, and hold them within this context."""
        amount = min(amount, self._total)
        with self._turn, self._returned:  # whoever waits keeps the turn, or small images would overtake a large one
            self._returned.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._returned:
                self._free += amount
                self._returned.notify_all()


DECODING = Budget(BUDGET)
"""What the decoders of this process share."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=DECODING.reset)


def decoding_bytes(image: Image.Image, full: tuple[int, int]) -> int:
    """Estimate the bytes that it takes to decode an opened image, told how small it may be, of ``full`` size."""
    pixels, each = math.prod(image.size), _PIXEL_BYTES.get(image.mode, 4)
    if "progressive" in image.info:
        return pixels * each + math.prod(full) * _COEFFICIENTS
    return pixels * each * _COPIES.get(image.format or "", 1)


def upright_rgb(
    image: Image.Image, long_side: int | None = None, again: Callable[[], Image.Image] | None = None
) -> tuple[Image.Image, int]:
    """Return the upright RGB pixels of an image and the EXIF orientation that it is stored in.

    Transparency is on white. What is needed beside the decoded image is converted a strip at a time. The pixels are
    without the notes of the image: its orientation would turn them once more.

    Args:
        image: opened, and decoded or not.
        long_side: pixels that are needed on the long side: the image is made smaller by a whole number.
        again: opens the file of the image once more; some 16-bit files need to be read twice.
    """
    convert = _Converter(image, again)  # first: to ask a PNG for its orientation is to decode it
    stored = orientation(image)
    image.load()
    shrink = 1 if long_side is None else max(1, min(max(image.size) // long_side, *image.size))
    pixels = convert(image, shrink)
    if (turn := TURNS.get(orientation(image))) is not None:  # asked again: Pillow turns a TIFF itself
        pixels = pixels.transpose(turn)
    pixels.info.clear()
    return pixels, stored


def orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; an image whose EXIF block cannot be read is taken as upright."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged EXIF block raises anything, and the pixels may be sound
        return 1


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Width and height before any turn; some versions of Pillow give those of a TIFF after it."""
    tags = getattr(image, "tag_v2", {})
    return (tags[TIFF_WIDTH], tags[TIFF_HEIGHT]) if TIFF_WIDTH in tags and TIFF_HEIGHT in tags else image.size


@dataclass(frozen=True)
class _Grey:
    """How grey values become levels from 0 to 255.

    Attributes:
        top: the value that is white; None if it is found among the values.
        inverted: whether the least value is white and not black.
        unsigned: whether 32 bits are those of a number without sign, which Pillow takes for one with sign.
    """

    top: float | None
    inverted: bool
    unsigned: bool

    def values(self, piece: Image.Image) -> np.ndarray:
        """The values of a piece of the image, float32; what is no number is 0."""
        values = np.asarray(piece)
        values = (values.view(np.uint32) if self.unsigned else values).astype(np.float32)
        return np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def levels(self, piece: Image.Image, top: float) -> Image.Image:
        """The RGB pixels of a piece."""
        levels = (self.values(piece) / np.float32(top) * 255).round().clip(0, 255).astype(np.uint8)
        return Image.fromarray(255 - levels if self.inverted else levels).convert("RGB")


class _Converter:
    """Convert an image to RGB, by what its file says beside its pixels; made before they are decoded."""

    def __init__(self, image: Image.Image, again: Callable[[], Image.Image] | None) -> None:
        tags = getattr(image, "tag_v2", {})
        if tags:
            _repair_tiff(image, tags)
        raw = _raw_mode(image)
        formats, bits = tags.get(TIFF_FORMAT, (1,)), tags.get(TIFF_BITS, (1,))
        inverted = image.mode.startswith(("I", "F")) and tags.get(TIFF_PHOTOMETRIC) == 0
        unsigned = image.mode == "I" and formats[0] == 1 and bits[0] == 32
        top = 4095.0 if raw == "I;12" else 65535.0 if image.mode.startswith("I;") else None
        self._grey = _Grey(top, inverted, unsigned)
        self._signed = image.mode == "L" and formats[0] == 2
        self._low: Image.Image | None = None
        self._key = _transparent_value(image, raw)
        if self._key is not None and raw == "RGB;16B":
            self._low = None if again is None else _low_bytes(again())
            self._key = self._key if self._low is not None else None

    def __call__(self, image: Image.Image, shrink: int) -> Image.Image:
        """Return the RGB pixels of the decoded image, made smaller by ``shrink``."""
        if image.mode == "RGB" and self._key is None:
            return Image.Image.reduce(image, shrink) if shrink > 1 else image.copy()
        top = self._top(image) if image.mode.startswith(("I", "F")) else 0.0
        width, height = image.size
        whole = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
        for box in _strips(image.size, shrink):
            pixels = self._convert(image.crop(box), box, top)
            whole.paste(pixels.reduce(shrink) if shrink > 1 else pixels, (0, box[1] // shrink))
        return whole

    def _top(self, image: Image.Image) -> float:
        """The value that is white: of the format, or else the largest one.

        Of integers in 32 bits that are all below 256, or below 65,536, that is the range.
        """
        if self._grey.top is not None:
            return self._grey.top
        largest = max(float(self._grey.values(image.crop(box)).max(initial=0)) for box in _strips(image.size, 1))
        least = 1.0 if image.mode == "F" else 255.0 if largest <= 255 else 65535.0
        return max(largest, least)

    def _convert(self, piece: Image.Image, box: tuple[int, int, int, int], top: float) -> Image.Image:
        if piece.mode.startswith(("I", "F")):
            pixels = self._grey.levels(piece, top)
        elif piece.mode in ("RGBA", "LA", "PA", "RGBa", "La") or (piece.mode == "P" and "transparency" in piece.info):
            piece = (piece.convert("LA") if piece.mode == "La" else piece).convert("RGBA")
            background = Image.new("RGBA", piece.size, (255, 255, 255, 255))
            pixels = Image.alpha_composite(background, piece).convert("RGB")
        else:
            piece.info.pop("transparency", None)  # which Pillow would convert, too, and may fail at
            pixels = (piece.point(_BELOW_ZERO) if self._signed else piece).convert("RGB")
        if self._key is None:
            return pixels
        values = np.asarray(piece).astype(np.int32)
        if self._low is not None:
            values = 256 * values + np.asarray(self._low.crop(box))
        hidden = values == self._key
        shown = np.array(pixels)
        shown[hidden.all(axis=2) if hidden.ndim == 3 else hidden] = 255
        return Image.fromarray(shown)


def _strips(size: tuple[int, int], shrink: int) -> Iterator[tuple[int, int, int, int]]:
    """Boxes of about ``STRIP`` pixels from the top to the bottom, their heights multiples of ``shrink``."""
    width, height = size
    rows = max(1, STRIP // width // shrink) * shrink
    for top in range(0, height, rows):
        yield 0, top, width, min(height, top + rows)


def _raw_mode(image: Image.Image) -> str:
    """How the pixels are stored, as Pillow calls it; empty for a decoded image."""
    tiles = getattr(image, "tile", None)
    arguments: Any = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments or "")


def _transparent_value(image: Image.Image, raw: str) -> np.ndarray | None:
    """The value of pixels, grey or R G B, that a file says are transparent."""
    value = image.info.get("transparency")
    if not isinstance(value, tuple if image.mode == "RGB" else int) or image.mode in ("P", "PA"):
        return None
    bits, factor = _KEYS.get(raw, (65535, 1)) if image.format == "PNG" else (65535, 1)
    return (np.array(value) & bits) * factor


def _low_bytes(image: Image.Image) -> Image.Image:
    """The lower halves of the values of a PNG with 16 bits a colour, of which Pillow keeps the upper ones."""
    image.tile = [_with_raw_mode(tile, "RGB;16L") for tile in image.tile]  # pyright: ignore[reportAttributeAccessIssue]
    image.load()
    return image


def learn_tiffs() -> None:
    """Let Pillow open grey TIFF files of 16 and 32 bits also in those orders of bytes that it leaves out."""
    from PIL.TiffImagePlugin import OPEN_INFO

    for order, deep, wide in ((b"II", "I;16", "I;32N"), (b"MM", "I;16B", "I;32B")):
        OPEN_INFO.setdefault((order, 0, (1,), 1, (16,), ()), (deep, deep))
        for photometric in (0, 1):
            OPEN_INFO.setdefault((order, photometric, (1,), 1, (32,), ()), ("I", wide))


def _repair_tiff(image: Any, tags: Any) -> None:
    """Set in Pillow how the pixels of an opened TIFF are stored, where it takes them for something else."""
    bits, big = tags.get(TIFF_BITS, (1,)), tags.prefix == b"MM"
    planes = tags.get(TIFF_PLANES, 1) == 2

    def raw_mode(tile: Any) -> str:
        mode = str(tile[3][0])
        if tile[0] != "raw":
            return _NATIVE.get(mode, mode)
        return f"{mode};16{'B' if big else 'L'}" if planes and bits[0] == 16 and len(mode) == 1 else mode

    if tags.get(TIFF_PHOTOMETRIC) == 6 and any(tile[0] == "raw" for tile in image.tile):
        dense = sum(tags.get(TIFF_BYTES, (0,))) >= 3 * math.prod(image.size)
        if not dense or image.mode != "YCbCr":  # versions of Pillow before 11.2 take it for RGB
            raise ValueError("YCbCr with fewer colours than pixels is read only if it is compressed")
    image.tile = [_with_raw_mode(tile, raw_mode(tile)) for tile in image.tile]


def _with_raw_mode(tile: Any, mode: str) -> Any:
    return _changed(tile, (mode, *tile[3][1:]) if isinstance(tile[3], tuple) else mode)


def _changed(tile: Any, arguments: Any, extents: Any = None) -> Any:
    """Pillow's note of what is to be decoded, with other arguments of the decoder and another place in the image."""
    parts = (tile[0], tile[1] if extents is None else extents, tile[2], arguments)
    return type(tile)(*parts) if hasattr(tile, "_fields") else parts


def reduce_jpeg2000(image: Any, start: bytes, long_side: int) -> None:
    """Let an opened JPEG 2000 be decoded at a half, a quarter, ... of its size that leaves ``long_side``.

    Only as far as it is stored in such sizes. Pillow's own way takes them for smaller than they are. ``start`` is that
    of its file, with the main header.
    """
    wanted = int(math.log2(max(1.0, max(image.size) / long_side)))
    halvings = min(wanted, _halvings(start))
    image._size = size = tuple(-(-side // 2**halvings) for side in image.size)
    image.tile = [_changed(tile, (tile[3][0], halvings, *tile[3][2:]), (0, 0, *size)) for tile in image.tile]


def _halvings(start: bytes) -> int:
    """How many times a JPEG 2000 can be decoded at half the size, by its main header: the least of its colours."""
    at = start.find(b"\xff\x4f\xff\x51") + 2
    counts: list[int] = []
    wide = 0
    first_tile = b"\x90"
    while at >= 2 and start[at : at + 1] == b"\xff" and start[at + 1 : at + 2] != first_tile:
        kind, length = start[at + 1 : at + 2], int.from_bytes(start[at + 2 : at + 4])
        if kind == b"\x51":  # sizes and places of the image and its tiles, and how dense its colours are
            size, offset, tile, tile_offset = (_pair(start, at + place) for place in (6, 14, 22, 30))
            components = int.from_bytes(start[at + 38 : at + 40])
            dense = start[at + 40 : at + 40 + 3 * components]
            if any(offset + tile_offset) or set(dense[1::3] + dense[2::3]) != {1}:
                return 0
            several = [side for side, full in zip(tile, size, strict=True) if 0 < side < full]
            counts += [(side & -side).bit_length() - 1 for side in several]  # or Pillow would misplace the tiles
            wide = int(components > 256)  # numbers of components are longer then
        elif kind in (b"\x52", b"\x53"):
            place = at + (9 if kind == b"\x52" else 6 + wide)
            counts.append(int.from_bytes(start[place : place + 1]))
        at += 2 + length
    return min(counts, default=0)


def _pair(data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])


_HEVC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
"""Brands of HEIF files whose images are coded by HEVC; those coded by AV1 (AVIF) are Pillow's own."""
_RAW_MARKS = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR")
"""How RAW files begin that are neither TIFF nor HEIF: RAF, RW2 and ORF."""
_TIFF_MARKS = (b"II*\0", b"MM\0*")
_DNG_VERSION, _SUB_FILE, _SUB_IFDS, _PHOTOMETRIC = 50706, 254, 330, 262
_SENSOR = (32803, 34892)
"""Photometric interpretations of the values of a sensor, with a mosaic of colours and without."""
_ORIENTATIONS = (1, 2, 4, 3, 5, 8, 6, 7)
"""EXIF orientations by LibRaw's number of the turn."""
_UNTURNED = {6: 8, 8: 6}
"""Orientations whose turn takes another one back; the others take back themselves."""
SAME_SHAPE = 0.02
"""A preview whose ratio of width to height differs by more from that of the sensor's image does not show all of it."""


def photo_kind(start: bytes, raw: bool, opened: Callable[[], IO[bytes]]) -> str | None:
    """Return Pillow's name of the format, ``HEIF`` or ``RAW``, of a file that Pillow cannot read alone, or None.

    ``start`` is 64 bytes of the file. One whose name is that of a RAW file (``raw``) counts if it begins as TIFF does;
    it is ``opened`` and read then.
    """
    if start[4:8] == b"ftyp":
        length = min(int.from_bytes(start[:4]), len(start))
        brands = {start[at : at + 4] for at in (8, *range(16, length, 4))}
        return "RAW" if start[8:12] == b"crx " else "HEIF" if brands & _HEVC and start[8:10] != b"av" else None
    if start.startswith(_RAW_MARKS):
        return "RAW"
    if not start.startswith(_TIFF_MARKS):
        return None
    if start[8:10] == b"CR" or raw:
        return "RAW"
    from PIL.TiffImagePlugin import ImageFileDirectory_v2

    tags: Any = ImageFileDirectory_v2(start[:8])
    with opened() as file, contextlib.suppress(Exception):  # what is damaged, Pillow tells
        file.seek(tags.next)
        tags.load(file)
    if _DNG_VERSION in tags or tags.get(_PHOTOMETRIC) in _SENSOR or (tags.get(_SUB_FILE) == 1 and _SUB_IFDS in tags):
        return "RAW"
    return None


def photo_opener(kind: str) -> Callable[[Any], Image.Image]:
    """Return what opens files of a kind; Pillow does not learn it, for it would try each TIFF that others open.

    ``ModuleNotFoundError`` without the extra ``photos``.
    """
    if kind == "HEIF":
        return importlib.import_module("pillow_heif").HeifImageFile
    importlib.import_module("rawpy")
    return RawFile


class RawFile(ImageFile.ImageFile):
    """A RAW file: the largest preview in it, as the sensor lies; half of the sensor's pixels where it is too small.

    The size is that of the sensor's image until :meth:`draft` or :meth:`load` chooses what is decoded.
    """

    format = "RAW"
    format_description = "RAW file of a camera"

    def _open(self) -> None:
        rawpy: Any = importlib.import_module("rawpy")
        self._errors: tuple[type[Exception], ...] = (rawpy.LibRawError, rawpy.NotSupportedError)
        self._raw: Any = self._call(lambda: rawpy.imread(self.filename or self.fp))
        sizes = self._raw.sizes
        self._full = self._size = (sizes.width, sizes.height)
        self._mode = "RGB"
        self._turn = _ORIENTATIONS[sizes.flip & 7]
        exif = Image.Exif()
        exif[ORIENTATION] = self._turn
        self.info["exif"] = exif.tobytes()
        self._preview: Image.Image | None = None
        self._back: Image.Transpose | None = None
        self._chosen = False

    def _call(self, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except self._errors as error:
            reason = error.args[0] if error.args else error
            raise ValueError(reason.decode() if isinstance(reason, bytes) else str(reason)) from error

    def draft(self, mode: str | None, size: tuple[int, int] | None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Choose what is decoded: the preview if it is as large as ``size`` on its long side, else half the sensor."""
        if self._chosen:
            return
        self._chosen = True
        width, height = self._full
        least = min(max(size or self._full), -(-max(self._full) // 2))  # the sensor's pixels would give no more
        preview = self._find_preview()
        if preview is None or max(preview.size) < least or math.prod(preview.size) > 2 * width * height:
            self._size = (-(-width // 2), -(-height // 2))
            return
        self._preview = preview
        if size is not None:
            short, long = sorted(size)
            preview.draft("RGB", (long, short) if preview.width > preview.height else (short, long))
        turned = self._back is not None and self._turn in LYING
        self._size = preview.size[::-1] if turned else preview.size

    def _find_preview(self) -> Image.Image | None:
        """The largest preview, not yet decoded, and in ``_back`` the turn that makes it lie as the sensor does."""
        rawpy: Any = importlib.import_module("rawpy")
        try:
            thumb = self._call(self._raw.extract_thumb)
            if thumb.format == rawpy.ThumbFormat.BITMAP:
                preview = Image.fromarray(thumb.data)
            else:
                preview = Image.open(io.BytesIO(thumb.data), formats=["JPEG"])
        except (ValueError, TypeError, OSError):
            return None
        own = preview.getexif().get(ORIENTATION, self._turn)  # LibRaw gives a preview without EXIF that of the file
        if own != self._turn:
            preview = preview.transpose(TURNS[own]) if own in TURNS else preview
        elif _same_shape(preview.size, self._full):
            return preview
        if _same_shape(preview.size, self._full[::-1] if self._turn in LYING else self._full):
            self._back = TURNS.get(_UNTURNED.get(self._turn, self._turn))
            return preview
        return None

    def load(self) -> Any:
        """Decode what was chosen."""
        if self._raw is not None:
            self.draft(None, None)
            if self._preview is None:
                decoded = self._call(lambda: self._raw.postprocess(half_size=True, use_camera_wb=True, user_flip=0))
                pixels = Image.fromarray(decoded)
            else:
                pixels = self._preview.convert("RGB")
                pixels = pixels if self._back is None else pixels.transpose(self._back)
            self._raw.close()
            self._raw = self._preview = None
            self._size = pixels.size
            self.im = pixels.im
        return Image.Image.load(self)


def _same_shape(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return abs(one[0] * other[1] / (one[1] * other[0]) - 1) <= SAME_SHAPE

"""Decoding of opened image files to upright RGB within a memory budget, including modes that Pillow converts wrongly.

Phone and camera files are opened for Pillow here: HEIF by pillow-heif, and previews of RAW files by LibRaw (rawpy).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import threading
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np
from PIL import Image, ImageFile

from saywhere.options import dataclass

TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
"""Transpose operation that turns an image upright, by EXIF orientation."""
LYING = (5, 6, 7, 8)
"""EXIF orientations whose upright image has width and height swapped."""

ORIENTATION = 0x0112
"""EXIF tag of the orientation, 1 to 8."""

TIFF_WIDTH, TIFF_HEIGHT, TIFF_BITS, TIFF_PHOTOMETRIC = 256, 257, 258, 262
TIFF_BYTES, TIFF_PLANES, TIFF_FORMAT = 279, 284, 339

BUDGET = 1 << 30
"""Memory budget in bytes of all decoders of the process; an image that needs more is decoded alone."""
STRIP = 1 << 20
"""Number of pixels converted at a time."""

_COPIES = {"WEBP": 4, "AVIF": 3, "HEIF": 3, "JPEG2000": 5, "TIFF": 2, "RAW": 5}
"""Measured memory of a format's decoder as a multiple of the image size; default 1."""
_PIXEL_BYTES = {"1": 1, "L": 1, "P": 1, "I;16": 2, "I;16B": 2, "I;16L": 2, "I;16N": 2}
"""Bytes per pixel in Pillow; 4 for other modes."""
_COEFFICIENTS = 8
"""Bytes per pixel of a progressive JPEG, which is held at full size even when decoded at a smaller one."""

_NATIVE = {"I;16BS": "I;16NS", "I;32B": "I;32N", "I;32BS": "I;32NS", "F;32BF": "F;32NF"}
"""Raw modes of TIFF files in native byte order, which libtiff returns whatever the byte order of the file."""
_KEYLESS = ("L;2", "L;4", "RGB;16B")
"""Raw modes of PNG files whose transparent value Pillow compares with pixels on another scale; it is left out."""
_BELOW_ZERO = [*range(128), *([0] * 128)]
"""Lookup table for signed bytes: negative values become 0."""


class Budget:
    """A number of bytes shared by threads; requests are served in order."""

    def __init__(self, total: int) -> None:
        self._total = total
        self.reset()

    def reset(self) -> None:
        """Release everything: the threads that hold bytes do not exist in a forked process."""
        self._free = self._total
        self._turn = threading.Lock()
        self._returned = threading.Condition()

    @contextlib.contextmanager
    def take(self, amount: int) -> Iterator[None]:
        """Wait until ``amount`` bytes (or all, if it is more) are free, and hold them within this context."""
        amount = min(amount, self._total)
        with self._turn, self._returned:  # a waiting thread keeps its turn, or small images would overtake a large one
            self._returned.wait_for(lambda: self._free >= amount)
            self._free -= amount
        try:
            yield
        finally:
            with self._returned:
                self._free += amount
                self._returned.notify_all()


DECODING = Budget(BUDGET)
"""Memory budget of the decoders of this process."""
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=DECODING.reset)


def decoding_bytes(image: Image.Image, full: tuple[int, int]) -> int:
    """Estimate the bytes needed to decode an opened image of ``full`` size, after ``draft`` has set its own size."""
    pixels, each = math.prod(image.size), _PIXEL_BYTES.get(image.mode, 4)
    if "progressive" in image.info:
        return pixels * each + math.prod(full) * _COEFFICIENTS
    return pixels * each * _COPIES.get(image.format or "", 1)


def upright_rgb(image: Image.Image, long_side: int | None = None) -> tuple[Image.Image, int]:
    """Return the upright RGB pixels of an image and its stored EXIF orientation.

    Transparent pixels are blended with white. Conversion works in strips, to save memory. The result has no metadata,
    because its orientation would be applied a second time.

    Args:
        image: opened image, decoded or not.
        long_side: pixels needed on the long side; the image is reduced by an integer factor.
    """
    convert = _Converter(image)  # first: reading the orientation of a PNG decodes it
    stored = orientation(image)
    image.load()
    shrink = 1 if long_side is None else max(1, min(max(image.size) // long_side, *image.size))
    pixels = convert(image, shrink)
    if (turn := TURNS.get(orientation(image))) is not None:  # read again: Pillow turns a TIFF itself
        pixels = pixels.transpose(turn)
    pixels.info.clear()
    return pixels, stored


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8; 1 (upright) if the EXIF block cannot be read."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged EXIF block raises anything, while the pixels may be fine
        return 1


def stored_size(image: Image.Image) -> tuple[int, int]:
    """Return the size before rotation; some versions of Pillow report a TIFF's size after it."""
    tags = getattr(image, "tag_v2", {})
    return (tags[TIFF_WIDTH], tags[TIFF_HEIGHT]) if TIFF_WIDTH in tags and TIFF_HEIGHT in tags else image.size


@dataclass(frozen=True)
class _Grey:
    """Conversion of grey values to levels from 0 to 255.

    Attributes:
        top: value of white; None: derived from the values.
        inverted: whether the smallest value is white.
        unsigned: whether 32-bit values are unsigned; Pillow reads them as signed.
    """

    top: float | None
    inverted: bool
    unsigned: bool

    def values(self, piece: Image.Image) -> np.ndarray:
        """Return the values of a part of the image as float32; NaN and infinity become 0."""
        values = np.asarray(piece)
        values = (values.view(np.uint32) if self.unsigned else values).astype(np.float32)
        return np.nan_to_num(values, copy=False, nan=0.0, posinf=0.0, neginf=0.0)

    def levels(self, piece: Image.Image, top: float) -> Image.Image:
        """Return the RGB pixels of a part of the image."""
        levels = (self.values(piece) / np.float32(top) * 255).round().clip(0, 255).astype(np.uint8)
        return Image.fromarray(255 - levels if self.inverted else levels).convert("RGB")


class _Converter:
    """Convert an image to RGB, using its file's metadata; create it before the pixels are decoded."""

    def __init__(self, image: Image.Image) -> None:
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
        kind = {"L": int, "RGB": tuple}.get(image.mode, ())
        self._key = isinstance(image.info.get("transparency"), kind) and raw not in _KEYLESS

    def __call__(self, image: Image.Image, shrink: int) -> Image.Image:
        """Return the RGB pixels of the decoded image, reduced by the factor ``shrink``."""
        if image.mode == "RGB" and not self._key:
            return Image.Image.reduce(image, shrink) if shrink > 1 else image.copy()
        top = self._top(image) if image.mode.startswith(("I", "F")) else 0.0
        width, height = image.size
        whole = Image.new("RGB", (-(-width // shrink), -(-height // shrink)))
        for box in _strips(image.size, shrink):
            pixels = self._convert(image.crop(box), top)
            whole.paste(pixels.reduce(shrink) if shrink > 1 else pixels, (0, box[1] // shrink))
        return whole

    def _top(self, image: Image.Image) -> float:
        """Return the value of white: that of the format, or else the maximum.

        For 32-bit integers that are all below 256 or 65,536 it is the top of that range.
        """
        if self._grey.top is not None:
            return self._grey.top
        largest = max(float(self._grey.values(image.crop(box)).max(initial=0)) for box in _strips(image.size, 1))
        least = 1.0 if image.mode == "F" else 255.0 if largest <= 255 else 65535.0
        return max(largest, least)

    def _convert(self, piece: Image.Image, top: float) -> Image.Image:
        if piece.mode.startswith(("I", "F")):
            return self._grey.levels(piece, top)
        keyed = self._key or (piece.mode == "P" and "transparency" in piece.info)
        if keyed or piece.mode in ("RGBA", "LA", "PA", "RGBa", "La"):
            piece = (piece.convert("LA") if piece.mode == "La" else piece).convert("RGBA")
            background = Image.new("RGBA", piece.size, (255, 255, 255, 255))
            return Image.alpha_composite(background, piece).convert("RGB")
        piece.info.pop("transparency", None)  # Pillow would convert it too, and can fail
        return (piece.point(_BELOW_ZERO) if self._signed else piece).convert("RGB")


def _strips(size: tuple[int, int], shrink: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield boxes of about ``STRIP`` pixels from top to bottom; heights are multiples of ``shrink``."""
    width, height = size
    rows = max(1, STRIP // width // shrink) * shrink
    for top in range(0, height, rows):
        yield 0, top, width, min(height, top + rows)


def _raw_mode(image: Image.Image) -> str:
    """Return Pillow's raw mode of the stored pixels; empty for a decoded image."""
    tiles = getattr(image, "tile", None)
    arguments: Any = tiles[0][3] if tiles else ""
    return str(arguments[0] if isinstance(arguments, tuple) and arguments else arguments or "")


def learn_tiffs() -> None:
    """Register grey TIFF files of 16 and 32 bits with Pillow in the byte orders that it lacks."""
    from PIL.TiffImagePlugin import OPEN_INFO

    for order, deep, wide in ((b"II", "I;16", "I;32N"), (b"MM", "I;16B", "I;32B")):
        OPEN_INFO.setdefault((order, 0, (1,), 1, (16,), ()), (deep, deep))
        for photometric in (0, 1):
            OPEN_INFO.setdefault((order, photometric, (1,), 1, (32,), ()), ("I", wide))


def _repair_tiff(image: Any, tags: Any) -> None:
    """Correct Pillow's raw modes for an opened TIFF where it misreads how pixels are stored."""
    bits, big = tags.get(TIFF_BITS, (1,)), tags.prefix == b"MM"
    planes = tags.get(TIFF_PLANES, 1) == 2

    def raw_mode(tile: Any) -> str:
        mode = str(tile[3][0])
        if tile[0] != "raw":
            return _NATIVE.get(mode, mode)
        return f"{mode};16{'B' if big else 'L'}" if planes and bits[0] == 16 and len(mode) == 1 else mode

    if tags.get(TIFF_PHOTOMETRIC) == 6 and any(tile[0] == "raw" for tile in image.tile):
        dense = sum(tags.get(TIFF_BYTES, (0,))) >= 3 * math.prod(image.size)
        if not dense or image.mode != "YCbCr":  # versions of Pillow before 11.2 read it as RGB
            raise ValueError("YCbCr with fewer colours than pixels is read only if it is compressed")
    image.tile = [_with_raw_mode(tile, raw_mode(tile)) for tile in image.tile]


def _with_raw_mode(tile: Any, mode: str) -> Any:
    return _changed(tile, (mode, *tile[3][1:]) if isinstance(tile[3], tuple) else mode)


def _changed(tile: Any, arguments: Any, extents: Any = None) -> Any:
    """Return a tile of Pillow (a decoding instruction) with other decoder arguments and another position."""
    parts = (tile[0], tile[1] if extents is None else extents, tile[2], arguments)
    return type(tile)(*parts) if hasattr(tile, "_fields") else parts


def reduce_jpeg2000(image: Any, start: bytes, long_side: int) -> None:
    """Make Pillow decode an opened JPEG 2000 at half, a quarter, ... of its size, but at least ``long_side``.

    Limited to the resolutions that the file stores. Pillow's own ``reduce`` gets their sizes wrong. ``start`` is the
    beginning of the file, with the main header.
    """
    wanted = int(math.log2(max(1.0, max(image.size) / long_side)))
    halvings = min(wanted, _halvings(start))
    image._size = size = tuple(-(-side // 2**halvings) for side in image.size)
    image.tile = [_changed(tile, (tile[3][0], halvings, *tile[3][2:]), (0, 0, *size)) for tile in image.tile]


def _halvings(start: bytes) -> int:
    """Return how often a JPEG 2000 can be halved, by its main header: the minimum over its components."""
    at = start.find(b"\xff\x4f\xff\x51") + 2
    counts: list[int] = []
    wide = 0
    first_tile = b"\x90"
    while at >= 2 and start[at : at + 1] == b"\xff" and start[at + 1 : at + 2] != first_tile:
        kind, length = start[at + 1 : at + 2], int.from_bytes(start[at + 2 : at + 4])
        if kind == b"\x51":  # sizes and positions of the image and its tiles, and subsampling of components
            size, offset, tile, tile_offset = (_pair(start, at + place) for place in (6, 14, 22, 30))
            components = int.from_bytes(start[at + 38 : at + 40])
            dense = start[at + 40 : at + 40 + 3 * components]
            if any(offset + tile_offset) or set(dense[1::3] + dense[2::3]) != {1}:
                return 0
            several = [side for side, full in zip(tile, size, strict=True) if 0 < side < full]
            counts += [(side & -side).bit_length() - 1 for side in several]  # or Pillow would misplace the tiles
            wide = int(components > 256)  # component indices are then longer
        elif kind in (b"\x52", b"\x53"):
            place = at + (9 if kind == b"\x52" else 6 + wide)
            counts.append(int.from_bytes(start[place : place + 1]))
        at += 2 + length
    return min(counts, default=0)


def _pair(data: bytes, at: int) -> tuple[int, int]:
    return int.from_bytes(data[at : at + 4]), int.from_bytes(data[at + 4 : at + 8])


_HEVC = frozenset((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"))
"""Brands of HEIF files with HEVC images; Pillow itself reads those with AV1 (AVIF)."""
_RAW_MARKS = (b"FUJIFILMCCD-RAW", b"IIU\0", b"IIRO", b"IIRS", b"MMOR")
"""First bytes of RAW files that are neither TIFF nor HEIF: RAF, RW2 and ORF."""
_TIFF_MARKS = (b"II*\0", b"MM\0*")
_DNG_VERSION, _SUB_FILE, _SUB_IFDS, _PHOTOMETRIC = 50706, 254, 330, 262
_SENSOR = (32803, 34892)
"""Photometric interpretations of sensor values, with a colour mosaic and without."""
_ORIENTATIONS = (1, 2, 4, 3, 5, 8, 6, 7)
"""EXIF orientations by LibRaw's flip code."""
_UNTURNED = {6: 8, 8: 6}
"""Inverse of each orientation that is not its own inverse."""
SAME_SHAPE = 0.02
"""A preview is cropped, and not used, if its aspect ratio differs by more than this from the sensor image's."""


def photo_kind(start: bytes, raw: bool, opened: Callable[[], IO[bytes]]) -> str | None:
    """Return Pillow's format name, ``HEIF`` or ``RAW``, of a file that Pillow cannot read alone, or None.

    ``start`` is the first 64 bytes of the file. A file with the name of a RAW file (``raw``) counts as one if it begins
    like TIFF. Other TIFF files are ``opened`` to read their tags.
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
    with opened() as file, contextlib.suppress(Exception):  # Pillow will report damage
        file.seek(tags.next)
        tags.load(file)
    if _DNG_VERSION in tags or tags.get(_PHOTOMETRIC) in _SENSOR or (tags.get(_SUB_FILE) == 1 and _SUB_IFDS in tags):
        return "RAW"
    return None


def photo_opener(kind: str) -> Callable[[Any], Image.Image]:
    """Return the opener of a format; it is not registered with Pillow, which would try it on everybody's TIFF files.

    ``ModuleNotFoundError`` without the extra ``photos``.
    """
    if kind == "HEIF":
        return importlib.import_module("pillow_heif").HeifImageFile
    importlib.import_module("rawpy")
    return RawFile


class RawFile(ImageFile.ImageFile):
    """A RAW file, read as its largest preview in sensor orientation, or at half resolution if that is too small.

    The size is that of the sensor image until :meth:`draft` or :meth:`load` chooses what to decode.
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
        """Choose what to decode: the preview if its long side reaches that of ``size``, else half the resolution."""
        if self._chosen:
            return
        self._chosen = True
        width, height = self._full
        least = min(max(size or self._full), -(-max(self._full) // 2))  # half the resolution gives no more
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
        """Return the largest preview, not yet decoded, and set ``_back``, the turn to the sensor's orientation."""
        rawpy: Any = importlib.import_module("rawpy")
        try:
            thumb = self._call(self._raw.extract_thumb)
            if thumb.format == rawpy.ThumbFormat.BITMAP:
                preview = Image.fromarray(thumb.data)
            else:
                preview = Image.open(io.BytesIO(thumb.data), formats=["JPEG"])
        except (ValueError, TypeError, OSError):
            return None
        own = preview.getexif().get(ORIENTATION, self._turn)  # LibRaw gives a preview without EXIF the file's own
        if own != self._turn:
            preview = preview.transpose(TURNS[own]) if own in TURNS else preview
        elif _same_shape(preview.size, self._full):
            return preview
        if _same_shape(preview.size, self._full[::-1] if self._turn in LYING else self._full):
            self._back = TURNS.get(_UNTURNED.get(self._turn, self._turn))
            return preview
        return None

    def load(self) -> Any:
        """Decode what :meth:`draft` chose."""
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

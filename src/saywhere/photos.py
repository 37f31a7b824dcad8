"""Files of phones and cameras for Pillow: HEIF by pillow-heif, and the previews of RAW files by LibRaw (rawpy)."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from collections.abc import Callable
from typing import IO, Any

from PIL import Image, ImageFile

from saywhere.pixels import LYING, ORIENTATION, TURNS

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


def kind(start: bytes, raw: bool, opened: Callable[[], IO[bytes]]) -> str | None:
    """Return Pillow's name of the format, ``HEIF`` or ``RAW``, of a file that Pillow cannot read alone, or None.

    Args:
        start: of the file, 64 bytes of it.
        raw: whether its name is that of a RAW file, which counts if it begins as TIFF does.
        opened: opens the file, which is read where it begins as TIFF does.
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


def opener(kind: str) -> Callable[[Any], Image.Image]:
    """Return what opens files of a kind; Pillow does not learn it, for it would try each TIFF that others open.

    Raises:
        ModuleNotFoundError: the extra ``photos`` is not installed.
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

"""Images from files, arrays and PIL: decoding to upright RGB, and preprocessing for a network."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import re
import stat
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from PIL import Image, UnidentifiedImageError

from saywhere.errors import UserError
from saywhere.files import TAR, printable, write_atomically
from saywhere.options import dataclass
from saywhere.pixels import (
    DECODING,
    LYING,
    decoding_bytes,
    learn_tiffs,
    orientation,
    photo_kind,
    photo_opener,
    reduce_jpeg2000,
    stored_size,
    upright_rgb,
)
from saywhere.report import leave_out

T = TypeVar("T")
U = TypeVar("U")

ImageLike = str | Path | Image.Image | np.ndarray

MAX_PIXELS = 150_000_000
"""Larger images are refused before decoding."""

DRAWN_SIDES = (800, 1600)
"""Range of the long side of drawn images; small ones are enlarged so that captions are legible."""
RAW_SUFFIXES = frozenset((".cr2", ".cr3", ".nef", ".arw", ".dng", ".raf", ".orf", ".rw2"))
"""File extensions of camera RAW files."""
SUFFIXES = RAW_SUFFIXES | frozenset((
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".gif", ".bmp", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif",
    ".heic", ".heif", ".hif",
))  # fmt: skip
"""File extensions that are read in a folder; a file named explicitly may have any."""
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "JPEG2000", "AVIF", "PPM")
"""Pillow formats that are read, besides those of :mod:`saywhere.pixels`. Formats that run another program, or have no
signature, are left out."""
PLUGINS = ("Jpeg", "Mpo", "Png", "Gif", "Bmp", "WebP", "Tiff", "Jpeg2K", "Avif", "Ppm")
"""Pillow plugins for FORMATS; importing all plugins takes longer than decoding an image."""

_COMMON = {b"\xff\xd8\xff": "Jpeg", b"\x89PNG": "Png"}
"""First bytes of the most common formats, for which one plugin suffices."""

_PACKED = (b"\x1f\x8b", b"PK\3\4", b"\xfd7zXZ", b"\x28\xb5\x2f\xfd", b"BZh")
"""First bytes of compressed files and archives."""

NEEDS_PHOTOS = "HEIC and RAW images need an extra: pip install 'saywhere[photos]'"
"""Message for a phone or camera image without that extra."""

NAMELESS = "<image>"
"""Name of an image that is not from a file."""


class ImageError(UserError):
    """An image that cannot be read; the message is one line and names the image.

    Example:
        >>> try:
        ...     saywhere.load().describe("no.jpg")
        ... except saywhere.ImageError as error:
        ...     print(error)
        no.jpg: no such file
    """


class MissingImageError(ImageError):
    """There is no file with this name."""


class DiskSize(NamedTuple):
    """Size of an image file in pixels as a viewer shows it, and its EXIF orientation."""

    width: int
    height: int
    orientation: int


def flip(boxes: np.ndarray, orientation: int, width: float = 1, height: float = 1) -> np.ndarray:
    """Mirror boxes ``(N, 4)`` by EXIF orientation; boxes and image size are both in pixels, or boxes are fractions."""
    x1, y1, x2, y2 = boxes.T
    if orientation in (2, 3, 7, 8):
        x1, x2 = width - x2, width - x1
    if orientation in (3, 4, 6, 7):
        y1, y2 = height - y2, height - y1
    return np.stack((x1, y1, x2, y2), axis=-1)


def to_upright(boxes: np.ndarray, orientation: int, width: float = 1, height: float = 1) -> np.ndarray:
    """Convert boxes ``(N, 4)`` of an image as stored, with that size, to the upright image, by EXIF orientation."""
    flipped = flip(boxes, orientation, width, height)
    return flipped[:, [1, 0, 3, 2]] if orientation in LYING else flipped


@dataclass(frozen=True)
class LoadedImage:
    """An upright RGB image.

    Attributes:
        pixels: the RGB image; smaller than ``width x height`` if it was decoded for a given ``long_side``.
        width, height: image size as a viewer shows it (after EXIF rotation), in pixels.
        name: source of the image, for messages.
    """

    pixels: Image.Image
    width: int
    height: int
    name: str = NAMELESS


def open_image(source: ImageLike | LoadedImage, long_side: int | None = None) -> LoadedImage:
    """Open a path, a PIL image or an ``(H, W)`` / ``(H, W, 3 or 4)`` uint8 or float [0, 1] array.

    A path can lead into a tar archive: ``shard.tar/a.jpg``.

    The result is upright RGB: EXIF rotation is applied, and grey, palette, CMYK, 16-bit and transparent images (on
    white) are converted. An animation gives its first frame. With ``long_side``, a large image from a file is reduced
    by an integer factor that keeps at least that many pixels on its long side; a JPEG is decoded at the smaller size,
    which is much faster. Boxes still refer to ``width x height``.

    Raises:
        ImageError: it is not an image, damaged, empty, or larger than ``MAX_PIXELS`` pixels.
    """
    if isinstance(source, LoadedImage):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), str(source), long_side)
    if not isinstance(source, Image.Image):
        source = _from_array(source)
    name = str(getattr(source, "filename", "") or NAMELESS)
    _check_size(source, name, MAX_PIXELS)
    try:
        pixels, _ = upright_rgb(source)
    except (OSError, SyntaxError, ValueError) as error:  # PIL decodes lazily
        raise ImageError(f"{name}: damaged image ({' '.join(str(error).split())})") from error
    return LoadedImage(pixels, *pixels.size, name=name)


def read_image(
    data: bytes, name: str, long_side: int | None = None, max_pixels: int | None = None, refuse_slow: bool = False
) -> LoadedImage:
    """Open an image file in memory; otherwise as :func:`open_image`.

    Args:
        name: name of the image for messages.
        max_pixels: larger images are refused before decoding. Default: ``MAX_PIXELS``.
        refuse_slow: also refuse a large JPEG 2000 without a stored resolution near ``long_side`` (most have one). Its
            decoder blocks all threads of the process, for about a second per megapixel.
    """
    if not data:
        raise ImageError(f"{name}: empty file")
    source = io.BytesIO(data)
    with opened(source, name, max_pixels) as image:
        return _decode(image, source, name, long_side, refuse_slow)


def readable(items: Iterable[T], read: Callable[[T], U]) -> Iterator[tuple[T, U]]:
    """Yield each item whose image ``read`` can open, with the result, and report the other items."""
    for item in items:
        try:
            found = read(item)
        except ImageError as error:
            leave_out(f"skipped: {error}")
        else:
            yield item, found


def measure(path: str | Path) -> DiskSize:
    """Return the size of an image file as :func:`open_image` does, mostly from its header; same errors."""
    with opened(Path(path), str(path)) as image, DECODING.take(decoding_bytes(image, image.size)):
        return _upright(*stored_size(image), orientation(image))


def _is_video(begin: bytes) -> bool:
    """Return whether a file begins as MP4, QuickTime, Matroska, WebM or AVI files do."""
    if begin[4:8] == b"ftyp":  # images of the same container are HEIF and AVIF
        return begin[8:10] not in (b"av", b"he", b"mi", b"ms")
    return begin[4:8] in (b"moov", b"mdat") or begin[:4] == b"\x1aE\xdf\xa3" or begin[8:12] == b"AVI "


def _open_file(path: Path, name: str, long_side: int | None) -> LoadedImage:
    if TAR in name and (data := _read_member(path, name)) is not None:
        return read_image(data, name, long_side)
    with opened(path, name) as image:
        return _decode(image, path, name, long_side)


def _read_member(path: Path, name: str) -> bytes | None:
    """Return the bytes of an image in an archive; None if the path is that of a file."""
    from saywhere import archives

    try:
        if not archives.is_archive(path):
            if (target := archives.broken_link(path)) is not None:
                raise ImageError(f"{name}: is a link to {printable(target)}, which is no file of the archive")
            return archives.read_member(path)
        damage = archives.list_archive(path).damage
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None
    except MemoryError:
        raise ImageError(f"{name}: needs more memory than there is") from None
    raise ImageError(f"{name}: {damage or 'is an archive, not an image'}")


@contextlib.contextmanager
def opened(source: Path | io.BytesIO, name: str | None = None, max_pixels: int | None = None) -> Iterator[Image.Image]:
    """Yield an opened, not yet decoded file; all errors, also those during the context, become ``ImageError``."""
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    name = str(source) if name is None else name
    if isinstance(source, Path):
        _check_file(source, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about corrupt EXIF and the like; serious damage raises
            with _open(source, name) as image:
                _check_size(image, name, max_pixels)
                yield image
    except ImageError:
        raise
    except UnidentifiedImageError:
        from saywhere import archives

        begin, hint = _start(source, archives.BLOCK), ""
        if begin.startswith(_PACKED) or archives.is_tar(begin):
            hint = f"; of archives only those are read that are not compressed and called NAME{TAR}"
        elif _is_video(begin):
            hint = "; it is a video, which saywhere describe NAME.mp4 and saywhere.follow read"
        raise ImageError(f"{name}: not an image in a known format{hint}") from None
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        size = f"{int(pixels[1]) // 1_000_000} megapixels are " if pixels else ""
        raise ImageError(f"{name}: {size}over the limit of {max_pixels // 1_000_000} megapixels") from None
    except MemoryError:
        raise ImageError(f"{name}: needs more memory than there is") from None
    except Exception as error:  # Pillow raises anything for damaged files: struct.error, KeyError, SyntaxError
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = "cannot be read" if isinstance(error, OSError) and error.errno else "damaged image"
        raise ImageError(f"{name}: {kind} ({reason})") from error


def _check_file(path: Path, name: str) -> None:
    """Refuse anything but a nonempty regular file; reading a pipe could block forever."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingImageError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if stat.S_ISDIR(status.st_mode):
        try:
            os.scandir(path).close()
        except OSError as error:
            raise ImageError(f"{name}: this folder cannot be read ({error.strerror})") from None
        raise ImageError(f"{name}: is a folder, not an image")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{name}: not a regular file")
    if status.st_size == 0:
        raise ImageError(f"{name}: empty file")
    if not os.access(path, os.R_OK):
        raise ImageError(f"{name}: no permission to read it")


def _open(source: Path | io.BytesIO, name: str) -> Image.Image:
    """Open a file with the matching Pillow plugins, or with the extra ``photos``."""
    start = _start(source, 64)
    plugins = next(((plugin,) for mark, plugin in _COMMON.items() if start.startswith(mark)), None)
    raw = Path(name).suffix.lower() in RAW_SUFFIXES
    if plugins is None and (kind := photo_kind(start, raw, lambda: _stream(source))):
        try:
            opener = photo_opener(kind)
        except ModuleNotFoundError:
            raise ImageError(f"{name}: {NEEDS_PHOTOS}") from None
        return opener(source)
    for plugin in plugins or PLUGINS:
        with contextlib.suppress(ImportError):  # AVIF came with Pillow 11.3
            importlib.import_module(f"PIL.{plugin}ImagePlugin")
            if plugin == "Tiff":
                learn_tiffs()
    return Image.open(source, formats=[name for name in FORMATS if name in Image.OPEN])


def _stream(source: Path | io.BytesIO) -> BinaryIO:
    """Return a stream at the beginning of a file."""
    return source.open("rb") if isinstance(source, Path) else io.BytesIO(source.getbuffer())


def _start(source: Path | io.BytesIO, count: int) -> bytes:
    """Return the first bytes of a file."""
    if not isinstance(source, Path):
        return source.getbuffer()[:count].tobytes()
    with source.open("rb") as file:
        return file.read(count)


def _decode(
    image: Image.Image, source: Path | io.BytesIO, name: str, long_side: int | None, refuse_slow: bool = False
) -> LoadedImage:
    """Decode an opened file to upright RGB, at no more resolution than needed, with the size that a viewer shows."""
    full = stored_size(image)
    if long_side is not None and image.format == "JPEG2000":
        reduce_jpeg2000(image, _start(source, 1 << 20), long_side)
        if refuse_slow and max(image.size) > 2 * long_side:
            raise ImageError(f"{name}: a JPEG 2000 of {full[0]} x {full[1]} takes too long; make it a JPEG or a PNG")
    elif long_side is not None:
        factor = min(1.0, long_side / max(full))
        image.draft("RGB", (max(1, math.ceil(full[0] * factor)), max(1, math.ceil(full[1] * factor))))

    with DECODING.take(decoding_bytes(image, full)):
        pixels, turn = upright_rgb(image, long_side)
    width, height, _ = _upright(*full, turn)
    return LoadedImage(pixels, width, height, name)


def _upright(width: int, height: int, turn: int) -> DiskSize:
    """Return the size that a viewer shows for an image of this stored size and orientation."""
    return DiskSize(height, width, turn) if turn in LYING else DiskSize(width, height, turn)


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width == 0 or height == 0:
        raise ImageError(f"{name}: image without pixels ({width} x {height})")
    if width * height > max_pixels:
        raise ImageError(f"{name}: {width} x {height} is over the limit of {max_pixels // 1_000_000} megapixels")


def _from_array(array: Any) -> Image.Image:
    array = np.asarray(array)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        raise ImageError(f"an array image must have shape (H, W), (H, W, 3) or (H, W, 4), not {array.shape}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ImageError("a float array image must have values from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an array image must have dtype uint8 or float, not {array.dtype}")
    return Image.fromarray(array)


def resized(image: LoadedImage, least: int, most: int) -> Image.Image:
    """Return the pixels of an image, resized if its long side is not between ``least`` and ``most``."""
    long_side = max(image.width, image.height)
    target = min(max(long_side, least), most)
    size = (max(1, image.width * target // long_side), max(1, image.height * target // long_side))
    if size == image.pixels.size:
        return image.pixels
    return image.pixels.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


def save_image(path: Path, image: Image.Image) -> None:
    """Write an image atomically, as PNG if the name ends in .png, else as JPEG."""
    if path.suffix.lower() == ".png":
        write_atomically(path, lambda stream: image.save(stream, "PNG"))
    else:
        write_atomically(path, lambda stream: image.save(stream, "JPEG", quality=92))


@dataclass(frozen=True)
class Preprocess:
    """Preprocessing of images for a network: resizing, then ``(value - mean) / std`` of values in [0, 1].

    Attributes:
        long_side: length of the longer side after resizing, in pixels.
        multiple: both sides are rounded to multiples of this, which changes each by at most half of it.
        mean, std: per channel, R G B.
    """

    long_side: int
    multiple: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Return width and height after resizing, at least ``multiple`` each."""
        factor = self.long_side / max(width, height)
        w, h = (max(self.multiple, round(side * factor / self.multiple) * self.multiple) for side in (width, height))
        return w, h

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return pixels ``(3, h, w)`` float32, resized (bilinear with antialiasing) and normalised."""
        size = self.size(image.width, image.height)
        resized = image.pixels.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
        pixels = np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1)).astype(np.float32)
        mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        pixels /= np.float32(255)  # in place: allocating arrays of this size costs more than the arithmetic
        pixels -= mean
        pixels /= std
        return pixels

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Convert preprocessed pixels ``(3, h, w)`` back to ``(h, w, 3)`` uint8, R G B."""
        mean, std = np.asarray(self.mean, np.float32), np.asarray(self.std, np.float32)
        return np.round((pixels.transpose(1, 2, 0) * std + mean) * 255).astype(np.uint8)

"""Images from files, arrays and PIL, upright and in RGB, and their way into a network."""

from __future__ import annotations

import contextlib
import importlib
import io
import math
import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from saywhere import archives
from saywhere.errors import UserError

ImageLike = str | Path | Image.Image | np.ndarray

MAX_PIXELS = 150_000_000
"""Larger images are refused before they are decoded."""

SUFFIXES = frozenset(
    (
        ".jpg",
        ".jpeg",
        ".jpe",
        ".jfif",
        ".png",
        ".gif",
        ".bmp",
        ".webp",
        ".tif",
        ".tiff",
        ".ppm",
        ".pgm",
        ".jp2",
        ".avif",
    )
)
"""Files with these endings are taken from a folder; a file named by itself may have any ending."""
FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "JPEG2000", "AVIF", "PPM", "ICO")
"""Formats of Pillow that are read; not those that run another program, or have no mark by which to know them."""
PLUGINS = ("Jpeg", "Mpo", "Png", "Gif", "Bmp", "WebP", "Tiff", "Jpeg2K", "Avif", "Ppm", "Ico")
"""Pillow's modules for them: all of its modules take longer to import than an image takes to decode."""

_COMMON = {b"\xff\xd8\xff": "Jpeg", b"\x89PNG": "Png"}
"""How files of the most common formats begin: for them one module of Pillow is enough."""

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

ORIENTATION = 0x0112
"""The EXIF tag of the turn, 1 to 8, that shows an image upright."""

TIFF_WIDTH, TIFF_HEIGHT = 256, 257

LYING = (5, 6, 7, 8)
"""EXIF orientations whose upright image has width and height exchanged."""


class ImageError(UserError):
    """An image that cannot be read; the message is one line that names it."""


class MissingImageError(ImageError):
    """There is no file of this name."""


class DiskSize(NamedTuple):
    """Size of an image file in pixels as a viewer shows it, and the EXIF orientation by which it does."""

    width: int
    height: int
    orientation: int


@dataclass(frozen=True)
class LoadedImage:
    """An upright RGB image.

    Attributes:
        pixels: the RGB image; smaller than ``width x height`` if it was decoded for a given ``long_side``.
        width, height: size of the image as a viewer shows it (after EXIF rotation), in pixels.
        name: where it comes from, for reports.
    """

    pixels: Image.Image
    width: int
    height: int
    name: str = "<image>"


def open_image(source: ImageLike | LoadedImage, long_side: int | None = None) -> LoadedImage:
    """Open a path, a PIL image or an ``(H, W)`` / ``(H, W, 3 or 4)`` uint8 or float [0, 1] array.

    A path may lead into a tar archive: ``shard.tar/a.jpg``.

    EXIF rotation is applied; grey, palette, CMYK, 16-bit and transparent images become RGB (transparency on white);
    of an animation the first frame counts. With ``long_side``, a large image from a file is made smaller by a whole
    number that leaves at least that many pixels on its long side (a JPEG is decoded at that fraction, which is much
    faster); boxes are in ``width x height`` all the same.

    Raises:
        ImageError: not an image, damaged, empty, or more than ``MAX_PIXELS`` pixels.
    """
    if isinstance(source, LoadedImage):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), str(source), long_side)
    if not isinstance(source, Image.Image):
        source = _from_array(source)
    name = str(getattr(source, "filename", "") or "<image>")
    _check_size(source, name, MAX_PIXELS)
    try:
        pixels = _to_rgb(source)
    except (OSError, SyntaxError, ValueError) as error:  # PIL decodes a file when its pixels are first used
        raise ImageError(f"{name}: damaged image ({' '.join(str(error).split())})") from error
    return LoadedImage(pixels, *pixels.size, name=name)


def read_image(data: bytes, name: str, long_side: int | None = None, max_pixels: int | None = None) -> LoadedImage:
    """Open an image file that is in memory, as :func:`open_image` opens one on the disk.

    Args:
        data: the file's bytes.
        name: what messages call it.
        long_side: see :func:`open_image`.
        max_pixels: larger images are refused before they are decoded; ``MAX_PIXELS`` if None.

    Raises:
        ImageError: not an image, damaged, empty, or more than ``max_pixels`` pixels.
    """
    if not data:
        raise ImageError(f"{name}: empty file")
    with _opened(io.BytesIO(data), name, max_pixels) as image:
        return _decode(image, name, long_side)


def measure(path: str | Path) -> DiskSize:
    """Width and height of an image file as :func:`open_image` gives them, mostly from its header alone.

    Raises:
        MissingImageError: there is no such file.
        ImageError: not an image, a damaged header, empty, or more than ``MAX_PIXELS`` pixels.
    """
    with _opened(Path(path), str(path)) as image:
        return _upright_size(image)


def _open_file(path: Path, name: str, long_side: int | None) -> LoadedImage:
    if archives.SUFFIX in name and (data := _read_member(path, name)) is not None:
        return read_image(data, name, long_side)
    with _opened(path, name) as image:
        return _decode(image, name, long_side)


def _read_member(path: Path, name: str) -> bytes | None:
    """The bytes of an image in an archive; None if the path is that of a file."""
    try:
        if not archives.is_archive(path):
            return archives.read_member(path)
        damage = archives.list_archive(path).damage
    except OSError as error:
        raise ImageError(f"{name}: cannot be read ({error.strerror})") from None
    except MemoryError:
        raise ImageError(f"{name}: needs more memory than there is") from None
    raise ImageError(f"{name}: {damage or 'is an archive, not an image'}")


@contextlib.contextmanager
def _opened(source: Path | io.BytesIO, name: str, max_pixels: int | None = None) -> Iterator[Image.Image]:
    """An opened file, not yet decoded; whatever is wrong with it, also while it is used, is an ``ImageError``."""
    max_pixels = MAX_PIXELS if max_pixels is None else max_pixels
    if isinstance(source, Path):
        _check_file(source, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and the like: what matters raises
            with Image.open(source, formats=_formats(source)) as image:
                _check_size(image, name, max_pixels)
                yield image
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: not an image in a known format") from None
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        size = f"{int(pixels[1]) // 1_000_000} megapixels are " if pixels else ""
        raise ImageError(f"{name}: {size}over the limit of {max_pixels // 1_000_000} megapixels") from None
    except MemoryError:
        raise ImageError(f"{name}: needs more memory than there is") from None
    except Exception as error:  # on damaged files Pillow's encoders raise anything: struct.error, KeyError, SyntaxError
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = "cannot be read" if isinstance(error, OSError) and error.errno else "damaged image"
        raise ImageError(f"{name}: {kind} ({reason})") from error


def _check_file(path: Path, name: str) -> None:
    """Refuse what is no file with something in it; a pipe would wait for ever to be written to."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        raise MissingImageError(f"{name}: no such file") from None
    except (OSError, ValueError) as error:
        raise ImageError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if stat.S_ISDIR(status.st_mode):
        raise ImageError(f"{name}: is a folder")
    if not stat.S_ISREG(status.st_mode):
        raise ImageError(f"{name}: not a regular file")
    if status.st_size == 0:
        raise ImageError(f"{name}: empty file")
    if not os.access(path, os.R_OK):
        raise ImageError(f"{name}: no permission to read it")


def _formats(source: Path | io.BytesIO) -> list[str]:
    """Those of ``FORMATS`` that a file may have and this Pillow can read; their modules are imported."""
    if isinstance(source, Path):
        with source.open("rb") as file:
            start = file.read(4)
    else:
        start = source.getvalue()[:4]
    for plugin in next(((name,) for mark, name in _COMMON.items() if start.startswith(mark)), PLUGINS):
        with contextlib.suppress(ImportError):  # AVIF came with Pillow 11.3
            importlib.import_module(f"PIL.{plugin}ImagePlugin")
    return [name for name in FORMATS if name in Image.OPEN]


def _decode(image: Image.Image, name: str, long_side: int | None) -> LoadedImage:
    """The upright RGB pixels of an opened file, no more of them than needed, and the size that a viewer shows."""
    size = _upright_size(image)
    if long_side is not None:
        full = image.size
        factor = min(1.0, long_side / max(full))
        image.draft("RGB", (max(1, math.ceil(full[0] * factor)), max(1, math.ceil(full[1] * factor))))
    pixels = _to_rgb(image)
    if long_side is not None and (shrink := max(pixels.size) // long_side) > 1:
        pixels = pixels.reduce(min(shrink, *pixels.size))
    return LoadedImage(pixels, size.width, size.height, name)


def _upright_size(image: Image.Image) -> DiskSize:
    """The size that a viewer shows, of an opened file."""
    orientation = _orientation(image)
    width, height = _stored_size(image)
    if orientation in LYING:
        width, height = height, width
    return DiskSize(width, height, orientation)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Width and height before any turn; some versions of Pillow give those of a TIFF after it."""
    tags = getattr(image, "tag_v2", {})
    return (tags[TIFF_WIDTH], tags[TIFF_HEIGHT]) if TIFF_WIDTH in tags and TIFF_HEIGHT in tags else image.size


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; an image whose EXIF block cannot be read is taken as upright."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged EXIF block raises anything, and the pixels may be sound
        return 1


def _check_size(image: Image.Image, name: str, max_pixels: int) -> None:
    width, height = image.size
    if width == 0 or height == 0:
        raise ImageError(f"{name}: image without pixels ({width} x {height})")
    if width * height > max_pixels:
        raise ImageError(f"{name}: {width} x {height} is over the limit of {max_pixels // 1_000_000} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    """Upright pixels in RGB, without the file's own notes: its orientation would turn them once more."""
    pixels = _upright(image)
    pixels.info.clear()
    return pixels


def _upright(image: Image.Image) -> Image.Image:
    image.load()  # before the question for its orientation: Pillow turns a TIFF itself, and takes the mark off
    if (turn := _TURNS.get(_orientation(image))) is not None:
        image = image.transpose(turn)
    if image.mode.startswith(("I", "F")):
        return _from_high_range(image)
    if image.mode in ("RGBA", "LA", "PA", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")


def _from_high_range(image: Image.Image) -> Image.Image:
    """A 16-bit, 32-bit or float grey image in 8 bits, scaled by the range of its format or else of itself.

    Of integers in 32 bits that are all below 256, or below 65,536, that is the range.
    """
    values = np.asarray(image, dtype=np.float32)
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    largest = float(values.max(initial=0))
    least = 255.0 if image.mode == "I" and largest <= 255 else 65535.0
    top = max(largest, least if image.mode.startswith("I") else 1.0)
    levels = (values / top * 255).round().clip(0, 255)
    return Image.fromarray(levels.astype(np.uint8)).convert("RGB")


def _from_array(array: Any) -> Image.Image:
    array = np.asarray(array)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        raise ImageError(f"an array image has shape (H, W), (H, W, 3) or (H, W, 4), not {array.shape}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if np.issubdtype(array.dtype, np.floating):
        if not np.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ImageError("a float array image has values from 0 to 1")
        array = (array * 255).round().astype(np.uint8)
    if array.dtype != np.uint8:
        raise ImageError(f"an array image has dtype uint8 or float, not {array.dtype}")
    return Image.fromarray(array)


@dataclass(frozen=True)
class Preprocess:
    """How a network wants its images: size, then ``(value - mean) / std`` of values in [0, 1].

    Attributes:
        long_side: pixels of the longer side after resizing.
        multiple: both sides are rounded to multiples of this, at most half of it away from the true aspect ratio.
        mean, std: per channel, R G B.
    """

    long_side: int
    multiple: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after resizing; at least ``multiple`` each."""
        factor = self.long_side / max(width, height)
        w, h = (max(self.multiple, round(side * factor / self.multiple) * self.multiple) for side in (width, height))
        return w, h

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return pixels ``(3, h, w)`` float32, resized (bilinear with antialiasing) and normalised."""
        size = self.size(image.width, image.height)
        resized = image.pixels.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
        pixels = np.ascontiguousarray(np.asarray(resized).transpose(2, 0, 1)).astype(np.float32)
        mean, std = (np.asarray(values, np.float32)[:, None, None] for values in (self.mean, self.std))
        pixels /= np.float32(255)  # in place: new arrays of this size cost more than the arithmetic
        pixels -= mean
        pixels /= std
        return pixels

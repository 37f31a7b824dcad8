"""Pictures from files, arrays and PIL, upright and in RGB, and their way into a network."""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import TiffImageFile

from saywhere.errors import UserError

if TYPE_CHECKING:
    import numpy
    from torch import Tensor

    ImageLike = str | Path | Image.Image | numpy.ndarray

MAX_PIXELS = 150_000_000
"""Larger pictures are refused before they are decoded."""

FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "DIB", "WEBP", "TIFF", "JPEG2000", "AVIF", "PPM", "ICO")
"""Formats of Pillow that are read; not those that run another program, or have no mark by which to know them."""

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
"""The EXIF tag of the turn, 1 to 8, that shows a picture upright."""

TIFF_WIDTH, TIFF_HEIGHT = 256, 257

LYING = (5, 6, 7, 8)
"""EXIF orientations whose upright picture has width and height exchanged."""


class ImageError(UserError):
    """A picture that cannot be read; the message is one line that names it."""


class MissingImageError(ImageError):
    """There is no file of this name."""


class DiskSize(NamedTuple):
    """Size of a picture file in pixels as a viewer shows it, and the EXIF orientation by which it does."""

    width: int
    height: int
    orientation: int


@dataclass(frozen=True)
class Picture:
    """An upright RGB picture.

    Attributes:
        pixels: the RGB image; smaller than ``width x height`` if it was decoded for a given ``long_side``.
        width, height: size of the picture as a viewer shows it (after EXIF rotation), in pixels.
        name: where it comes from, for reports.
    """

    pixels: Image.Image
    width: int
    height: int
    name: str = "<image>"


def open_picture(source: ImageLike | Picture, long_side: int | None = None) -> Picture:
    """Open a path, a PIL image or an ``(H, W)`` / ``(H, W, 3 or 4)`` uint8 or float [0, 1] array.

    EXIF rotation is applied; grey, palette, CMYK, 16-bit and transparent pictures become RGB (transparency on white);
    of an animation the first frame counts. With ``long_side``, a large picture from a file is made smaller by a whole
    number that leaves at least that many pixels on its long side (a JPEG is decoded at that fraction, which is much
    faster); boxes are in ``width x height`` all the same.

    Raises:
        ImageError: not a picture, damaged, empty, or more than ``MAX_PIXELS`` pixels.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), str(source), long_side)
    if not isinstance(source, Image.Image):
        source = _from_array(source)
    name = str(getattr(source, "filename", "") or "<image>")
    _check_size(source, name)
    try:
        pixels = _to_rgb(source)
    except (OSError, SyntaxError, ValueError) as error:  # PIL decodes a file when its pixels are first used
        raise ImageError(f"{name}: damaged picture ({' '.join(str(error).split())})") from error
    return Picture(pixels, *pixels.size, name=name)


def measure(path: str | Path) -> DiskSize:
    """Width and height of a picture file as :func:`open_picture` gives them, mostly from its header alone.

    Raises:
        MissingImageError: there is no such file.
        ImageError: not a picture, a damaged header, empty, or more than ``MAX_PIXELS`` pixels.
    """
    with _opened(Path(path), str(path)) as image:
        return _upright_size(image)


def _open_file(path: Path, name: str, long_side: int | None) -> Picture:
    with _opened(path, name) as image:
        return _decode(image, name, long_side)


@contextlib.contextmanager
def _opened(path: Path, name: str) -> Iterator[Image.Image]:
    """An opened file, not yet decoded; whatever is wrong with it, also while it is used, is an ``ImageError``."""
    _check_file(path, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt EXIF and the like: what matters raises
            with Image.open(path, formats=_formats()) as image:
                _check_size(image, name)
                yield image
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"{name}: not a picture in a known format") from None
    except Image.DecompressionBombError as error:
        pixels = re.search(r"\((\d+) pixels\)", str(error))
        size = f"{int(pixels[1]) // 1_000_000} megapixels are " if pixels else ""
        raise ImageError(f"{name}: {size}over the limit of {MAX_PIXELS // 1_000_000} megapixels") from None
    except MemoryError:
        raise ImageError(f"{name}: needs more memory than there is") from None
    except Exception as error:  # on damaged files Pillow's readers raise anything: struct.error, KeyError, SyntaxError
        reason = " ".join(str(error).split()) or type(error).__name__
        kind = "cannot be read" if isinstance(error, OSError) and error.errno else "damaged picture"
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


def _formats() -> list[str]:
    """Those of ``FORMATS`` that this Pillow can read."""
    Image.init()
    return [name for name in FORMATS if name in Image.OPEN]


def _decode(image: Image.Image, name: str, long_side: int | None) -> Picture:
    """The upright RGB pixels of an opened file, no more of them than needed, and the size that a viewer shows."""
    size = _upright_size(image)
    if long_side is not None:
        full = image.size
        factor = min(1.0, long_side / max(full))
        image.draft("RGB", (max(1, math.ceil(full[0] * factor)), max(1, math.ceil(full[1] * factor))))
    pixels = _to_rgb(image)
    if long_side is not None and (shrink := max(pixels.size) // long_side) > 1:
        pixels = pixels.reduce(min(shrink, *pixels.size))
    return Picture(pixels, size.width, size.height, name)


def _upright_size(image: Image.Image) -> DiskSize:
    """The size that a viewer shows, of an opened file."""
    orientation = _orientation(image)
    width, height = _stored_size(image)
    if orientation in LYING:
        width, height = height, width
    return DiskSize(width, height, orientation)


def _stored_size(image: Image.Image) -> tuple[int, int]:
    """Width and height before any turn; some versions of Pillow give those of a TIFF after it."""
    if isinstance(image, TiffImageFile) and TIFF_WIDTH in image.tag_v2 and TIFF_HEIGHT in image.tag_v2:
        return image.tag_v2[TIFF_WIDTH], image.tag_v2[TIFF_HEIGHT]
    return image.size


def _orientation(image: Image.Image) -> int:
    """EXIF orientation, 1 to 8; a picture whose EXIF block cannot be read is taken as upright."""
    try:
        return image.getexif().get(ORIENTATION, 1)
    except Exception:  # a damaged EXIF block raises anything, and the pixels may be sound
        return 1


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width == 0 or height == 0:
        raise ImageError(f"{name}: picture without pixels ({width} x {height})")
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width} x {height} is over the limit of {MAX_PIXELS // 1_000_000} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
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
    """A 16-bit, 32-bit or float grey picture in 8 bits, scaled by the range of its format or else of itself."""
    import numpy

    values = numpy.asarray(image, dtype=numpy.float32)
    values = numpy.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    top = max(float(values.max(initial=0)), 65535.0 if image.mode.startswith("I") else 1.0)
    levels = (values / top * 255).round().clip(0, 255)
    return Image.fromarray(levels.astype(numpy.uint8)).convert("RGB")


def _from_array(array: Any) -> Image.Image:
    import numpy

    array = numpy.asarray(array)
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or array.size == 0:
        raise ImageError(f"an array picture has shape (H, W), (H, W, 3) or (H, W, 4), not {array.shape}")
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if numpy.issubdtype(array.dtype, numpy.floating):
        if not numpy.isfinite(array).all() or array.min() < 0 or array.max() > 1:
            raise ImageError("a float array picture has values from 0 to 1")
        array = (array * 255).round().astype(numpy.uint8)
    if array.dtype != numpy.uint8:
        raise ImageError(f"an array picture has dtype uint8 or float, not {array.dtype}")
    return Image.fromarray(array)


@dataclass(frozen=True)
class Preprocess:
    """How a network wants its pictures: size, then ``(value - mean) / std`` of values in [0, 1].

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

    def __call__(self, picture: Picture) -> Tensor:
        """Pixels ``(3, h, w)`` float32, resized (bilinear with antialiasing) and normalised."""
        import numpy
        import torch

        size = self.size(picture.width, picture.height)
        resized = picture.pixels.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
        pixels = torch.from_numpy(numpy.array(resized)).permute(2, 0, 1).float() / 255
        mean, std = (pixels.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std

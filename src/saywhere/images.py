"""Pictures from files, arrays and PIL, upright and in RGB, and their way into a network."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from saywhere.errors import UserError

if TYPE_CHECKING:
    import numpy

    ImageLike = str | Path | Image.Image | numpy.ndarray

MAX_PIXELS = 150_000_000
"""Larger pictures are refused before they are decoded."""


class ImageError(UserError):
    """A picture that cannot be read; the message is one line that names it."""


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
    of an animation the first frame counts. With ``long_side``, a large JPEG is decoded at a fraction of its size that
    still has at least that many pixels on its long side; boxes are in ``width x height`` all the same.

    Raises:
        ImageError: not a picture, damaged, empty, or more than ``MAX_PIXELS`` pixels.
    """
    if isinstance(source, Picture):
        return source
    if isinstance(source, (str, Path)):
        return _open_file(Path(source), str(source), long_side)
    if not isinstance(source, Image.Image):
        source = _from_array(source)
    _check_size(source, "<image>")
    pixels = _to_rgb(source)
    return Picture(pixels, *pixels.size, name=getattr(source, "filename", "") or "<image>")


def _open_file(path: Path, name: str, long_side: int | None) -> Picture:
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")  # corrupt EXIF and the like: what matters raises
            _check_size(image, name)
            width, height = image.size
            if image.getexif().get(0x0112) in (5, 6, 7, 8):  # orientation: lying on its side
                width, height = height, width
            if long_side is not None:
                factor = long_side / max(image.size)
                image.draft("RGB", (round(image.size[0] * factor), round(image.size[1] * factor)))
            return Picture(_to_rgb(image), width, height, name)
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"{name}: no such file") from None
    except IsADirectoryError:
        raise ImageError(f"{name}: is a folder") from None
    except UnidentifiedImageError:
        reason = "empty file" if path.stat().st_size == 0 else "not a picture in a known format"
        raise ImageError(f"{name}: {reason}") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{name}: over the limit of {MAX_PIXELS // 1_000_000} megapixels") from None
    except (OSError, SyntaxError, ValueError, EOFError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{name}: damaged picture ({reason})") from error


def _check_size(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width == 0 or height == 0:
        raise ImageError(f"{name}: picture without pixels ({width} x {height})")
    if width * height > MAX_PIXELS:
        raise ImageError(f"{name}: {width} x {height} is over the limit of {MAX_PIXELS // 1_000_000} megapixels")


def _to_rgb(image: Image.Image) -> Image.Image:
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return _from_high_range(image)
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        image = image.convert("RGBA")
        background = Image.new("RGBA", image.size, (255, 255, 255, 255))
        return Image.alpha_composite(background, image).convert("RGB")
    return image.convert("RGB")


def _from_high_range(image: Image.Image) -> Image.Image:
    """A 16-bit, 32-bit or float grey picture in 8 bits, scaled by the range of its format or else of itself."""
    import numpy

    values = numpy.asarray(image, dtype=numpy.float32)
    top = 65535.0 if image.mode.startswith("I") and values.max(initial=0) <= 65535 else float(values.max(initial=0))
    if image.mode == "F" and top <= 1:
        top = 1.0
    levels = numpy.nan_to_num(values / max(top, 1e-6) * 255).clip(0, 255)
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
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height after resizing; at least ``multiple`` each."""
        factor = self.long_side / max(width, height)
        w, h = (max(self.multiple, round(side * factor / self.multiple) * self.multiple) for side in (width, height))
        return w, h

    def __call__(self, picture: Picture) -> Tensor:
        """Pixels ``(3, h, w)`` float32, resized (bilinear with antialiasing) and normalised."""
        import numpy

        size = self.size(picture.width, picture.height)
        resized = picture.pixels.resize(size, Image.Resampling.BILINEAR, reducing_gap=3.0)
        pixels = torch.from_numpy(numpy.array(resized)).permute(2, 0, 1).float() / 255
        mean, std = (pixels.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (pixels - mean) / std

"""What the readers of all formats share."""

from __future__ import annotations

import csv
import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import SUFFIXES, ImageError, measure
from saywhere.regions import Regions


class Row(NamedTuple):
    """One region as a format has it: ``x1 y1 x2 y2`` in pixels, its text, and its score if it has one."""

    box: tuple[float, float, float, float]
    caption: str
    score: float | None = None


@contextmanager
def explain(path: Path, format: str) -> Iterator[None]:
    """Turn what goes wrong in a file that is not in its format into one line.

    Raises:
        UserError: the file cannot be read, or something in it is missing or of the wrong kind.
    """
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{path}: not in the format {format}: {error} is missing (--from names another one)") from error
    except (TypeError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: not in the format {format}: a part of it is of another kind ({error})") from error
    except (ValueError, OverflowError, RecursionError, csv.Error, xml.ParseError) as error:
        raise UserError(f"{path}: not in the format {format}: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def to_regions(name: str, width: float, height: float, rows: Iterable[Row]) -> Regions:
    """Return the regions of an image; they have scores if all rows have.

    Raises:
        ValueError: a box is outside the image by more than rounding leaves it, or see :func:`checked`.
    """
    found, width, height = list(rows), int(width), int(height)
    boxes = np.array([row.box for row in found], np.float64).reshape(-1, 4)
    cut = geometry.clip(boxes, width, height)
    near = np.isfinite(boxes).all(axis=1) & (np.abs(cut - boxes) <= 1).all(axis=1)
    bad = np.flatnonzero(~near | (cut[:, 2:] < cut[:, :2]).any(axis=1))
    if len(bad):
        raise ValueError(f"the box {boxes[bad[0]].tolist()} is not inside {name}, {width} x {height}")
    scores = [row.score for row in found if row.score is not None]
    texts = tuple(row.caption for row in found)
    given = np.array(scores) if len(scores) == len(found) else None
    return checked(Regions(width, height, cut, given, texts, image=name))


def checked(regions: Regions) -> Regions:
    """Return regions that every format can hold.

    Raises:
        ValueError: the image has no name or no pixels, or a caption is no text.
    """
    name: object = regions.image
    if name is not None and (not isinstance(name, str) or "\0" in name):
        raise ValueError(f"{name!r} is not the name of an image")
    if min(regions.width, regions.height) < 1:
        raise ValueError(f"{name}: {regions.width} x {regions.height} is not the size of an image")
    texts: tuple[object, ...] = regions.captions or ()
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ValueError(f"{name}: the caption {wrong[0]!r} is not a text")
    return regions


def upright(rotation: str | float | None) -> None:
    """Refuse a rotated box: ``ValueError``."""
    if rotation and float(rotation) % 360:
        raise ValueError(f"a box is rotated by {rotation} degrees, and only upright ones can be read")


def in_pixels(values: Iterable[float], width: int, height: int) -> tuple[float, float, float, float]:
    """Return ``x1 y1 x2 y2`` in pixels of a box ``x y width height`` in shares of the image."""
    x, y, w, h = values
    return x * width, y * height, (x + w) * width, (y + h) * height


class ImagesByStem:
    """Find images by their names without folder and suffix, as some formats know them.

    Args:
        folder: of the images, with the folders in it.
        format: that does not say the sizes of images.

    Raises:
        UserError: no folder is given.
    """

    def __init__(self, folder: Path | None, format: str) -> None:
        if folder is None:
            raise UserError(f"the format {format} has no sizes of images: name their folder with --images DIR")
        self.folder = folder
        self._found: dict[str, list[Path]] = {}
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in SUFFIXES:
                self._found.setdefault(path.stem, []).append(path)

    def __getitem__(self, stem: str) -> tuple[str, int, int]:
        """Return path, width and height of an image; ``UserError`` if there is none, or several of this name."""
        paths = self._found.get(stem, [])
        if len(paths) != 1:
            raise UserError(f"{stem}: {len(paths)} images in {self.folder} have this name, and it must be one")
        try:
            size = measure(paths[0])
        except ImageError as error:
            raise UserError(str(error)) from error
        return str(paths[0]), size.width, size.height

"""What the readers of all formats share."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saywhere.errors import UserError
from saywhere.images import ImageError, measure
from saywhere.inference.sources import SUFFIXES
from saywhere.regions import Regions, check_boxes


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
        raise UserError(f"{path}: not in the format {format}: {error} is missing") from error
    except (UnicodeDecodeError, ValueError, TypeError, AttributeError, IndexError, xml.ParseError) as error:
        raise UserError(f"{path}: not in the format {format}: {error}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror})") from error


def to_regions(name: str, width: int, height: int, rows: Iterable[Row]) -> Regions:
    """Return the regions of an image; they have scores if all rows have."""
    found = list(rows)
    boxes = check_boxes([row.box for row in found], width, height, name)
    scores = [row.score for row in found if row.score is not None]
    texts = tuple(row.caption for row in found)
    return Regions(width, height, boxes, np.array(scores) if len(scores) == len(found) else None, texts, image=name)


def in_pixels(values: Iterable[float], width: int, height: int) -> tuple[float, float, float, float]:
    """Return ``x1 y1 x2 y2`` in pixels of a box ``x y width height`` in shares of the image."""
    x, y, w, h = values
    return x * width, y * height, (x + w) * width, (y + h) * height


def images_by_stem(folder: Path | None, format: str) -> dict[str, tuple[Path, int, int]]:
    """Return path, width and height of each image under a folder by its name without the suffix.

    Raises:
        UserError: no folder is given, though the format does not say the sizes of images.
    """
    if folder is None:
        raise UserError(f"the format {format} has no sizes of images: name the folder of the images with --images DIR")
    found: dict[str, tuple[Path, int, int]] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() in SUFFIXES:
            try:
                size = measure(path)
            except ImageError as error:
                raise UserError(str(error)) from error
            found[path.stem] = (path, size.width, size.height)
    return found

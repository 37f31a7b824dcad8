"""What the formats share: XML, and readers; a bad item of many is left out and named."""

from __future__ import annotations

import csv
import functools
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.regions import Regions
from saywhere.report import Report

ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""A character that XML cannot hold."""


def read_xml(path: Path) -> xml.Element:
    """Return the root of an XML file; ``ValueError`` if it is none, or is in an encoding that Python does not know."""
    try:
        return xml.parse(path).getroot()
    except (xml.ParseError, LookupError) as error:
        raise ValueError(str(error)) from error


def legal(text: str | None) -> str:
    """Return a text with a replacement character for each that XML cannot hold; empty for None."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text or "")


def placed(path: Path, images: Iterable[Regions], rename: Callable[[Path], Path]) -> dict[Path, Regions]:
    """Return the regions of images by their files, renamed, below a folder; ``UserError`` if two have one file."""
    found: dict[Path, Regions] = {}
    for regions in images:
        parts = [part for part in Path(regions.image or "").parts if part not in ("..", "/")]
        place = rename(path.joinpath(*parts or ["image"]))
        if place in found:
            raise UserError(f"{regions.image} and {found[place].image}: both would be {place.relative_to(path)}")
        found[place] = regions
    return found


def by_stem(images: Iterable[Regions], program: str) -> dict[str, Regions]:
    """Return the regions of images by their names without folder and suffix; ``UserError`` if two have one name."""
    found: dict[str, Regions] = {}
    for regions in images:
        stem = Path(regions.image or "image").stem
        if stem in found:
            other = found[stem].image
            raise UserError(f"{regions.image} and {other}: {program} knows images by their names, which must differ")
        found[stem] = regions
    return found


def write_xml(path: Path, root: xml.Element) -> None:
    """Write an element and all below it, indented; the file is whole or not there."""
    tree = xml.ElementTree(root)
    xml.indent(tree)
    write_atomically(path, lambda file: tree.write(file, encoding="utf-8", xml_declaration=True))


SLACK = 0.05
"""A box may leave its image by this share of a side, and a pixel, and is cut; one that leaves it further is refused."""

WRONG = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError)
"""What readers raise where something is missing or of another kind than the format has."""

NO_BOX = " instead of an upright box"
"""How the kind of problem of a region of another shape ends."""

Entry = TypeVar("Entry")
Reader = Callable[[Path, Path | None, Report], Iterator[Regions]]
"""A function of a file or folder, the folder of the images if it is known, and the report of what is left out."""


class Row(NamedTuple):
    """One region as a format has it: ``x1 y1 x2 y2`` in pixels, its text, and its score if it has one."""

    box: tuple[float, float, float, float]
    caption: str
    score: float | None = None


class OtherShape(ValueError):
    """What marks a region and is no upright box; the text is the name of the shape, such as ``polygon``."""


def reader(format: str) -> Callable[[Reader], Reader]:
    """Return a decorator for the reader of a format, which turns into one line what makes a file unreadable.

    The reader then raises ``UserError`` if the file cannot be read, is in another format, or if nothing in it is right.
    """

    def decorate(read: Reader) -> Reader:
        @functools.wraps(read)
        def read_all(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
            found = False
            try:
                for regions in read(path, images, report):
                    found = True
                    yield regions
            except UserError:
                raise
            except (*WRONG, csv.Error) as error:
                way_out = " (--from names another one)" if isinstance(error, KeyError) else ""
                raise UserError(f"{path}: not in the format {format}: {reason(error)}{way_out}") from error
            except OSError as error:
                raise UserError(f"{path} cannot be read ({error.strerror})") from error
            if any(kind.endswith(NO_BOX) for kind in report.problems) and not found:
                raise UserError(f"{path}: all its images are left out: {'; '.join(report.lines(1))}")
            if report.problems and not found:
                way_out = "; --from names another one" if format == "saywhere" else ""
                raise UserError(f"{path}: not in the format {format}: {'; '.join(report.lines(1))}{way_out}")

        return read_all

    return decorate


def reason(error: BaseException) -> str:
    """Return what is wrong, by an error of :data:`WRONG`."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    other = isinstance(error, TypeError | AttributeError | IndexError)  # whose texts are about Python
    return "a part of it is of another kind" if other else str(error)


@contextmanager
def leave_out(report: Report, kind: str, name: object) -> Iterator[None]:
    """Name an item in the report, and go on with the next, if something in it is missing or wrong."""
    try:
        yield
    except WRONG as error:
        report.problem(kind, f"{name} ({reason(error)})")


def to_regions(
    name: Any,
    size: tuple[object, object],
    entries: Iterable[Entry],
    rows: Callable[[Entry], Iterable[Row]],
    report: Report,
) -> Iterator[Regions]:
    """Yield the regions of an image; they have scores if all have.

    What is no upright box or is broken is left out and named in the report. An image that has nothing else is left out,
    too, for it is not one without regions. It is a ``ValueError`` if the image has no name or size.

    Args:
        entries: its regions as the format has them.
        rows: returns what is in an entry, and raises an error of :data:`WRONG`.
    """
    width, height = (int(float(str(side))) for side in size)
    if name is None:
        raise ValueError("an image has no name")
    checked(Regions.empty(width, height, name))
    found: list[Row] = []
    lost = False
    for entry in entries:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused
                found += [_cut(row, width, height, report) for row in rows(entry)]
        except OtherShape as shape:
            report.problem(f"{shape}{NO_BOX}", name)
            lost = True
        except WRONG as error:
            report.problem("broken region", f"{name}: {reason(error)}")
            lost = True
    if lost and not found:
        report.listed += 1
        report.problem("image left out with all its regions", name)
        return
    scores = [row.score for row in found if row.score is not None]
    if 0 < len(scores) < len(found):
        report.left_out["scores of an image of which other regions have none"] += len(scores)
    boxes = np.array([row.box for row in found], np.float64).reshape(-1, 4)
    texts = tuple(row.caption for row in found)
    yield Regions(width, height, boxes, scores if len(scores) == len(found) else None, texts, image=name)  # pyright: ignore[reportArgumentType]


def _cut(row: Row, width: int, height: int, report: Report) -> Row:
    """The row with its box cut to the image; ``ValueError`` if it is no region of it."""
    text: object = row.caption
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is not a text")
    if row.score is not None and not 0 <= row.score <= 1:
        raise ValueError(f"the score {row.score:g} is not a probability")
    box = np.array(row.box, np.float64)
    told = f"the box {[round(value, 2) for value in box.tolist()]}"
    if not np.isfinite(box).all():
        raise ValueError(f"{told} has a side that is not finite")
    if (box[2:] < box[:2]).any():
        raise ValueError(f"{told} is inside out")
    cut = geometry.clip(box[None], width, height)[0]
    off = np.abs(cut - box)
    allowed = SLACK * np.array([width, height] * 2) + 1
    if (off > allowed).any() or ((cut[2:] <= cut[:2]) & (box[2:] > box[:2])).any():
        raise ValueError(f"{told} is not inside the {width} x {height} image")
    if (off > 1).any():
        report.left_out["boxes cut at the border of the image"] += 1
    x1, y1, x2, y2 = cut.tolist()
    return row._replace(box=(x1, y1, x2, y2))


def checked(regions: Regions) -> Regions:
    """Return regions that every format can hold; ``ValueError`` if a name, a size or a caption is none."""
    name: object = regions.image
    if name is not None and (not isinstance(name, str) or "\0" in name):
        raise ValueError(f"{name!r} is not the name of an image")
    if min(regions.width, regions.height) < 1:
        raise ValueError(f"{name}: {regions.width} x {regions.height} is not the size of an image")
    texts: tuple[object, ...] = regions.captions or ()
    if wrong := [text for text in texts if not isinstance(text, str)]:
        raise ValueError(f"{name}: the caption {wrong[0]!r} is not a text")
    return regions


def require_upright(rotation: str | float | None) -> None:
    """Refuse a rotated box: :class:`OtherShape`."""
    if rotation and float(rotation) % 360:
        raise OtherShape("rotated box")


def entries_of(value: Any, what: str) -> list[Any]:
    """Return a list of JSON, empty for null; ``ValueError``, which names it as ``what``, if it is something else."""
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{what} are not a list")
    return value or []


def in_pixels(values: Iterable[float], width: int, height: int) -> tuple[float, float, float, float]:
    """Return ``x1 y1 x2 y2`` in pixels of a box ``x y width height`` in shares of the image."""
    x, y, w, h = values
    return x * width, y * height, (x + w) * width, (y + h) * height

"""Helpers that the formats share: XML, and readers, which leave out and report single bad items."""

from __future__ import annotations

import csv
import functools
import re
import xml.etree.ElementTree as xml
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.formats.classes import Classes, is_corrected
from saywhere.regions import Region, Regions
from saywhere.report import Report
from saywhere.text import tokenize

ILLEGAL = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")
"""A character that XML cannot hold."""


def read_xml(path: Path) -> xml.Element:
    """Return the root of an XML file; raise ``ValueError`` if it is not XML, or its encoding is unknown."""
    try:
        return xml.parse(path).getroot()
    except (xml.ParseError, LookupError) as error:
        raise ValueError(str(error)) from error


def legal(text: str | None) -> str:
    """Return a text with illegal XML characters replaced; empty for None."""
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text or "")


def placed(path: Path, images: Iterable[Regions], rename: Callable[[Path], Path]) -> dict[Path, Regions]:
    """Return the regions of images by renamed file in a folder; raise ``UserError`` if two images share a file."""
    found: dict[Path, Regions] = {}
    for regions in images:
        parts = [part for part in Path(regions.image or "").parts if part not in ("..", "/")]
        place = rename(path.joinpath(*parts or ["image"]))
        if place in found:
            both = f"both would be written to {place.relative_to(path)}; rename one"
            raise UserError(f"{regions.image} and {found[place].image}: {both}")
        found[place] = regions
    return found


def numbered(classes: Iterable[tuple[object, object]], report: Report) -> None:
    """Put the names of a file's classes with their numbers into a report, in that order; of others nothing."""
    whole = sorted(
        (int(number), name) for name, number in classes
        if isinstance(name, str) and tokenize(name) and isinstance(number, int | float) and number == int(number)
    )  # fmt: skip
    report.classes = {name: number for number, name in reversed(whole)}
    report.classes = dict(sorted(report.classes.items(), key=lambda pair: pair[1]))
    if len(report.classes) < len(whole):
        report.left_out["classes of a name that another one has, whose number they get"] += len(whole) - len(
            report.classes
        )


def by_stem(images: Iterable[Regions], program: str) -> dict[str, Regions]:
    """Return the regions of images by name without folder and suffix; raise ``UserError`` if two share a name."""
    found: dict[str, Regions] = {}
    for regions in images:
        stem = Path(regions.image or "image").stem
        if stem in found:
            other = found[stem].image
            raise UserError(f"{regions.image} and {other}: {program} identifies images by name; rename one of them")
        found[stem] = regions
    return found


def write_xml(path: Path, root: xml.Element) -> None:
    """Write an XML tree, indented and atomically."""
    xml.indent(root)
    data = xml.tostring(root, "utf-8", xml_declaration=True).replace(b"\r", b"&#13;")  # readers make "\n" of a raw one
    write_atomically(path, lambda file: file.write(data))


SLACK = 0.05
"""Share of a side (plus one pixel) by which a box may exceed its image, and is clipped; beyond it, it is refused."""

WRONG = (KeyError, TypeError, AttributeError, IndexError, ValueError, OverflowError, RecursionError)
"""Exceptions of readers if something is missing, or of the wrong type for the format."""

NO_BOX = " instead of an upright box"
"""End of the description of the problem with other shapes."""

Entry = TypeVar("Entry")
Reader = Callable[[Path, Path | None, Report], Iterator[Regions]]
"""A reader: takes a file or folder, the folder of the images, if known, and the report for left-out items."""


class Row(NamedTuple):
    """One region in a file: box ``x1 y1 x2 y2`` in pixels, text, optional scores of the box and of the text, and class.

    A class alone is its own text. ``overruled``: somebody has changed the class of a drafted text, which gives way.
    """

    box: tuple[float, float, float, float]
    caption: str | None
    score: float | None = None
    caption_score: float | None = None
    label: str | None = None
    overruled: bool = False

    def checked(self) -> Row:
        """Return the row unchanged; raise ``ValueError`` if its text or a score is invalid."""
        texts: tuple[object, ...] = (self.caption,) if self.label is None else (self.caption or "", self.label)
        if wrong := [text for text in texts if not isinstance(text, str)]:
            raise ValueError(f"{wrong[0]!r} is not a text")
        if not any(text and not text.isspace() for text in (self.caption, self.label)):
            raise ValueError("a region has neither a class nor a text")
        for score in (self.score, self.caption_score):
            if score is not None and not 0 <= score <= 1:
                raise ValueError(f"the score {score:g} is not a probability")
        return self


def draft_mark(label: str, phrase: str) -> str:
    """Return hashes of a drafted class and phrase, which tell later which of them somebody has changed."""
    texts = (" ".join(legal(text).split()) for text in (label, phrase))  # other programs change white space
    return " ".join(blake2b(text.encode(), digest_size=4).hexdigest() for text in texts)


def mark_of(region: Region, label: str) -> str | None:
    """Return the :func:`draft_mark` of a region that a model has found; None of others."""
    drafted = region.score is not None and region.caption
    return draft_mark(label, region.caption) if drafted else None  # pyright: ignore[reportArgumentType]


def without_draft(row: Row, mark: str | None, classes: Classes) -> Row:
    """Return a row of a file in which its draft's :func:`draft_mark` stands; None if it was no draft.

    A changed class that the drafted phrase does not name overrules it. Of a changed phrase the drafted class is left
    out if it is another.
    """
    if row.caption is None or row.label is None or mark is None:
        return row
    now, before = draft_mark(row.label, row.caption).split(), mark.split()
    if now == before or (now[:1] != before[:1] and now[1:] != before[1:]):
        return row
    if now[1:] == before[1:]:
        return row._replace(overruled=is_overruled(row.caption, row.label))
    return row._replace(label=None) if is_corrected(row.caption, row.label, classes) else row


def is_overruled(phrase: str, label: str) -> bool:
    """Return whether a drafted phrase gives way to the class that somebody gave its region, because it lacks it."""
    return not tokenize(label) or Classes((label,)).label(phrase) is None


class OtherShape(ValueError):
    """A region is not an upright box; the message is the name of its shape, such as ``polygon``."""


def reader(format: str) -> Callable[[Reader], Reader]:
    """Return a decorator for the reader of a format, which turns its exceptions into one-line errors.

    The reader then raises ``UserError`` if the file cannot be read, is in another format, or has no valid item.
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
                raise UserError(f"{path}: cannot be read ({error.strerror or error})") from error
            if any(kind.endswith(NO_BOX) for kind in report.problems) and not found:
                raise UserError(f"{path}: all its images are left out: {'; '.join(report.lines(1))}")
            if report.problems and not found:
                way_out = "; --from names another one" if format == "saywhere" else ""
                raise UserError(f"{path}: not in the format {format}: {'; '.join(report.lines(1))}{way_out}")

        return read_all

    return decorate


def reason(error: BaseException) -> str:
    """Return a description of one of the exceptions in :data:`WRONG`."""
    if isinstance(error, KeyError):
        return f"{error} is missing"
    other = isinstance(error, TypeError | AttributeError | IndexError)  # their messages are about Python
    return "a part of it has the wrong type" if other else str(error)


@contextmanager
def leave_out(report: Report, kind: str, name: object) -> Iterator[None]:
    """Suppress the exceptions in :data:`WRONG`, and add the item to the report's problems instead."""
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
    """Yield the regions of an image, with scores (of boxes, of texts) only if all regions have one.

    Broken entries and other shapes than upright boxes are left out and reported. An image that has only such entries is
    left out as well, for it is not an image without regions. Raises ``ValueError`` if the image has no name or size.

    Args:
        name: name of the image.
        size: width and height.
        entries: the image's entries in the file.
        rows: returns the regions of an entry, or raises one of :data:`WRONG`.
        report: report for left-out entries.
    """
    width, height = (int(float(str(side))) for side in size)
    if name is None:
        raise ValueError("an image has no name")
    checked(Regions.empty(width, height, name))
    found: list[Row] = []
    lost = False
    for entry in entries:
        try:
            with np.errstate(over="ignore", invalid="ignore"):  # infinite values are refused below
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
    boxes = np.array([row.box for row in found], np.float64).reshape(-1, 4)
    texts = [row.caption or row.label for row in found]
    for number, row in enumerate(found):
        if row.overruled and row.label:
            texts[number] = row.label
            report.left_out["drafted phrases whose region has got another class, which is the text now"] += 1
    labels = tuple(row.label for row in found) if any(row.label for row in found) else None
    scores = _column([row.score for row in found], "scores", report)
    sure = _column([row.caption_score for row in found], "scores of phrases", report) if found else None
    yield Regions(width, height, boxes, scores, tuple(texts), image=name, caption_scores=sure, labels=labels)  # pyright: ignore[reportArgumentType]


def _column(values: Sequence[float | None], what: str, report: Report) -> np.ndarray | None:
    """Return the values if all regions of the image have one, otherwise None, and report those that are lost."""
    known = [value for value in values if value is not None]
    if 0 < len(known) < len(values):
        report.left_out[f"{what} of an image of which other regions have none"] += len(known)
    return np.array(known) if len(known) == len(values) else None


def _cut(row: Row, width: int, height: int, report: Report) -> Row:
    """Clip a row's box to the image; raise ``ValueError`` if the row is invalid or not in the image."""
    box = np.array(row.checked().box, np.float64)
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
    """Return the regions unchanged; raise ``ValueError`` if no file can have the name of their image."""
    if "\0" in (regions.image or ""):
        raise ValueError(f"{regions.image!r} is not the name of an image")
    return regions


def require_upright(rotation: str | float | None) -> None:
    """Raise :class:`OtherShape` for a rotated box."""
    if rotation and float(rotation) % 360:
        raise OtherShape("rotated box")


def entries_of(value: Any, what: str) -> list[Any]:
    """Return a JSON list, empty for null; raise ``ValueError``, naming it ``what``, for anything else."""
    if value is not None and not isinstance(value, list):
        raise ValueError(f"{what} are not a list")
    return value or []


def in_pixels(values: Iterable[float], width: int, height: int) -> tuple[float, float, float, float]:
    """Convert a box ``x y width height`` in fractions of the image to ``x1 y1 x2 y2`` in pixels."""
    x, y, w, h = values
    return x * width, y * height, (x + w) * width, (y + h) * height

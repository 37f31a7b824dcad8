"""The formats that results can be converted to and from, by name."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import atomic_path, parse_json, write_text
from saywhere.formats import coco, cvat, fiftyone, label_studio, table, voc, xmp, yolo
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import ILLEGAL, Reader, checked, leave_out, reader
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.report import Report

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
"""A surrogate, which UTF-8 cannot encode."""
NOT_IN_TABLES = re.compile("[\0\ud800-\udfff]")
"""A surrogate, or NUL, at which many spreadsheets end a text or a file."""
NO_BYTE = re.compile("[\ud800-\udc7f\udd00-\udfff]")
"""A surrogate that does not represent a byte of a file name either (PEP 383)."""


@dataclass(frozen=True)
class Format:
    """A format, with its reader and writers.

    Attributes:
        name: name of the file or folder in the results of a run.
        write: writes the regions of images to a file or folder; may return the left-out images, with the reasons.
        read: see :data:`saywhere.formats.reading.Reader`; None if the format can only be written.
        folder: whether it is a folder.
        illegal, not_in_names: characters that are impossible in phrases, and in names of images.
        beside: writes the regions of one image beside it, or with ``embed=True`` into it, and returns why that failed,
            or None; None if the format has no such files.
        needs: module of an extra that is needed to write.
        beside_suffix: suffix of a second file, written beside the first.
        with_images: like ``write``, but also copies the images; None if the format has no place for them.
        classes: whether the format has classes, which ``write`` then takes.
        lacks: what of regions has no place in the format and is lost.
        by_name: returns the regions of images by what the format knows them by, or raises ``UserError`` where two are
            the same; None if that is the whole name.
    """

    name: str
    write: Callable[..., dict[str, str] | None]
    read: Reader | None
    folder: bool = False
    illegal: re.Pattern[str] = HALF_CHARACTER
    beside: Callable[..., str | None] | None = None
    needs: str | None = None
    not_in_names: re.Pattern[str] = NO_BYTE
    beside_suffix: str | None = None
    with_images: Callable[..., dict[str, str] | None] | None = None
    classes: bool = False
    lacks: str | None = None
    by_name: Callable[[Iterable[Regions]], object] | None = None

    def require_names(self, names: Iterable[str]) -> None:
        """Raise ``UserError`` if the format does not tell two of these images apart."""
        if self.by_name is not None:
            self.by_name(Regions.empty(1, 1, name) for name in names)

    def files(self, path: Path) -> list[Path]:
        """Return the files that :meth:`write_whole` writes, or the folder."""
        return [path, path.with_suffix(self.beside_suffix)] if self.beside_suffix else [path]

    def require_new(self, path: Path) -> None:
        """Check that ``path`` does not exist or is an empty folder: somebody may have corrected existing results.

        Raises:
            UserError: it exists.
            ModuleNotFoundError: a module that is needed to write the format is not installed.
        """
        if self.needs is not None:
            importlib.import_module(self.needs)
        if path.exists() and (not self.folder or any(path.iterdir() if path.is_dir() else [path])):
            raise UserError(f"{path}: already exists; give another --out, or remove it first")

    def write_whole(
        self, path: Path, images: Iterable[Regions], report: Report, copy_images: bool = False, classes: Classes = NOUNS
    ) -> dict[str, str]:
        """Write the regions of the classes, optionally with the images, as a file or folder, atomically.

        Characters that the format cannot hold are replaced, and counted in the report. An ``OSError``, for instance for
        a full disk, names ``path``.

        Returns:
            the left-out images, with the reasons.
        """
        images = (self.encodable(classes.keep(regions), report) for regions in images)
        write = self.with_images if copy_images and self.with_images is not None else self.write
        write = partial(write, classes=classes) if self.classes else write
        if not self.folder:
            return write(path, images) or {}
        with atomic_path(path, folder=True) as part:
            left_out = write(part, images) or {}
            if path.exists():
                path.rmdir()  # an empty one
            return left_out

    def write_beside(
        self, images: Iterable[Regions], report: Report, embed: bool = False, classes: Classes = NOUNS,
        fresh: bool = False,
    ) -> dict[str, str]:  # fmt: skip
        """Write the regions of the classes beside or into each image; return the left-out images, with the reasons.

        ``fresh`` says that they are of the images as they are now, not from an earlier run.
        """
        if self.beside is None:
            raise ValueError(f"{self.name} is not written beside images")
        pairs = ((regions.image or "", self.encodable(classes.keep(regions), report)) for regions in images)
        told = {name: self.beside(regions, embed=embed, fresh=fresh) for name, regions in pairs}
        return {name: why for name, why in told.items() if why is not None}

    def encodable(self, regions: Regions, report: Report) -> Regions:
        """Return regions with a replacement for each character that the format cannot hold, counted in the report."""

        def legal(text: Any, bad: re.Pattern[str]) -> Any:
            if text is None:
                return None
            text, count = bad.subn("\N{REPLACEMENT CHARACTER}", text)
            if count:
                report.left_out[f"characters of {regions.image!r} that the file cannot hold"] += count
            return text

        name = None if regions.image is None else legal(regions.image, self.not_in_names)
        captions, labels = (
            texts and tuple(legal(text, self.illegal) for text in texts) for texts in (regions.captions, regions.labels)
        )
        same = (name, captions, labels) == (regions.image, regions.captions, regions.labels)
        return regions if same else replace(regions, image=name, captions=captions, labels=labels)


def _write_lines(path: Path, images: Iterable[Regions]) -> None:
    write_text(path, "".join(json.dumps(regions.to_dict()) + "\n" for regions in images))


@reader("saywhere")
def read_lines(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each line, and the boxes of phrases or the sentence of an image as regions."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                with leave_out(report, "broken line", f"line {number}"):
                    row = parse_json(line)
                    if isinstance(row, dict) and "boxes" not in row:
                        row |= _found_phrases(row["phrases"]) if "phrases" in row else _whole_image(row)
                    yield checked(Regions.from_dict(row))


def _whole_image(row: dict[str, Any]) -> dict[str, Any]:
    """Return the sentence of ``caption --json`` as a region; nothing in a line of another kind."""
    return {"boxes": [[0, 0, row["width"], row["height"]]], "captions": [row["caption"]]} if "caption" in row else {}


def _found_phrases(phrases: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the phrases of ``ground --json`` or ``search --json`` that have a box as regions."""
    found = [phrase for phrase in phrases if "box" in phrase]
    columns = {"boxes": "box", "captions": "words", "scores": "score", "similarities": "similarity"}
    known = {name: key for name, key in columns.items() if all(key in phrase for phrase in found)}
    return {name: [phrase[key] for phrase in found] for name, key in known.items()}


FORMATS: dict[str, Format] = {
    "saywhere": Format("regions.jsonl", _write_lines, read_lines),
    "coco": Format("annotations.json", coco.write_annotations, coco.read, classes=True),
    "coco-results": Format("results.json", coco.write_results, None, classes=True),
    "label-studio": Format("tasks.json", label_studio.write, label_studio.read, beside_suffix=".xml", classes=True),
    "cvat": Format("annotations.xml", cvat.write, cvat.read, illegal=ILLEGAL, not_in_names=ILLEGAL, classes=True),
    "fiftyone": Format("labels.json", fiftyone.write, None, classes=True, by_name=fiftyone.by_name),
    "yolo": Format(
        "yolo", yolo.write, yolo.read, folder=True, with_images=partial(yolo.write, copy_images=True), classes=True,
        lacks="phrases and scores", by_name=yolo.by_name,
    ),
    "voc": Format(
        "voc", voc.write, voc.read, folder=True, illegal=ILLEGAL, not_in_names=ILLEGAL, classes=True,
        by_name=partial(voc.by_name, Path()),
    ),
    "csv": Format(
        "regions.csv", table.write, table.read, illegal=NOT_IN_TABLES, not_in_names=HALF_CHARACTER, classes=True
    ),
    "parquet": Format(
        "regions.parquet", table.write_parquet, table.read_parquet, needs="pyarrow.parquet",
        not_in_names=HALF_CHARACTER, classes=True,
    ),
    "xmp": Format("xmp", xmp.write, xmp.read, folder=True, illegal=ILLEGAL, beside=xmp.beside),
    "xmp-names": Format(
        "xmp", partial(xmp.write, names=True), xmp.read, folder=True, illegal=ILLEGAL,
        beside=partial(xmp.beside, names=True),
    ),
}  # fmt: skip
"""The formats by name; in those with classes, the nouns of the phrases are the classes."""

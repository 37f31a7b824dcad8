"""Tables with one line per region: CSV for spreadsheets, Parquet for DuckDB and pandas."""

from __future__ import annotations

import csv
import importlib
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import atomic_path, write_atomically
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import Row, leave_out, reader, to_regions
from saywhere.regions import Regions
from saywhere.report import Report

COLUMNS = ("image", "width", "height", "x1", "y1", "x2", "y2", "score", "phrase", "phrase_score", "label")
"""Columns; ``phrase_score`` is the probability that the phrase names what is in the box, ``label`` the class."""
NEEDED = (*COLUMNS[:7], "phrase")
"""Columns that the tables of other programs must have; boxes drawn by people have no score."""
TYPES = (
    "string",
    "int32",
    "int32",
    "float32",
    "float32",
    "float32",
    "float32",
    "float32",
    "string",
    "float32",
    "string",
)
"""Types of the columns in Parquet, as pyarrow names them."""
GROUP = 50_000
"""Lines per row group of Parquet, which are held in memory."""


def _lines(images: Iterable[Regions], classes: Classes) -> Iterator[tuple[Any, ...]]:
    """Yield the lines of a table, one for an image without regions; raise ``UserError`` if two share a name."""
    written: set[tuple[object, ...]] = set()
    for regions in images:
        image = (regions.image, regions.width, regions.height)
        if image in written:
            raise UserError(f"{regions.image}: two images have this name, by which a table knows them; rename one")
        written.add(image)
        for region, label in zip(regions, classes.labels(regions), strict=True):
            score, sure = (None if v is None else round(v, 5) for v in (region.score, region.caption_score))
            yield (*image, *(round(value, 2) for value in region.box), score, region.caption or "", sure, label)
        if not len(regions):
            yield (*image, *[None] * 8)


class _CsvText(io.StringIO):
    """Lines of CSV that end in a newline. Before Python 3.13, csv quotes ``\\r`` only if its own lines end in it."""

    def write(self, line: str) -> int:
        return super().write(line.removesuffix("\r\n") + "\n")


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write :data:`COLUMNS` as CSV, with a line without a box for an image without regions; names must be unique."""
    text = _CsvText()
    lines = csv.writer(text, lineterminator="\r\n")
    lines.writerow(COLUMNS)
    lines.writerows(_lines(images, classes))
    write_atomically(path, lambda file: file.write(text.getvalue().encode()))


def write_parquet(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write the same as Parquet, one row group at a time; raises like :func:`write`."""
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    schema = arrow.schema([(name, getattr(arrow, kind)()) for name, kind in zip(COLUMNS, TYPES, strict=True)])
    found = _lines(images, classes)
    with atomic_path(path) as part, parquet.ParquetWriter(part, schema, compression="zstd") as file:
        while lines := list(itertools.islice(found, GROUP)):
            columns = dict(zip(COLUMNS, zip(*lines, strict=True), strict=True))
            file.write_table(arrow.table(columns, schema=schema))


@reader("csv")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image, in the order of their first lines."""
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.DictReader(file, strict=True)
        if lacking := [name for name in NEEDED if name not in (lines.fieldnames or ())]:
            raise ValueError(f"its first line names no column {lacking[0]}; commas part {', '.join(NEEDED)}")
        yield from _grouped(((lines.line_num, row) for row in lines), report)


@reader("parquet")
def read_parquet(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image of a Parquet file, in the order of their first lines."""
    parquet: Any = importlib.import_module("pyarrow.parquet")
    file = path if path.is_file() else io.BytesIO(path.read_bytes())  # a pipe cannot be read from its end
    batches = parquet.ParquetFile(file).iter_batches(columns=list(COLUMNS))
    rows = (row for batch in batches for row in batch.to_pylist())
    texts = ({name: "" if value is None else str(value) for name, value in row.items()} for row in rows)
    yield from _grouped(enumerate(texts, 1), report)


def _grouped(lines: Iterable[tuple[int, Mapping[str, str]]], report: Report) -> Iterator[Regions]:
    """Yield the regions of each image in numbered lines."""
    found: dict[tuple[str, int, int], list[Mapping[str, str]]] = {}
    for number, row in lines:
        with leave_out(report, "broken line", f"line {number}"):
            if None in row.values() or None in row:
                raise ValueError(f"its columns are not {', '.join(NEEDED)}")
            image, boxes = (row["image"], int(row["width"]), int(row["height"])), [row] if row["x1"] else []
            found.setdefault(image, []).extend(boxes)
    for (name, width, height), rows in found.items():
        with leave_out(report, "broken image", name):
            yield from to_regions(name, (width, height), rows, _rows, report)


def _rows(row: Mapping[str, str]) -> Iterator[Row]:
    x1, y1, x2, y2 = (float(row[corner]) for corner in ("x1", "y1", "x2", "y2"))
    score, sure = (float(text) if (text := row.get(name)) else None for name in ("score", "phrase_score"))
    yield Row((x1, y1, x2, y2), row["phrase"], score, sure)

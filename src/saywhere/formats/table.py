"""CSV: a line for each region, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.formats.reading import Row, leave_out, reader, to_regions
from saywhere.regions import Regions
from saywhere.report import Report

COLUMNS = ("image", "width", "height", "x1", "y1", "x2", "y2", "score", "phrase")


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write :data:`COLUMNS`; an image without regions has one line without a box.

    Raises:
        UserError: two images have one name and size, and would be one in the file.
    """
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    written: set[tuple[object, ...]] = set()
    for regions in images:
        image = (regions.image, regions.width, regions.height)
        if image in written:
            raise UserError(f"{regions.image}: two images have this name, and a table knows them by it")
        written.add(image)
        for region in regions:
            score = "" if region.score is None else round(region.score, 5)
            lines.writerow((*image, *(round(value, 2) for value in region.box), score, region.caption or ""))
        if not len(regions):
            lines.writerow((*image, *[""] * 6))
    data = text.getvalue().encode("utf-8", "surrogateescape")  # names that are not UTF-8 stay as they are
    write_atomically(path, lambda file: file.write(data))


@reader("csv")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image, in the order of their first lines."""
    found: dict[tuple[str, int, int], list[dict[str, str]]] = {}
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = csv.DictReader(file, strict=True)
        for row in lines:
            with leave_out(report, "broken line", f"line {lines.line_num}"):
                if None in row.values() or None in row:
                    raise ValueError(f"its columns are not {', '.join(lines.fieldnames or ())}")
                image, boxes = (row["image"], int(row["width"]), int(row["height"])), [row] if row["x1"] else []
                found.setdefault(image, []).extend(boxes)
    for (name, width, height), rows in found.items():
        with leave_out(report, "broken image", name):
            regions = to_regions(name, (width, height), rows, _rows, report)
            if regions is not None:
                yield regions


def _rows(row: dict[str, str]) -> Iterator[Row]:
    x1, y1, x2, y2 = (float(row[corner]) for corner in ("x1", "y1", "x2", "y2"))
    yield Row((x1, y1, x2, y2), row["phrase"], float(row["score"]) if row["score"] else None)

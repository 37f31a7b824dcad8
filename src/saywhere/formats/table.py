"""CSV: a line for each region, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhere.files import write_atomically
from saywhere.formats.reading import Row, explain, to_regions
from saywhere.regions import Regions

COLUMNS = ("image", "width", "height", "x1", "y1", "x2", "y2", "score", "phrase")


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write :data:`COLUMNS`; an image without regions has one line without a box."""
    text = io.StringIO()
    lines = csv.writer(text, lineterminator="\n")
    lines.writerow(COLUMNS)
    for regions in images:
        image = (regions.image, regions.width, regions.height)
        for region in regions:
            score = "" if region.score is None else round(region.score, 5)
            lines.writerow((*image, *(round(value, 2) for value in region.box), score, region.caption or ""))
        if not len(regions):
            lines.writerow((*image, *[""] * 6))
    data = text.getvalue().encode("utf-8", "surrogateescape")  # names that are not UTF-8 stay as they are
    write_atomically(path, lambda file: file.write(data))


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image, in the order of their first lines."""
    with explain(path, "csv"):
        found: dict[tuple[str, int, int], list[Row]] = {}
        with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
            for row in csv.DictReader(file, strict=True):
                if None in row.values():
                    raise ValueError(f"a line of {row['image']} has too few columns")
                rows = found.setdefault((row["image"], int(row["width"]), int(row["height"])), [])
                if row["x1"]:
                    x1, y1, x2, y2 = (float(row[corner]) for corner in ("x1", "y1", "x2", "y2"))
                    rows.append(Row((x1, y1, x2, y2), row["phrase"], float(row["score"]) if row["score"] else None))
        for (name, width, height), rows in found.items():
            yield to_regions(name, width, height, rows)

"""FiftyOne: ``labels.json`` of its ``FiftyOneImageDetectionDataset``, positions in shares of the image."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import parse_json, write_text
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import (
    ImagesByStem,
    OtherShape,
    Row,
    entries_of,
    in_pixels,
    leave_out,
    reader,
    to_regions,
)
from saywhere.regions import Regions
from saywhere.report import Report


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write class, box, score and phrase (an attribute) of each region, by the image's name without its suffix.

    Raises:
        UserError: two images have one name in different folders.
    """
    found = list(images)
    rows: dict[str, list[dict[str, Any]]] = {}
    for regions in found:
        stem = Path(regions.image or "image").stem
        if stem in rows:
            raise UserError(f"{regions.image}: FiftyOne knows images by their names, and another has this one")
        shares = geometry.scale(geometry.to_size(regions.boxes), 1 / regions.width, 1 / regions.height).tolist()
        rows[stem] = []
        for region, name, box in zip(regions, classes.labels(regions), shares, strict=True):
            row: dict[str, Any] = {"label": name, "bounding_box": [round(value, 6) for value in box]}
            row |= {} if region.score is None else {"confidence": round(region.score, 5)}
            row |= {} if region.caption is None else {"attributes": {"phrase": region.caption}}
            rows[stem].append(row)
    write_text(path, json.dumps({"classes": classes.all(found), "labels": rows}))


@reader("fiftyone")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase if there is one, and the class otherwise."""
    found = ImagesByStem(images, "fiftyone")
    content = parse_json(path.read_bytes())
    classes = content.get("classes")
    for stem, entries in content["labels"].items():
        with leave_out(report, "image that cannot be used", stem):
            place, width, height = found[stem]
            listed = entries_of(entries, "its labels")
            regions = to_regions(place, (width, height), listed, partial(_rows, classes, width, height), report)
            if regions is not None:
                yield regions


def _rows(names: list[str] | None, width: int, height: int, entry: dict[str, Any]) -> Iterator[Row]:
    if "bounding_box" not in entry and "points" in entry:
        raise OtherShape("polyline")
    kind = entry["label"]
    numbered = isinstance(kind, int) and not isinstance(kind, bool) and names
    if numbered and not 0 <= kind < len(names or ()):
        raise ValueError(f"no class has the number {kind}")
    name = (names or ())[kind] if numbered else str(kind)
    text = (entry.get("attributes") or {}).get("phrase") or name
    yield Row(in_pixels(entry["bounding_box"], width, height), text, entry.get("confidence"))

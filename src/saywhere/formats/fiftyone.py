"""FiftyOne: ``labels.json`` of its ``FiftyOneImageDetectionDataset``, positions in shares of the image."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import ImagesByStem, Row, explain, in_pixels, to_regions
from saywhere.regions import Regions


def write(path: Path, images: Iterable[Regions]) -> None:
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
        for region, name, box in zip(regions, labels(regions), shares, strict=True):
            row: dict[str, Any] = {"label": name, "bounding_box": [round(value, 6) for value in box]}
            row |= {} if region.score is None else {"confidence": round(region.score, 5)}
            row |= {} if region.caption is None else {"attributes": {"phrase": region.caption}}
            rows[stem].append(row)
    write_text(path, json.dumps({"classes": classes(found), "labels": rows}))


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase if there is one, and the class otherwise."""
    found = ImagesByStem(images, "fiftyone")
    with explain(path, "fiftyone"):
        content = json.loads(path.read_bytes())
        for stem, entries in content["labels"].items():
            place, width, height = found[stem]
            names = content.get("classes")
            yield to_regions(place, width, height, [_row(entry, names, width, height) for entry in entries or ()])


def _row(entry: dict[str, Any], names: list[str] | None, width: int, height: int) -> Row:
    kind = entry["label"]
    name = names[kind] if isinstance(kind, int) and names else str(kind)
    text = entry.get("attributes", {}).get("phrase") or name
    return Row(in_pixels(entry["bounding_box"], width, height), text, entry.get("confidence"))

"""COCO: annotations with images and categories, for its tools and for training, and results for its evaluator."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from saywhere import boxes as geometry
from saywhere.files import write_text
from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import Row, explain, to_regions
from saywhere.regions import Regions


def write_annotations(path: Path, images: Iterable[Regions]) -> None:
    """Write ``images``, ``annotations`` and ``categories``; annotations have phrase and score beside the class."""
    found = list(images)
    names = classes(found)
    numbers = {name: number for number, name in enumerate(names, 1)}
    content: dict[str, list[dict[str, Any]]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }
    for image_id, regions in enumerate(found, 1):
        size = {"width": regions.width, "height": regions.height}
        content["images"].append({"id": image_id, "file_name": regions.image, **size})
        areas = geometry.area(regions.boxes).tolist()
        for row, name, area in zip(regions.to_coco(image_id), labels(regions), areas, strict=True):
            more = {"category_id": numbers[name], "area": round(area, 2), "iscrowd": 0, "segmentation": []}
            content["annotations"].append({"id": len(content["annotations"]) + 1, **row, **more})
    write_text(path, json.dumps(content))


def write_results(path: Path, images: Iterable[Regions]) -> None:
    """Write a list of ``image_id, bbox, score, caption``; the id is the number in a COCO file's name, or the name."""
    rows = [row for regions in images for row in regions.to_coco(_image_id(regions.image or ""))]
    write_text(path, json.dumps(rows))


def _image_id(name: str) -> int | str:
    number = Path(name).stem.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() else name


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase if there is one, and the class otherwise."""
    with explain(path, "coco"):
        content = json.loads(path.read_bytes())
        names = {entry["id"]: entry["name"] for entry in content["categories"]}
        rows: dict[Any, list[Row]] = {entry["id"]: [] for entry in content["images"]}
        for entry in content["annotations"]:
            x, y, width, height = entry["bbox"]
            text = entry.get("caption") or names[entry["category_id"]]
            rows[entry["image_id"]].append(Row((x, y, x + width, y + height), text, entry.get("score")))
        for entry in content["images"]:
            yield to_regions(entry["file_name"], entry["width"], entry["height"], rows[entry["id"]])

"""COCO: annotations with images and categories, for its tools and for training; and results, for its evaluator."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import parse_json, read_whole, short_name, write_text
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import (
    OtherShape,
    Row,
    entries_of,
    leave_out,
    mark_of,
    numbered,
    reader,
    to_regions,
    without_draft,
)
from saywhere.regions import Regions
from saywhere.report import Report

LONGEST_NUMBER = 18
"""Maximum number of digits of an id; longer ones do not fit into the 64 bits of other programs."""
HASH_SHIFT = 11
"""Bits by which 64 of a hash are shortened, because JavaScript reads whole numbers up to 53 bits."""


def write_annotations(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write ``images``, ``annotations`` and ``categories``; annotations have phrase and scores besides the class.

    Raises like :func:`image_ids`.
    """
    found = list(images)
    numbers = classes.numbers(found)
    content: dict[str, list[dict[str, Any]]] = {
        "images": [],
        "annotations": [],
        "categories": [{"id": number, "name": name} for name, number in numbers.items()],
    }
    for image_id, regions in zip(image_ids(found), found, strict=True):
        size = {"width": regions.width, "height": regions.height}
        content["images"].append({"id": image_id, "file_name": regions.image, **size})
        areas = geometry.area(regions.boxes).tolist()
        names = classes.labels(regions)
        rows = regions.to_coco(image_id, [numbers[name] for name in names])
        for region, row, name, area in zip(regions, rows, names, areas, strict=True):
            more = {"category_id": row.pop("category_id"), "area": round(area, 2), "iscrowd": 0, "segmentation": []}
            said = {"caption": row.pop("phrase")} if "phrase" in row else {}
            mark = mark_of(region, name)
            said |= {} if mark is None else {"draft": mark}
            content["annotations"].append({"id": len(content["annotations"]) + 1, **row, **said, **more})
    write_text(path, json.dumps(content))


def write_results(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write a list of ``image_id, category_id, bbox, score, phrase, phrase_score``.

    The ids are those of :func:`write_annotations`. The key is not ``caption`` because COCO's evaluator would take the
    results for sentences and ignore their boxes. Raises like :func:`image_ids`.
    """
    found = list(images)
    numbers = classes.numbers(found)
    rows: list[dict[str, Any]] = []
    for image_id, regions in zip(image_ids(found), found, strict=True):
        rows += regions.to_coco(image_id, [numbers[name] for name in classes.labels(regions)])
    write_text(path, json.dumps(rows))


def image_ids(images: Sequence[Regions]) -> list[int]:
    """Return the ids of images: the numbers at the end of their names if these are unique, otherwise hashes of names.

    So truth and results fit together, whatever the order of their images; if only one of them has all images, the
    evaluator refuses them rather than comparing the wrong ones. ``UserError`` if two images have the same name.
    """
    names = [regions.image or "" for regions in images]
    if not any(names):
        return list(range(1, len(names) + 1))
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise UserError(f"{twice[0]}: two images have this name, by which COCO's files know them; rename one")
    numbers = [number for name in names if (number := _number(name)) is not None]
    if len(set(numbers)) == len(names):
        return numbers
    return [int(short_name(name), 16) >> HASH_SHIFT for name in names]


def _number(name: str) -> int | None:
    number = Path(name).stem.rpartition("_")[2]
    return int(number) if number.isascii() and number.isdigit() and len(number) <= LONGEST_NUMBER else None


@reader("coco")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase or, without one, the class."""
    content = parse_json(read_whole(path))
    classes = by_id(content["categories"], f"{path}: two categories")
    known = by_id(content["images"], f"{path}: two images")
    names = Classes.of(one.get("name") for one in classes.values())
    numbered(((one.get("name"), key) for key, one in classes.items()), report)
    entries: dict[Any, list[dict[str, Any]]] = {key: [] for key in known}
    for entry in entries_of(content["annotations"], "the annotations"):
        with leave_out(report, "broken annotation", entry.get("id") if isinstance(entry, dict) else entry):
            if entry["image_id"] not in entries:
                raise ValueError(f"no image has the id {entry['image_id']!r}")
            entries[entry["image_id"]].append(entry)
    for key, entry in known.items():
        with leave_out(report, "broken image", key):
            size = entry["width"], entry["height"]
            yield from to_regions(entry["file_name"], size, entries[key], partial(_rows, classes, names), report)


def by_id(entries: Iterable[Mapping[str, Any]], kind: str) -> dict[Any, Mapping[str, Any]]:
    """Return entries by their ``id``; raise ``UserError`` if two have the same."""
    found: dict[Any, Mapping[str, Any]] = {}
    for entry in entries:
        if found.setdefault(entry["id"], entry) is not entry:
            raise UserError(f"{kind} have the id {entry['id']!r}: give each its own")
    return found


def _rows(classes: Mapping[Any, Mapping[str, Any]], names: Classes, entry: Mapping[str, Any]) -> Iterator[Row]:
    outline = entry.get("segmentation")
    if outline and not entry.get("bbox"):
        raise OtherShape("mask" if isinstance(outline, dict) else "polygon")
    if entry.get("iscrowd"):
        raise OtherShape("crowd")
    x, y, width, height = entry["bbox"]
    text = entry.get("caption")
    if (of := classes.get(entry.get("category_id"))) is None and not text:
        raise ValueError(f"no category has the id {entry['category_id']!r}")
    score, sure = entry.get("score"), entry.get("phrase_score") if text else None
    name = None if of is None or (text and not isinstance(of["name"], str)) else of["name"]
    mark = entry.get("draft")
    row = Row((x, y, x + width, y + height), text or None, score, sure, name)
    yield without_draft(row, mark if isinstance(mark, str) else None, names)

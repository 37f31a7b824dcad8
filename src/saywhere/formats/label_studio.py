"""Label Studio: tasks with predictions, to be corrected there, and its exports.

A region is a rectangle with its class and, with the same id, a text with its phrase. Positions are in percent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import quoteattr

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import parse_json, read_whole, write_text
from saywhere.formats import reading
from saywhere.formats.classes import NOUNS, Classes, is_corrected
from saywhere.regions import Regions
from saywhere.report import Report

SIDES = ("x", "y", "width", "height")
LABELS = ("rectanglelabels", "labels")
"""Types of entries with the classes of a rectangle."""
ASKED = frozenset(
    ["labels", "textarea", "choices", "taxonomy", "rating", "number", "datetime", "pairwise", "ranker", "relation"]
)
"""Types of entries without a shape: they belong to the region with the same id, or to the whole image."""
LOCAL = "/data/local-files/?d="
"""Label Studio's prefix for the path of a file in its storage folder."""


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write a task for each image, and their labeling interface to an ``.xml`` file beside, which must not exist."""
    beside = path.with_suffix(".xml")
    if beside == path or beside.exists():
        raise UserError(f"{beside}: is where the labeling interface is written; give another --out, such as tasks.json")
    found = list(images)
    write_text(path, json.dumps([_task(regions, classes) for regions in found], indent=1))
    write_text(beside, interface(classes.all(found)))


def interface(names: Iterable[str]) -> str:
    """Return a labeling interface for rectangles with these classes, each with a phrase."""
    choices = "\n".join(f"    <Label value={quoteattr(name)}/>" for name in names)
    return f"""<View>
  <Image name="image" value="$image"/>
  <RectangleLabels name="label" toName="image">
{choices}
  </RectangleLabels>
  <TextArea name="phrase" toName="image" perRegion="true" editable="true" displayMode="region-list"/>
</View>
"""


def _task(regions: Regions, classes: Classes) -> dict[str, Any]:
    shares = geometry.scale(geometry.to_size(regions.boxes), 100 / regions.width, 100 / regions.height).tolist()
    result: list[dict[str, Any]] = []
    for number, (region, name, box) in enumerate(zip(regions, classes.labels(regions), shares, strict=True)):
        place = dict(zip(SIDES, (round(v, 4) for v in box), strict=True)) | {"rotation": 0}
        size = {"original_width": regions.width, "original_height": regions.height, "image_rotation": 0}
        both = {"id": f"region{number}", "to_name": "image", **size}
        score = {} if region.score is None else {"score": round(region.score, 5)}
        kind = {"type": "rectanglelabels", "from_name": "label", "value": {**place, "rectanglelabels": [name]}}
        result.append({**both, **kind, **score})
        if region.caption is not None:
            said = {"type": "textarea", "from_name": "phrase", "value": {**place, "text": [region.caption]}}
            sure = {} if region.caption_score is None else {"score": round(region.caption_score, 5)}
            result.append({**both, **said, **sure})
    data = {"image": f"{LOCAL}{quote(regions.image or '', errors='surrogateescape')}"}
    size = {"width": regions.width, "height": regions.height}
    return {
        "data": {**data, **size, "drafts": list(dict.fromkeys(regions.captions or ()))},
        "predictions": [{"model_version": "saywhere", "result": result}],
    }


@reading.reader("label-studio")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each task: of its last annotation that was not skipped; without any, of its last prediction.

    A task is left out if it was only skipped, or has neither regions nor the size of its image. What was left out is
    counted, as are the predictions that are read among annotations.
    """
    tasks = reading.entries_of(parse_json(read_whole(path)), "the tasks")
    names = Classes.of(_names(tasks))
    corrected = any(isinstance(task, dict) and task.get("annotations") for task in tasks)
    for number, task in enumerate(tasks):
        named = task.get("id", f"number {number}") if isinstance(task, dict) else task
        with reading.leave_out(report, "broken task", named):
            data = task["data"]
            annotations = task.get("annotations") or []
            versions = annotations or task.get("predictions") or []
            for odd in (version for version in versions if not isinstance(version, dict)):
                report.problem("broken annotation", f"{data['image']}: {_shown(odd)} is none")
            made = [version for version in versions if isinstance(version, dict) and not version.get("was_cancelled")]
            if annotations and not made and any(isinstance(one, dict) for one in annotations):
                report.left_out["tasks that were skipped"] += 1
                continue
            report.drafts += bool(versions) and not annotations
            if corrected and not annotations:
                report.left_out["tasks without an annotation, whose prediction is read"] += 1
            result = reading.entries_of(made[-1].get("result"), "the entries") if made else []
            sized = next((entry for entry in result if isinstance(entry, dict) and entry.get("original_width")), {})
            width = sized.get("original_width", data.get("width"))
            height = sized.get("original_height", data.get("height"))
            if width is None or height is None:
                report.left_out["tasks without regions, whose images have no size in the file"] += 1
                continue
            name, groups = image_name(data["image"]), _by_region(result)
            rows = partial(_rows, width, height, _Drafts(task), names)
            yield from reading.to_regions(name, (width, height), groups, rows, report)


def _names(value: Any) -> Iterator[Any]:
    """Yield the labels anywhere in tasks; not those of predictions behind annotations."""
    if isinstance(value, dict):
        behind = {"predictions", "prediction"} if value.get("annotations") or "prediction" in value else ()
        for key, inner in value.items():
            if key in behind:
                continue
            yield from (inner if isinstance(inner, list) else [inner]) if key in LABELS else _names(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _names(inner)


class _Drafts:
    """What a task was drafted with: its phrases, and the label of each region by its id.

    They are in the predictions, in those behind annotations and, of tasks that :func:`write` has made, in the data.
    """

    def __init__(self, task: dict[str, Any]) -> None:
        told = task["data"].get("drafts")
        self.texts = {text for text in (told if isinstance(told, list) else ()) if isinstance(text, str)}
        self.labels = dict[str, list[str]]()
        seen = [one.get("prediction") for one in task.get("annotations") or () if isinstance(one, dict)]
        for prediction in (*(task.get("predictions") or ()), *seen):
            result = prediction.get("result") if isinstance(prediction, dict) else None
            for group in _by_region(result) if isinstance(result, list) else ():
                if not any(map(_is_odd, group)):
                    self.texts.update(_said(group))
                    self.labels[str(group[0].get("id"))] = _named(group)


def _said(group: Iterable[dict[str, Any]]) -> dict[str, float | None]:
    """Return the texts of a region, with their scores."""
    areas = (entry for entry in group if entry["type"] == "textarea")
    return {text: entry.get("score") for entry in areas for text in _texts(entry.get("value", {}).get("text"))}


def _named(group: Iterable[dict[str, Any]]) -> list[str]:
    """Return the labels of a region."""
    return [text for entry in group for kind in LABELS for text in _texts(entry.get("value", {}).get(kind))]


def _by_region(result: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Group entries by region: shape, labels and texts share an id. Entries for the whole image are dropped."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for number, entry in enumerate(result):
        own = _is_odd(entry) or "id" not in entry
        groups.setdefault(number if own else str(entry["id"]), []).append(entry)
    return [group for group in groups.values() if any(_is_odd(entry) or _shape(entry) for entry in group)]


def _is_odd(entry: object) -> bool:
    """Return whether an entry of a task is malformed."""
    if not isinstance(entry, dict):
        return True
    return not isinstance(entry.get("type"), str) or not isinstance(entry.get("value", {}), dict)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _shape(entry: dict[str, Any]) -> str | None:
    """Return the shape in an entry, such as ``rectangle`` or ``polygon``; None if it has no place in the image."""
    kind = entry["type"]
    if kind not in ASKED:
        return kind.removesuffix("labels")
    return "rectangle" if entry.get("value", {}).keys() >= set(SIDES) else None


def _rows(
    width: int, height: int, drafts: _Drafts, classes: Classes, group: list[dict[str, Any]]
) -> Iterator[reading.Row]:
    """Yield a row for each text of a region or, without texts, for each of its labels.

    A drafted label is left out if somebody has changed the text, and it names another thing now.
    """
    if _is_odd(group[0]):
        raise ValueError(f"{_shown(group[0])} is not an entry with a type and a value")
    places = {shape: entry["value"] for entry in group if (shape := _shape(entry))}
    if other := [shape for shape in places if shape != "rectangle"]:
        raise reading.OtherShape(other[0])
    reading.require_upright(places["rectangle"].get("rotation"))
    box = reading.in_pixels((places["rectangle"][side] / 100 for side in SIDES), width, height)
    said, named = _said(group), _named(group)
    if not said and not named:
        raise ValueError("a region has neither a label nor a text")
    boxes = (entry for entry in group if entry["type"] != "textarea")  # a text's score is that of its words
    score = next((entry["score"] for entry in boxes if entry.get("score") is not None), None)
    label, before = named[0] if len({*named}) == 1 else None, drafts.labels.get(str(group[0].get("id")))
    for text, sure in said.items():
        drafted, overruled, stale = text in drafts.texts, False, False
        if label is not None and drafted and named != before:
            overruled = reading.is_overruled(text, label)
        elif label is not None and named == before and not drafted:
            stale = is_corrected(text, label, classes)
        yield reading.Row(box, text, score, sure, None if stale else label, overruled)
    for name in () if said else dict.fromkeys(named):
        yield reading.Row(box, None, score, None, name)


def _texts(value: str | list[str] | None) -> list[str]:
    return [text for text in ([value] if isinstance(value, str) else value or []) if text]


def image_name(address: str) -> str:
    """Return the path of an image in Label Studio's storage or, for an uploaded image, its name."""
    parts = urlsplit(address)
    if local := parse_qs(parts.query, errors="surrogateescape").get("d"):
        return local[0]
    return unquote(parts.path.rpartition("/")[2]) if parts.path.startswith("/data/") or parts.scheme else address

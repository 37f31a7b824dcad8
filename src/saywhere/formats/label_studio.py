"""Label Studio: tasks with predictions, to be corrected there, and what it exports afterwards.

A region is a rectangle with its class and, under the same id, a text with its phrase. Positions are percents.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from xml.sax.saxutils import quoteattr

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import Row, explain, in_pixels, to_regions, upright
from saywhere.regions import Regions

LOCAL = "/data/local-files/?d="
"""What Label Studio has before the path of a file in its own storage folder."""


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write a task for each image, and beside them, in ``.xml``, the labeling interface that shows them.

    Raises:
        UserError: the file is to end with ``.xml`` itself, or there is one beside it.
    """
    beside = path.with_suffix(".xml")
    if beside == path or beside.exists():
        raise UserError(f"{beside}: is where the labeling interface is written; name another --out, such as tasks.json")
    found = list(images)
    write_text(path, json.dumps([_task(regions) for regions in found], indent=1))
    write_text(beside, interface(classes(found)))


def interface(names: Iterable[str]) -> str:
    """Return a labeling interface of rectangles with these classes and a phrase each."""
    choices = "\n".join(f"    <Label value={quoteattr(name)}/>" for name in names)
    return f"""<View>
  <Image name="image" value="$image"/>
  <RectangleLabels name="label" toName="image">
{choices}
  </RectangleLabels>
  <TextArea name="phrase" toName="image" perRegion="true" editable="true" displayMode="region-list"/>
</View>
"""


def _task(regions: Regions) -> dict[str, Any]:
    shares = geometry.scale(geometry.to_size(regions.boxes), 100 / regions.width, 100 / regions.height).tolist()
    result: list[dict[str, Any]] = []
    for number, (region, name, box) in enumerate(zip(regions, labels(regions), shares, strict=True)):
        place = dict(zip(("x", "y", "width", "height"), (round(v, 4) for v in box), strict=True)) | {"rotation": 0}
        size = {"original_width": regions.width, "original_height": regions.height, "image_rotation": 0}
        both = {"id": f"region{number}", "to_name": "image", **size}
        score = {} if region.score is None else {"score": round(region.score, 5)}
        kind = {"type": "rectanglelabels", "from_name": "label", "value": {**place, "rectanglelabels": [name]}}
        result.append({**both, **kind, **score})
        if region.caption is not None:
            said = {"type": "textarea", "from_name": "phrase", "value": {**place, "text": [region.caption]}}
            result.append({**both, **said})
    size = {"width": regions.width, "height": regions.height}
    return {
        "data": {"image": f"{LOCAL}{quote(regions.image or '', errors='surrogateescape')}", **size},
        "predictions": [{"model_version": "saywhere", "result": result}],
    }


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each task: of its last annotation that was not skipped, else of its last prediction.

    A task without regions that does not say the size of its image is left out.
    """
    with explain(path, "label-studio"):
        for task in json.loads(path.read_bytes()):
            made = [entry for entry in task.get("annotations", []) if not entry.get("was_cancelled")]
            result = [*task.get("predictions", []), *made][-1]["result"] if task.get("predictions") or made else []
            sized = next((entry for entry in result if "original_width" in entry), {})
            data = task["data"]
            width = sized.get("original_width", data.get("width"))
            height = sized.get("original_height", data.get("height"))
            if width is None or height is None:
                continue
            yield to_regions(image_name(data["image"]), width, height, _rows(result, width, height))


def _rows(result: list[dict[str, Any]], width: int, height: int) -> Iterator[Row]:
    said = {entry["id"]: entry["value"]["text"] for entry in result if entry.get("type") == "textarea"}
    for entry in result:
        if entry.get("type") == "rectanglelabels":
            value = entry["value"]
            upright(value.get("rotation"))
            box = in_pixels((value[side] / 100 for side in ("x", "y", "width", "height")), width, height)
            texts = said.get(entry["id"]) or value["rectanglelabels"]
            yield Row(box, texts if isinstance(texts, str) else texts[0], entry.get("score"))


def image_name(address: str) -> str:
    """Return the path of an image in Label Studio's storage, or, for an uploaded one, its name."""
    parts = urlsplit(address)
    if local := parse_qs(parts.query, errors="surrogateescape").get("d"):
        return local[0]
    return unquote(parts.path.rpartition("/")[2]) if parts.path.startswith("/data/") or parts.scheme else address

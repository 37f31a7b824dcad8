"""FiftyOne: ``labels.json`` of its ``FiftyOneImageDetectionDataset``, with boxes as fractions of the image."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

from saywhere import boxes as geometry
from saywhere.files import write_text
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import by_stem
from saywhere.regions import Regions

by_name = partial(by_stem, program="FiftyOne")


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write class, box, score, and phrase with its score (attributes) of each region; raises like :func:`by_stem`."""
    found = by_name(images)
    rows: dict[str, list[dict[str, Any]]] = {}
    for stem, regions in found.items():
        shares = geometry.scale(geometry.to_size(regions.boxes), 1 / regions.width, 1 / regions.height).tolist()
        rows[stem] = []
        for region, name, box in zip(regions, classes.labels(regions), shares, strict=True):
            row: dict[str, Any] = {"label": name, "bounding_box": [round(value, 6) for value in box]}
            row |= {} if region.score is None else {"confidence": round(region.score, 5)}
            sure = None if region.caption_score is None else round(region.caption_score, 5)
            said = {"phrase": region.caption, "phrase_score": sure}
            row |= {} if region.caption is None else {"attributes": {k: v for k, v in said.items() if v is not None}}
            rows[stem].append(row)
    write_text(path, json.dumps({"classes": classes.all(found.values()), "labels": rows}))

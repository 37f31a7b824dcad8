"""A page of the images where a model did best, median and worst: the truth beside the predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saywhere.evaluation.dense.protocols import find_rules
from saywhere.evaluation.pages import Page, choose
from saywhere.evaluation.region_lines import Array, ImageRegions, RegionLines
from saywhere.regions import Regions

SHOWN = 10
"""At most so many predicted regions, the best, are drawn on an image."""

RANKED = 1000
"""At most so many images, evenly spread, are scored one by one to find the best and the worst."""


@dataclass(frozen=True)
class Ranked:
    """Mean average precision of one image, and that of its boxes alone, as if it were the whole data set."""

    name: str
    map: float
    detection_map: float


def write_examples(
    folder: Path,
    ranking: Sequence[Ranked],
    predictions: RegionLines,
    truth: RegionLines,
    images: Sequence[Path],
    protocol: str,
) -> Path:
    """Write ``examples.html`` and its drawings in ``examples/``; return the path of the page.

    Args:
        folder: where to.
        ranking: images, best first.
        predictions, truth: the files that were scored.
        images: folders that the names of images are relative to. An image that is in none of them is drawn as a grey
            area.
        protocol: the name of the protocol, by which true boxes are merged.
    """
    about = (
        f"Images by their own mean average precision (protocol {protocol}), of at most {RANKED:,} evenly "
        f"spread over the data. Left the truth, right the {SHOWN} best predicted regions."
    )
    page = Page(folder, "Best, median and worst images", about, images)
    if not ranking:
        page.paragraph("No image has a true region.")
    for number, (kind, one) in enumerate(choose(ranking), 1):
        predicted, true = predictions[one.name], truth[one.name]
        size = true.size or predicted.size or _extent(predicted, true)
        page.heading(f"{kind}: {one.name}, mAP {one.map:.3f}, boxes alone {one.detection_map:.3f}")
        for what, regions in {"truth": _truth(true, size, protocol), "prediction": _best(predicted, size)}.items():
            page.figure(f"{number:02}-{kind}-{what}.png", one.name, regions, what)
    return page.write()


def _extent(*parts: ImageRegions) -> tuple[float, float]:
    """Return a size that contains all boxes, for an image whose size is in no file."""
    corners = np.concatenate([np.ones((1, 2)), *(part.boxes[:, 2:] for part in parts)])
    return tuple(np.ceil(corners.max(axis=0)).tolist())


def _truth(true: ImageRegions, size: tuple[float, float], protocol: str) -> Regions:
    boxes, groups = find_rules(protocol).merge(true.boxes)
    captions = true.captions or ()
    return _regions(boxes, [" / ".join(dict.fromkeys(captions[i] for i in group)) for group in groups], size)


def _best(predicted: ImageRegions, size: tuple[float, float]) -> Regions:
    scores = np.zeros(len(predicted.boxes)) if predicted.scores is None else predicted.scores
    best: list[int] = np.argsort(-scores, kind="stable")[:SHOWN].tolist()
    captions = predicted.captions or ()
    return _regions(predicted.boxes[best], [captions[i] for i in best], size)


def _regions(boxes: Array, captions: Sequence[str], size: tuple[float, float]) -> Regions:
    """Return regions to draw, in this order, with boxes cut to the image and turned right side out."""
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 2, 2)
    inside = np.sort(corners.clip(0, np.array(size)), axis=1).reshape(-1, 4)
    width, height = size
    return Regions(int(np.ceil(width)), int(np.ceil(height)), inside, captions=tuple(captions))

"""A page of pictures where a model did best, middling and worst: the truth beside what was predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch

from saywhere.evaluation.dense_captioning import PROTOCOLS
from saywhere.evaluation.dense_rules import merge
from saywhere.evaluation.dense_run import RANKED, Ranked
from saywhere.evaluation.pages import Page
from saywhere.evaluation.region_lines import Array, PictureRegions, RegionLines
from saywhere.regions import Regions

EACH = 3
"""Pictures of each kind."""

SHOWN = 10
"""Predicted regions that are drawn on a picture, the best."""

T = TypeVar("T")


def choose(ranking: Sequence[T], each: int = EACH) -> list[tuple[str, T]]:
    """``each`` best, median and worst pictures of a ranking, with these words; none twice, so fewer of a few pictures.

    Of fewer than three pictures, the first are the best and the last the worst.
    """
    count = len(ranking)
    each = min(each, max(1, count // 3))
    middle = (count - each) // 2
    kinds: dict[int, str] = dict.fromkeys(range(min(each, count)), "best")
    if count >= 3:
        kinds |= dict.fromkeys(range(middle, middle + each), "median")
    if count >= 2:
        kinds |= dict.fromkeys(range(count - each, count), "worst")
    return [(kinds[place], ranking[place]) for place in sorted(kinds)]


def write_examples(
    folder: Path,
    ranking: Sequence[Ranked],
    predictions: RegionLines,
    truth: RegionLines,
    pictures: Sequence[Path],
    protocol: str,
) -> Path:
    """Write ``examples.html`` and its drawings in ``examples/``; the path of the page.

    Args:
        folder: where to.
        ranking: pictures, best first.
        predictions, truth: what was scored.
        pictures: folders that the names of the pictures may start from. One that is in none of them is drawn as a grey
            area.
        protocol: by which true boxes are merged.
    """
    about = (
        f"Pictures by their own mean average precision (protocol {protocol}), of at most {RANKED:,} evenly "
        f"spread over the data. Left what is true, right the {SHOWN} best predicted regions."
    )
    page = Page(folder, "Best, median and worst pictures", about, pictures)
    if not ranking:
        page.paragraph("No picture has a true region.")
    for number, (kind, one) in enumerate(choose(ranking), 1):
        said, true = predictions[one.name], truth[one.name]
        size = true.size or said.size or _extent(said, true)
        page.heading(f"{kind}: {one.name}, mAP {one.map:.3f}, boxes alone {one.detection_map:.3f}")
        for what, regions in {"truth": _truth(true, size, protocol), "prediction": _best(said, size)}.items():
            page.figure(f"{number:02}-{kind}-{what}.png", one.name, regions, what)
    return page.write()


def _extent(*parts: PictureRegions) -> tuple[float, float]:
    """A size that has all boxes inside, for a picture whose size no file tells."""
    corners = np.concatenate([np.ones((1, 2)), *(part.boxes[:, 2:] for part in parts)])
    return tuple(np.ceil(corners.max(axis=0)).tolist())


def _truth(true: PictureRegions, size: tuple[float, float], protocol: str) -> Regions:
    boxes, groups = merge(PROTOCOLS[protocol], true.boxes)
    captions = true.captions or ()
    return _regions(boxes, [" / ".join(dict.fromkeys(captions[i] for i in group)) for group in groups], size)


def _best(said: PictureRegions, size: tuple[float, float]) -> Regions:
    scores = np.zeros(len(said.boxes)) if said.scores is None else said.scores
    best: list[int] = np.argsort(-scores, kind="stable")[:SHOWN].tolist()
    captions = said.captions or ()
    return _regions(said.boxes[best], [captions[i] for i in best], size)


def _regions(boxes: Array, captions: Sequence[str], size: tuple[float, float]) -> Regions:
    """For drawing, in this order: boxes are cut to the picture, and turned right side out."""
    corners = np.asarray(boxes, dtype=np.float64).reshape(-1, 2, 2)
    inside = np.sort(corners.clip(0, np.array(size)), axis=1).reshape(-1, 4)
    width, height = size
    return Regions(int(np.ceil(width)), int(np.ceil(height)), torch.from_numpy(inside), captions=tuple(captions))

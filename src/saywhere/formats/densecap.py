"""``results.json`` of the original DenseCap program, for its viewer and other programs that read it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.files import write_text
from saywhere.regions import Regions

LONG_SIDE = 720
"""Long side of the images beside ``results.json``, in pixels; its boxes refer to these."""

SCORE_LIMIT = 16.0
"""Maximum absolute raw score: our probabilities are rounded, and 0 and 1 have no finite raw score."""


def result(regions: Regions, name: str) -> dict[str, Any]:
    """Return one entry: boxes ``x y w h`` in 1-based pixels of the ``LONG_SIDE`` image, raw scores and captions.

    Equivalent to :mod:`saywhere.papers.densecap2016.conventions`, but without torch.
    """
    longest = max(regions.width, regions.height)
    width, height = (max(1, side * LONG_SIDE // longest) for side in (regions.width, regions.height))
    scaled = geometry.scale(regions.boxes.astype(np.float64), width / regions.width, height / regions.height)
    pixels = geometry.to_size(scaled) + np.array([1.0, 1.0, 0.0, 0.0])
    probabilities = np.zeros(0) if regions.scores is None else regions.scores.astype(np.float64)
    with np.errstate(divide="ignore"):
        raw = (np.log(probabilities) - np.log1p(-probabilities)).clip(-SCORE_LIMIT, SCORE_LIMIT)
    return {
        "img_name": name,
        "boxes": [[round(v, 3) for v in row] for row in pixels.tolist()],
        "scores": [round(v, 5) for v in raw.tolist()],
        "captions": list(regions.captions or ()),
    }


def write_results(path: Path, images: Iterable[tuple[str, Regions]], options: Mapping[str, Any]) -> None:
    """Write ``{"opt": options, "results": [...]}`` with one entry per named image, atomically."""
    results = [result(regions, name) for name, regions in images]
    write_text(path, json.dumps({"opt": dict(options), "results": results}))


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write the results of images under their own names, without options."""
    write_results(path, ((regions.image or "", regions) for regions in images), {})

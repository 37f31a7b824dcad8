"""``results.json`` as the original DenseCap program writes it, for its viewer and for programs made for it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from saywhere import boxes
from saywhere.describing.results import ORIGINAL_SIDE
from saywhere.files import write_atomically
from saywhere.original import ours_to_corners, scaled_size, x1y1x2y2_to_xywh
from saywhere.regions import Regions

SCORE_LIMIT = 16.0
"""Raw scores are kept within this: our probabilities are rounded, and 0 and 1 have no finite raw score."""


def result(regions: Regions, name: str) -> dict[str, Any]:
    """One entry: boxes ``x y w h`` in 1-based pixels of the picture of ``ORIGINAL_SIDE``, raw scores, captions."""
    width, height = scaled_size(regions.width, regions.height, ORIGINAL_SIDE)
    scaled = boxes.scale(regions.boxes.double(), width / regions.width, height / regions.height)
    probabilities = torch.zeros(0) if regions.scores is None else regions.scores.double()
    raw = torch.logit(probabilities).clamp(-SCORE_LIMIT, SCORE_LIMIT)
    return {
        "img_name": name,
        "boxes": [[round(v, 3) for v in row] for row in x1y1x2y2_to_xywh(ours_to_corners(scaled)).tolist()],
        "scores": [round(v, 5) for v in raw.tolist()],
        "captions": list(regions.captions or ()),
    }


def write_results(path: Path, results: Iterable[dict[str, Any]], options: Mapping[str, Any]) -> None:
    """Write ``{"opt": options, "results": [...]}`` atomically."""
    text = json.dumps({"opt": dict(options), "results": list(results)})
    write_atomically(path, lambda stream: stream.write(text.encode()))

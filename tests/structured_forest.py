"""A structured edge forest in OpenCV's format, small enough to write by hand: an edge is where the gradient is."""

from __future__ import annotations

import gzip
from pathlib import Path

TREES, SIDE, INNER = 8, 16, 16
GRADIENT = 3  # the channel of the gradient's magnitude, after the three of the colours
THRESHOLD = 0.5


def write_forest(path: Path) -> Path:
    """Write a forest whose every tree asks once, for the gradient in the middle of the patch."""
    middle = GRADIENT * SIDE**2 + (SIDE // 2) * SIDE + SIDE // 2
    # Pixels of the patch that the second leaf marks, so often that they count as edges.
    edge = [y * INNER + x for y in (7, 8) for x in (7, 8)] * 32
    options = {
        "stride": 2,
        "shrinkNumber": 2,
        "patchSize": 2 * SIDE,
        "patchInnerSize": INNER,
        "numberOfGradientOrientations": 4,
        "gradientSmoothingRadius": 0,
        "regFeatureSmoothingRadius": 2,
        "ssFeatureSmoothingRadius": 8,
        "gradientNormalizationRadius": 4,
        "selfsimilarityGridSize": 5,
        "numberOfTrees": TREES,
        "numberOfTreesToEvaluate": 4,
    }
    starts = [[0, 0, 0] for _ in range(TREES)]
    for tree in range(TREES):
        starts[tree] = [tree * len(edge)] * 3
    boundaries = [*starts, [TREES * len(edge)]]
    parts = {
        "childs": [[2, 0, 0]] * TREES,
        "featureIds": [[middle, 0, 0]] * TREES,
        "thresholds": [[THRESHOLD, 0.0, 0.0]] * TREES,
        "edgeBoundaries": boundaries,
        "edgeBins": [edge] * TREES,
    }
    lines = ["%YAML:1.0", "---", "options:"]
    lines += [f"   {key}: {value}" for key, value in options.items()]
    for name, rows in parts.items():
        lines += [f"{name}:", *(f"   - [ {', '.join(map(str, row))} ]" for row in rows)]
    path.write_bytes(gzip.compress(("\n".join(lines) + "\n").encode()))
    return path

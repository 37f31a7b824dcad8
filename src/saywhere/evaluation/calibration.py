"""Whether scores are probabilities: how often boxes with a score of 0.7 match a true one, and so on.

A box matches if it has an IoU of 0.5 or more with a true box of its picture, as annotated; several boxes may match the
same one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from saywhere import boxes as geometry
from saywhere.files import write_atomically

Array = NDArray[Any]

MATCH = 0.5
BINS = 15
"""As Guo et al. (2017) have it."""


@dataclass(frozen=True)
class Bin:
    """Boxes with scores from ``low`` to ``high``: how many, their mean score, the share of them that match."""

    low: float
    high: float
    count: int
    score: float
    matched: float


@dataclass(frozen=True)
class Reliability:
    """How far scores are from probabilities.

    Attributes:
        ece: expected calibration error: the mean distance of a bin's mean score from its share of matches, weighed by
            the boxes in it; bins of equal width.
        adaptive_ece: the same with bins of equally many boxes.
        brier: mean square distance of the scores from 1 (match) and 0 (none).
        boxes: how many.
        bins: of equal width; empty ones are left out.
    """

    ece: float
    adaptive_ece: float
    brier: float
    boxes: int
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: every attribute by its name."""
        return asdict(self)


def reliability(scores: ArrayLike, matches: ArrayLike, bins: int = BINS) -> Reliability:
    """The reliability of ``scores (N,)`` in 0 to 1, given whether each box ``matches (N,)``; N is above 0."""
    score, match = np.asarray(scores, dtype=np.float64), np.asarray(matches, dtype=np.float64)
    places = np.minimum((score * bins).astype(np.int64), bins - 1)
    width = [_bin(score[places == i], match[places == i], i / bins, (i + 1) / bins) for i in range(bins)]
    order = np.argsort(score, kind="stable")
    parts = [part for part in np.array_split(order, bins) if len(part)]
    count = [_bin(score[part], match[part], float(score[part[0]]), float(score[part[-1]])) for part in parts]
    filled = tuple(one for one in width if one.count)
    return Reliability(_error(filled), _error(count), float(((score - match) ** 2).mean()), len(score), filled)


def _bin(scores: Array, matches: Array, low: float, high: float) -> Bin:
    if not len(scores):
        return Bin(low, high, 0, 0.0, 0.0)
    return Bin(low, high, len(scores), float(scores.mean()), float(matches.mean()))


def _error(bins: tuple[Bin, ...] | list[Bin]) -> float:
    return sum(one.count * abs(one.score - one.matched) for one in bins) / sum(one.count for one in bins)


class CalibrationMeter:
    """Collects the boxes of one picture after the other; nine bytes of each are kept."""

    def __init__(self) -> None:
        self._scores, self._matches = list[Array](), list[Array]()
        self._probabilities = True

    def add(self, boxes: Array, scores: Array | None, truths: Array) -> None:
        """A picture: predicted ``boxes (N, 4)`` with ``scores (N,)``, and true boxes ``(M, 4)``."""
        if scores is None or not len(boxes):
            return
        self._probabilities &= bool(((scores >= 0) & (scores <= 1)).all())
        if not self._probabilities:  # another program's logits: nothing to measure
            return
        overlap = geometry.iou(torch.from_numpy(boxes), torch.from_numpy(truths)).numpy()
        self._scores.append(scores)
        self._matches.append(np.asarray((overlap >= MATCH).any(axis=1)))

    def result(self) -> Reliability | None:
        """The reliability so far; None if there is no box, or a score is not in 0 to 1."""
        if not self._probabilities or not self._scores:
            return None
        return reliability(np.concatenate(self._scores), np.concatenate(self._matches))


def draw_reliability(found: Reliability, path: Path) -> None:
    """Draw the share of matches over the scores, above how many boxes have them, as a PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 5.6), layout="constrained")
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    lows, widths = [one.low for one in found.bins], [one.high - one.low for one in found.bins]
    upper.bar(lows, [one.matched for one in found.bins], widths, align="edge", color="#8fb8de", edgecolor="white")
    upper.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
    upper.plot([one.score for one in found.bins], [one.matched for one in found.bins], "o", color="#1f4e79")
    upper.set_ylabel(f"share with a true box at IoU {MATCH:g}")
    upper.set_ylim(0, 1)
    upper.set_title(f"calibration error {found.ece:.3f}, Brier score {found.brier:.3f}")
    lower.bar(lows, [one.count for one in found.bins], widths, align="edge", color="#bbbbbb", edgecolor="white")
    lower.set_ylabel("boxes")
    lower.set_xlabel("score")
    lower.set_xlim(0, 1)
    write_atomically(path, lambda stream: figure.savefig(stream, dpi=120, format="png"))

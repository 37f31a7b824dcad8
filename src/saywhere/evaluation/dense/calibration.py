"""Calibration of scores: whether, for example, 70 % of the boxes with a score of 0.7 match a true box.

A box matches if it has an IoU of 0.5 or more with a true box of its image, as annotated; several boxes may match the
same one.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from saywhere import boxes as geometry

Array = NDArray[Any]

MATCH = 0.5
BINS = 15
"""Number of bins, as in Guo et al. (2017)."""


@dataclass(frozen=True)
class Bin:
    """Hold the number of boxes with scores from ``low`` to ``high``, their mean score, and the share that matches."""

    low: float
    high: float
    count: int
    score: float
    matched: float


@dataclass(frozen=True)
class Reliability:
    """Hold how far scores are from probabilities.

    Attributes:
        ece: expected calibration error: the mean distance between the mean score of a bin and its share of matches,
            weighted by the number of boxes in it; bins of equal width.
        adaptive_ece: the same with bins of equally many boxes.
        brier: mean squared distance of the scores from 1 (match) and 0 (no match).
        boxes: number of boxes.
        bins: of equal width; empty ones are left out.
    """

    ece: float
    adaptive_ece: float
    brier: float
    boxes: int
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: every attribute by its name."""
        return asdict(self)


def reliability(scores: ArrayLike, matches: ArrayLike, bins: int = BINS) -> Reliability:
    """Return the reliability of ``scores (N,)`` in 0 to 1, given the mask ``matches (N,)``; N is above 0."""
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
    """Collect the boxes of one image at a time; nine bytes of each box are kept."""

    def __init__(self) -> None:
        self._scores, self._matches = list[Array](), list[Array]()
        self._probabilities = True

    def add(self, boxes: Array, scores: Array | None, truths: Array) -> None:
        """Add an image: predicted ``boxes (N, 4)`` with ``scores (N,)`` (None: left out), and true boxes ``(M, 4)``."""
        if scores is None or not len(boxes):
            return
        self._probabilities &= bool(((scores >= 0) & (scores <= 1)).all())
        if not self._probabilities:  # another program's logits: nothing to measure
            return
        with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
            overlap = geometry.iou(boxes, truths)
        self._scores.append(scores)
        self._matches.append(np.asarray((overlap >= MATCH).any(axis=1)))

    def result(self) -> Reliability | None:
        """Return the reliability so far; None if there is no box, or a score is not in 0 to 1."""
        if not self._probabilities or not self._scores:
            return None
        return reliability(np.concatenate(self._scores), np.concatenate(self._matches))

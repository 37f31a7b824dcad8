"""Grounding of phrases: how often the box found for a phrase is the right one (Flickr30k Entities)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry

RIGHT = 0.5
"""A box is right from this IoU with the true box on."""

PAIRS = 64
"""Pairs of boxes that are compared together."""


@dataclass(frozen=True)
class TypeScore:
    """Grounding figures of one type of entity; attributes as in :class:`GroundingResult`."""

    phrases: int
    accuracy: float
    pointing: float


@dataclass(frozen=True)
class GroundingResult:
    """Grounding figures: how many phrases were grounded correctly.

    Attributes:
        accuracy: share of the phrases whose box has an IoU of at least 0.5 with the true box.
        pointing: share of the phrases whose box has its centre inside the true box (the pointing game).
        phrases: number of phrases.
        by_type: the same by type of entity; a phrase of two types counts in both.
    """

    accuracy: float
    pointing: float
    phrases: int
    by_type: dict[str, TypeScore] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return ``accuracy``, ``pointing``, ``phrases`` and ``by_type``."""
        return {
            "accuracy": self.accuracy,
            "pointing": self.pointing,
            "phrases": self.phrases,
            "by_type": {name: vars(score) for name, score in self.by_type.items()},
        }


def pair_ious(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the IoU ``(N,)`` of each pair of boxes of ``a (N, 4)`` and ``b (N, 4)``."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} boxes cannot be paired with {len(b)}")
    starts = range(0, len(a), PAIRS)
    parts = [np.diagonal(geometry.iou(a[start : start + PAIRS], b[start : start + PAIRS])) for start in starts]
    return np.concatenate([np.zeros(0, a.dtype), *parts])


def judge(found: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks ``(N,)`` of pairs of boxes ``(N, 4)``: IoU at least 0.5, and centre of the first in the second."""
    centre = (found[:, :2] + found[:, 2:]) / 2
    inside = np.all((centre >= truth[:, :2]) & (centre <= truth[:, 2:]), axis=1)
    return pair_ious(found, truth) >= RIGHT, inside


def measure(found: ArrayLike, truth: ArrayLike, types: Sequence[Sequence[str]]) -> GroundingResult:
    """Compare the boxes found for N phrases with the true ones.

    Args:
        found: ``(N, 4)`` ``x1 y1 x2 y2``.
        truth: ``(N, 4)`` in the same pixels.
        types: the types of entity of each phrase.
    """
    boxes, truths = (np.asarray(rows, np.float32).reshape(-1, 4) for rows in (found, truth))
    if len(boxes) == 0:
        return GroundingResult(0.0, 0.0, 0)
    right, inside = judge(boxes, truths)
    rows: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(types):
        for name in names:
            rows[name].append(i)
    order = sorted(rows, key=lambda name: (-len(rows[name]), name))
    by_type = {
        name: TypeScore(len(rows[name]), _share(right[rows[name]]), _share(inside[rows[name]])) for name in order
    }
    return GroundingResult(_share(right), _share(inside), len(boxes), by_type)


def _share(mask: np.ndarray) -> float:
    return float(mask.mean())

"""Phrases found or not: how well the probability that an image shows a phrase tells its own from those of others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhere.calibration import reliability

BINS = 10


@dataclass(frozen=True)
class PresenceResult:
    """How well phrases that an image shows are told from phrases that it does not show.

    Attributes:
        auc: probability that a phrase that is there has a higher score than one that is not; ties count half.
        calibration_error: mean over ten bins of scores, by their share, of the distance between mean score and share
            of phrases that are there.
        found: share of the phrases that are there that are found.
        refused: share of the others that are not.
        accuracy: share of the phrases that are there that are found and placed right.
        phrases, others: how many phrases are there, and how many are not.
    """

    auc: float
    calibration_error: float
    found: float
    refused: float
    accuracy: float
    phrases: int
    others: int

    def to_dict(self) -> dict[str, Any]:
        """Return all figures."""
        return dict(vars(self))


def measure_presence(own: np.ndarray, others: np.ndarray, right: np.ndarray, threshold: float) -> PresenceResult:
    """Compare the scores of N phrases that are there with those of M that are not.

    Args:
        own: ``(N,)`` probabilities.
        others: ``(M,)`` probabilities.
        right: ``(N,)`` whether the phrase's box is right.
        threshold: phrases are found from this probability on.
    """
    scores = np.concatenate((own, others))
    there = np.arange(len(scores)) < len(own)
    seen = own >= threshold
    return PresenceResult(
        area_under_curve(own, others), reliability(scores, there, BINS).ece, _share(seen), _share(others < threshold),
        _share(seen & right), len(own), len(others),
    )  # fmt: skip


def area_under_curve(high: np.ndarray, low: np.ndarray) -> float:
    """Return the share of pairs in which the score of ``high`` is above that of ``low``; 0 without pairs."""
    if not len(high) or not len(low):
        return 0.0
    order = np.sort(low)
    below, upto = (np.searchsorted(order, high, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(high) * len(low)))


def _share(mask: np.ndarray) -> float:
    return float(mask.mean()) if len(mask) else 0.0

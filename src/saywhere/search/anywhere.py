"""How probable it is that any image of an index shows what is looked for.

It is there by chance, for it is common and the images are many; or it is in one image, which then fits well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from saywhere.calibration import DIGITS, RIDGE, Logistic, climb, standardised

LIKELY_HIT, LIKELY = 0.05, 0.5
"""What is looked for is probably in none of the images if each hit shows it with a lower probability than the first, or
if any image does with a lower one than the second (docs/search.md)."""
START = np.array([1.0, -5.0, 1.0, 0.0])
"""Weights of scaled evidence from which the likelihood is climbed: few images by chance, half of the queries meant."""


def anywhere_evidence(together: float, images: int, similarity: float) -> np.ndarray:
    """Return the evidence of :func:`anywhere_probability`.

    Args:
        together: how often the nouns of the query are said, see :meth:`saywhere.search.commonness.Commonness.together`.
        images: of the index.
        similarity: of the best hit with the query.
    """
    return np.array([together + math.log(max(images, 1)), similarity], np.float64)


def anywhere_probability(evidence: np.ndarray, chance: Logistic, meant: Logistic) -> np.ndarray:
    """Return the probabilities ``(...)`` that any image shows all of a query.

    Images that show it by chance are a Poisson process, whose rate grows with their expected number; beside them there
    is one that was meant, with a probability that grows with the similarity of the best hit.

    Args:
        evidence: ``(..., 2)`` the log of how many images would show all nouns of the query if these fell on images
            independently; and the similarity of the best hit.
        chance, meant: of a :class:`saywhere.calibration.Calibration`.
    """
    rate = _rate(chance.log_odds({"expected": evidence[..., 0]}))
    return 1 - np.exp(-rate) * (1 - meant.apply({"similarity": evidence[..., 1]}))


def fit_anywhere(evidence: np.ndarray, anywhere: np.ndarray) -> tuple[Logistic, Logistic]:
    """Return ``chance`` and ``meant`` of the largest likelihood, with a little ridge.

    Args:
        evidence: ``(Q, 2)`` of :func:`anywhere_probability`.
        anywhere: ``(Q,)`` whether any image shows the query.
    """
    scaled, mean, scale = standardised(evidence)

    def probability(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chance, meant = _parts(weights)
        rate = _rate(chance.log_odds({"expected": scaled[:, 0]}))
        share = meant.apply({"similarity": scaled[:, 1]})
        none = np.exp(-rate) * (1 - share)
        slopes = np.stack((scaled[:, 0] * rate, rate, scaled[:, 1] * share, share), axis=1)
        return 1 - none, slopes * none[:, None]

    found = climb(probability, anywhere, START, np.array([RIDGE, 0, RIDGE, 0]))
    found[[0, 2]] /= scale
    found[[1, 3]] -= found[[0, 2]] * mean
    return _parts(found.round(DIGITS))


def _rate(log_rate: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(log_rate, -80, 5))


def _parts(weights: np.ndarray) -> tuple[Logistic, Logistic]:
    a, b, c, d = weights.tolist()
    return Logistic({"expected": a}, b), Logistic({"similarity": c}, d)


def is_improbable(best_hit: ArrayLike, anywhere: ArrayLike) -> np.ndarray:
    """Return whether what is looked for is probably in none of the images ``(...)``.

    Args:
        best_hit: ``(...)`` the highest probability of a hit.
        anywhere: ``(...)`` that any image shows it.
    """
    return (np.asarray(best_hit) < LIKELY_HIT) | (np.asarray(anywhere) < LIKELY)

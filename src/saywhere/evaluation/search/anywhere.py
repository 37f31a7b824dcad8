"""The weights of the probability that any image of an index shows what is looked for."""

from __future__ import annotations

import numpy as np

from saywhere.configs.aligner import AnywhereWeights
from saywhere.search.anywhere import anywhere_probability, rate_and_share

START = np.array([1.0, -5.0, 1.0, 0.0])
"""Weights of scaled evidence from which the likelihood is climbed: few images by chance, half of the queries meant."""
RIDGE = np.array([1e-4, 0, 1e-4, 0])
LEAST = 1e-9


def fit_anywhere(evidence: np.ndarray, anywhere: np.ndarray, steps: int = 50) -> AnywhereWeights:
    """Return the weights of the largest likelihood, by Fisher's scoring, with a little ridge.

    Args:
        evidence: ``(Q, 2)`` of :func:`saywhere.search.anywhere.anywhere_probability`.
        anywhere: ``(Q,)`` whether any image shows the query.
        steps: at most.
    """
    mean, spread = evidence.mean(axis=0), evidence.std(axis=0)
    scale = np.where(spread > 0, spread, 1)
    scaled, weights = (evidence - mean) / scale, START
    reached = _likelihood(scaled, anywhere, weights)
    for _ in range(steps):
        chance, meant = rate_and_share(scaled, weights)
        found = np.maximum(1 - np.exp(-chance) * (1 - meant), LEAST)
        one = np.ones(len(scaled))
        slopes = np.stack((scaled[:, 0] * chance, chance, scaled[:, 1] * meant, one * meant), axis=1)
        slope = slopes.T @ ((anywhere - found) / found) / len(found) - RIDGE * weights
        curve = (slopes.T * ((1 - found) / found)) @ slopes / len(found) + np.diag(RIDGE + LEAST)
        step = np.linalg.solve(curve, slope)
        halvings = (weights + step * 0.5**number for number in range(20))
        better = next((each for each in halvings if _likelihood(scaled, anywhere, each) > reached + LEAST), None)
        if better is None:
            break
        weights, reached = better, _likelihood(scaled, anywhere, better)
    of_chance, of_meant = weights[[0, 2]] / scale
    plain = (of_chance, weights[1] - of_chance * mean[0], of_meant, weights[3] - of_meant * mean[1])
    return tuple(round(float(value), 5) for value in plain)  # pyright: ignore[reportReturnType]


def _likelihood(evidence: np.ndarray, anywhere: np.ndarray, weights: np.ndarray) -> float:
    """The mean log-likelihood, less the ridge."""
    found = np.clip(anywhere_probability(evidence, weights), LEAST, 1 - LEAST)  # pyright: ignore[reportArgumentType]
    return float(np.log(np.where(anywhere, found, 1 - found)).mean() - (RIDGE * weights * weights).sum() / 2)

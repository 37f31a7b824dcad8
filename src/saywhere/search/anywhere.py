"""How probable it is that any image of an index shows what is looked for.

It is there by chance, for it is common and the images are many; or it is in one image, which then fits well.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from saywhere.configs.aligner import AnywhereWeights

LIKELY_HIT, LIKELY = 0.05, 0.5
"""What is looked for is probably in none of the images if each hit shows it with a lower probability than the first, or
if any image does with a lower one than the second (docs/search.md)."""


def anywhere_evidence(together: float, images: int, similarity: float) -> np.ndarray:
    """Return what :func:`anywhere_probability` judges by.

    Args:
        together: how often the nouns of the query are said, see :meth:`saywhere.search.commonness.Commonness.together`.
        images: of the index.
        similarity: of the best hit with the query.
    """
    return np.array([together + math.log(max(images, 1)), similarity], np.float64)


def anywhere_probability(evidence: np.ndarray, weights: AnywhereWeights) -> np.ndarray:
    """Return the probabilities ``(...)`` that any image shows all of a query.

    Images that show it by chance are a Poisson process, whose rate grows with their expected number; beside them there
    is one that was meant, with a probability that grows with the similarity of the best hit.

    Args:
        evidence: ``(..., 2)`` the log of how many images would show all nouns of the query if these fell on images
            independently; and the similarity of the best hit.
        weights: see :data:`saywhere.configs.aligner.AnywhereWeights`.
    """
    chance, meant = rate_and_share(evidence, weights)
    return 1 - np.exp(-chance) * (1 - meant)


def is_improbable(best_hit: ArrayLike, anywhere: ArrayLike) -> np.ndarray:
    """Return whether what is looked for is probably in none of the images ``(...)``.

    Args:
        best_hit: ``(...)`` the highest probability of a hit.
        anywhere: ``(...)`` that any image shows it.
    """
    return (np.asarray(best_hit) < LIKELY_HIT) | (np.asarray(anywhere) < LIKELY)


def rate_and_share(evidence: np.ndarray, weights: AnywhereWeights | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rate of images that show a query by chance, and the probability that one was meant, ``(...)`` each."""
    chance = np.exp(np.clip(evidence[..., 0] * weights[0] + weights[1], -80, 5))
    return chance, 1 / (1 + np.exp(-np.clip(evidence[..., 1] * weights[2] + weights[3], -80, 80)))

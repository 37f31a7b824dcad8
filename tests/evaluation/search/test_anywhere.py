"""The weights of the probability that any image shows a query: those that made the truth are found again."""

from __future__ import annotations

import numpy as np
import pytest

from saywhere.evaluation.search.anywhere import fit_anywhere
from saywhere.search.anywhere import anywhere_probability

WEIGHTS = (0.6, 0.2, 0.015, -4.0)


def queries(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Evidence like that of an index, and a truth drawn with the probabilities of ``WEIGHTS``."""
    generator = np.random.default_rng(4)
    evidence = np.stack((generator.uniform(-15, 5, count), generator.uniform(50, 500, count)), axis=1)
    return evidence, generator.random(count) < anywhere_probability(evidence, WEIGHTS)


def test_the_weights_that_made_the_truth_are_found() -> None:
    evidence, anywhere = queries(60_000)
    found = fit_anywhere(evidence, anywhere)
    np.testing.assert_allclose(found, WEIGHTS, rtol=0.1, atol=0.05)
    assert anywhere_probability(evidence, found).mean() == pytest.approx(anywhere.mean(), abs=2e-3)


def test_the_weights_are_those_of_the_largest_likelihood() -> None:
    evidence, anywhere = queries(400)

    def likelihood(weights: np.ndarray) -> float:
        found = anywhere_probability(evidence, tuple(weights.tolist()))
        return float(np.log(np.where(anywhere, found, 1 - found)).mean())

    found = np.array(fit_anywhere(evidence, anywhere))
    for number, step in enumerate((0.1, 0.2, 0.003, 0.5)):
        for sign in (-1, 1):
            other = found.copy()
            other[number] += sign * step
            assert likelihood(found) > likelihood(other)


def test_evidence_that_says_nothing_gives_the_share() -> None:
    anywhere = np.arange(100) < 70
    weights = fit_anywhere(np.zeros((100, 2)), anywhere)
    assert anywhere_probability(np.zeros(2), weights) == pytest.approx(0.7, abs=1e-3)

"""Calibrated probabilities, fitted after training: logistic regressions on named evidence (Platt scaling).

A probability is the logistic function of a weighted sum. ``saywhere calibrate`` fits the weights and stores them by
question in ``calibration.json`` of the model folder (:class:`Calibration`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere.errors import UserError
from saywhere.files import read_json, write_text
from saywhere.options import dataclass

FILE = "calibration.json"
MATCH = 0.5
"""A box is right if its IoU with a true box is at least this."""
BINS = 15
"""Number of bins of :func:`reliability`, as in Guo et al. (2017)."""
QUESTIONS: dict[str, tuple[str, ...]] = {
    "box": ("logit", "confidence", "area"),
    "person": ("word", "similarity"),
    "colour": ("pixels", "similarity", "agrees"),
    "caption": ("confidence", "noun", "known", "expected"),
    "phrase": ("similarity", "region", "named"),
    "rare_phrase": ("similarity", "region", "named"),
    "indexed_phrase": ("similarity", "region", "named"),
    "unnamed_phrase": ("similarity", "fit"),
    "unwanted_phrase": ("similarity",),
    "densecap_place": ("share", "box"),
    "aligner_place": ("share", "box"),
    "placed_colour": ("words", "pixels"),
    "asked_colour": ("words", "pixels"),
    "placed_number": ("words", "region", "number"),
    "asked_number": ("words", "region", "number"),
    "hit": ("odds", "kinds", "whole", "several", "prior", "lead"),
}
"""Names of the evidence for each question."""
PARTS = dict.fromkeys(QUESTIONS, "aligner") | dict.fromkeys(
    ("box", "person", "colour", "caption", "densecap_place"), "densecap"
)
"""The part of a model that each question is about; its weights are copied to another model with that part."""
DIGITS = 5
RIDGE = 1e-4
"""L2 penalty on the weights of standardised evidence."""
LEAST = 1e-9
"""Probabilities are clipped to this distance from 0 and 1 during fitting."""
INSIDE = 1e-6
"""Probabilities are clipped to this distance from 0 and 1 before :func:`logit`, to keep log-odds finite."""
TOLERANCE = 1e-12
"""Fitting stops when the mean log-likelihood improves by less than this."""

Evidence = Mapping[str, Any] | np.ndarray
"""Arrays of equal shape by name, or one array with the evidence in the last axis, in the order of the names."""


@dataclass(frozen=True)
class Logistic:
    """A probability: the logistic function of the weighted sum of evidence plus a constant.

    Example:
        >>> box = Logistic({"logit": 1.0, "confidence": 0.5}, 1.0)
        >>> float(box.apply({"logit": np.array(0.5), "confidence": np.array(-3.0)}))
        0.5
    """

    weights: Mapping[str, float]
    constant: float = 0.0

    def log_odds(self, evidence: Evidence) -> np.ndarray:
        """Return the weighted sum, in the precision of the evidence."""
        if isinstance(evidence, np.ndarray):
            return evidence @ np.array([*self.weights.values()]) + self.constant
        first, *others = (evidence[name] * weight for name, weight in self.weights.items())
        for other in others:
            first = first + other
        return first + self.constant

    def apply(self, evidence: Evidence) -> np.ndarray:
        """Return the probabilities; large sums do not overflow."""
        return logistic(self.log_odds(evidence))

    @classmethod
    def fit(
        cls, evidence: Mapping[str, ArrayLike], true: np.ndarray, counted: np.ndarray | None = None, what: str = "cases"
    ) -> Logistic:
        """Fit the weights by maximum likelihood with a small ridge; ``UserError`` if all labels are equal.

        Args:
            evidence: ``(N,)`` arrays by name.
            true: ``(N,)`` labels.
            counted: ``(N,)`` sample weights. Default: all equal.
            what: plural noun for the samples, for messages.
        """
        if true.all() or not true.any():
            raise UserError(f"calibration needs right and wrong {what}, and all {len(true)} are of one kind")
        columns = np.stack([np.asarray(evidence[name], np.float64) for name in evidence], axis=1)
        mean, spread = columns.mean(axis=0), columns.std(axis=0)
        scale = np.where(spread > 0, spread, 1)
        inputs = np.concatenate(((columns - mean) / scale, np.ones((len(columns), 1))), axis=1)
        found = _climb(inputs, true, np.array([*[RIDGE] * len(mean), 0.0]), counted)
        plain = found[:-1] / scale
        weights = dict(zip(evidence, np.round(plain, DIGITS).tolist(), strict=True))
        return cls(weights, round(float(found[-1] - plain @ mean), DIGITS))

    def reliability(self, evidence: Evidence, true: ArrayLike, bins: int = BINS) -> Reliability:
        """Return how far the predicted probabilities are from the observed frequencies, see :func:`reliability`."""
        return reliability(np.ravel(self.apply(evidence)), np.ravel(true), bins)

    def to_dict(self) -> dict[str, float]:
        """Return the weights by name, and the constant as ``constant``."""
        return {**self.weights, "constant": self.constant}

    @classmethod
    def from_dict(cls, stored: Any, names: Sequence[str], source: str) -> Logistic:
        """Read the result of :meth:`to_dict`; ``UserError``, naming ``source``, for other names or wrong values."""
        wanted = (*names, "constant")
        if not isinstance(stored, Mapping) or set(stored) != set(wanted):
            wrong = f"{source} must be a mapping of {', '.join(wanted)}, not {stored!r}"
            raise UserError(f"{wrong}: take this entry out, then fit it again with saywhere calibrate")
        for name, value in stored.items():
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= sys.float_info.max:
                raise UserError(f"{source}.{name} must be a number, not {value!r}")
        return cls({name: float(stored[name]) for name in names}, float(stored["constant"]))

    def __str__(self) -> str:
        return ", ".join(f"{name} {value:g}" for name, value in self.to_dict().items())


def logistic(log_odds: ArrayLike) -> np.ndarray:
    """Return the logistic function of an array of floats, in its precision."""
    return 1 / (1 + np.exp(-np.clip(log_odds, -80, 80)))


def logit(probabilities: np.ndarray) -> np.ndarray:
    """Return the float64 log-odds ``(N,)`` of probabilities ``(N,)``, clipped by :data:`INSIDE`."""
    inside = np.clip(probabilities.astype(np.float64), INSIDE, 1 - INSIDE)
    return np.log(inside / (1 - inside))


def _climb(inputs: np.ndarray, true: np.ndarray, ridge: np.ndarray, counted: np.ndarray | None) -> np.ndarray:
    """Return the maximum-likelihood weights ``(W,)``, by at most 50 steps of Newton's method with step halving.

    Args:
        inputs: ``(N, W)``.
        true, counted: ``(N,)``, see :meth:`Logistic.fit`.
        ridge: ``(W,)`` penalty on half the square of each weight.
    """
    share = np.full(len(true), 1 / len(true)) if counted is None else counted / len(true)

    def reached(weights: np.ndarray) -> tuple[float, np.ndarray]:
        p = np.clip(logistic(inputs @ weights), LEAST, 1 - LEAST)
        return float(share @ np.log(np.where(true, p, 1 - p)) - (ridge * weights**2).sum() / 2), p

    weights = np.zeros(len(ridge))
    best, p = reached(weights)
    for _ in range(50):
        slope = inputs.T @ (share * (true - p)) - ridge * weights
        curve = (inputs.T * (share * p * (1 - p))) @ inputs + np.diag(ridge + LEAST)
        step = np.linalg.solve(curve, slope)
        for number in range(20):
            tried = weights + step * 0.5**number
            after = reached(tried)
            if after[0] > best + TOLERANCE:
                weights, (best, p) = tried, after
                break
        else:
            break
    return weights


@dataclass(frozen=True)
class Bin:
    """A bin of scores from ``low`` to ``high``: their number, their mean, and the fraction that is right."""

    low: float
    high: float
    count: int
    score: float
    matched: float


@dataclass(frozen=True)
class Reliability:
    """Deviation of scores from probabilities.

    Attributes:
        ece: expected calibration error: the difference between a bin's mean score and its fraction of right ones,
            averaged over bins of equal width, weighted by their counts.
        brier: mean squared difference of the scores from 1 (right) or 0 (wrong).
        boxes: number of scores.
        bins: nonempty bins of equal width.
    """

    ece: float
    brier: float
    boxes: int
    bins: tuple[Bin, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all attributes by name."""
        return asdict(self)


def reliability(scores: ArrayLike, right: ArrayLike, bins: int = BINS) -> Reliability:
    """Return the reliability of ``scores (N,)`` from 0 to 1, given the mask ``right (N,)``; N must not be 0."""
    score, match = np.asarray(scores, dtype=np.float64), np.asarray(right, dtype=np.float64)
    places = np.minimum((score * bins).astype(np.int64), bins - 1)
    rows = ((i, np.flatnonzero(places == i)) for i in range(bins))
    filled = tuple(
        Bin(i / bins, (i + 1) / bins, len(own), float(score[own].mean()), float(match[own].mean()))
        for i, own in rows
        if len(own)
    )
    error = sum(one.count * abs(one.score - one.matched) for one in filled) / len(score)
    return Reliability(error, float(((score - match) ** 2).mean()), len(score), filled)


@dataclass(frozen=True)
class Calibration:
    """Logistic regressions of a model by question; None for questions that it cannot answer.

    Attributes:
        box: is a region's box right? By the logit of its second score, the mean log-probability of its words, and the
            logarithm of the fraction of the image that it covers.
        person: does a word give a person the right sex and age? By its log-probability, and by its similarity with the
            region (aligner) minus that of the word for the other sex.
        colour: is the most probable colour by the pixels right? By its log-probability, by its similarity with the
            region (aligner) minus the mean of the other colours', and by whether the decoder said it.
        caption: does a region's phrase name what is in its box? See :func:`saywhere.models.phrases.caption_evidence`.
        phrase: does an image show what a phrase names? See :meth:`saywhere.models.placing.Evidence.inputs`.
        rare_phrase, indexed_phrase: replace ``phrase`` for a rare noun, and both for an image of an index, about which
            less is known.
        unnamed_phrase, unwanted_phrase: replace ``phrase`` for a noun that is not in the noun tree, and
            ``indexed_phrase`` for such a noun that a search should leave out.
        densecap_place, aligner_place: is the box that this part finds for a phrase right, given that the image shows
            it? See :meth:`saywhere.models.placing.Evidence.place_inputs`.
        placed_colour: has the thing in the box of a phrase the colour that the phrase says? By how much better the
            phrase fits the image than with other colours, on average, and by the colour's log-probability from pixels.
        asked_colour: the same in an image of an index, whose captions tell the truth, and in which the box is unsure.
        placed_number, asked_number: does an image, or one of an index, show at least as many things as a phrase says?
            See :meth:`saywhere.models.details.Details.evidence`.
        hit: does a search result show the whole query? See :func:`saywhere.search.phrases.hit_evidence`.
    """

    box: Logistic = Logistic({"logit": 1.0, "confidence": 0.0, "area": 0.0})
    person: Logistic | None = None
    colour: Logistic | None = None
    caption: Logistic | None = None
    phrase: Logistic | None = None
    rare_phrase: Logistic | None = None
    indexed_phrase: Logistic | None = None
    unnamed_phrase: Logistic | None = None
    unwanted_phrase: Logistic | None = None
    densecap_place: Logistic | None = None
    aligner_place: Logistic | None = None
    placed_colour: Logistic | None = None
    asked_colour: Logistic | None = None
    placed_number: Logistic | None = None
    asked_number: Logistic | None = None
    hit: Logistic | None = None

    def __repr__(self) -> str:
        return f"Calibration({', '.join(self.to_dict())})"

    def to_dict(self) -> dict[str, dict[str, float]]:
        """Return the weights of each fitted question."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        return {question: fit.to_dict() for question, fit in found.items() if fit is not None}

    @classmethod
    def read(cls, folder: Path) -> Calibration:
        """Read ``calibration.json`` of a model folder; a missing file or question means the default.

        ``UserError`` if the file cannot be read, or has a question or evidence that is not in :data:`QUESTIONS`.
        """
        path = folder / FILE
        stored = read_json(path) if path.is_file() else {}
        if unknown := [question for question in stored if question not in QUESTIONS]:
            raise UserError(f"{path}: unknown question {unknown[0]!r}; known are {', '.join(QUESTIONS)}")
        return cls(**{q: Logistic.from_dict(answer, QUESTIONS[q], f"{path}: {q}") for q, answer in stored.items()})

    def write(self, folder: Path) -> None:
        """Write ``calibration.json`` of a model folder atomically."""
        write_text(folder / FILE, self.text())

    def text(self) -> str:
        """Return the content of ``calibration.json``."""
        return json.dumps(self.to_dict(), indent=2) + "\n"

    def of_parts(self, parts: Sequence[str]) -> dict[str, Logistic | None]:
        """Return the regressions of all questions about the given parts, by question."""
        return {question: getattr(self, question) for question, part in PARTS.items() if part in parts}

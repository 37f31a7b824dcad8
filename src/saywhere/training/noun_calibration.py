"""When the decoder's noun is right: a logistic regression on images that taught the classifier nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from saywhere.configs.densecap import NounCalibration
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import Bundle
from saywhere.models.class_evidence import ClassEvidence
from saywhere.models.detection import detect
from saywhere.models.model import Model
from saywhere.models.naming import log_odds, noun_probabilities, trust_in_decoder
from saywhere.models.nouns import is_right, kind_of
from saywhere.networks import checkpoint
from saywhere.training.classes import is_held_out
from saywhere.training.progress import track

THRESHOLDS = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6)
DIGITS = 4
POWER = 0.5
"""A box counts by the number of its kind's boxes to the minus this, so that people do not outweigh all else."""


@dataclass(frozen=True, eq=False)
class Named:
    """Hold N true boxes as a model names them.

    Attributes:
        posterior: ``(N, K)`` of the leaves.
        confidence: ``(N,)`` of the decoder's phrases.
        of_decoder: ``(N,)`` probability of their nouns by the classes; NaN for nouns that they do not know.
        right: ``(N,)`` whether their nouns are right.
        truths: the true phrases of each.
    """

    posterior: np.ndarray
    confidence: np.ndarray
    of_decoder: np.ndarray
    right: np.ndarray
    truths: tuple[tuple[str, ...], ...]


def collect(model: Model, samples: Sequence[Sample]) -> Named:
    """Return the true boxes of those images that are held out, as a model names them.

    Raises:
        UserError: no such image can be read, or all of the decoder's nouns are right or wrong.
    """
    detector, classes = model.require("densecap", "name regions"), model.require("classes", "name regions")
    rows: list[Named] = []
    held = [sample for sample in samples if len(sample.boxes) and is_held_out(sample.image)]
    with track("nouns", len(held)) as progress:
        for sample in held:
            progress.advance(1)
            try:
                encoding = model.encode(sample.image)
            except ImageError:
                continue
            (found,) = detect(detector, [encoding], [sample.boxes])
            (posterior,) = classes.posteriors([encoding], [found.boxes], [found.embeddings])
            rows.append(name_boxes(classes, posterior, found.captions, found.confidence, sample.phrases))
    if not rows:
        raise UserError("nouns are calibrated on one image of ten with boxes, and not one can be read")
    named = Named(
        np.concatenate([row.posterior for row in rows]),
        np.concatenate([row.confidence for row in rows]),
        np.concatenate([row.of_decoder for row in rows]),
        np.concatenate([row.right for row in rows]),
        tuple(truth for row in rows for truth in row.truths),
    )
    if named.right.all() or not named.right.any():
        raise UserError(f"nouns are calibrated on right and wrong ones, and all {len(named.right)} are of one kind")
    return named


def name_boxes(
    classes: ClassEvidence, posterior: np.ndarray, phrases: Sequence[str], confidence: np.ndarray,
    truths: Sequence[tuple[str, ...]],
) -> Named:  # fmt: skip
    """Return the boxes of an image, of the posterior and the decoder's phrases of each."""
    nouns = [classes.lookup(phrase) for phrase in phrases]
    right = [is_right(classes.tree, phrase, truth) for phrase, truth in zip(phrases, truths, strict=True)]
    of_decoder = noun_probabilities(classes, posterior, nouns)
    return Named(posterior, confidence, of_decoder, np.array(right), tuple(truths))


def fit(classes: ClassEvidence, named: Named) -> tuple[NounCalibration, float]:
    """Return the weights of the largest likelihood, and the threshold with the most right nouns.

    In the likelihood boxes count as :data:`POWER` says. Half of "most" is the share of all boxes, and half the mean
    over their kinds.
    """
    kinds = np.array([kind_of(classes.tree, truths[0]) for truths in named.truths])
    _, kind, counts = np.unique(kinds, return_inverse=True, return_counts=True)
    weights = counts[kind] ** -POWER / (counts[kind] ** -POWER).mean()
    best: tuple[float, NounCalibration, float] | None = None
    for threshold in THRESHOLDS:
        proposed = classes.name(named.posterior, threshold)
        of_classes = np.array([0.0 if found is None else found[1] for found in proposed])
        known = np.nan_to_num(log_odds(named.of_decoder))
        columns = (named.confidence, known, log_odds(of_classes), np.ones(len(kinds)))
        calibration = _logistic(np.stack(columns, axis=1), named.right, weights)
        trust = trust_in_decoder(named.confidence, named.of_decoder, of_classes, calibration)
        pairs = zip(proposed, named.truths, strict=True)
        classes_right = np.array([is_right(classes.tree, found and found[0], truths) for found, truths in pairs])
        right = np.where(trust >= of_classes, named.right, classes_right)
        score = (right.mean() + np.mean([right[kinds == kind].mean() for kind in np.unique(kinds)])) / 2
        if best is None or score > best[0]:
            best = float(score), calibration, threshold
    assert best is not None
    return best[1:]


def _logistic(inputs: np.ndarray, right: np.ndarray, counted: np.ndarray) -> NounCalibration:
    """Return the weights of the largest likelihood, of boxes that count so much each."""
    columns, wanted, share = (torch.from_numpy(each.astype(np.float64)) for each in (inputs, right, counted))
    weights = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.binary_cross_entropy_with_logits(columns @ weights, wanted, weight=share)
        value.backward()
        return value

    optimizer.step(loss)
    a, b, c, constant = (round(value, DIGITS) for value in weights.tolist())
    return a, b, c, constant


def calibrate_nouns(
    folder: str | Path, samples: Sequence[Sample], device: str | None = None
) -> tuple[NounCalibration, float, int]:
    """Fit when a model's decoder is trusted with the noun, and write it to the configuration of its dense captioner.

    Args:
        folder: of the model.
        samples: the images that its classifier was taught on; those that were held out are used.
        device: where the model runs; the best there is if None.

    Returns:
        the weights, the threshold, and the number of boxes.

    Raises:
        UserError: there is no such model, it lacks a part, and what :func:`collect` raises.
    """
    bundle = Bundle.read_own(folder)
    model = load(bundle.folder, device)
    named = collect(model, samples)
    assert model.classes is not None
    calibration, threshold = fit(model.classes, named)
    options = {"densecap.noun_calibration": calibration, "densecap.noun_threshold": threshold}
    checkpoint.change_options(bundle.folder, options)
    return calibration, threshold, len(named.right)

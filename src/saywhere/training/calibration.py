"""Scores that are probabilities: Platt's logistic regression on what a dense captioner finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.configs.densecap import Calibration, DenseCapConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.loading import load
from saywhere.models.bundle import CARD, Bundle
from saywhere.models.detection import detect, rank
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.training.card import replace_section
from saywhere.training.progress import track

MATCH = 0.5
"""A box matches if it has this IoU or more with a true one."""

HEADING = "## Calibration"


@dataclass(frozen=True, eq=False)
class Evidence:
    """Hold N regions that were found in images.

    Attributes:
        logits: ``(N,)`` second scores.
        confidence: ``(N,)`` mean log-probability of the words of each caption.
        matches: ``(N,)`` whether the box has an IoU of ``MATCH`` or more with a true one.
    """

    logits: np.ndarray
    confidence: np.ndarray
    matches: np.ndarray


def matches(boxes: np.ndarray, sample: Sample) -> np.ndarray:
    """Return whether each of boxes ``(N, 4)`` matches a true one of the image."""
    return geometry.iou(boxes, sample.boxes).max(axis=1, initial=0) >= MATCH


def collect(model: Model, samples: Sequence[Sample]) -> Evidence:
    """Return what a model finds in images, without the repeats that :meth:`Model.describe` leaves out.

    Images that cannot be read are passed over. A progress bar is shown.

    Raises:
        UserError: the model finds no regions, no image can be read, or all boxes or none of them match.
    """
    detector = model.require("densecap", "be calibrated")
    rows: list[Evidence] = []
    with track("calibration", len(samples)) as progress:
        for sample in samples:
            try:
                found = detect(detector, [model.encode(sample.image)])[0]
            except ImageError:
                continue
            finally:
                progress.advance(1)
            kept = rank(found.regions(detector.config.calibration), detector.config.repeat_nms)
            rows.append(Evidence(found.logits[kept], found.confidence[kept], matches(found.boxes[kept], sample)))
    if not rows:
        raise UserError("calibration needs images, and not one can be read")
    columns = ([getattr(row, name) for row in rows] for name in ("logits", "confidence", "matches"))
    evidence = Evidence(*map(np.concatenate, columns))
    if evidence.matches.all() or not evidence.matches.any():
        raise UserError(f"calibration needs right and wrong boxes, and all {len(evidence.matches)} are of one kind")
    return evidence


def fit(evidence: Evidence) -> Calibration:
    """Return the weights of logit and confidence, and the constant, of the largest likelihood."""
    columns = (evidence.logits, evidence.confidence, np.ones(len(evidence.logits)))
    inputs = torch.from_numpy(np.stack(columns, axis=1).astype(np.float64))
    wanted = torch.from_numpy(evidence.matches.astype(np.float64))
    weights = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([weights], max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = functional.binary_cross_entropy_with_logits(inputs @ weights, wanted)
        value.backward()
        return value

    optimizer.step(loss)
    of_logit, of_confidence, constant = (round(value, 4) for value in weights.tolist())
    return of_logit, of_confidence, constant


def calibrate(folder: str | Path, samples: Sequence[Sample], source: str, device: str | None = None) -> Calibration:
    """Fit the calibration of the dense captioner in a model folder, and write it to its configuration.

    Weights stay as they are; the card gets a section about the calibration.

    Args:
        folder: of the model; its other parts stay as they are.
        samples: images with boxes.
        source: name of the images, for the card.
        device: where the model runs; the best there is if None.

    Raises:
        UserError: there is no such model, it has no dense captioner, and what :func:`collect` raises.
    """
    bundle = Bundle.read_own(folder)
    if "densecap" not in bundle.configs:
        raise UserError(
            f"{folder} has no dense captioner, whose scores are calibrated; it has {', '.join(bundle.configs)}"
        )
    plain = {"densecap.calibration": DenseCapConfig().calibration}
    evidence = collect(load(bundle.folder, device, options=plain), samples)
    calibration = fit(evidence)
    checkpoint.change_options(bundle.folder, {"densecap.calibration": calibration})
    replace_section(bundle.folder / CARD, HEADING, _section(calibration, evidence, len(samples), source))
    return calibration


def _section(calibration: Calibration, evidence: Evidence, images: int, source: str) -> str:
    of_logit, of_confidence, constant = calibration
    return f"""Scores are logistic({of_logit:g} x logit + {of_confidence:g} x confidence + {constant:g}), where the
confidence is the mean log-probability of the caption's words,
fitted by `saywhere calibrate` to what is found in {images:,} images of {source}:
{len(evidence.matches):,} boxes; {int(evidence.matches.sum()):,} have an IoU of {MATCH:g} or more with a true one.
"""

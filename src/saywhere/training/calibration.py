"""Scores that are probabilities: Platt's logistic regression on what a dense captioner finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from saywhere import boxes as geometry
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.images import ImageError
from saywhere.models import checkpoint
from saywhere.models.densecap import DenseCap
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.found import Calibration, rank
from saywhere.training.progress import track

MATCH = 0.5
"""A box matches if it has this IoU or more with a true one."""

HEADING = "## Calibration"


@dataclass(frozen=True)
class Evidence:
    """Found regions of many pictures: ``logits (N,)``, ``confidence (N,)``, and whether each ``matches (N,)``."""

    logits: Tensor
    confidence: Tensor
    matches: Tensor


def collect(model: DenseCap, samples: Sequence[Sample]) -> Evidence:
    """What ``model`` finds in the pictures, repeats left out as :meth:`DenseCap.describe` does; with a progress bar.

    Pictures that cannot be read are passed over.

    Raises:
        UserError: no picture can be read, nothing is found, or all or none of it matches.
    """
    rows: list[tuple[Tensor, Tensor, Tensor]] = []
    with track("calibration", len(samples)) as progress:
        for sample in samples:
            try:
                rows.append(_evidence(model, sample))
            except ImageError:
                continue
            finally:
                progress.advance(1)
    if not rows:
        raise UserError("calibration needs pictures, and not one can be read")
    evidence = Evidence(*(torch.cat(part) for part in zip(*rows, strict=True)))
    if evidence.matches.all() or not evidence.matches.any():
        raise UserError(f"calibration needs right and wrong boxes, and all {len(evidence.matches)} are of one kind")
    return evidence


def _evidence(model: DenseCap, sample: Sample) -> tuple[Tensor, Tensor, Tensor]:
    found = model.find([model.encode(sample.image)])[0]
    rows = rank(found.regions(model.config.calibration), model.config.repeat_nms)
    best = geometry.iou(found.boxes[rows].cpu(), sample.boxes)
    matches = best.amax(dim=1) >= MATCH if len(sample.boxes) else torch.zeros(len(rows), dtype=torch.bool)
    return found.logits[rows].cpu(), found.confidence[rows].cpu(), matches


def fit(evidence: Evidence) -> Calibration:
    """The weights of logit and confidence, and the constant, that make the matches most likely (maximum likelihood)."""
    inputs = torch.stack((evidence.logits, evidence.confidence, torch.ones_like(evidence.logits)), dim=1).double()
    wanted = evidence.matches.double()
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


def calibrate(folder: Path, samples: Sequence[Sample], source: str, device: str = "cpu") -> Calibration:
    """Fit the calibration of the dense captioner in ``folder`` to ``samples``, and write it to its configuration.

    The card gets a section that tells how; ``source`` is the name of the pictures. Weights stay as they are.
    """
    model = checkpoint.load(folder, device)
    if not isinstance(model, DenseCap):
        raise UserError(f"{folder} is not a dense captioner; only their scores are calibrated")
    model.config = replace(model.config, calibration=DenseCapConfig().calibration)
    evidence = collect(model, samples)
    calibration = fit(evidence)
    checkpoint.change_config(folder, {"calibration": list(calibration)})
    card = folder / "README.md"
    before = card.read_text(encoding="utf-8") if card.exists() else ""
    write_text(card, before.split(HEADING)[0].rstrip() + "\n\n" + _section(calibration, evidence, len(samples), source))
    return calibration


def _section(calibration: Calibration, evidence: Evidence, pictures: int, source: str) -> str:
    of_logit, of_confidence, constant = calibration
    return f"""{HEADING}

Scores are logistic({of_logit:g} x logit + {of_confidence:g} x confidence + {constant:g}), where the confidence is
the mean log-probability of the caption's words,
fitted by `saywhere calibrate` to what is found in {pictures:,} pictures of {source}:
{len(evidence.matches):,} boxes; {int(evidence.matches.sum()):,} have an IoU of {MATCH:g} or more with a true one.
"""

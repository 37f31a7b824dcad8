"""What a dense captioner finds in a picture, before it is ranked."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.language.decoding import Decoded
from saywhere.models.encoding import Encoding
from saywhere.regions import Regions
from saywhere.text import PAD

Calibration = tuple[float, float, float]
"""Weights of a region's logit and of its caption's confidence, and a constant."""


@dataclass(frozen=True, eq=False)
class Found:
    """The N regions of a picture.

    Attributes:
        encoding: of the picture.
        boxes: ``(N, 4)`` in pixels of the picture.
        logits: ``(N,)`` second scores.
        codes: ``(N, D)``.
        captions: what is said of each.
        confidence: ``(N,)`` mean natural log-probability of the words of each caption, its END included.
    """

    encoding: Encoding
    boxes: Tensor
    logits: Tensor
    codes: Tensor
    captions: tuple[str, ...]
    confidence: Tensor

    def regions(self, calibration: Calibration) -> Regions:
        """The regions in their order, with calibrated scores.

        The score is the logistic function of ``a * logit + b * confidence + c`` for ``calibration`` (a, b, c), the
        probability that the box has an IoU of 0.5 with a true one (see :mod:`saywhere.training.calibration`).
        """
        of_logit, of_confidence, constant = calibration
        scores = torch.sigmoid(of_logit * self.logits + of_confidence * self.confidence + constant)
        return Regions(
            self.encoding.width,
            self.encoding.height,
            self.boxes.float().cpu(),
            scores.float().cpu(),
            self.captions,
            self.codes.float().cpu(),
            self.encoding.name,
        )


def confidence(said: Decoded) -> Tensor:
    """Mean log-probability ``(N,)`` of the words of each caption, its END included."""
    return said.total / (said.words != PAD).sum(dim=1).clamp(min=1)


def rank(
    regions: Regions, repeat_nms: float | None, threshold: float | None = None, top: int | None = None
) -> list[int]:
    """Numbers of the regions to keep, best first.

    Args:
        regions: with scores and captions.
        repeat_nms: leave out those that say the same as a better one with an IoU above this.
        threshold: leave out those with a lower score.
        top: at most so many.
    """
    assert regions.scores is not None and regions.captions is not None
    close = geometry.iou(regions.boxes, regions.boxes) > (1.0 if repeat_nms is None else repeat_nms)
    kept: list[int] = []
    for row in regions.scores.argsort(descending=True, stable=True).tolist():
        if threshold is not None and regions.scores[row] < threshold:
            break
        if not any(close[row, i] and regions.captions[i] == regions.captions[row] for i in kept):
            kept.append(row)
    return kept[:top]

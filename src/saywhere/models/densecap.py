"""DenseCap at inference: find, describe, rank and select regions (sections 3.1.2 and 3.1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.boxes import BoxCoder
from saywhere.calibration import Calibration, Logistic, logistic
from saywhere.engines.engine import DenseCap, RegionHeadOutput
from saywhere.errors import UserError
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.nouns import NounEvidence
from saywhere.models.phrases import Phrases, PhraseWriter, caption_evidence
from saywhere.options import dataclass
from saywhere.regions import SHOWN, Regions

SMALLEST = 1e-6
"""Minimum fraction of the image that a box is taken to cover."""


@dataclass(frozen=True, eq=False)
class ScoredBoxes:
    """The N boxes of an image before they are described.

    Attributes:
        boxes: ``(N, 4)`` in pixels of the image.
        logits: ``(N,)`` objectness logits of the region head (the second score).
        embeddings: ``(N, D)`` outputs of the region head.
    """

    encoding: Encoding
    boxes: np.ndarray
    logits: np.ndarray
    embeddings: np.ndarray

    def odds(self, box: Logistic) -> np.ndarray:
        """Return the log-odds ``(N,)`` that the boxes are right, for phrases with a log-probability of 0.

        They are the highest that other phrases can reach, unless the weight of the confidence is negative.
        """
        sure = np.zeros(len(self.logits), np.float32)
        return box.log_odds({"logit": self.logits, "confidence": sure, "area": log_area(self.encoding, self.boxes)})

    def can_reach(self, score: float, box: Logistic) -> np.ndarray:
        """Return whether each box can reach a score with any phrase, as a mask ``(N,)``."""
        if box.weights["confidence"] < 0:
            return np.ones(len(self.logits), bool)
        return logistic(self.odds(box)) >= score

    def keep(self, rows: np.ndarray) -> ScoredBoxes:
        """Return some of the boxes, by a mask or by indices."""
        return replace(self, boxes=self.boxes[rows], logits=self.logits[rows], embeddings=self.embeddings[rows])


@dataclass(frozen=True, eq=False)
class Detections(ScoredBoxes):
    """The N described regions of an image, before calibration, ranking and selection.

    Attributes:
        codes: ``(N, D)`` inputs of the caption decoder; equal to the embeddings without a phrase head.
        posterior: ``(N, K)`` noun probabilities by the part nouns; None if not needed.
    """

    codes: np.ndarray
    phrases: Phrases
    posterior: np.ndarray | None = None

    @property
    def captions(self) -> tuple[str, ...]:
        """The phrase of each region."""
        return self.phrases.texts

    @property
    def confidence(self) -> np.ndarray:
        """Mean natural log-probability ``(N,)`` of the tokens of each phrase, END included."""
        return self.phrases.confidence

    @property
    def evidence(self) -> dict[str, np.ndarray]:
        """Inputs of the box calibration: ``logit``, ``confidence`` and ``area``, ``(N,)`` each."""
        return {"logit": self.logits, "confidence": self.confidence, "area": log_area(self.encoding, self.boxes)}

    def caption_evidence(self, nouns: NounEvidence | None, rows: Sequence[int]) -> dict[str, np.ndarray]:
        """Return the inputs of the caption calibration (is the phrase right for its box?) for the regions ``rows``."""
        numbers = np.array(rows, np.int64)
        posterior = None if self.posterior is None else self.posterior[numbers]
        texts, expected = [self.captions[row] for row in rows], self.phrases.expected[numbers]
        return caption_evidence(nouns, posterior, texts, self.confidence[numbers], expected)

    def regions(self, box: Logistic) -> Regions:
        """Return the regions in their order; a score is the probability of an IoU of at least 0.5 with a true box."""
        scores = box.apply(self.evidence)
        size = (self.encoding.width, self.encoding.height)
        return Regions(*size, self.boxes, scores, self.captions, self.codes, self.encoding.image)


def detect(
    detector: DenseCap,
    encodings: Sequence[Encoding],
    boxes: Sequence[ArrayLike] | None = None,
    proposals: Sequence[np.ndarray] | None = None,
    nms_iou: float | None = None,
    writer: PhraseWriter | None = None,
    calibration: Calibration | None = None,
    doubts: bool = False,
    threshold: float | None = None,
) -> list[Detections]:
    """Return the regions of each image, or those in ``boxes``, described but neither calibrated nor ranked.

    Only boxes that survive the final suppression get a caption, decoded from the embedding of their proposal.

    Args:
        boxes: one ``(N, 4)`` array per image, in its pixels; describe exactly these, in this order.
        proposals: boxes of each image in pixels of the network input, instead of those of the localization layer.
        nms_iou: IoU threshold of the final suppression. Default: ``final_nms``.
        writer: writes the phrases with the other parts of the model. None: the dense captioner alone.
        calibration, doubts: see :meth:`saywhere.models.phrases.PhraseWriter.write`.
        threshold: drop regions whose score is below it whatever their phrase.

    Raises:
        UserError: boxes have a wrong shape or leave their image.
    """
    writer, calibration = writer or PhraseWriter(detector), calibration or Calibration()
    if boxes is None:
        found = find_boxes(detector, encodings, proposals, nms_iou)
        if threshold is not None:
            found = [each.keep(each.can_reach(threshold, calibration.box)) for each in found]
        ranks = [
            np.where(each.can_reach(SHOWN, calibration.box), each.odds(calibration.box), -np.inf) for each in found
        ]
    else:
        found, ranks = score_boxes(detector, encodings, boxes), None
    finals, embeddings = [each.boxes for each in found], [each.embeddings for each in found]
    inputs = [encoding.to_input(final) for encoding, final in zip(encodings, finals, strict=True)]
    features = detector.phrase_features([e.maps for e in encodings], inputs, embeddings)
    codes = detector.phrase_embeddings(features)
    posteriors = None
    asked = calibration.caption is not None or detector.config.noun_weight > 0
    if writer.nouns is not None and detector.config.nouns and asked:
        posteriors = writer.nouns.posteriors(encodings, finals, embeddings)
    phrases = writer.write(encodings, finals, codes, ranks, calibration, doubts, posteriors, features)
    rows = zip(found, codes, phrases, posteriors or [None] * len(found), strict=True)
    return [
        Detections(each.encoding, each.boxes, each.logits, each.embeddings, code, said, posterior)
        for each, code, said, posterior in rows
    ]


def find_boxes(
    detector: DenseCap, encodings: Sequence[Encoding], proposals: Sequence[np.ndarray] | None, nms_iou: float | None
) -> list[ScoredBoxes]:
    """Return the boxes of each image that survive the final suppression; arguments as for :func:`detect`."""
    if proposals is None:
        settings, coder = detector.config.proposals, detector.box_coder
        proposals = [propose_boxes(encoding, settings, coder)[0] for encoding in encodings]
    outputs = detector.region_head([e.maps for e in encodings], proposals)
    overlap = detector.config.final_nms if nms_iou is None else nms_iou
    found: list[ScoredBoxes] = []
    for encoding, proposed, output in zip(encodings, proposals, outputs, strict=True):
        boxes, rows = select(detector.box_coder, encoding, proposed, output, overlap)
        found.append(ScoredBoxes(encoding, boxes, output.logits[rows], output.embeddings[rows]))
    return found


def score_boxes(detector: DenseCap, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike]) -> list[ScoredBoxes]:
    """Return given boxes, in pixels of each image, with their scores; ``UserError`` as :func:`detect`."""
    given = [encoding.check(rows) for encoding, rows in zip(encodings, boxes, strict=True)]
    inputs = [encoding.to_input(rows) for encoding, rows in zip(encodings, given, strict=True)]
    outputs = detector.region_head([e.maps for e in encodings], inputs)
    rows = zip(encodings, given, outputs, strict=True)
    return [ScoredBoxes(encoding, boxes, output.logits, output.embeddings) for encoding, boxes, output in rows]


def main_phrase(regions: Regions) -> str | None:
    """Return the phrase that says most about an image; None if there is none.

    It is that of the region with the largest product of the probabilities that its box and its words are right and the
    fourth root of its share of the image.
    """
    if not len(regions) or regions.captions is None:
        return None
    sides = regions.boxes[:, 2:] - regions.boxes[:, :2]
    worth = (sides.prod(axis=1) / (regions.width * regions.height)) ** 0.25
    for probabilities in (regions.scores, regions.caption_scores):
        worth = worth if probabilities is None else worth * probabilities
    return regions.captions[int(worth.argmax())] or None


def log_area(encoding: Encoding, boxes: np.ndarray) -> np.ndarray:
    """Return the natural logarithm ``(N,)`` of the fraction of the image that each of ``boxes (N, 4)`` covers."""
    sides = (boxes[:, 2:] - boxes[:, :2]) / (encoding.width, encoding.height)
    return np.log(np.maximum(sides.prod(axis=1), SMALLEST)).astype(np.float32)


def select(
    coder: BoxCoder, encoding: Encoding, proposals: np.ndarray, output: RegionHeadOutput, nms_iou: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the final boxes ``(N, 4)`` in pixels of the image and the indices of their proposals, by falling logit."""
    decoded = coder.decode(output.offsets, coder.from_xyxy(proposals))
    boxes = encoding.to_image(coder.to_xyxy(decoded))
    rows = coder.suppress_final(decoded, boxes, output.logits, nms_iou)
    rows = rows[((boxes[rows, 2:] - boxes[rows, :2]) > 0).all(axis=1)]
    return boxes[rows], rows


def describe(
    detector: DenseCap,
    encodings: Sequence[Encoding],
    boxes: Sequence[ArrayLike] | None = None,
    top: int | None = None,
    threshold: float | None = None,
    writer: PhraseWriter | None = None,
    nms_iou: float | None = None,
    calibration: Calibration | None = None,
    proposals: Sequence[np.ndarray] | None = None,
) -> list[Regions]:
    """Return the regions of images: found and ranked, or those in ``boxes`` in their order.

    Args:
        boxes, writer, proposals: see :func:`detect`.
        top, threshold: see :func:`rank`.
        nms_iou: IoU threshold of the only suppression, instead of ``final_nms`` and ``repeat_nms`` of the
            configuration.

    Raises:
        UserError: as :func:`detect`; ``boxes`` together with ``top`` or ``threshold``; or a negative ``top``.
    """
    if top is not None and top < 0:
        raise UserError(f"top must be at least 0, not {top}")
    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("top and threshold choose among the boxes that are found; given boxes are all described")
    config, calibration = detector.config, calibration or Calibration()
    found = detect(detector, encodings, boxes, proposals, nms_iou, writer, calibration, threshold=threshold)
    regions = [each.regions(calibration.box) for each in found]
    if boxes is None:
        repeat_nms = config.repeat_nms if nms_iou is None else None
        kept = [rank(r, repeat_nms, threshold, top) for r in regions]
    else:
        kept = [list(range(len(r))) for r in regions]
    chosen = [each[rows] for each, rows in zip(regions, kept, strict=True)]
    if (fit := calibration.caption) is None:
        return chosen
    nouns = writer and writer.nouns
    evidence = [each.caption_evidence(nouns, rows) for each, rows in zip(found, kept, strict=True)]
    return [replace(each, caption_scores=fit.apply(seen)) for each, seen in zip(chosen, evidence, strict=True)]


def rank(
    regions: Regions, repeat_nms: float | None, threshold: float | None = None, top: int | None = None
) -> list[int]:
    """Return the indices of the regions to keep, at most ``top`` (0 or None: all), best first.

    A region is dropped if its score is below ``threshold``, or if its IoU with a better region of the same caption is
    above ``repeat_nms``.
    """
    assert regions.scores is not None and regions.captions is not None
    close = geometry.iou(regions.boxes, regions.boxes) > (1.0 if repeat_nms is None else repeat_nms)
    kept: list[int] = []
    for row in np.argsort(-regions.scores, kind="stable").tolist():
        if threshold is not None and regions.scores[row] < threshold:
            break
        if not any(close[row, i] and regions.captions[i] == regions.captions[row] for i in kept):
            kept.append(row)
    return kept[: top or None]

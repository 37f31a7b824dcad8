"""The rules by which dense captions are scored: which detections are true, and how precision is averaged.

``CLEAN`` is the definition of the DenseCap paper (section 4.1). ``ORIGINAL`` is the published program, which differs
from it in the ways that :class:`Rules` names; ``docs/evaluation.md`` shows what each of them does to a score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from saywhere import boxes as geometry
from saywhere.evaluation.dense import original

Array = NDArray[Any]

MERGE_IOU = 0.7
"""True boxes that overlap by so much are one, with the phrases of all."""


@dataclass(frozen=True)
class Rules:
    """Say how a protocol departs from the definition; by default it does not.

    Attributes:
        name: the protocol, as reports name it.
        corner_boxes: boxes are float32 corners of the first and last pixel, sizes have 1 added, and merging counts
            neighbours in a byte. Otherwise they are continuous.
        any_overlap_claims: a true box is taken by the first detection that overlaps it most, however little. Otherwise
            by the first that reaches the thresholds, determined anew for each pair of thresholds.
        unmatched_claim_last: a detection that overlaps no true box takes the last one of the image.
        drifting_recall: precision is averaged over 100 recalls, added up with rounding errors. Otherwise over the 101
            recalls from 0 to 1, compared as integers.
        ties: equal scores stand in the order of the ``input``, or as the unstable quicksort of Torch7 (``torch``)
            leaves them: :mod:`saywhere.torch7_sort`.
        precision: of IoUs in merging, of recall and of precision. The program uses double in its evaluation and float
            in the validation during training. Has no effect without ``corner_boxes`` and ``drifting_recall``.
    """

    name: str
    corner_boxes: bool = False
    any_overlap_claims: bool = False
    unmatched_claim_last: bool = False
    drifting_recall: bool = False
    ties: Literal["input", "torch"] = "input"
    precision: Literal["double", "float"] = "double"

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Numpy's type of ``precision``."""
        return np.float32 if self.precision == "float" else np.float64


CLEAN = Rules("clean")
ORIGINAL = Rules(
    "original", corner_boxes=True, any_overlap_claims=True, unmatched_claim_last=True, drifting_recall=True
)


@dataclass(frozen=True, eq=False)
class Matches:
    """Hold the detections of one image, best first.

    Attributes:
        order: ``(N,)`` their indices in the input.
        overlap: ``(N,)`` IoU of each with the true box that it overlaps most; 0 if it overlaps none.
        truth: ``(N,)`` index of that true box (the first among equals), or -1.
        claim: ``(N,)`` index of the true box that each may take: ``truth``, except with ``unmatched_claim_last``.
    """

    order: Array
    overlap: Array
    truth: Array
    claim: Array


def merge(rules: Rules, boxes: Array) -> tuple[Array, list[list[int]]]:
    """Merge true boxes ``(N, 4)`` at IoU ``MERGE_IOU``: return the means ``(G, 4)`` and members of the groups."""
    if rules.corner_boxes:
        return original.merge(boxes.astype(np.float32), MERGE_IOU, rules.dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
        return geometry.merge(boxes, MERGE_IOU)


def descending_order(rules: Rules, scores: Array) -> Array:
    """Return indices that sort ``scores (N,)`` downwards."""
    return original.descending_order(scores) if rules.ties == "torch" else np.argsort(-scores, kind="stable")


def match(rules: Rules, boxes: Array, scores: Array, truths: Array) -> Matches:
    """Match each detection of ``boxes (N, 4)``, ``scores (N,)`` with the one of ``truths (M, 4)`` it overlaps most."""
    order = descending_order(rules, scores)
    if not len(truths):
        none = np.full(len(order), -1)
        return Matches(order, np.zeros(len(order)), none, none)
    if rules.corner_boxes:
        table = original.overlaps(boxes[order].astype(np.float32), truths)
    else:
        with np.errstate(over="ignore", invalid="ignore"):
            table = geometry.iou(boxes[order], truths)
    overlap = np.maximum(table.max(axis=1), 0)
    truth = np.where(overlap > 0, table.argmax(axis=1), -1)
    claim = np.where(truth < 0, len(truths) - 1, truth) if rules.unmatched_claim_last else truth
    return Matches(order, overlap, truth, claim)


def first_claims(claim: Array, claimants: Array) -> Array:
    """Return the mask ``(N,)`` of the first of ``claimants (N,)`` (a mask) for each true box in ``claim (N,)``."""
    rows = np.flatnonzero(claimants)
    first = np.zeros(len(claim), dtype=bool)
    first[rows[np.unique(claim[rows], return_index=True)[1]]] = True
    return first


def average_precision(rules: Rules, hits: Array, positives: int) -> float:
    """Return the mean, over recalls, of the best precision at that recall or a higher one; 0 without a true box.

    Args:
        rules: say which recalls, and in which precision.
        hits: ``(N,)`` mask of the detections, best first, that are true.
        positives: number of true boxes.
    """
    if not positives or not len(hits):
        return 0.0
    true = np.cumsum(hits)
    if rules.drifting_recall:
        starts = original.recall_starts(hits, positives, rules.dtype)
    else:
        starts = np.searchsorted(100 * true, np.arange(101) * positives)  # as integers: k / 100 is reached exactly
    precision = true.astype(rules.dtype) / np.arange(1, len(hits) + 1, dtype=rules.dtype)
    best = np.maximum.accumulate(precision[::-1].astype(np.float64))[::-1]
    reached = best[starts[starts < len(hits)]].tolist()
    return (sum_in_order(reached) if rules.drifting_recall else math.fsum(reached)) / len(starts)


def sum_in_order(values: list[float]) -> float:
    """Return the sum with a rounding at each step, as a loop gives it; Python's ``sum`` compensates from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total

"""The rules by which dense captioning is scored: what counts as a hit, and what hits are worth.

``CLEAN`` is the definition of the DenseCap paper (section 4.1). ``ORIGINAL`` is the published program, which differs
from it in the ways that :class:`Rules` names; ``docs/evaluation.md`` has what each of them does to a score.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from saywhere import boxes as ours
from saywhere.evaluation import dense_original as original

Array = NDArray[Any]

MERGE_IOU = 0.7
"""True boxes that overlap by so much are one, with the phrases of all."""


@dataclass(frozen=True)
class Rules:
    """How one protocol departs from the definition; the default departs nowhere.

    Attributes:
        name: the protocol, as reports name it.
        corner_boxes: boxes are float32 corners of the first and last pixel, sizes have 1 added, and merging counts
            neighbours in a byte. Otherwise they are continuous.
        any_overlap_claims: a truth belongs to the first detection that overlaps it most, however little. Otherwise to
            the first that reaches the thresholds, found anew for each.
        unmatched_claim_last: a detection that overlaps no truth takes the picture's last one from the others.
        drifting_recall: 100 recalls added up with rounding errors. Otherwise the 101 from 0 to 1, compared as integers.
        ties: equal scores stand in the order of the input, or as Torch's unstable quicksort leaves them.
        precision: floats of the IoU in merging, of recall and precision. The program has double in its evaluation and
            float in the validation during training. Without ``corner_boxes`` and ``drifting_recall`` it has no effect.
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
        """Numpy's type for ``precision``."""
        return np.float32 if self.precision == "float" else np.float64


CLEAN = Rules("clean")
ORIGINAL = Rules(
    "original", corner_boxes=True, any_overlap_claims=True, unmatched_claim_last=True, drifting_recall=True
)


@dataclass(frozen=True, eq=False)
class Matches:
    """The detections of one picture, best first.

    Attributes:
        order: ``(N,)`` their places in the input.
        overlap: ``(N,)`` IoU with the truth that each overlaps most; 0 if it overlaps none.
        truth: ``(N,)`` that truth (the first among equals), or -1.
        claim: ``(N,)`` the truth that each may take from later ones: ``truth``, but for ``unmatched_claim_last``.
    """

    order: Array
    overlap: Array
    truth: Array
    claim: Array


def merge(rules: Rules, boxes: Array) -> tuple[Array, list[list[int]]]:
    """Means ``(G, 4)`` and members of the groups of true boxes ``(N, 4)`` that are one at IoU ``MERGE_IOU``."""
    if rules.corner_boxes:
        return original.merge(boxes.astype(np.float32), MERGE_IOU, rules.dtype)
    means, groups = ours.merge(torch.from_numpy(boxes), MERGE_IOU)
    return means.numpy(), groups


def descending_order(rules: Rules, scores: Array) -> Array:
    """Indices that sort ``scores (N,)`` downwards."""
    return original.descending_order(scores) if rules.ties == "torch" else np.argsort(-scores, kind="stable")


def match(rules: Rules, boxes: Array, scores: Array, truths: Array) -> Matches:
    """Each of the detections ``boxes (N, 4)``, ``scores (N,)`` with the one of ``truths (M, 4)`` it overlaps most."""
    order = descending_order(rules, scores)
    if not len(truths):
        none = np.full(len(order), -1)
        return Matches(order, np.zeros(len(order)), none, none)
    if rules.corner_boxes:
        table = original.overlaps(boxes[order].astype(np.float32), truths)
    else:
        table = ours.iou(torch.from_numpy(boxes[order]), torch.from_numpy(truths)).numpy()
    overlap = np.maximum(table.max(axis=1), 0)
    truth = np.where(overlap > 0, table.argmax(axis=1), -1)
    claim = np.where(truth < 0, len(truths) - 1, truth) if rules.unmatched_claim_last else truth
    return Matches(order, overlap, truth, claim)


def first_claims(claim: Array, claimants: Array) -> Array:
    """Mask ``(N,)`` of the first of ``claimants`` (a mask) for each truth in ``claim``."""
    rows = np.flatnonzero(claimants)
    first = np.zeros(len(claim), dtype=bool)
    first[rows[np.unique(claim[rows], return_index=True)[1]]] = True
    return first


def average_precision(rules: Rules, hits: Array, positives: int) -> float:
    """The mean, over recalls, of the best precision at that recall or a higher one; 0 without a truth.

    Args:
        rules: the recalls, and the floats.
        hits: ``(N,)`` whether the detections, best first, are true.
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
    """The sum with a rounding at each step, as a loop has it; Python's own ``sum`` compensates from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total

"""The rules by which dense captions are scored: which detections are true, and how precision is averaged.

``clean`` is the definition of the DenseCap paper (section 4.1). ``original`` is the published program, which departs
from it in several ways; ``docs/evaluation.md`` shows what each of them does to a score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from saywhere import boxes as geometry
from saywhere import reproductions
from saywhere.errors import UserError

Array = NDArray[Any]

MERGE_IOU = 0.7
"""True boxes that overlap by so much are one, with the phrases of all."""
PROTOCOLS = ("clean", *reproductions.values("protocol"))


@dataclass(frozen=True, eq=False)
class Matches:
    """The detections of one image, best first.

    Attributes:
        order: ``(N,)`` their indices in the input.
        overlap: ``(N,)`` IoU of each with the true box that it overlaps most; 0 if it overlaps none.
        truth: ``(N,)`` index of that true box (the first among equals), or -1.
        claim: ``(N,)`` index of the true box that each may take: ``truth``, unless a protocol says otherwise.
    """

    order: Array
    overlap: Array
    truth: Array
    claim: Array


@dataclass(frozen=True)
class Rules:
    """The definition of the paper, step by step; another protocol overrides some of the steps.

    Attributes:
        name: the protocol, as reports name it.
        ordered: boxes that are inside out are refused.
    """

    name: str = "clean"
    ordered: ClassVar[bool] = True

    @property
    def dtype(self) -> type[np.floating[Any]]:
        """Numpy's type of precision."""
        return np.float64

    def merge(self, boxes: Array) -> tuple[Array, list[list[int]]]:
        """Merge true boxes ``(N, 4)`` at IoU ``MERGE_IOU``: return the means ``(G, 4)`` and members of the groups."""
        with np.errstate(over="ignore", invalid="ignore"):  # boxes as large as 1e300
            return geometry.merge(boxes, MERGE_IOU)

    def order(self, scores: Array) -> Array:
        """Return indices that sort ``scores (N,)`` downwards; equal scores stay in their order."""
        return np.argsort(-scores, kind="stable")

    def overlaps(self, boxes: Array, truths: Array) -> Array:
        """Return the IoU ``(N, M)`` of detections ``boxes (N, 4)`` and true boxes ``truths (M, 4)``."""
        with np.errstate(over="ignore", invalid="ignore"):
            return geometry.iou(boxes, truths)

    def match(self, boxes: Array, scores: Array, truths: Array) -> Matches:
        """Match each detection with the one of ``truths (M, 4)`` that it overlaps most.

        Args:
            boxes: ``(N, 4)`` of the detections.
            scores: ``(N,)`` of the detections.
            truths: true boxes after merging.
        """
        order = self.order(scores)
        if not len(truths):
            none = np.full(len(order), -1)
            return Matches(order, np.zeros(len(order)), none, none)
        table = self.overlaps(boxes[order], truths)
        overlap = np.maximum(table.max(axis=1), 0)
        truth = np.where(overlap > 0, table.argmax(axis=1), -1)
        return Matches(order, overlap, truth, self.claims(truth, len(truths)))

    def claims(self, truth: Array, truths: int) -> Array:
        """Return the true box ``(N,)`` that each detection may take, of ``truths``; -1 for none."""
        return truth

    def claimants(self, claim: Array) -> Array:
        """Return the mask ``(N,)`` of the detections that may be true, given the ``claim (N,)`` of all, best first."""
        return claim >= 0

    def hits(self, qualifies: Array, overlap: Array, claim: Array, claimants: Array) -> Array:
        """Return the mask ``(N,)`` of the true detections: of each true box the first that reaches the thresholds.

        Args:
            qualifies: mask of the detections that reach the thresholds.
            overlap, claim: of all detections, see :class:`Matches`.
            claimants: from :meth:`claimants`.
        """
        return first_claims(claim, qualifies)

    def recall_starts(self, hits: Array, positives: int) -> Array:
        """Return for each recall 0, 0.01, ... 1 how many of the best detections ``hits (N,)`` do not reach it yet."""
        # As integers: k / 100 is reached exactly.
        return np.searchsorted(100 * np.cumsum(hits), np.arange(101) * positives)

    def total(self, values: Sequence[float]) -> float:
        """Return the sum of precisions."""
        return math.fsum(values)

    def average_precision(self, hits: Array, positives: int) -> float:
        """Return the mean, over recalls, of the best precision at that recall or a higher one; 0 without a true box.

        Args:
            hits: ``(N,)`` mask of the detections, best first, that are true.
            positives: number of true boxes.
        """
        if not positives or not len(hits):
            return 0.0
        starts = self.recall_starts(hits, positives)
        precision = np.cumsum(hits).astype(self.dtype) / np.arange(1, len(hits) + 1, dtype=self.dtype)
        best = np.maximum.accumulate(precision[::-1].astype(np.float64))[::-1]
        return self.total(best[starts[starts < len(hits)]].tolist()) / len(starts)


CLEAN = Rules()


def find_rules(protocol: str) -> Rules:
    """Return the rules of a protocol; ``UserError`` if there is none of this name."""
    if protocol not in PROTOCOLS:
        raise UserError(f"no protocol {protocol!r}; there are {' and '.join(PROTOCOLS)}")
    return CLEAN if protocol == "clean" else reproductions.find(f"protocol={protocol}")


def first_claims(claim: Array, claimants: Array) -> Array:
    """Return the mask ``(N,)`` of the first of ``claimants (N,)`` (a mask) for each true box in ``claim (N,)``."""
    rows = np.flatnonzero(claimants)
    first = np.zeros(len(claim), dtype=bool)
    first[rows[np.unique(claim[rows], return_index=True)[1]]] = True
    return first


def sum_in_order(values: Sequence[float]) -> float:
    """Return the sum with a rounding at each step, as a loop gives it; Python's ``sum`` compensates from 3.12 on."""
    total = 0.0
    for value in values:
        total += value
    return total

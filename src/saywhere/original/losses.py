"""The program's five losses and its decay of raw offsets: its formats, our losses. Boxes are ``xcycwh``."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere.ops.losses import box_loss, offset_decay, score_loss
from saywhere.original.boxes import invert_box_transform

__all__ = [
    "balanced_cross_entropy",
    "box_regression_loss",
    "logistic_loss",
    "offset_decay",
    "offset_loss",
    "two_way_cross_entropy",
]

OFFSET_LIMIT = 10.0
"""Rows of offsets with a target beyond this in magnitude do not train."""


def two_way_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy of logits ``(N, 2)``, positive first, to ``targets (N,)`` 1 or 2; 0 for no rows.

    Only the difference of the two logits counts: it is the logit of :func:`saywhere.ops.losses.score_loss`.
    """
    return score_loss(scores[:, 0] - scores[:, 1], targets == 1)


def balanced_cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """Return the RPN's objectness loss: the mean over positives ``(P, 2)`` plus that over negatives ``(M, 2)``.

    Either side counts as a whole, however few there are of it; a mean over the batch would favour the more frequent.
    """
    ones = torch.ones(len(positive), dtype=torch.long, device=positive.device)
    twos = torch.full((len(negative),), 2, dtype=torch.long, device=negative.device)
    return two_way_cross_entropy(positive, ones) + two_way_cross_entropy(negative, twos)


def logistic_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over ``N * C`` of the binary logistic losses of logits ``(N, C)``; 0 for no rows.

    ``targets (N,)`` name the one class, counted from 1, that each row is; 0: none. The recognition network has C = 1.
    """
    classes = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    return score_loss(scores, targets[:, None] == classes)


def offset_loss(offsets: Tensor, targets: Tensor) -> Tensor:
    """Return smooth L1 (beta 1), the mean over the elements of ``offsets (..., 4)``.

    A row with a target beyond ``OFFSET_LIMIT`` costs nothing but still counts in the mean. The program gets there by
    overwriting both rows with zeros in place; we leave them.
    """
    return box_loss(offsets, targets, beta=1.0, limit=OFFSET_LIMIT)


def box_regression_loss(offsets: Tensor, anchors: Tensor, boxes: Tensor) -> Tensor:
    """Return :func:`offset_loss` between ``offsets`` and those that turn ``anchors`` into ``boxes``.

    Gradients reach ``anchors`` too: in the recognition network they are proposals, and the program detaches nothing.
    """
    return offset_loss(offsets, invert_box_transform(anchors, boxes))

"""The program's five losses and its decay of raw offsets. Boxes are ``xcycwh``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from saywhere.original.boxes import invert_box_transform


def two_way_cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy of logits ``(N, 2)``, positive before negative; ``targets (N,)`` are 1 or 2; 0 for no rows."""
    return functional.cross_entropy(scores, targets - 1, reduction="sum") / max(len(scores), 1)


def balanced_cross_entropy(positive: Tensor, negative: Tensor) -> Tensor:
    """The RPN's objectness loss: the mean over positives ``(P, 2)`` plus the mean over negatives ``(M, 2)``.

    Either side counts as a whole, however few there are of it; a mean over the batch would favour the more frequent.
    """
    ones = torch.ones(len(positive), dtype=torch.long, device=positive.device)
    twos = torch.full((len(negative),), 2, dtype=torch.long, device=negative.device)
    return two_way_cross_entropy(positive, ones) + two_way_cross_entropy(negative, twos)


def logistic_loss(scores: Tensor, targets: Tensor) -> Tensor:
    """Mean over ``N * C`` of the binary logistic losses of logits ``(N, C)``.

    ``targets (N,)`` name the one class, counted from 1, that each row is; 0: none. The recognition network has C = 1.
    """
    classes = torch.arange(1, scores.shape[1] + 1, device=scores.device)
    wanted = (targets[:, None] == classes).to(scores.dtype)
    return functional.binary_cross_entropy_with_logits(scores, wanted)


def offset_loss(offsets: Tensor, targets: Tensor) -> Tensor:
    """Smooth L1 (beta 1), mean over the elements of ``offsets (..., 4)``.

    A row with a target beyond 10 in magnitude costs nothing but still counts in the mean. The program gets there by
    overwriting both rows with zeros in place; we leave them.
    """
    kept = ~(targets.detach().abs().amax(dim=-1) > 10)
    total = functional.smooth_l1_loss(offsets[kept], targets[kept], reduction="sum")
    return total / max(offsets.numel(), 1)


def box_regression_loss(offsets: Tensor, anchors: Tensor, boxes: Tensor) -> Tensor:
    """:func:`offset_loss` between ``offsets`` and those that turn ``anchors`` into ``boxes``.

    Gradients reach ``anchors`` too: in the recognition network they are proposals, and the program detaches nothing.
    """
    return offset_loss(offsets, invert_box_transform(anchors, boxes))


def offset_decay(offsets: Tensor, weight: float) -> Tensor:
    """``weight / 2`` times the squared norm of all raw offsets, also those that were not sampled.

    The program adds its gradient but leaves its value out of the total that it prints.
    """
    return 0.5 * weight * offsets.square().sum()

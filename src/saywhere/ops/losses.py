"""Losses of scores and of box offsets, as DenseCap trains with them (section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean binary logistic loss of ``logits`` and ``positive``, both of one shape; 0 if they are empty."""
    return _mean(functional.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none"))


def balanced_score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean over the positives plus that over the negatives, so that neither outweighs the other.

    ``logits`` and ``positive`` (bool) have one shape; a side without members adds 0.
    """
    return score_loss(logits[positive], positive[positive]) + score_loss(logits[~positive], positive[~positive])


def box_loss(offsets: Tensor, targets: Tensor, beta: float, limit: float | None) -> Tensor:
    """Return smooth L1 between offsets ``(..., 4)``, the mean over all elements; 0 if there are none.

    Args:
        offsets, targets: of one shape.
        beta: where the square turns into the straight line.
        limit: rows with a target beyond this in magnitude count as 0 in the mean; None for no such rows.
    """
    loss = functional.smooth_l1_loss(offsets, targets, reduction="none", beta=beta)
    if limit is not None:
        loss = torch.where((targets.abs() > limit).any(dim=-1, keepdim=True), 0.0, loss)
    return _mean(loss)


def offset_decay(offsets: Tensor, weight: float) -> Tensor:
    """Return ``weight / 2`` times the squared norm of all ``offsets``, of any shape."""
    return weight / 2 * offsets.square().sum()


def _mean(values: Tensor) -> Tensor:
    """The mean, or a 0 that keeps the graph where there are no values."""
    return values.sum() / max(values.numel(), 1)

"""DenseCap's five losses (section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.models.densecap import DenseCapOutput
from saywhere.models.densecap_config import DenseCapConfig


class DenseCapCriterion(nn.Module):
    """The weighted losses of an output; they add up to what is minimised.

    Args:
        config: its weights, ``balanced``, ``box_beta``, ``box_limit`` and ``box_decay``.
    """

    def __init__(self, config: DenseCapConfig):
        super().__init__()
        self.config = config

    def forward(self, output: DenseCapOutput) -> dict[str, Tensor]:
        """Scalars ``rpn_score, rpn_box, score, box, caption``, and ``decay`` if weighted; 0 where nothing is drawn."""
        config = self.config
        score = balanced_score_loss if config.balanced else score_loss
        losses = {
            "rpn_score": config.rpn_score_weight * score(output.rpn_logits, output.rpn_positive),
            "rpn_box": config.rpn_box_weight * self._box(output.rpn_offsets, output.rpn_offset_targets),
            "score": config.score_weight * score_loss(output.logits, output.positive),
            "box": config.box_weight * self._box(output.offsets, output.offset_targets),
            "caption": config.caption_weight * caption_loss(output.word_logits, output.words, len(output.offsets)),
        }
        if config.box_decay:
            losses["decay"] = config.box_decay / 2 * output.rpn_all_offsets.square().sum()
        return losses

    def _box(self, offsets: Tensor, targets: Tensor) -> Tensor:
        return box_loss(offsets, targets, self.config.box_beta, self.config.box_limit)


def score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Binary logistic loss, mean over all ``(N,)``."""
    return _mean(functional.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none"))


def balanced_score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Mean over the positives plus mean over the negatives, so that neither outweighs the other."""
    return score_loss(logits[positive], positive[positive]) + score_loss(logits[~positive], positive[~positive])


def box_loss(offsets: Tensor, targets: Tensor, beta: float, limit: float | None) -> Tensor:
    """Smooth L1 between ``(N, 4)`` offsets, mean over all 4N; rows with a target beyond ``limit`` count as 0."""
    loss = functional.smooth_l1_loss(offsets, targets, reduction="none", beta=beta)
    if limit is not None:
        loss = torch.where((targets.abs() > limit).any(dim=1, keepdim=True), 0.0, loss)
    return _mean(loss)


def caption_loss(logits: Tensor, words: Tensor, phrases: int) -> Tensor:
    """Cross entropy of the ``words (K,)`` of all phrases under ``logits (K, V)``: summed, divided by their number."""
    return functional.cross_entropy(logits, words, reduction="sum") / max(phrases, 1)


def _mean(values: Tensor) -> Tensor:
    """The mean, or a 0 that keeps the graph where there are no values."""
    return values.sum() / max(values.numel(), 1)

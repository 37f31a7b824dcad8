"""DenseCap's five losses (section 3.2) on scores, box offsets and words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.densecap.network import DenseCapOutput
from saywhere.text import END


def score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean binary cross entropy of ``logits`` and ``positive``, which have the same shape; 0 if empty."""
    return _mean(functional.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none"))


def balanced_score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean loss of the positives plus that of the negatives, so that neither outweighs the other.

    ``logits`` and ``positive`` (bool) have the same shape. A missing class contributes 0.
    """
    return score_loss(logits[positive], positive[positive]) + score_loss(logits[~positive], positive[~positive])


def box_loss(offsets: Tensor, targets: Tensor, beta: float, limit: float | None) -> Tensor:
    """Return the mean smooth L1 loss between offsets and targets ``(..., 4)``; 0 if there are none.

    ``beta`` is the point where the loss turns from quadratic to linear. Rows with a target above ``limit`` in magnitude
    count as 0 in the mean.
    """
    loss = functional.smooth_l1_loss(offsets, targets, reduction="none", beta=beta)
    if limit is not None:
        loss = torch.where((targets.abs() > limit).any(dim=-1, keepdim=True), 0.0, loss)
    return _mean(loss)


def offset_decay(offsets: Tensor, weight: float) -> Tensor:
    """Return ``weight / 2`` times the squared norm of ``offsets``, of any shape."""
    return weight / 2 * offsets.square().sum()


def _mean(values: Tensor) -> Tensor:
    """Return the mean, or a 0 that stays in the graph if there are no values."""
    return values.sum() / max(values.numel(), 1)


class DenseCapCriterion(nn.Module):
    """Compute the weighted losses of an output; training minimises their sum.

    The weights, ``balanced``, ``box_beta``, ``box_limit`` and ``box_decay`` come from the configuration.
    """

    def __init__(self, config: DenseCapConfig):
        super().__init__()
        self.config = config

    def forward(self, output: DenseCapOutput) -> dict[str, Tensor]:
        """Return the scalars ``rpn_score, rpn_box, score, box, caption``, and ``decay`` if it has a weight.

        A loss without sampled boxes is 0.
        """
        config = self.config
        score = balanced_score_loss if config.balanced else score_loss
        losses = {
            "rpn_score": config.rpn_score_weight * score(output.rpn_logits, output.rpn_positive),
            "rpn_box": config.rpn_box_weight * self._box(output.rpn_offsets, output.rpn_offset_targets),
            "score": config.score_weight * score_loss(output.logits, output.positive),
            "box": config.box_weight * self._box(output.offsets, output.offset_targets),
            "caption": config.caption_weight * self._caption(output),
        }
        if config.box_decay:
            losses["decay"] = offset_decay(output.rpn_all_offsets, config.box_decay)
        return losses

    def _caption(self, output: DenseCapOutput) -> Tensor:
        return caption_loss(output.word_logits, output.token_ids, len(output.offsets), output.word_weights)

    def _box(self, offsets: Tensor, targets: Tensor) -> Tensor:
        return box_loss(offsets, targets, self.config.box_beta, self.config.box_limit)


def caption_loss(logits: Tensor, token_ids: Tensor, phrases: int, weights: Tensor | None = None) -> Tensor:
    """Return the cross entropy of ``token_ids (K,)`` under ``logits (K, V)``: the sum divided by ``phrases``.

    ``weights (K,)`` are equal for all words of a phrase and its END; with them it is the weighted mean over phrases.
    """
    if weights is None:
        return functional.cross_entropy(logits, token_ids, reduction="sum") / max(phrases, 1)
    total = weights[token_ids == END].sum()
    each = functional.cross_entropy(logits, token_ids, reduction="none")
    return (each * weights).sum() / total.clamp(min=torch.finfo(weights.dtype).tiny)

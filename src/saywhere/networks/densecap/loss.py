"""DenseCap's five losses (section 3.2), of scores, box offsets and words."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.densecap.network import DenseCapOutput
from saywhere.text import END


def score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean binary logistic loss of ``logits`` and ``positive``, both of one shape; 0 if they are empty."""
    return _mean(functional.binary_cross_entropy_with_logits(logits, positive.to(logits.dtype), reduction="none"))


def balanced_score_loss(logits: Tensor, positive: Tensor) -> Tensor:
    """Return the mean over the positives plus that over the negatives, so that neither outweighs the other.

    ``logits`` and ``positive`` (bool) have one shape; a side without members adds 0.
    """
    return score_loss(logits[positive], positive[positive]) + score_loss(logits[~positive], positive[~positive])


def box_loss(offsets: Tensor, targets: Tensor, beta: float, limit: float | None) -> Tensor:
    """Return smooth L1 between offsets and targets ``(..., 4)``, the mean over all elements; 0 if there are none.

    ``beta`` is where the square turns into the straight line; rows with a target beyond ``limit`` in magnitude count as
    0 in the mean.
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


class DenseCapCriterion(nn.Module):
    """The weighted losses of an output; they add up to what is minimised.

    Weights, ``balanced``, ``box_beta``, ``box_limit`` and ``box_decay`` are those of the configuration.
    """

    def __init__(self, config: DenseCapConfig):
        super().__init__()
        self.config = config

    def forward(self, output: DenseCapOutput) -> dict[str, Tensor]:
        """Return scalars ``rpn_score, rpn_box, score, box, caption``, and ``decay`` if weighted.

        A loss without any sampled box is 0.
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
    """Return the cross entropy of ``token_ids (K,)`` of all phrases under ``logits (K, V)``, over their number.

    With ``weights (K,)``, the same for all words of a phrase and its END, it is the weighted mean over the phrases.
    """
    if weights is None:
        return functional.cross_entropy(logits, token_ids, reduction="sum") / max(phrases, 1)
    total = weights[token_ids == END].sum()
    each = functional.cross_entropy(logits, token_ids, reduction="none")
    return (each * weights).sum() / total.clamp(min=torch.finfo(weights.dtype).tiny)

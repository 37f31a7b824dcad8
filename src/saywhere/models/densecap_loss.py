"""DenseCap's five losses (section 3.2)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from saywhere.models.densecap import DenseCapOutput
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.vision.losses import balanced_score_loss, box_loss, offset_decay, score_loss


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
            losses["decay"] = offset_decay(output.rpn_all_offsets, config.box_decay)
        return losses

    def _box(self, offsets: Tensor, targets: Tensor) -> Tensor:
        return box_loss(offsets, targets, self.config.box_beta, self.config.box_limit)


def caption_loss(logits: Tensor, words: Tensor, phrases: int) -> Tensor:
    """Cross entropy of the ``words (K,)`` of all phrases under ``logits (K, V)``: summed, divided by their number."""
    return functional.cross_entropy(logits, words, reduction="sum") / max(phrases, 1)

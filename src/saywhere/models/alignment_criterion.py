"""The loss of an aligner as its configuration says."""

from __future__ import annotations

from torch import Tensor, nn

from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_loss import AlignmentOutput, contrastive, max_margin, placed


class AlignmentCriterion(nn.Module):
    """Scores of a batch to the losses ``pictures`` and ``sentences``, and ``phrases`` if their boxes are known.

    Args:
        config: its ``loss``, ``margin``, ``hardest``, ``smoothing`` and ``phrase_weight`` count.
    """

    def __init__(self, config: AlignerConfig):
        super().__init__()
        self.config = config

    def forward(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """See :mod:`saywhere.models.alignment_loss`."""
        if self.config.loss == "contrastive":
            losses = contrastive(output, self.config.smoothing)
        else:
            losses = max_margin(output, self.config.margin, self.config.hardest)
        if self.config.phrase_weight:
            losses["phrases"] = self.config.phrase_weight * placed(output)
        return losses

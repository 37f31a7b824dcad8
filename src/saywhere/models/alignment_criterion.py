"""The loss of an aligner as its configuration says."""

from __future__ import annotations

from torch import Tensor, nn

from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_loss import AlignmentOutput, contrastive, max_margin


class AlignmentCriterion(nn.Module):
    """Scores of a batch to the losses ``pictures`` and ``sentences``.

    Args:
        config: its ``loss``, ``margin``, ``hardest`` and ``smoothing`` count.
    """

    def __init__(self, config: AlignerConfig):
        super().__init__()
        self.config = config

    def forward(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """See :mod:`saywhere.models.alignment_loss`."""
        if self.config.loss == "contrastive":
            return contrastive(output, self.config.smoothing)
        return max_margin(output, self.config.margin, self.config.hardest)

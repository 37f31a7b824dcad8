"""The loss of an aligner as its configuration says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
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

    def forward(self, outputs: Sequence[AlignmentOutput]) -> dict[str, Tensor]:
        """The mean over the ``outputs`` of the losses of :mod:`saywhere.models.alignment_loss`.

        With M readers the gradient of each is an M-th of what it is alone, which AdamW and RMSprop do not feel.
        """
        losses = [self.losses(output) for output in outputs]
        return {name: torch.stack([each[name] for each in losses]).mean() for name in losses[0]}

    def losses(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """Of one reader, or of all together."""
        if self.config.loss == "contrastive":
            losses = contrastive(output, self.config.smoothing)
        else:
            losses = max_margin(output, self.config.margin, self.config.hardest)
        if self.config.phrase_weight:
            losses["phrases"] = self.config.phrase_weight * placed(output)
        return losses

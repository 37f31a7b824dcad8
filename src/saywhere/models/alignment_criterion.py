"""The loss of an aligner as its configuration says."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_loss import AlignmentOutput, contrastive, distilled, max_margin, placed


class AlignmentCriterion(nn.Module):
    """Scores of a batch to the losses ``pictures`` and ``sentences``, and ``phrases`` if their boxes are known.

    Args:
        config: its ``loss``, ``margin``, ``hardest``, ``smoothing``, ``phrase_weight`` and, with teachers,
            ``taught`` and ``softness`` count.
        teachers: aligners that are called as the model is; in training it learns from what they think too.
    """

    def __init__(self, config: AlignerConfig, teachers: Sequence[nn.Module] = ()):
        super().__init__()
        self.config = config
        self._teachers = tuple(teacher.eval() for teacher in teachers)  # in a tuple they are not this module's parts

    def forward(self, output: AlignmentOutput) -> dict[str, Tensor]:
        """See :mod:`saywhere.models.alignment_loss`."""
        if self.config.loss == "contrastive":
            losses = contrastive(output, self.config.smoothing)
        else:
            losses = max_margin(output, self.config.margin, self.config.hardest)
        if self._teachers and self.training:
            soft = distilled(output, self._think(output), self.config.softness)
            losses = {name: torch.lerp(loss, soft[name], self.config.taught) for name, loss in losses.items()}
        if self.config.phrase_weight:
            losses["phrases"] = self.config.phrase_weight * placed(output)
        return losses

    @torch.no_grad()
    def _think(self, output: AlignmentOutput) -> list[AlignmentOutput]:
        assert output.batch is not None
        return [teacher.to(output.scores.device)(*output.batch) for teacher in self._teachers]

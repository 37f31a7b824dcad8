"""Captions learnt by what they are worth (Rennie et al., Self-critical Sequence Training, 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhere.language.cider import TOP, Cider
from saywhere.text import END, PAD


@dataclass(frozen=True, eq=False)
class DrawnOutput:
    """Sentences that a model drew of pictures.

    Attributes:
        words: ``(N, K, T)`` K sentences of each of N pictures, END and then padding after the last word.
        log_probs: ``(N, K, T)`` of each word and END, 0 where padded.
        references: of each picture ``(R, T_i)`` what people said, padded, without END.
    """

    words: Tensor
    log_probs: Tensor
    references: tuple[Tensor, ...]


class RewardCriterion(nn.Module):
    """What the sentences lack to the best CIDEr-D, one loss named ``cider``.

    Its gradient is that of REINFORCE: a sentence becomes more probable by as much as it is worth more than the mean of
    the others that were drawn of its picture. END counts as a word, or sentences would end anywhere.

    Args:
        cider: the reward.
    """

    def __init__(self, cider: Cider):
        super().__init__()
        self.cider = cider

    def forward(self, output: DrawnOutput) -> dict[str, Tensor]:
        """10 minus the mean CIDEr-D; with one sentence a picture, as in validation, there is no gradient."""
        log_probs = output.log_probs.float()
        rewards = torch.tensor(self.rewards(output)).to(log_probs)
        count = rewards.shape[1]
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / max(count - 1, 1)
        worth = rewards - others if count > 1 else torch.zeros_like(rewards)
        blame = -(worth[..., None] * log_probs).sum() / (output.words != PAD).sum().clamp(min=1)
        return {"cider": TOP - rewards.mean() + (blame - blame.detach())}

    def rewards(self, output: DrawnOutput) -> list[list[float]]:
        """CIDEr-D of each sentence of each picture."""
        return [
            [self.cider.score(_spoken(words), meant) for words in rows]
            for rows, meant in zip(
                output.words.tolist(), (_ended(rows.tolist()) for rows in output.references), strict=True
            )
        ]


def _spoken(words: list[int]) -> list[int]:
    return [word for word in words if word != PAD]


def _ended(rows: list[list[int]]) -> list[list[int]]:
    return [[*_spoken(words), END] for words in rows]

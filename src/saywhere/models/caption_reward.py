"""Captions learnt by what they are worth (Rennie et al., Self-critical Sequence Training, 2017)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhere.language.cider import TOP, Cider
from saywhere.models.caption_loss import CaptionCriterion, CaptionOutput
from saywhere.text import END, PAD


@dataclass(frozen=True, eq=False)
class DrawnOutput:
    """Sentences that a model drew of pictures.

    Attributes:
        words: ``(N, K, T)`` K sentences of each of N pictures, END and then padding after the last word.
        log_probs: ``(N, K, T)`` of each word and END, 0 where padded.
        references: of each picture ``(R, T_i)`` what people said, padded, without END.
        taught: what the model makes of people's sentences; None if only the reward counts.
    """

    words: Tensor
    log_probs: Tensor
    references: tuple[Tensor, ...]
    taught: CaptionOutput | None = None


class RewardCriterion(nn.Module):
    """What the sentences lack to the best CIDEr-D, a loss named ``cider``, and the cross entropy, ``caption``.

    The reward's gradient is that of REINFORCE: a sentence becomes more probable if it is worth more than the mean of
    the others that were drawn of its picture, and less if it is worth less, in proportion. That mean is the baseline of
    Luo, A Better Variant of Self-critical Sequence Training, 2020, in the place of the greedy sentence. END counts as a
    word, or nothing would keep sentences from ending anywhere.

    CIDEr-D here is not that of a report: END is a word, document frequencies are the training corpus's, words that the
    vocabulary does not have are all one, and long references may have been left out.

    Args:
        cider: the reward.
        word_weight: of the cross entropy of the words that people said, in training.
        smoothing: see :class:`saywhere.models.caption_loss.CaptionCriterion`.
    """

    def __init__(self, cider: Cider, word_weight: float = 0.0, smoothing: float = 0.0):
        super().__init__()
        self.cider, self.word_weight = cider, word_weight
        self.words = CaptionCriterion(smoothing)

    def forward(self, output: DrawnOutput) -> dict[str, Tensor]:
        """10 minus the mean CIDEr-D; with one sentence a picture, as in validation, there is no gradient."""
        log_probs = output.log_probs.float()
        rewards = torch.tensor(self.rewards(output)).to(log_probs)
        count = rewards.shape[1]
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / max(count - 1, 1)
        worth = rewards - others if count > 1 else torch.zeros_like(rewards)
        blame = -(worth[..., None] * log_probs).sum() / (output.words != PAD).sum().clamp(min=1)
        losses = {"cider": TOP - rewards.mean() + (blame - blame.detach())}
        if output.taught is not None:
            losses["caption"] = self.word_weight * self.words(output.taught)["caption"]
        return losses

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

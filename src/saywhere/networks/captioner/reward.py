"""Captions trained by a reward (Rennie et al., Self-critical Sequence Training, 2017)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from saywhere.models.nouns import Noun, NounTree, find_invented, find_nouns
from saywhere.networks.captioner.loss import CaptionCriterion, CaptionOutput
from saywhere.networks.language.cider import TOP, Cider
from saywhere.text import END, PAD, Vocabulary


@dataclass(frozen=True, eq=False)
class SampledOutput:
    """Sentences sampled from a model.

    Attributes:
        token_ids: ``(N, K, T)`` K sentences of each of N images, END and then padding after the last word.
        log_probs: ``(N, K, T)`` of each word and END, 0 where padded.
        references: of each image ``(R, T_i)`` people's sentences, padded, without END.
        supervised: the output for people's sentences; None if only the reward counts.
    """

    token_ids: Tensor
    log_probs: Tensor
    references: tuple[Tensor, ...]
    supervised: CaptionOutput | None = None


class InventedNouns:
    """Count the nouns of sentences that no reference mentions, see :func:`saywhere.models.nouns.find_invented`.

    Args:
        vocabulary: of the sentences.
        tree: of nouns.
    """

    def __init__(self, vocabulary: Vocabulary, tree: NounTree):
        @lru_cache(1 << 17)
        def nouns(token_ids: tuple[int, ...]) -> list[Noun]:
            return find_nouns(vocabulary.decode(token_ids), tree)

        self._nouns = nouns

    def count(self, candidate: Sequence[int], references: Sequence[Sequence[int]]) -> int:
        """Return how many nouns of ``candidate`` no reference mentions."""
        mentioned = [noun for reference in references for noun in self._nouns(tuple(reference))]
        return len(find_invented(self._nouns(tuple(candidate)), mentioned))


class RewardCriterion(nn.Module):
    """Compute what the sentences lack to the best CIDEr-D, a loss named ``cider``, and the cross entropy, ``caption``.

    The reward's gradient is that of REINFORCE: the advantage of a sentence is its reward less the mean reward of the
    others sampled from its image, and the sentence becomes more probable in proportion to it. That mean is the baseline
    of Luo, A Better Variant of Self-critical Sequence Training, 2020, in the place of the greedy sentence. END counts
    as a word, or nothing would keep sentences from ending anywhere.

    CIDEr-D here is not that of a report: END is a word, document frequencies are the training corpus's, words that the
    vocabulary does not have are all one, and long references may have been left out.

    Args:
        cider: the reward.
        word_weight: of the cross entropy of people's words, in training.
        smoothing: see :class:`saywhere.networks.captioner.loss.CaptionCriterion`.
        invented, invented_weight: what counts a sentence's invented nouns, each of which takes the weight off its
            reward. An ending that no sentence of the corpus has counts as one, or it would pay to leave the last noun
            out: "a man in front of a".
    """

    def __init__(
        self,
        cider: Cider,
        word_weight: float = 0.0,
        smoothing: float = 0.0,
        invented: InventedNouns | None = None,
        invented_weight: float = 0.0,
    ):
        super().__init__()
        self.cider, self.word_weight = cider, word_weight
        self.invented, self.invented_weight = invented, invented_weight
        self.words = CaptionCriterion(smoothing)

    def forward(self, output: SampledOutput) -> dict[str, Tensor]:
        """Return 10 minus the mean reward; with one sentence an image, as in validation, there is no gradient."""
        log_probs = output.log_probs.float()
        rewards = torch.tensor(self.rewards(output)).to(log_probs)
        count = rewards.shape[1]
        others = (rewards.sum(dim=1, keepdim=True) - rewards) / max(count - 1, 1)
        advantage = rewards - others if count > 1 else torch.zeros_like(rewards)
        policy_loss = -(advantage[..., None] * log_probs).sum() / (output.token_ids != PAD).sum().clamp(min=1)
        losses = {"cider": TOP - rewards.mean() + (policy_loss - policy_loss.detach())}
        if output.supervised is not None:
            losses["caption"] = self.word_weight * self.words(output.supervised)["caption"]
        return losses

    def rewards(self, output: SampledOutput) -> list[list[float]]:
        """Return of each sentence of each image its CIDEr-D, less what its invented nouns and a new ending cost."""
        references = [[[*_real(row), END] for row in rows.tolist()] for rows in output.references]
        return [
            [self._reward(_real(row), of_image) for row in rows]
            for rows, of_image in zip(output.token_ids.tolist(), references, strict=True)
        ]

    def _reward(self, candidate: list[int], references: list[list[int]]) -> float:
        reward = self.cider.score(candidate, references)
        if self.invented is None:
            return reward
        faults = self.invented.count(candidate, references) + (not self._ends_well(candidate))
        return reward - self.invented_weight * faults

    def _ends_well(self, candidate: Sequence[int]) -> bool:
        """Whether a sentence of the corpus ends in the same three words."""
        return candidate[-1:] == [END] and self.cider.knows(candidate[-4:])


def _real(token_ids: list[int]) -> list[int]:
    return [token for token in token_ids if token != PAD]

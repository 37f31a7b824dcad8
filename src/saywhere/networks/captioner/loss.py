"""Losses of captioners: cross entropy with human captions, or a reward for sampled ones.

The reward is CIDEr-D (Vedantam et al., CIDEr: Consensus-based Image Description Evaluation, 2015) on token ids, as in
Self-critical Sequence Training (Rennie et al., 2017). It is fast enough for training: document frequencies are counted
once, in a corpus. Reports use pycocoevalcap instead, which counts them in the references of each report.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.models.nouns import Noun, NounTree, find_invented, find_nouns
from saywhere.options import dataclass
from saywhere.text import END, PAD, Vocabulary

Tokens = tuple[int, ...]

LONGEST = 4
"""Length of the longest n-grams, in words."""
SIGMA = 6.0
"""Standard deviation of the Gaussian penalty on the difference in length, in words."""
TOP = 10.0
"""CIDEr-D of a sentence that equals its only reference."""


@dataclass(frozen=True, eq=False)
class _Weighted:
    """A sentence as CIDEr-D compares it: per n, the n-gram weights and their norm; and the number of bigrams."""

    weights: tuple[dict[Tokens, float], ...]
    norms: tuple[float, ...]
    bigrams: int


class Cider:
    """CIDEr-D with the document frequencies of a corpus, which holds the references of each image as token ids."""

    def __init__(self, corpus: Iterable[Sequence[Sequence[int]]]):
        self._images: Counter[Tokens] = Counter()  # images whose references contain an n-gram
        count = 0
        for references in corpus:
            self._images.update({gram for reference in references for gram in _grams(reference)})
            count += 1
        self._log_count = math.log(max(count, 1))
        self._known: dict[Tokens, _Weighted] = {}  # cache: references return in every epoch

    def score(self, candidate: Sequence[int], references: Sequence[Sequence[int]]) -> float:
        """Return the CIDEr-D of a sentence, from 0 to 10, averaged over the references and over n from 1 to 4.

        Equals pycocoevalcap's on the same tokens if its references are the corpus. 0 without references.
        """
        weighted = self._weigh(tuple(candidate))
        for reference in map(tuple, references):
            if reference not in self._known:
                self._known[reference] = self._weigh(reference)
        values = [_similarity(weighted, self._known[tuple(reference)]) for reference in references]
        return TOP * sum(values) / (LONGEST * len(values)) if values else 0.0

    def knows(self, gram: Sequence[int]) -> bool:
        """Return whether the corpus contains an n-gram of one to four tokens."""
        return tuple(gram) in self._images

    def _weigh(self, token_ids: Tokens) -> _Weighted:
        weights: tuple[dict[Tokens, float], ...] = tuple({} for _ in range(LONGEST))
        for gram, count in Counter(_grams(token_ids)).items():
            rarity = self._log_count - math.log(max(1, self._images[gram]))
            weights[len(gram) - 1][gram] = count * rarity
        norms = tuple(math.sqrt(sum(weight * weight for weight in row.values())) for row in weights)
        return _Weighted(weights, norms, max(0, len(token_ids) - 1))


def _grams(token_ids: Sequence[int]) -> list[Tokens]:
    return [tuple(token_ids[i : i + n]) for n in range(1, LONGEST + 1) for i in range(len(token_ids) - n + 1)]


def _similarity(candidate: _Weighted, reference: _Weighted) -> float:
    """Return the sum of the cosines for each n; a repeated n-gram counts at most as often as in the reference."""
    total = 0.0
    for ours, theirs, norm, other in zip(
        candidate.weights, reference.weights, candidate.norms, reference.norms, strict=True
    ):
        if norm and other:
            total += sum(min(w, theirs[g]) * theirs[g] for g, w in ours.items() if g in theirs) / (norm * other)
    return total * math.exp(-((candidate.bigrams - reference.bigrams) ** 2) / (2 * SIGMA**2))


@dataclass(frozen=True, eq=False)
class CaptionTarget:
    """The captions of one image.

    Attributes:
        token_ids: ``(K, T)``, one row per sentence, without START and END, padded.
        width, height: size of the network's input, in pixels.
        boxes: ``(K, 4)`` in these pixels, the box that each sentence describes; None for the whole image.
    """

    token_ids: Tensor
    width: int
    height: int
    boxes: Tensor | None = None

    def first(self, count: int) -> CaptionTarget:
        """Return the first ``count`` sentences, repeating them if there are fewer."""
        rows = torch.arange(count, device=self.token_ids.device) % len(self.token_ids)
        return CaptionTarget(self.token_ids[rows], self.width, self.height)


@dataclass(frozen=True, eq=False)
class CaptionOutput:
    """The words of all images of a batch, in a row.

    Attributes:
        log_probs: ``(K, V)`` natural log-probabilities.
        token_ids: ``(K,)``, the words of human captions and their ENDs, without unknown words.
    """

    log_probs: Tensor
    token_ids: Tensor


class CaptionCriterion(nn.Module):
    """Compute the cross entropy per word, as one loss named ``caption``.

    ``smoothing`` is the label smoothing: the share of probability spread over all words. It applies in training only.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, output: CaptionOutput) -> dict[str, Tensor]:
        """Return the mean over the words; 0 if there are none."""
        log_probs = output.log_probs.float()
        if len(output.token_ids) == 0:
            return {"caption": log_probs.sum()}
        loss = functional.nll_loss(log_probs, output.token_ids)
        if self.training and self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * log_probs.mean()
        return {"caption": loss}


@dataclass(frozen=True, eq=False)
class SampledOutput:
    """Sentences sampled from a model.

    Attributes:
        token_ids: ``(N, K, T)``, K sentences for each of N images, each followed by END and padding.
        log_probs: ``(N, K, T)`` of each word and END; 0 where padded.
        references: one ``(R, T_i)`` per image, the human captions, padded, without END.
        supervised: the output for human captions; None if only the reward is trained on.
    """

    token_ids: Tensor
    log_probs: Tensor
    references: tuple[Tensor, ...]
    supervised: CaptionOutput | None = None


class InventedNouns:
    """Count the nouns of a sentence that no reference mentions, see :func:`saywhere.models.nouns.find_invented`."""

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
    """Compute the loss ``cider``, 10 minus the mean reward of sampled sentences, and the cross entropy ``caption``.

    The gradient of the reward is that of REINFORCE. The advantage of a sentence is its reward minus the mean reward of
    the other samples of its image (Luo, A Better Variant of Self-critical Sequence Training, 2020). END counts as a
    word; otherwise sentences could end anywhere.

    CIDEr-D differs from that of a report here: END is a word, document frequencies are those of the training corpus,
    all unknown words are equal, and long references may be missing.

    Args:
        word_weight: weight of the cross entropy, in training.
        smoothing: see :class:`CaptionCriterion`.
        invented, invented_weight: counter of invented nouns, and the reward that each one costs. An ending that the
            corpus does not have counts as one too. Otherwise it would pay to omit the last noun: "a man in front of a".
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
        """Return 10 minus the mean reward. With one sentence per image, as in validation, it has no gradient."""
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
        """Return the CIDEr-D of each sentence of each image, minus the cost of invented nouns and a new ending."""
        references = [[[*_real(row), END] for row in rows.tolist()] for rows in output.references]
        return [
            [self._reward(_real(row), of_image) for row in rows]
            for rows, of_image in zip(output.token_ids.tolist(), references, strict=True)
        ]

    def _reward(self, candidate: list[int], references: list[list[int]]) -> float:
        reward = self.cider.score(candidate, references)
        if self.invented is None:
            return reward
        ends_well = candidate[-1:] == [END] and self.cider.knows(candidate[-4:])  # as some sentence of the corpus
        return reward - self.invented_weight * (self.invented.count(candidate, references) + (not ends_well))


def _real(token_ids: list[int]) -> list[int]:
    return [token for token in token_ids if token != PAD]

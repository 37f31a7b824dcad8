"""Any phrase against the regions of a picture: open-world detection (DenseCap, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from saywhere.errors import UserError
from saywhere.language.lstm import LstmSpeaker
from saywhere.language.original import OriginalSpeaker
from saywhere.language.scoring import phrase_log_probs
from saywhere.regions import Regions
from saywhere.text import Vocabulary, tokenize


@dataclass(frozen=True, eq=False)
class PhraseScores:
    """How likely a model is to say each phrase of each region.

    Attributes:
        regions: R of one picture.
        phrases: P texts.
        log_probs: ``(R, P)`` natural ``log P(phrase | region)``, END included: the probability that the speaker says
            just this. Long phrases have low ones; compare regions, not phrases of different length.
        unknown: for each phrase its words that the model does not know. They count as the unknown word of training;
            of a phrase of none but unknown words the scores say little.
    """

    regions: Regions
    phrases: tuple[str, ...]
    log_probs: Tensor
    unknown: tuple[tuple[str, ...], ...]

    @property
    def joint(self) -> Tensor:
        """``(R, P)`` natural ``log P(region) P(phrase | region)``: how likely the region is there and called so.

        P(region) is its score; without it the speaker often prefers a poor box. Regions without scores count alike.
        """
        return self.log_probs if self.regions.scores is None else self.log_probs + self.regions.scores.log()[:, None]

    def find(self, phrase: str, top: int | None = None) -> Regions:
        """The regions by :attr:`joint` with ``phrase``, best first, with the joint probability as their score.

        Their caption is the phrase.

        Raises:
            UserError: it is not among ``phrases``.
        """
        if phrase not in self.phrases:
            raise UserError(f"{phrase!r} was not scored, only {', '.join(map(repr, self.phrases))}")
        column = self.joint[:, self.phrases.index(phrase)]
        best = column.argsort(descending=True, stable=True)[:top]
        return replace(self.regions[best], scores=column[best].exp(), captions=(phrase,) * len(best))

    def best(self) -> Regions:
        """Of each phrase the region that :meth:`find` puts first, with the phrase as caption; nothing if R is 0."""
        if not len(self.regions.boxes):
            return self.regions
        top = self.joint.max(dim=0)
        return replace(self.regions[top.indices], scores=top.values.exp(), captions=self.phrases)


def score_regions(
    speaker: LstmSpeaker | OriginalSpeaker, vocabulary: Vocabulary, regions: Regions, phrases: Sequence[str]
) -> PhraseScores:
    """How likely the speaker is to say each of ``phrases`` of each region, whose features are what it hears.

    Raises:
        UserError: there is one text instead of several, or a text without a word.
    """
    words = encode_phrases(vocabulary, phrases)
    weight = speaker.output.weight
    codes = torch.as_tensor(regions.features).to(weight.device, weight.dtype)
    log_probs = phrase_log_probs(speaker, codes, words).cpu()
    unknown = tuple(tuple(dict.fromkeys(w for w in tokenize(p) if w not in vocabulary)) for p in phrases)
    return PhraseScores(regions, tuple(phrases), log_probs, unknown)


def encode_phrases(vocabulary: Vocabulary, phrases: Sequence[str]) -> list[list[int]]:
    """Word numbers of phrases, unknown words among them as ``UNKNOWN``; raises as :func:`score_regions`."""
    if isinstance(phrases, str):
        raise UserError(f"phrases are a list of texts, not one text: [{phrases!r}]")
    numbers = [vocabulary.encode(phrase) for phrase in phrases]
    if empty := [phrase for phrase, words in zip(phrases, numbers, strict=True) if not words]:
        raise UserError(f"the phrase {empty[0]!r} has no word")
    return numbers

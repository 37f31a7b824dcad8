"""Phrases of marked sentences put on areas by a model, and by controls that do not read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.data.entities import MarkedPhrase, MarkedPicture, MarkedSentence
from saywhere.evaluation.grounding import GroundingResult, measure
from saywhere.models.aligner import Aligner
from saywhere.models.alignment import PictureVectors
from saywhere.models.densecap import DenseCap
from saywhere.models.phrase_scores import score_regions
from saywhere.regions import Regions

PRIOR = "highest prior"
CONTROLS = ("whole picture", "largest region", "random region", PRIOR)


class Seen(Protocol):
    """A picture in which phrases are to be found."""

    @property
    def boxes(self) -> Tensor:
        """``(R, 4)`` in pixels of the picture: the whole of it first, then the regions."""
        ...

    @property
    def favourite(self) -> Tensor:
        """The box ``(4,)`` that is best before anything is read."""
        ...

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> Tensor:
        """The boxes ``(N, 4)`` of N phrases of a sentence."""
        ...


@dataclass(frozen=True, eq=False)
class AlignerView:
    """A picture as an aligner sees it."""

    model: Aligner
    vectors: PictureVectors

    @property
    def boxes(self) -> Tensor:
        """See :class:`Seen`."""
        return self.vectors.boxes.float().cpu()

    @property
    def favourite(self) -> Tensor:
        """The area of the highest bonus."""
        return self.boxes[int(self.model.bonus(self.vectors).argmax())]

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> Tensor:
        """The area whose products with the phrase's words sum to most."""
        spans = [(phrase.start, phrase.stop) for phrase in phrases]
        return self.model.ground_vectors(self.vectors, sentence.text, spans)


@dataclass(frozen=True, eq=False)
class DenseCapView:
    """A picture as a dense captioner sees it: regions with scores and codes."""

    model: DenseCap
    regions: Regions

    @property
    def boxes(self) -> Tensor:
        """See :class:`Seen`."""
        return torch.cat((torch.tensor([[0.0, 0.0, self.regions.width, self.regions.height]]), self.regions.boxes))

    @property
    def favourite(self) -> Tensor:
        """The region of the highest score; the whole picture if there is none."""
        scores = self.regions.scores
        return self.boxes[0] if scores is None or not len(scores) else self.regions.boxes[int(scores.argmax())]

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> Tensor:
        """The region that is likeliest to be there and to be called so; the sentence around is not read."""
        if not len(self.regions.boxes):
            return self.boxes.expand(len(phrases), 4)
        texts = [" ".join(sentence.words[phrase.start : phrase.stop]) for phrase in phrases]
        return score_regions(self.model.speaker, self.model.vocabulary, self.regions, texts).best().boxes


@dataclass(frozen=True, eq=False)
class Asked:
    """A phrase with its truth ``(4,)``, and the number of its picture."""

    picture: int
    sentence: MarkedSentence
    phrase: MarkedPhrase
    truth: Tensor


def questions(pictures: Sequence[MarkedPicture]) -> Iterator[Asked]:
    """Every phrase that has a box, in order."""
    for number, picture in enumerate(pictures):
        for sentence in picture.sentences:
            for phrase in sentence.phrases:
                if phrase.box is not None:
                    yield Asked(number, sentence, phrase, phrase.box)


def ground(pictures: Sequence[MarkedPicture], seen: Iterable[Seen]) -> GroundingResult:
    """How well the phrases of ``pictures``, which are ``seen`` in the same order, are placed."""
    found = [torch.zeros(0, 4)]
    for picture, one in zip(pictures, seen, strict=True):
        for sentence in picture.sentences:
            phrases = [phrase for phrase in sentence.phrases if phrase.box is not None]
            if phrases:
                found.append(one.find(sentence, phrases))
    return _measure(torch.cat(found), list(questions(pictures)))


def control(name: str, pictures: Sequence[MarkedPicture], seen: Iterable[Seen], seed: int = 0) -> GroundingResult:
    """The figures of an answer that does not read: one of :data:`CONTROLS`.

    The largest region, and the random one (drawn anew for each phrase), are among the areas beside the whole picture.
    What a model is better by than its highest prior comes from the words.
    """
    generator = torch.Generator().manual_seed(seed)
    seen = list(seen)
    boxes = [one.boxes for one in seen] if name != PRIOR else [one.favourite[None] for one in seen]
    asked = list(questions(pictures))
    found = [_unread(name, boxes[question.picture], generator) for question in asked]
    return _measure(torch.stack(found) if found else torch.zeros(0, 4), asked)


def _unread(name: str, boxes: Tensor, generator: torch.Generator) -> Tensor:
    regions = boxes[1:]
    if name in ("whole picture", PRIOR) or len(regions) == 0:
        return boxes[0]
    if name == "largest region":
        return regions[int(geometry.area(regions).argmax())]
    return regions[int(torch.randint(len(regions), (1,), generator=generator))]


def _measure(found: Tensor, asked: Sequence[Asked]) -> GroundingResult:
    truth = torch.stack([question.truth for question in asked]) if asked else torch.zeros(0, 4)
    return measure(found, truth, [question.phrase.types for question in asked])

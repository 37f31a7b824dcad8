"""Phrases of marked sentences put on areas by an aligner, and by controls that do not read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.data.entities import MarkedPhrase, MarkedPicture, MarkedSentence
from saywhere.evaluation.grounding import GroundingResult, measure
from saywhere.models.aligner import Aligner
from saywhere.models.alignment import PictureVectors

BONUS = "highest bonus"
CONTROLS = ("whole picture", "largest region", "random region")


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


def ground(model: Aligner, pictures: Sequence[MarkedPicture], seen: Iterable[PictureVectors]) -> GroundingResult:
    """How well ``model`` places the phrases of ``pictures``, whose vectors are ``seen`` in the same order."""
    found: list[Tensor] = []
    for picture, vectors in zip(pictures, seen, strict=True):
        for sentence in picture.sentences:
            spans = [(p.start, p.stop) for p in sentence.phrases if p.box is not None]
            if spans:
                found.append(model.ground_vectors(vectors, sentence.text, spans))
    asked = list(questions(pictures))
    return _measure(torch.cat(found) if found else torch.zeros(0, 4), asked)


def control(
    name: str, pictures: Sequence[MarkedPicture], seen: Iterable[PictureVectors], seed: int = 0
) -> GroundingResult:
    """The figures of an answer that does not read: one of :data:`CONTROLS`.

    The largest region, and the random one (drawn anew for each phrase), are among the areas beside the whole picture.
    """
    generator = torch.Generator().manual_seed(seed)
    boxes = [vectors.boxes.float().cpu() for vectors in seen]
    asked = list(questions(pictures))
    found = [_unread(name, boxes[question.picture], generator) for question in asked]
    return _measure(torch.stack(found) if found else torch.zeros(0, 4), asked)


def bonus_control(model: Aligner, pictures: Sequence[MarkedPicture], seen: Iterable[PictureVectors]) -> GroundingResult:
    """The figures of the area that has the highest bonus of ``model``, whatever the phrase; the control :data:`BONUS`.

    What the model is better by comes from the words.
    """
    best = [vectors.boxes.float().cpu()[int(model.bonus(vectors).argmax())] for vectors in seen]
    asked = list(questions(pictures))
    found = [best[question.picture] for question in asked]
    return _measure(torch.stack(found) if found else torch.zeros(0, 4), asked)


def _unread(name: str, boxes: Tensor, generator: torch.Generator) -> Tensor:
    regions = boxes[1:]
    if name == "whole picture" or len(regions) == 0:
        return boxes[0]
    if name == "largest region":
        return regions[int(geometry.area(regions).argmax())]
    return regions[int(torch.randint(len(regions), (1,), generator=generator))]


def _measure(found: Tensor, asked: Sequence[Asked]) -> GroundingResult:
    truth = torch.stack([question.truth for question in asked]) if asked else torch.zeros(0, 4)
    return measure(found, truth, [question.phrase.types for question in asked])

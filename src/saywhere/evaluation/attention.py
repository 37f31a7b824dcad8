"""Attention correctness: how much of the attention lies where the word's thing is (Areas of Attention, section 4.2).

The protocol of Liu et al., as the program of Areas of Attention has it: a word that names an annotated entity is
counted with the share of its attention inside the entity's boxes. Of a given (human) sentence the model hears the words
and its weights p(r | h) are read; in a generated one the words are found again among those that people used for the
picture's entities. The control is uniform attention: the same areas, all with the same weight.

One thing differs: that program asks a tagger which words are nouns; here the last word of a phrase ("a young boy") is
one, which needs no tagger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.data.entities import MarkedPicture, MarkedSentence

Spread = Literal["area", "pixel"]
"""How an area's weight lies on the picture: spread evenly on its ``area``, or, as the program of the paper adds it up,
on every ``pixel`` of the area, so that larger areas count more. For the cells of a grid the two are the same."""
POINTS = 24
"""Points a side in which a warped area is judged."""


def union_pieces(boxes: Tensor) -> Tensor:
    """Boxes ``(P, 4)`` that do not overlap and cover what ``boxes (G, 4)`` cover together."""
    x = torch.cat((boxes[:, 0], boxes[:, 2])).unique()
    y = torch.cat((boxes[:, 1], boxes[:, 3])).unique()
    if len(x) < 2 or len(y) < 2:
        return boxes.new_zeros(0, 4)
    rows, columns = torch.meshgrid(torch.arange(len(y) - 1), torch.arange(len(x) - 1), indexing="ij")
    r, c = rows.flatten(), columns.flatten()
    pieces = torch.stack((x[c], y[r], x[c + 1], y[r + 1]), dim=1)
    middle = (pieces[:, None, :2] + pieces[:, None, 2:]) / 2
    covered = ((middle > boxes[:, :2]) & (middle < boxes[:, 2:])).all(dim=2).any(dim=1)
    return pieces[covered]


def shares_inside(areas: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
    """Of each of the upright ``areas (R, 4)`` the share inside the union of ``boxes (G, 4)``, and its size: ``(R,)``.

    An area without size has share 0.
    """
    pieces, sizes = union_pieces(boxes), geometry.area(areas)
    low = torch.maximum(areas[:, None, :2], pieces[None, :, :2])
    high = torch.minimum(areas[:, None, 2:], pieces[None, :, 2:])
    common = (high - low).clamp(min=0).prod(dim=2).sum(dim=1)
    return torch.where(sizes > 0, common / sizes.clamp(min=torch.finfo(sizes.dtype).tiny), 0.0), sizes


def warped_shares_inside(corners: Tensor, boxes: Tensor, width: float, height: float) -> tuple[Tensor, Tensor]:
    """As :func:`shares_inside` for warped areas ``(R, 4, 2)``, judged in :data:`POINTS` x :data:`POINTS` points.

    The corners are those of parallelograms, in order around them. What lies outside the picture ``width x height`` is
    not counted; an area all outside has size 0.
    """
    steps = (torch.arange(POINTS, dtype=corners.dtype) + 0.5) / POINTS
    v, u = torch.meshgrid(steps, steps, indexing="ij")
    along, down = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    points = corners[:, None, 0] + u.flatten()[:, None] * along[:, None] + v.flatten()[:, None] * down[:, None]
    visible = ((points >= 0) & (points < corners.new_tensor([width, height]))).all(dim=2)
    inside = ((points[:, :, None] >= boxes[:, :2]) & (points[:, :, None] < boxes[:, 2:])).all(dim=3).any(dim=2)
    seen = visible.sum(dim=1)
    whole = (along[:, 0] * down[:, 1] - along[:, 1] * down[:, 0]).abs()
    return (inside & visible).sum(dim=1) / seen.clamp(min=1), whole * seen / POINTS**2


def correctness(weights: Tensor, shares: Tensor, sizes: Tensor, spread: Spread = "area") -> Tensor:
    """The share of the attention inside the boxes, from 0 to 1: ``(...)``.

    Args:
        weights: ``(..., R)`` of the areas, for each word.
        shares, sizes: ``(R,)`` of :func:`shares_inside`. Areas without size are left out.
        spread: see :data:`Spread`.

    Returns:
        0 where all weight is on areas without size.
    """
    density = weights * (sizes if spread == "pixel" else (sizes > 0).to(weights.dtype))
    total = density.sum(dim=-1)
    return torch.where(total > 0, (density * shares).sum(dim=-1) / total.clamp(min=1e-30), 0.0)


@dataclass(frozen=True)
class Mention:
    """A word that names an entity: the word's number in its sentence, and the entity's number."""

    word: int
    entity: str


def given_mentions(sentence: MarkedSentence) -> list[Mention]:
    """The mentions of a human sentence: the last word of each phrase that has a box."""
    return [Mention(phrase.stop - 1, phrase.entity) for phrase in sentence.phrases if phrase.box is not None]


def names(picture: MarkedPicture) -> dict[str, list[str]]:
    """What the last words of phrases name in a picture: from the word to the entities with a box, each once."""
    found: dict[str, list[str]] = {}
    for sentence in picture.sentences:
        for mention in given_mentions(sentence):
            entities = found.setdefault(sentence.words[mention.word], [])
            entities += [] if mention.entity in entities else [mention.entity]
    return found


def generated_mentions(words: Sequence[str], named: Mapping[str, Sequence[str]]) -> list[Mention]:
    """The mentions of a generated sentence: each word that people used for entities, once for each of them."""
    return [Mention(i, entity) for i, word in enumerate(words) for entity in named.get(word, ())]


def entity_boxes(picture: MarkedPicture) -> dict[str, Tensor]:
    """The boxes ``(1, 4)`` of a picture's entities, in its pixels on disk."""
    phrases = [phrase for sentence in picture.sentences for phrase in sentence.phrases]
    return {phrase.entity: phrase.box[None] for phrase in phrases if phrase.box is not None}


@dataclass
class AttentionCorrectness:
    """The measure over many sentences; :meth:`add` them one by one.

    Attributes:
        spread: see :data:`Spread`.
        found, control: of each mention the correctness of the model and of uniform attention.
    """

    spread: Spread = "area"
    found: list[float] = field(default_factory=list)
    control: list[float] = field(default_factory=list)

    def add(
        self,
        weights: Tensor,
        mentions: Sequence[Mention],
        areas: Tensor,
        boxes: Mapping[str, Tensor],
        size: tuple[float, float],
    ) -> None:
        """Count one sentence.

        Args:
            weights: ``(T, R)`` of its words, or longer.
            mentions: of its words; those beyond T and entities without boxes are left out.
            areas: ``(R, 4)`` or warped ``(R, 4, 2)``, in pixels of the picture.
            boxes: of each entity ``(G, 4)`` in the same pixels.
            size: width and height of the picture in these pixels.
        """
        weights, areas = weights.detach().double().cpu(), areas.detach().double().cpu()
        for mention in mentions:
            if mention.word >= len(weights) or mention.entity not in boxes:
                continue
            truth = boxes[mention.entity].double().cpu()
            if areas.dim() == 3:
                shares, sizes = warped_shares_inside(areas, truth, *size)
            else:
                shares, sizes = shares_inside(geometry.clip(areas, *size), truth)
            row = weights[mention.word]
            self.found.append(float(correctness(row, shares, sizes, self.spread)))
            self.control.append(float(correctness(torch.ones_like(row), shares, sizes, self.spread)))

    @property
    def mean(self) -> float:
        """The attention correctness, from 0 to 1 (the paper prints percent); 0 without mentions."""
        return sum(self.found) / max(len(self.found), 1)

    @property
    def uniform(self) -> float:
        """That of uniform attention over the same areas."""
        return sum(self.control) / max(len(self.control), 1)

    def to_dict(self) -> dict[str, Any]:
        """``correctness``, ``uniform``, ``mentions`` and ``spread``."""
        return {
            "correctness": self.mean,
            "uniform": self.uniform,
            "mentions": len(self.found),
            "spread": self.spread,
        }

"""Grounding of phrases: is the box of each phrase the right one (Flickr30k Entities)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from saywhere import boxes as geometry

RIGHT = 0.5
"""IoU with the truth from which on a box is right."""


@dataclass(frozen=True)
class TypeScore:
    """Of the phrases of one type of entity: how many, and which shares are right and pointed at rightly."""

    phrases: int
    accuracy: float
    pointing: float


@dataclass(frozen=True)
class GroundingResult:
    """How many phrases were put in the right place.

    Attributes:
        accuracy: share of the phrases whose box has an IoU of at least 0.5 with the truth.
        pointing: share whose box has its centre inside the truth (the pointing game).
        by_type: the same by type of entity; a phrase of two types counts in both.
        phrases: how many were asked for.
    """

    accuracy: float
    pointing: float
    phrases: int
    by_type: dict[str, TypeScore] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """``accuracy``, ``pointing``, ``phrases`` and ``by_type``."""
        return {
            "accuracy": self.accuracy,
            "pointing": self.pointing,
            "phrases": self.phrases,
            "by_type": {name: vars(score) for name, score in self.by_type.items()},
        }


def judge(found: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each pair of boxes ``(N, 4)`` has an IoU of at least 0.5, and the first its centre in the second."""
    overlaps = torch.stack([geometry.iou(a[None], b[None])[0, 0] for a, b in zip(found, truth, strict=True)])
    centre = (found[:, :2] + found[:, 2:]) / 2
    inside = (centre >= truth[:, :2]).all(dim=1) & (centre <= truth[:, 2:]).all(dim=1)
    return overlaps >= RIGHT, inside


def measure(found: Tensor, truth: Tensor, types: Sequence[Sequence[str]]) -> GroundingResult:
    """The shares of boxes ``found (N, 4)`` that fit ``truth (N, 4)``, in all and by the ``types`` of each phrase."""
    if len(found) == 0:
        return GroundingResult(0.0, 0.0, 0)
    right, inside = judge(found, truth)
    rows: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(types):
        for name in names:
            rows[name].append(i)
    order = sorted(rows, key=lambda name: (-len(rows[name]), name))
    by_type = {
        name: TypeScore(len(rows[name]), _share(right[rows[name]]), _share(inside[rows[name]])) for name in order
    }
    return GroundingResult(_share(right), _share(inside), len(found), by_type)


def _share(mask: Tensor) -> float:
    return float(mask.double().mean())

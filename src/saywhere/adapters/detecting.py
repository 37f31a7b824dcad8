"""Models that detect by name: for each box of an image a score for each phrase."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from saywhere.adapters.adapter import Adapter, Located, to_pixels
from saywhere.models.encoding import AT_ONCE, Encoding


class Job(NamedTuple):
    """What is asked of an image in one pass: its number among the images, and some of its phrases."""

    image: int
    phrases: list[str]


class PhraseDetector(Adapter):
    """A family that scores boxes by phrases; a phrase has the box with the highest score.

    Attributes:
        pads: whether images of several sizes may be answered together.
    """

    pads: ClassVar[bool] = True

    @abstractmethod
    def groups(self, phrases: Sequence[str]) -> list[list[str]]:
        """Return the phrases of an image in groups that fit one pass, in their order."""

    @abstractmethod
    def detect(self, encodings: Sequence[Encoding], phrases: list[list[str]]) -> list[Located]:
        """Return for each image its Q boxes ``(Q, 4)``, as shares of its width and height, and scores ``(Q, P)``."""

    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        """Return for each image the best box of each phrase and its score."""
        jobs = [Job(i, group) for i, own in enumerate(phrases) for group in self.groups(own)]
        parts: list[list[Located]] = [[] for _ in encodings]
        for some in self._batches(encodings, jobs):
            with self.lock, torch.inference_mode():
                detected = self.detect([encodings[job.image] for job in some], [job.phrases for job in some])
            for job, (boxes, scores) in zip(some, detected, strict=True):
                best = scores.argmax(axis=0)
                parts[job.image].append((boxes[best], scores.max(axis=0)))
        return [_joined(encoding, own) for encoding, own in zip(encodings, parts, strict=True)]

    def _batches(self, encodings: Sequence[Encoding], jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """What is asked in one pass; the jobs of an image stay in their order."""
        alike: dict[object, list[Job]] = {}
        for job in jobs:
            alike.setdefault(None if self.pads else encodings[job.image].input_size, []).append(job)
        for group in alike.values():
            yield from (group[start : start + AT_ONCE] for start in range(0, len(group), AT_ONCE))


def _joined(encoding: Encoding, parts: Sequence[Located]) -> Located:
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(boxes for boxes, _ in parts)])
    scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in parts)])
    return to_pixels(encoding, boxes), scores

"""How well an index answers: the ranks of the right images, and how far two ways of searching agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from saywhere import boxes as geometry
from saywhere.configs.aligner import Score
from saywhere.evaluation.ranking.metric import Recall, rank_matrix
from saywhere.models.aligner import TextVectors
from saywhere.search.scan import Question, best, estimates, similarities
from saywhere.search.vectors import Snapshot

Compare = Callable[[Snapshot, Question], np.ndarray]
"""Gives the similarities of all images with each query ``(E, Q)``: by whole vectors or by codes."""
TOGETHER = 64
"""Queries that are compared with all images together."""
DEPTH = 10
RIGHT = 0.5
"""IoU from which on a box is right."""


def ask(texts: Sequence[TextVectors], score: Score) -> Question:
    """Return several texts as one question."""
    return Question.of(texts, np.eye(len(texts), dtype=np.float32), score)


def score_texts(
    snapshot: Snapshot, texts: Sequence[TextVectors], score: Score, compare: Compare = similarities
) -> Iterator[np.ndarray]:
    """Yield the similarities of each text with all images of an index ``(E,)``."""
    for start in range(0, len(texts), TOGETHER):
        yield from compare(snapshot, ask(texts[start : start + TOGETHER], score)).T


def recall(
    snapshot: Snapshot, texts: Sequence[TextVectors], owner: Sequence[int], score: Score,
    compare: Compare = similarities,
) -> Recall:  # fmt: skip
    """Return how often the image of a text, given by its entry, is found; ranks are those of the task ``rank``."""
    scores = np.stack(list(score_texts(snapshot, texts, score, compare)), axis=1)
    return rank_matrix(scores, owner).text_to_image


def overlap(snapshot: Snapshot, texts: Sequence[TextVectors], score: Score) -> float:
    """Return the mean share of the ten best images that are in the first tenth (ten at least) by the codes."""
    candidates = max(DEPTH, len(snapshot) // 10)
    shares: list[float] = []
    for start in range(0, len(texts), TOGETHER):
        question = ask(texts[start : start + TOGETHER], score)
        for exact, coded in zip(similarities(snapshot, question).T, estimates(snapshot, question).T, strict=True):
            wanted = set(best(exact, DEPTH).tolist())
            shares.append(len(wanted & set(best(coded, candidates).tolist())) / max(1, len(wanted)))
    return float(np.mean(shares)) if shares else 0.0


def is_right(entry: int, box: np.ndarray, truth: Mapping[int, Sequence[np.ndarray]]) -> bool:
    """Return whether a box in an image overlaps with one of the true ones there.

    Args:
        entry: of the image that was found.
        box: ``(4,)`` that was found.
        truth: boxes by entry.
    """
    boxes = truth.get(entry)
    return boxes is not None and bool(geometry.iou(box[None], np.stack(list(boxes))).max() >= RIGHT)

"""Retrieval of images by phrases of their regions (DenseCap, section 4.2): the queries and the metric.

A query is four phrases of one image. In each image, each phrase is matched with the region that most likely has this
caption; images are ranked by the mean over the four phrases, and the image of the query should come first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.evaluation.grounding.metric import pair_ious
from saywhere.evaluation.ranking.metric import Recall
from saywhere.text import tokenize

Protocol = Literal["clean", "original"]
Box = tuple[float, float, float, float]

PHRASES = 4
"""Phrases in a query."""

IOUS = (0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Query:
    """Hold phrases of one image, each with the true box that it describes, in pixels of the image."""

    image: str
    phrases: tuple[str, ...]
    boxes: tuple[Box, ...]


def sample_queries(
    samples: Sequence[Sample], names: Sequence[str], count: int, seed: int, phrases: int = PHRASES
) -> list[Query]:
    """Sample queries from images with enough phrases, each image once before any is used again.

    The phrases of a query differ in their words. Of a phrase with several boxes, one box is sampled.

    Args:
        samples: the images.
        names: the name of each image.
        count: number of queries.
        seed: the same seed samples the same queries.
        phrases: number of phrases in a query.

    Raises:
        UserError: no image has so many phrases.
    """
    by_words = [(name, _by_words(sample)) for name, sample in zip(names, samples, strict=True)]
    rich = [(name, found) for name, found in by_words if len(found) >= phrases]
    if not rich:
        raise UserError(f"no image has {phrases} different phrases, which a query needs")
    draw, queries, waiting = random.Random(seed), list[Query](), list[int]()
    while len(queries) < count:
        if not waiting:
            waiting = draw.sample(range(len(rich)), len(rich))
        name, found = rich[waiting.pop()]
        chosen = [draw.choice(found[words]) for words in draw.sample(list(found), phrases)]
        queries.append(Query(name, tuple(phrase for phrase, _ in chosen), tuple(box for _, box in chosen)))
    return queries


def _by_words(sample: Sample) -> dict[tuple[str, ...], list[tuple[str, Box]]]:
    """Return the phrases of an image and their boxes, by their words; phrases without a word are left out."""
    found: dict[tuple[str, ...], list[tuple[str, Box]]] = {}
    for (x1, y1, x2, y2), phrases in zip(sample.boxes.tolist(), sample.phrases, strict=True):
        for phrase in phrases:
            if words := tuple(tokenize(phrase)):
                found.setdefault(words, []).append((phrase, (x1, y1, x2, y2)))
    return found


@dataclass(frozen=True)
class RetrievalResult:
    """Hold how well images and boxes are found.

    Attributes:
        protocol: how images are scored, see :func:`image_scores`.
        images, queries: number of images that were ranked, and of queries.
        r1, r5, r10: share of the queries whose image is among the first 1, 5, 10.
        median_rank: median rank of the queries' own images, from 1.
        iou_recall: share of the phrases whose region, in the query's own image, has an IoU with the true box of more
            than 0.1, 0.3 and 0.5.
        median_iou: median of these IoUs.
    """

    protocol: str
    images: int
    queries: int
    r1: float
    r5: float
    r10: float
    median_rank: float
    iou_recall: dict[str, float]
    median_iou: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: every attribute by its name."""
        return asdict(self)


def evaluate_retrieval(
    log_probs: ArrayLike, found: ArrayLike, sources: Sequence[int], truths: ArrayLike, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Return the result of Q queries of K phrases over N images.

    Args:
        log_probs: ``(Q, K, N)`` natural ``log P(phrase | region)`` of each image's best region; -inf if it has none.
        found: ``(Q, K, 4)`` the box of that region in the query's own image; a box without area if it has none.
        sources: for each query the index of its own image.
        truths: ``(Q, K, 4)`` the true boxes of the phrases.
        protocol: see :func:`image_scores`.
    """
    scores = image_scores(log_probs, protocol)
    recall = Recall.of(source_ranks(scores, sources))
    a, b = (np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in (found, truths))
    overlaps = pair_ious(a, b)
    return RetrievalResult(
        protocol=protocol,
        images=scores.shape[1],
        queries=len(scores),
        r1=recall.r1,
        r5=recall.r5,
        r10=recall.r10,
        median_rank=recall.median_rank,
        iou_recall={str(t): float((overlaps > t).mean()) for t in IOUS},
        median_iou=float(np.quantile(overlaps, 0.5)),
    )


def image_scores(log_probs: ArrayLike, protocol: Protocol = "clean") -> np.ndarray:
    """Return scores ``(Q, N)`` of images from ``log_probs (Q, K, N)`` of the K phrases of each query.

    ``"original"`` is the mean of the probabilities, as in the paper; the shortest phrase nearly decides it alone.
    ``"clean"`` is the mean of their logarithms, so that each counts: images are ranked by the probability of all
    phrases together.
    """
    table = np.asarray(log_probs, np.float64)
    return np.exp(table).mean(axis=1) if protocol == "original" else table.mean(axis=1)


def source_ranks(scores: np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the rank ``(Q,)``, from 1, of each query's own image; images that score the same rank before it."""
    own = np.take_along_axis(scores, np.asarray(sources, np.int64)[:, None], axis=1)
    return (scores >= own).sum(axis=1)

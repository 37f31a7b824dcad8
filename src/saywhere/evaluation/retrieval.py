"""Retrieval of pictures by phrases of their regions (DenseCap, section 4.2): the queries, and what they are worth.

A query is four phrases of one picture. Each phrase goes to the region of a picture that is most likely to be called so;
pictures are ranked by the mean over the four, and the query's own picture should come first.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.evaluation.ranking import Recall
from saywhere.text import tokenize

Protocol = Literal["clean", "original"]
Box = tuple[float, float, float, float]

PHRASES = 4
"""Phrases in a query."""

IOUS = (0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Query:
    """Phrases of one picture, each with the true box that it was said of, in pixels of the picture."""

    picture: str
    phrases: tuple[str, ...]
    boxes: tuple[Box, ...]


def sample_queries(
    samples: Sequence[Sample], names: Sequence[str], count: int, seed: int, phrases: int = PHRASES
) -> list[Query]:
    """Queries drawn from pictures with enough phrases, each picture once before any comes again.

    The phrases of a query differ in their words. Of a phrase that stands at several boxes, one box is drawn.

    Args:
        samples: the pictures.
        names: of each its name.
        count: how many queries.
        seed: the same seed draws the same queries.
        phrases: in each query.

    Raises:
        UserError: no picture has so many phrases.
    """
    said = [(name, _by_words(sample)) for name, sample in zip(names, samples, strict=True)]
    rich = [(name, found) for name, found in said if len(found) >= phrases]
    if not rich:
        raise UserError(f"no picture has {phrases} different phrases, which a query needs")
    draw, queries, waiting = random.Random(seed), list[Query](), list[int]()
    while len(queries) < count:
        if not waiting:
            waiting = draw.sample(range(len(rich)), len(rich))
        name, found = rich[waiting.pop()]
        chosen = [draw.choice(found[words]) for words in draw.sample(list(found), phrases)]
        queries.append(Query(name, tuple(phrase for phrase, _ in chosen), tuple(box for _, box in chosen)))
    return queries


def _by_words(sample: Sample) -> dict[tuple[str, ...], list[tuple[str, Box]]]:
    """The phrases of a picture and their boxes; phrases of the same words are one, those without a word none."""
    found: dict[tuple[str, ...], list[tuple[str, Box]]] = {}
    for (x1, y1, x2, y2), phrases in zip(sample.boxes.tolist(), sample.phrases, strict=True):
        for phrase in phrases:
            if words := tuple(tokenize(phrase)):
                found.setdefault(words, []).append((phrase, (x1, y1, x2, y2)))
    return found


@dataclass(frozen=True)
class RetrievalResult:
    """How well pictures and boxes are found.

    Attributes:
        protocol: by which pictures are ranked, see :func:`picture_scores`.
        images, queries: pictures that were ranked, and queries.
        r1, r5, r10: share of the queries whose picture is among the first 1, 5, 10.
        median_rank: of the queries' pictures, from 1.
        iou_recall: share of the queries' phrases whose region overlaps the phrase's true box by more than 0.1, 0.3 and
            0.5, in the query's own picture.
        median_iou: of these overlaps.
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
        """The JSON form: every attribute by its name."""
        return asdict(self)


def evaluate_retrieval(
    log_probs: Tensor, found: Tensor, sources: Sequence[int], truths: Tensor, protocol: Protocol = "clean"
) -> RetrievalResult:
    """The result of Q queries of K phrases over N pictures.

    Args:
        log_probs: ``(Q, K, N)``, ``log P(phrase | region)`` of each picture's best region; -inf if it has none.
        found: ``(Q, K, 4)`` that region's box in the query's own picture; a box without an area if it has none.
        sources: Q numbers of the queries' own pictures.
        truths: ``(Q, K, 4)`` the phrases' true boxes.
        protocol: see :func:`picture_scores`.
    """
    scores = picture_scores(log_probs, protocol)
    recall = Recall.of(source_ranks(scores, torch.tensor(sources, dtype=torch.long)))
    pairs = zip(found.flatten(0, 1).double(), truths.flatten(0, 1).double(), strict=True)
    overlaps = torch.stack([geometry.iou(a[None], b[None])[0, 0] for a, b in pairs])
    return RetrievalResult(
        protocol=protocol,
        images=log_probs.shape[2],
        queries=len(log_probs),
        r1=recall.r1,
        r5=recall.r5,
        r10=recall.r10,
        median_rank=recall.median_rank,
        iou_recall={str(t): float((overlaps > t).double().mean()) for t in IOUS},
        median_iou=float(overlaps.quantile(0.5)),
    )


def picture_scores(log_probs: Tensor, protocol: Protocol = "clean") -> Tensor:
    """Scores ``(Q, N)`` of pictures from ``log_probs (Q, K, N)`` of the K phrases of each query.

    ``"original"`` is the mean of the probabilities, as the paper says; the shortest phrase all but decides it.
    ``"clean"`` is the mean of their logarithms, which is the probability of all four phrases together: each counts.
    """
    table = log_probs.double()
    return table.exp().mean(dim=1) if protocol == "original" else table.mean(dim=1)


def source_ranks(scores: Tensor, sources: Tensor) -> Tensor:
    """The rank ``(Q,)``, from 1, of each query's own picture; pictures that score the same stand before it."""
    own = scores.gather(1, sources[:, None])
    return (scores >= own).sum(dim=1)

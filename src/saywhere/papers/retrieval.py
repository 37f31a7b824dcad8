"""Retrieval of images by phrases of their regions (DenseCap, section 4.2): queries, metric, report, and the run.

A query is four phrases of one image. In each image, each phrase is matched with the region that most likely has this
caption. Images are ranked by the mean over the four phrases; the image of the query should come first.

The regions of each image and their features are stored on disk, from which a stopped run resumes.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.data import Sample
from saywhere.engines.engine import DenseCap
from saywhere.errors import UserError
from saywhere.evaluation.ranking import Recall
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import REGIONS, ArrayStore, Session
from saywhere.files import write_text
from saywhere.models.model import Model
from saywhere.models.phrase_scores import encode_phrases, phrase_log_probs, unknown_words
from saywhere.options import dataclass
from saywhere.text import tokenize

Protocol = Literal["clean", "original"]
Box = tuple[float, float, float, float]

PHRASES = 4
"""Phrases in a query."""

IOUS = (0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Query:
    """Phrases of one image, each with the true box that it describes, in pixels of the image."""

    image: str
    phrases: tuple[str, ...]
    boxes: tuple[Box, ...]


def sample_queries(samples: Mapping[str, Sample], count: int, seed: int) -> list[Query]:
    """Sample queries from images with enough phrases (or ``UserError``); no image is reused before all are used.

    The phrases of a query have distinct words. If a phrase has several boxes, one of them is sampled.
    """
    by_words = [(name, _by_words(sample)) for name, sample in samples.items()]
    rich = [(name, found) for name, found in by_words if len(found) >= PHRASES]
    if not rich:
        raise UserError(f"no image has {PHRASES} different phrases, which a query needs")
    draw, queries, waiting = random.Random(seed), list[Query](), list[int]()
    while len(queries) < count:
        if not waiting:
            waiting = draw.sample(range(len(rich)), len(rich))
        name, found = rich[waiting.pop()]
        chosen = [draw.choice(found[words]) for words in draw.sample(list(found), PHRASES)]
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
    """Figures of how well images and boxes are found.

    Attributes:
        protocol: how images are scored, see :func:`image_scores`.
        images, queries: number of ranked images, and of queries.
        r1, r5, r10: share of queries whose image is among the first 1, 5, 10.
        median_rank: median rank of the queries' own images, from 1.
        iou_recall: share of phrases whose region, in the query's own image, has an IoU above 0.1, 0.3 and 0.5 with the
            true box.
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


def evaluate_retrieval(
    log_probs: ArrayLike, found: ArrayLike, sources: Sequence[int], truths: ArrayLike, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Return the result of Q queries of K phrases over N images.

    Args:
        log_probs: ``(Q, K, N)`` natural ``log P(phrase | region)`` of each image's best region; -inf if it has none.
        found: ``(Q, K, 4)`` box of that region in the query's own image; a box without area if it has none.
        sources: index of each query's own image.
        truths: ``(Q, K, 4)`` true boxes of the phrases.
        protocol: see :func:`image_scores`.
    """
    scores = image_scores(log_probs, protocol)
    recall = Recall.of(source_ranks(scores, sources))
    a, b = (np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in (found, truths))
    overlaps = geometry.pair_iou(a, b)
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
    """Return the scores ``(Q, N)`` of images from ``log_probs (Q, K, N)`` of each query's K phrases.

    ``"original"`` is the mean of the probabilities, as in the paper, which the shortest phrase dominates. ``"clean"``
    is the mean of their logarithms, so that each phrase matters: it ranks images by the joint probability of all
    phrases.
    """
    table = np.asarray(log_probs, np.float64)
    return np.exp(table).mean(axis=1) if protocol == "original" else table.mean(axis=1)


def source_ranks(scores: np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the rank ``(Q,)``, from 1, of each query's own image; images with equal scores rank before it."""
    own = np.take_along_axis(scores, np.asarray(sources, np.int64)[:, None], axis=1)
    return (scores >= own).sum(axis=1)


TOGETHER = 128
"""Minimum number of regions, from several images, that are scored at a time."""


def find_best_regions(
    model: DenseCap, store: ArrayStore, names: Sequence[str], phrases: Sequence[str], session: Session
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most likely region of each of P phrases in each of N images; several images are scored together.

    These are log-probabilities ``(N, P)`` (:func:`saywhere.models.phrase_scores.phrase_log_probs`) and boxes ``(N, P,
    4)``; -inf and 0 for images without regions.
    """
    token_ids, size = encode_phrases(model.vocabulary, phrases), (len(names), len(phrases))
    log_probs, boxes = np.full(size, -np.inf), np.zeros((*size, 4), np.float32)
    waiting: list[tuple[int, dict[str, np.ndarray]]] = []
    with session.steps("scoring", len(names), 0) as advance:
        for number, name in enumerate(names):
            if len((regions := store.read(name))["features"]):
                waiting.append((number, regions))
            ends = np.cumsum([len(each["features"]) for _, each in waiting])
            if len(ends) and (ends[-1] >= TOGETHER or number + 1 == len(names)):
                features = np.concatenate([each["features"] for _, each in waiting])
                found = np.split(phrase_log_probs(model.decoder, features, token_ids), ends[:-1])
                for (image, each), part in zip(waiting, found, strict=True):
                    log_probs[image], boxes[image] = part.max(axis=0), each["boxes"][part.argmax(axis=0)]
                waiting.clear()
            advance()
    return log_probs, boxes


def run(
    model: Model, session: Session, regions: int = 20, queries: int = 100, seed: int = 0, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Find images, and their regions, by four phrases, with at most ``regions`` per image (DenseCap, section 4.2).

    Raises:
        UserError: the model has no dense captioner, no image is readable, or none has four phrases.
    """
    detector = model.require("densecap", "score phrases of regions")
    samples = session.read()
    sources = session.sources(samples)
    settings = {"model": model.digest(), "data": samples.name, "split": samples.split, "regions": regions}
    session.resume(settings, REGIONS)
    store = ArrayStore(session.out / REGIONS)
    seen = session.each(
        lambda images, _: model.describe(images, top=regions), sources, store,
        lambda name, found: store.write(name, {"boxes": found.boxes, "features": np.asarray(found.features)}),
        long_side=model.long_side,
    )  # fmt: skip
    names = {source.path: source.name for source in seen}
    images = {names[sample.image]: sample for sample in samples if sample.image in names}
    asked = sample_queries(images, queries, seed)
    phrases = list(dict.fromkeys(phrase for query in asked for phrase in query.phrases))
    log_probs, boxes = find_best_regions(detector, store, list(images), phrases, session)
    columns = np.array([[phrases.index(phrase) for phrase in query.phrases] for query in asked])
    sources = [list(images).index(query.image) for query in asked]
    table, found = log_probs.T[columns], boxes[np.array(sources)[:, None], columns]
    truths = np.array([query.boxes for query in asked], np.float32)
    result = evaluate_retrieval(table, found, sources, truths, protocol)
    ranks: list[int] = source_ranks(image_scores(table, protocol), sources).tolist()
    lines = [asdict(query) | {"rank": rank} for query, rank in zip(asked, ranks, strict=True)]
    write_text(session.out / "queries.json", json.dumps(lines, indent=2) + "\n")
    unknown = sum(bool(unknown_words(detector.vocabulary, phrase)) for phrase in phrases)
    about = {"regions": regions, "seed": seed, "phrases": len(phrases), "phrases_with_unknown_words": unknown}
    write_report(session.out, {"task": "retrieval", **asdict(result), **session.known(samples.name, **about)})
    return result

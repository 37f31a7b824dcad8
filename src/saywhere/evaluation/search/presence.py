"""Whether what is looked for is there: hits in an index of half of the images, and what people say of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.configs.aligner import HitWeights
from saywhere.evaluation.grounding.presence import BINS, area_under_curve, calibration_error
from saywhere.evaluation.search.metric import DEPTH, TOGETHER, ask
from saywhere.models.model import Model
from saywhere.models.placing import cut_phrases, noun_words
from saywhere.search.commonness import base_words
from saywhere.search.phrases import LIKELY, PhrasesInImages, probabilities
from saywhere.search.query import Query
from saywhere.search.scan import best, similarities
from saywhere.search.vectors import Snapshot
from saywhere.text import tokenize
from saywhere.training.presence import fit


@dataclass(frozen=True, eq=False)
class Answers:
    """Hold what an index of some of the images answers to Q queries, K hits each.

    Attributes:
        evidence: ``(Q, K, 3)`` of each hit, see :class:`saywhere.search.phrases.Placed`.
        shown: ``(Q, K)`` whether people say each noun of the query of the image.
        inside: ``(Q,)`` whether the query is about an image of the index.
        anywhere: ``(Q,)`` whether people say each noun of the query of some image of the index.
    """

    evidence: np.ndarray
    shown: np.ndarray
    inside: np.ndarray
    anywhere: np.ndarray


@dataclass(frozen=True)
class PresenceInIndex:
    """Hold how well an index says whether what is looked for is there; half of the images are not in it.

    The probabilities are of weights fitted to the hits of one half, measured on those of the other, and the reverse.

    Attributes:
        auc: probability that a hit that shows the query has a higher one than a hit that does not.
        calibration_error: see :class:`saywhere.evaluation.grounding.presence.PresenceResult`.
        query_auc: probability that, of a query about an image of the index, the best hit has a higher probability than
            the best hit of a query that no image of the index is said to show.
        doubted, refused: share of both that are said to be probably not found.
        anywhere_auc: probability that, of a query that some image of the index shows, the best hit has a higher one
            than the best hit of a query that none shows.
        outside_auc: the same against all queries about images outside the index.
        outside_limit: this of a perfect answer, for images of the index show some of these queries too.
        reliability: of each used bin mean probability, share of hits that show the query, and number of hits.
        own_error: calibration error of the model's own weights; None if it has none.
        weights: fitted to all hits.
        queries: of both kinds, in both halves.
    """

    auc: float
    calibration_error: float
    query_auc: float
    doubted: float
    refused: float
    anywhere_auc: float
    outside_auc: float
    outside_limit: float
    reliability: tuple[tuple[float, float, int], ...]
    own_error: float | None
    weights: HitWeights
    queries: int


def said(sentences: Sequence[str]) -> frozenset[str]:
    """Return all words that are said of an image."""
    return frozenset(base_words(word for sentence in sentences for word in tokenize(sentence)))


def nouns(query: str) -> frozenset[str]:
    """Return the nouns of the phrases of a query."""
    return frozenset(base_words(word for phrase in cut_phrases(query) for word in noun_words(phrase)))


def answer(
    model: Model,
    snapshot: Snapshot,
    queries: Mapping[str, frozenset[int]],
    words: Sequence[frozenset[str]],
    inside: np.ndarray,
) -> Answers:
    """Search among some of the images; there are as many hits as a search among the others has.

    Args:
        model: that embedded the images, calibrated for phrases.
        snapshot: of an index of E images.
        queries: texts, and the entries that each is about.
        words: that are said of each image.
        inside: ``(E,)`` which of the images are searched.
    """
    score, texts = model.require("aligner", "search").config.score, list(queries)
    depth = min(DEPTH, int(inside.sum()), int((~inside).sum()))
    evidence, shown, anywhere = [], [], []
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        scores = similarities(snapshot, ask(model.embed_text(part), score))
        scores[~inside] = -np.inf
        for query, column in zip(part, scores.T, strict=True):
            chosen, wanted = best(column, depth).tolist(), nouns(query)
            phrases = PhrasesInImages(model, Query((query,)))
            evidence.append([phrases.find(snapshot.load(entry, "")).evidence for entry in chosen])
            shown.append([wanted <= words[entry] for entry in chosen])
            anywhere.append(any(wanted <= words[entry] for entry in np.flatnonzero(inside).tolist()))
    about = [bool(inside[list(entries)].any()) for entries in queries.values()]
    return Answers(np.array(evidence, np.float64), np.array(shown), np.array(about), np.array(anywhere))


def measure(halves: tuple[Answers, Answers], own: HitWeights | None) -> PresenceInIndex | None:
    """Compare the probabilities of hits with what people say of the images; None if all or none show their query.

    Args:
        halves: the answers of two indexes, each of the images that are not in the other.
        own: the model's weights.
    """
    if any(half.shown.all() or not half.shown.any() for half in halves):
        return None
    fitted = [_fit([half]) for half in halves]
    found = np.concatenate([probabilities(halves[i].evidence, fitted[1 - i]) for i in range(2)])
    evidence, shown = (np.concatenate([getattr(half, name) for half in halves]) for name in ("evidence", "shown"))
    inside, anywhere = (np.concatenate([getattr(half, name) for half in halves]) for name in ("inside", "anywhere"))
    tops, outside = found.max(axis=1), ~inside
    none = outside & ~anywhere
    error = None if own is None else calibration_error(probabilities(evidence, own).ravel(), shown.ravel())
    return PresenceInIndex(
        area_under_curve(found[shown], found[~shown]), calibration_error(found.ravel(), shown.ravel()),
        area_under_curve(tops[inside], tops[none]), _doubted(tops[inside]), _doubted(tops[none]),
        area_under_curve(tops[anywhere], tops[~anywhere]), area_under_curve(tops[inside], tops[outside]),
        1 - float(anywhere[outside].mean()) / 2 if outside.any() else 0.0,
        _reliability(found.ravel(), shown.ravel()), error, _fit(halves), len(inside),
    )  # fmt: skip


def _doubted(tops: np.ndarray) -> float:
    return float((tops < LIKELY).mean()) if len(tops) else 0.0


def _fit(halves: Sequence[Answers]) -> HitWeights:
    rows = np.concatenate([half.evidence.reshape(-1, half.evidence.shape[-1]) for half in halves])
    columns = np.concatenate((rows, np.ones((len(rows), 1))), axis=1)
    return fit(columns, np.concatenate([half.shown.ravel() for half in halves]))


def _reliability(found: np.ndarray, shown: np.ndarray) -> tuple[tuple[float, float, int], ...]:
    places = np.minimum((found * BINS).astype(int), BINS - 1)
    masks = [places == place for place in np.unique(places)]
    return tuple((round(found[m].mean(), 4), round(shown[m].mean(), 4), int(m.sum())) for m in masks)

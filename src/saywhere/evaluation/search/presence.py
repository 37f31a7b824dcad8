"""Whether what is looked for is there: hits in an index of half of the images, and the captions of those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.calibration import QUESTIONS, Logistic, Reliability, reliability
from saywhere.evaluation.grounding.presence import BINS, area_under_curve
from saywhere.evaluation.search.metric import DEPTH, TOGETHER, ask
from saywhere.models.model import Model
from saywhere.models.placing import cut_phrases, noun_words
from saywhere.search.anywhere import anywhere_evidence, anywhere_probability, fit_anywhere, is_improbable
from saywhere.search.commonness import base_words, kinds
from saywhere.search.phrases import PhrasesInImages
from saywhere.search.query import Query
from saywhere.search.scan import best, similarities
from saywhere.search.vectors import Snapshot
from saywhere.text import tokenize

Bins = tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of an index of some of the images to Q queries, K hits each.

    Attributes:
        evidence: ``(Q, K, 3)`` of each hit, see :class:`saywhere.search.phrases.Placed`.
        chances: ``(Q, 2)`` the evidence that any image of the index shows the query, see
            :func:`saywhere.search.anywhere.anywhere_probability`.
        shown: ``(Q, K)`` whether people say each noun of the query of the image.
        inside: ``(Q,)`` whether the query is about an image of the index.
        anywhere: ``(Q,)`` whether captions of some image of the index have each noun of the query.
    """

    evidence: np.ndarray
    chances: np.ndarray
    shown: np.ndarray
    inside: np.ndarray
    anywhere: np.ndarray


@dataclass(frozen=True)
class PresenceInIndex:
    """How well an index predicts whether it has what a query asks for; half of the images are not in it.

    The probabilities are of weights fitted to the hits of one half, measured on those of the other, and the reverse.

    Attributes:
        auc: probability that a hit that shows the query has a higher one than a hit that does not.
        calibration_error: see :class:`saywhere.evaluation.grounding.presence.PresenceResult`.
        anywhere_auc: probability that a query that some image of the index shows is said to be there with a higher
            probability than one that none shows.
        anywhere_error: calibration error of that probability.
        query_auc: the same of a query about an image of the index, and one that no image of it shows.
        doubted, refused: share of both that are said to be probably not found.
        outside_auc: the same against all queries about images outside the index.
        outside_limit: this of a perfect answer, for images of the index show some of these queries too.
        reliability: of each used bin mean probability, share of hits that show the query, and number of hits.
        anywhere_reliability: the same of queries, and whether any image shows them.
        own_error: calibration error of the model's own probabilities of hits; None if it has none.
        fits: ``hit`` to all hits, and ``chance`` and ``meant`` to all queries.
        queries: of both kinds, in both halves.
    """

    auc: float
    calibration_error: float
    anywhere_auc: float
    anywhere_error: float
    query_auc: float
    doubted: float
    refused: float
    outside_auc: float
    outside_limit: float
    reliability: Bins
    anywhere_reliability: Bins
    own_error: float | None
    fits: Mapping[str, Logistic]
    queries: int


def said(sentences: Sequence[str]) -> frozenset[str]:
    """Return all words that are said of an image, and what the things are kinds of that they name."""
    return frozenset(kinds(word for sentence in sentences for word in tokenize(sentence)))


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
    evidence, chances, shown, anywhere = [], [], [], []
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        scores = similarities(snapshot, ask(model.embed_text(part), score))
        scores[~inside] = -np.inf
        for query, column in zip(part, scores.T, strict=True):
            chosen, wanted = best(column, depth).tolist(), nouns(query)
            phrases = PhrasesInImages(model, Query((query,)))
            evidence.append([phrases.find(snapshot.load(entry, "")).evidence for entry in chosen])
            chances.append(anywhere_evidence(phrases.together, int(inside.sum()), evidence[-1][0][0]))
            shown.append([wanted <= words[entry] for entry in chosen])
            anywhere.append(any(wanted <= words[entry] for entry in np.flatnonzero(inside).tolist()))
    about = [bool(inside[list(entries)].any()) for entries in queries.values()]
    return Answers(np.array(evidence), np.array(chances), np.array(shown), np.array(about), np.array(anywhere))


def measure(halves: tuple[Answers, Answers], own: Logistic | None) -> PresenceInIndex | None:
    """Compare probabilities with the captions of the images.

    It is None if there is nothing to tell: all hits show their query or none does, or an image shows all queries or
    none.

    Args:
        halves: the answers of two indexes, each of the images that are not in the other.
        own: the probability of a hit that the model has.
    """
    truths = [truth for half in halves for truth in (half.shown, half.anywhere)]
    if any(truth.all() or not truth.any() for truth in truths):
        return None
    fitted = [_fit([half]) for half in halves]
    found = np.concatenate([fitted[1 - i].apply(halves[i].evidence) for i in range(2)])
    evidence, shown = (np.concatenate([getattr(half, name) for half in halves]) for name in ("evidence", "shown"))
    inside, anywhere = (np.concatenate([getattr(half, name) for half in halves]) for name in ("inside", "anywhere"))
    fits = [fit_anywhere(half.chances, half.anywhere) for half in halves]
    there = np.concatenate([anywhere_probability(halves[i].chances, *fits[1 - i]) for i in range(2)])
    of_all = fit_anywhere(np.concatenate([half.chances for half in halves]), anywhere)
    doubted, none, outside = is_improbable(found.max(axis=1), there), ~inside & ~anywhere, ~inside
    hits, queries = reliability(found.ravel(), shown.ravel(), BINS), reliability(there, anywhere, BINS)
    return PresenceInIndex(
        area_under_curve(found[shown], found[~shown]), hits.ece, area_under_curve(there[anywhere], there[~anywhere]),
        queries.ece, area_under_curve(there[inside], there[none]), _share(doubted[inside]), _share(doubted[none]),
        area_under_curve(there[inside], there[outside]),
        1 - float(anywhere[outside].mean()) / 2 if outside.any() else 0.0, _rows(hits), _rows(queries),
        None if own is None else own.reliability(evidence, shown, BINS).ece,
        {"hit": _fit(halves), "chance": of_all[0], "meant": of_all[1]}, len(inside),
    )  # fmt: skip


def _share(marks: np.ndarray) -> float:
    return float(marks.mean()) if len(marks) else 0.0


def _fit(halves: Sequence[Answers]) -> Logistic:
    rows = np.concatenate([half.evidence.reshape(-1, half.evidence.shape[-1]) for half in halves])
    return Logistic.fit(
        dict(zip(QUESTIONS["hit"], rows.T, strict=True)), np.concatenate([half.shown.ravel() for half in halves])
    )


def _rows(found: Reliability) -> Bins:
    return tuple((round(one.score, 4), round(one.matched, 4), one.count) for one in found.bins)

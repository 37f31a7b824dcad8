"""Search in an index: sentences and phrases of a data set, by whole vectors, by codes and in Qdrant."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.calibration import QUESTIONS, Logistic, Reliability, reliability
from saywhere.configs.aligner import Score
from saywhere.data import Sample, Samples
from saywhere.data.flickr import read_entities
from saywhere.errors import UserError
from saywhere.evaluation.dense import check_plots
from saywhere.evaluation.grounding import BINS, area_under_curve, share_of
from saywhere.evaluation.ranking import Recall, rank_matrix
from saywhere.evaluation.report import facts, save_figure, table, write_report
from saywhere.evaluation.session import Session, image_name
from saywhere.evaluation.stores import embed_images
from saywhere.images import ImageError
from saywhere.models.aligner import ImageVectors, TextVectors
from saywhere.models.model import Model
from saywhere.models.placing import cut_phrases, noun_words, word_fits
from saywhere.search.phrases import (
    PhrasesInImages,
    Query,
    base_words,
    fit_in_index,
    in_index_evidence,
    in_index_probability,
    is_improbable,
    kinds,
)
from saywhere.search.qdrant import Qdrant, masked
from saywhere.search.scan import Question, best, estimates, similarities
from saywhere.search.store import Stamp, Store
from saywhere.search.vectors import Snapshot
from saywhere.text import tokenize
from saywhere.training.progress import track

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


Bins = tuple[tuple[float, float, int], ...]


@dataclass(frozen=True, eq=False)
class Answers:
    """Answers of an index of some of the images to Q queries, K hits each.

    Attributes:
        evidence: ``(Q, K, 3)`` of each hit, see :class:`saywhere.search.phrases.Placed`.
        chances: ``(Q, 2)`` the evidence that any image of the index shows the query, see
            :func:`saywhere.search.phrases.in_index_probability`.
        shown: ``(Q, K)`` whether people say each noun of the query of the image.
        inside: ``(Q,)`` whether the query is about an image of the index.
        in_index: ``(Q,)`` whether people say each noun of the query of some image of the index.
    """

    evidence: np.ndarray
    chances: np.ndarray
    shown: np.ndarray
    inside: np.ndarray
    in_index: np.ndarray


@dataclass(frozen=True)
class PresenceInIndex:
    """How well an index predicts whether it has what a query asks for; half of the images are not in it.

    The probabilities are of weights fitted to the hits of one half, measured on those of the other, and the reverse.

    Attributes:
        auc: probability that a hit that shows the query has a higher one than a hit that does not.
        calibration_error: see :class:`saywhere.evaluation.grounding.PresenceResult`.
        in_index_auc: probability that a query that some image of the index shows is said to be there with a higher
            probability than one that none shows.
        in_index_error: calibration error of that probability.
        query_auc: the same of a query about an image of the index, and one that no image of it shows.
        doubted, refused: share of both that are said to be probably not found.
        outside_auc: the same against all queries about images outside the index.
        outside_limit: this of a perfect answer, for images of the index show some of these queries too.
        reliability: of each used bin mean probability, share of hits that show the query, and number of hits.
        in_index_reliability: the same of queries, and whether any image shows them.
        own_error: calibration error of the model's own probabilities of hits; None if it has none.
        fits: ``hit`` to all hits, and ``chance`` and ``meant`` to all queries.
        queries: of both kinds, in both halves.
    """

    auc: float
    calibration_error: float
    in_index_auc: float
    in_index_error: float
    query_auc: float
    doubted: float
    refused: float
    outside_auc: float
    outside_limit: float
    reliability: Bins
    in_index_reliability: Bins
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
    evidence, chances, shown, in_index = [], [], [], []
    for start in range(0, len(texts), TOGETHER):
        part = texts[start : start + TOGETHER]
        scores = similarities(snapshot, ask(model.embed_text(part), score))
        scores[~inside] = -np.inf
        for query, column in zip(part, scores.T, strict=True):
            chosen, wanted = best(column, depth).tolist(), nouns(query)
            phrases = PhrasesInImages(model, Query((query,)))
            evidence.append([phrases.find(snapshot.load(entry, "")).evidence for entry in chosen])
            chances.append(in_index_evidence(phrases.together, int(inside.sum()), evidence[-1][0][0]))
            shown.append([wanted <= words[entry] for entry in chosen])
            in_index.append(any(wanted <= words[entry] for entry in np.flatnonzero(inside).tolist()))
    about = [bool(inside[list(entries)].any()) for entries in queries.values()]
    return Answers(np.array(evidence), np.array(chances), np.array(shown), np.array(about), np.array(in_index))


def measure(halves: tuple[Answers, Answers], own: Logistic | None) -> PresenceInIndex | None:
    """Compare probabilities with what people say of the images.

    It is None if there is nothing to tell: all hits show their query or none does, or an image shows all queries or
    none.

    Args:
        halves: the answers of two indexes, each of the images that are not in the other.
        own: the probability of a hit that the model has.
    """
    truths = [truth for half in halves for truth in (half.shown, half.in_index)]
    if any(truth.all() or not truth.any() for truth in truths):
        return None
    fitted = [_fit([half]) for half in halves]
    found = np.concatenate([fitted[1 - i].apply(halves[i].evidence) for i in range(2)])
    evidence, shown = (np.concatenate([getattr(half, name) for half in halves]) for name in ("evidence", "shown"))
    inside, in_index = (np.concatenate([getattr(half, name) for half in halves]) for name in ("inside", "in_index"))
    fits = [fit_in_index(half.chances, half.in_index) for half in halves]
    there = np.concatenate([in_index_probability(halves[i].chances, *fits[1 - i]) for i in range(2)])
    of_all = fit_in_index(np.concatenate([half.chances for half in halves]), in_index)
    doubted, none, outside = is_improbable(found.max(axis=1), there), ~inside & ~in_index, ~inside
    hits, queries = reliability(found.ravel(), shown.ravel(), BINS), reliability(there, in_index, BINS)
    return PresenceInIndex(
        area_under_curve(found[shown], found[~shown]), hits.ece, area_under_curve(there[in_index], there[~in_index]),
        queries.ece, area_under_curve(there[inside], there[none]), share_of(doubted[inside]), share_of(doubted[none]),
        area_under_curve(there[inside], there[outside]),
        1 - float(in_index[outside].mean()) / 2 if outside.any() else 0.0, _bins(hits), _bins(queries),
        None if own is None else own.reliability(evidence, shown, BINS).ece,
        {"hit": _fit(halves), "chance": of_all[0], "meant": of_all[1]}, len(inside),
    )  # fmt: skip


def _fit(halves: Sequence[Answers]) -> Logistic:
    rows = np.concatenate([half.evidence.reshape(-1, half.evidence.shape[-1]) for half in halves])
    return Logistic.fit(
        dict(zip(QUESTIONS["hit"], rows.T, strict=True)), np.concatenate([half.shown.ravel() for half in halves])
    )


def _bins(found: Reliability) -> Bins:
    return tuple((round(one.score, 4), round(one.matched, 4), one.count) for one in found.bins)


COLLECTION = "saywhere-evaluation"
SERVED = 200
"""Sentences at most that are looked for in a collection."""
UPLOADED = 100
"""Images that are handed over together."""


@dataclass(frozen=True)
class ServedResult:
    """Agreement of a collection with an index.

    Attributes:
        url: of the server.
        overlap: mean share of the ten best images that the collection finds as well.
        queries: that were compared.
    """

    url: str
    overlap: float
    queries: int


def compare_served(url: str, snapshot: Snapshot, texts: Sequence[TextVectors], score: Score) -> ServedResult:
    """Put the images of an index into a collection, look for texts in both, and remove the collection.

    Args:
        url: of a server, see :class:`saywhere.search.Qdrant`.
        snapshot: of the index, whose images all count; it is searched by whole vectors.
        texts: to be looked for, at least one.
        score: of a text and an image.

    Raises:
        UserError: the server does not answer, or an earlier evaluation has left its collection behind.
    """
    place, count = Qdrant(url, COLLECTION), snapshot.extent.entries
    if place.exists():
        raise UserError(f"{place}: is left from another evaluation; remove this collection")
    with place.open({"size": str(snapshot.extent.size), "digest": "", "model": ""}) as store:
        try:
            for start in range(0, count, UPLOADED):
                some = range(start, min(start + UPLOADED, count))
                store.put([(f"/{entry}", Stamp(0, 0), snapshot.load(entry, "")) for entry in some])
            shares: list[float] = []
            for text, exact in zip(texts, score_texts(snapshot, texts, score), strict=True):
                wanted = {f"/{entry}" for entry in best(exact, DEPTH).tolist()}
                found = {each.vectors.image for each in store.nearest(ask([text], score), DEPTH)}
                shares.append(len(wanted & found) / len(wanted))
        finally:
            place.delete()
    return ServedResult(masked(url), float(np.mean(shares)), len(shares))


PLOT = "reliability.png"


@dataclass(frozen=True)
class SearchResult:
    """Figures of how well an index answers.

    Attributes:
        recall: of the image of each sentence, by whole vectors.
        code_recall: the same by nothing but codes.
        overlap: mean share of the ten best images by whole vectors that are in the first tenth (ten at least) by codes.
        hit: share of the phrases whose first image shows them, at a place that overlaps with theirs; None without
            phrases that have boxes.
        phrases: number of them.
        presence: whether it knows what is there; None if the model is not calibrated for phrases, or there is nothing
            to tell.
        served: whether a collection in Qdrant finds the same; None if none was asked.
    """

    recall: Recall
    code_recall: Recall
    overlap: float
    hit: float | None
    phrases: int
    presence: PresenceInIndex | None
    served: ServedResult | None = None


def write_search_report(session: Session, result: SearchResult, known: Mapping[str, Any]) -> None:
    """Write ``report.json``, ``report.md`` and, if it is known how probable hits are, ``reliability.png``."""
    rows = [(name, f"{whole:.3f}", f"{coded:.3f}") for name, whole, coded in _recalls(result)]
    lines = [*table(("", "whole vectors", "codes alone"), rows), "", *table(("", ""), _rows(result))]
    there = result.presence
    (session.out / PLOT).unlink(missing_ok=True)
    if there is not None:
        bins = [(f"{mean:.3f}", f"{share:.3f}", count) for mean, share, count in there.reliability]
        lines += ["", *table(("probability", "share of hits that show the query", "hits"), bins)]
        bins = [(f"{mean:.3f}", f"{share:.3f}", count) for mean, share, count in there.in_index_reliability]
        lines += ["", *table(("probability", "share of queries that any image shows", "queries"), bins)]
        draw_reliability(there, session.out / PLOT)
    measured = {
        "recall": _shares(result.recall), "code_recall": _shares(result.code_recall), "overlap": result.overlap,
        "hit": result.hit, "phrases": result.phrases, "presence": None if there is None else asdict(there),
        "served": None if result.served is None else asdict(result.served),
    }  # fmt: skip
    write_report(session.out, {"task": "search", **measured, **known}, ["# Search", "", *lines, "", *facts(known)])


def _shares(recall: Recall) -> dict[str, float]:
    return {name: value for name, value in vars(recall).items() if name != "queries"}


def _recalls(result: SearchResult) -> list[tuple[str, float, float]]:
    whole, coded = result.recall, result.code_recall
    return [
        ("R@1", whole.r1, coded.r1),
        ("R@5", whole.r5, coded.r5),
        ("R@10", whole.r10, coded.r10),
        ("median rank", whole.median_rank, coded.median_rank),
    ]


def _rows(result: SearchResult) -> list[tuple[str, str]]:
    rows = [("ten best that are in the first tenth by codes", f"{result.overlap:.4f}")]
    if (served := result.served) is not None:
        what = f"ten best that Qdrant finds too ({served.url}, {served.queries:,} sentences)"
        rows.append((what, f"{served.overlap:.4f}"))
    if result.hit is not None:
        what = f"phrase first in an image that shows it, IoU at least 0.5 ({result.phrases:,} phrases)"
        rows.append((what, f"{result.hit:.3f}"))
    if (there := result.presence) is not None:
        rows += [
            ("a hit that shows its query is more probable than one that does not: AUC", f"{there.auc:.3f}"),
            ("calibration error of that probability", f"{there.calibration_error:.3f}"),
            ("the same of the model's own weights", "" if there.own_error is None else f"{there.own_error:.3f}"),
            ("whole queries that some image shows and those that none shows: AUC", f"{there.in_index_auc:.3f}"),
            ("calibration error of their probability", f"{there.in_index_error:.3f}"),
            ("queries about images of the index and those that none of them shows: AUC", f"{there.query_auc:.3f}"),
            ("of these said to be probably not found", f"{there.doubted:.3f}, {there.refused:.3f}"),
            ("the first of these and all queries about other images: AUC", f"{there.outside_auc:.3f}"),
            ("the same of a perfect answer", f"{there.outside_limit:.3f}"),
            *((f"weights of the probability `{question}`", str(fit)) for question, fit in there.fits.items()),
        ]
    return rows


def draw_reliability(there: PresenceInIndex, path: Path) -> None:
    """Draw as a PNG how often what has each probability is true, above its number: of hits, and of whole queries."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.4, 4.6), layout="constrained")
    axes = figure.subplots(2, 2, sharex=True, height_ratios=(3, 1))
    sides = (
        (there.reliability, there.auc, there.calibration_error, "share of hits that show the query", "hits"),
        (there.in_index_reliability, there.in_index_auc, there.in_index_error,
         "share of queries that any image shows", "queries"),
    )  # fmt: skip
    for (upper, lower), (bins, area, error, share, what) in zip(axes.T, sides, strict=True):
        means, shares, counts = zip(*bins, strict=True)
        upper.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle="--")
        upper.plot(means, shares, "o-", color="#1f4e79")
        upper.set_ylabel(share)
        upper.set_ylim(0, 1)
        upper.set_title(f"AUC {area:.3f}, calibration error {error:.3f}")
        lower.bar(means, counts, 0.08, color="#bbbbbb")
        lower.set_ylabel(what)
        lower.set_xlabel("probability")
        lower.set_xlim(0, 1)
    save_figure(figure, path)


INDEX = "index"
"""The folder of a run with the index."""

Truth = dict[str, dict[int, list[np.ndarray]]]
"""By phrase, and by entry of the image, the true boxes."""


def run(
    model: Model, session: Session, regions: int | None = None, components: int = 64, queries: int = 1000,
    url: str | None = None,
) -> SearchResult:  # fmt: skip
    """Index the images of a data set, and look for its sentences and, with Flickr30k Entities, for its phrases.

    Args:
        model: with an aligner.
        session: the data and the results.
        regions: of an image at most so many beside the whole of it, instead of the model's own number.
        components: of the codes, whose answers are compared with those of whole vectors.
        queries: at most so many sentences for that, and at most so many different phrases, spread over all; and as many
            sentences and phrases together to see whether the index knows what is there.
        url: of a Qdrant server, or ``:memory:``: whether a collection there, which is removed again, finds the same.

    Raises:
        UserError: the model has no aligner, no image can be read, or none has a sentence.
    """
    aligner = model.require("aligner", "search")
    check_plots()
    samples = session.read()
    sources = session.sources(samples)
    sentences = _sentences(session, samples)
    images = embed_images(model, session, sources, {"data": samples.name, "split": samples.split}, regions)
    with _index(session.out / INDEX, model, images) as store:
        store.encode(components)
        snapshot = store.snapshot()
        pairs = [(entry, text) for entry, image in enumerate(images) for text in sentences[image.image]]
        texts = model.embed_text([text for _, text in pairs])
        owner = [entry for entry, _ in pairs]
        found = recall(snapshot, texts, owner, aligner.config.score)
        coded = recall(snapshot, texts, owner, aligner.config.score, estimates)
        shared = overlap(snapshot, _spread(texts, queries), aligner.config.score)
        truth = _phrases(session, {image.image: entry for entry, image in enumerate(images)})
        asked = _spread(sorted(truth), queries)
        hit = _hit(model, snapshot, {phrase: truth[phrase] for phrase in asked}) if asked else None
        served = (
            None
            if url is None
            else compare_served(url, snapshot, _spread(texts, min(queries, SERVED)), aligner.config.score)
        )
        presence = _presence(model, snapshot, [sentences[image.image] for image in images], queries)
        result = SearchResult(found, coded, shared, hit, len(asked), presence, served)
        size = (snapshot.vectors.nbytes + snapshot.regions.nbytes) / len(images)
        known = session.known(samples.name, images=len(images), sentences=len(texts), regions=regions,
                              components=components, bytes_per_image=round(size),
                              code_bytes_per_image=round(snapshot.codes.nbytes / len(images)))  # fmt: skip
    write_search_report(session, result, known)
    return result


def fit_hits(model: Model, samples: Sequence[Sample], queries: int = 1000) -> dict[str, Logistic]:
    """Return how probable hits of a search are, fitted to sentences and phrases looked for in an index of images.

    Images that cannot be read are passed over. A progress bar is shown.

    Args:
        model: with an aligner, calibrated for phrases; it should not have learnt from these images.
        samples: images with sentences.
        queries: at most so many.

    Returns:
        the answers to the questions ``hit``, ``chance`` and ``meant`` of a :class:`saywhere.calibration.Calibration`.

    Raises:
        UserError: the model has no aligner or is not calibrated for phrases, or these images tell nothing.
    """
    model.check("aligner", "search")
    if model.calibration.phrase is None:
        raise UserError(f"{model.name} must be calibrated for phrases before it is for hits: calibrate --what phrase")
    images, sentences = list[ImageVectors](), list[tuple[str, ...]]()
    with track("images", len(samples)) as progress:
        for sample in samples:
            progress.advance(1)
            try:
                if sample.sentences:
                    images.append(model.embed(sample.image))
                    sentences.append(sample.sentences)
            except ImageError:
                continue
    with tempfile.TemporaryDirectory() as folder, _index(Path(folder) / INDEX, model, images) as store:
        found = _presence(model, store.snapshot(), sentences, queries)
    if found is None:
        raise UserError(
            f"{len(images)} images with sentences do not tell when a hit shows what was looked for: more are needed"
        )
    return dict(found.fits)


def _sentences(session: Session, samples: Samples) -> dict[str, list[str]]:
    """The sentences by the name of the image."""
    found: dict[str, list[str]] = {}
    for sample in samples:
        found.setdefault(image_name(sample.image, session.folder), []).extend(sample.sentences)
    if not any(found.values()):
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence")
    return found


def _presence(
    model: Model, snapshot: Snapshot, sentences: Sequence[Sequence[str]], queries: int
) -> PresenceInIndex | None:
    """Whether the index knows what is there: half of the images are searched, then the others."""
    if model.calibration.phrase is None or len(sentences) < 2:
        return None
    owners: dict[str, set[int]] = {}
    pairs = [(entry, text) for entry, texts in enumerate(sentences) for text in texts]
    phrases = sorted({phrase for _, text in pairs for phrase in cut_phrases(text)})
    asked = [*_spread(pairs, queries // 2), *((None, phrase) for phrase in _spread(phrases, queries - queries // 2))]
    wanted = {text for _, text in asked}
    for entry, text in pairs:
        for query in wanted.intersection((text, *cut_phrases(text))):
            owners.setdefault(query, set()).add(entry)
    words = [said(each) for each in sentences]
    first = np.random.default_rng(0).permutation(len(sentences)) < len(sentences) // 2
    about = {query: frozenset(entries) for query, entries in sorted(owners.items())}
    one, other = (answer(model, snapshot, about, words, inside) for inside in (first, ~first))
    return measure((one, other), model.calibration.hit)


def _index(folder: Path, model: Model, images: Sequence[ImageVectors]) -> Store:
    """An index of these images, whose entries are their places; an earlier one is removed."""
    shutil.rmtree(folder, ignore_errors=True)
    size = model.require("aligner", "search").config.embed_dim + 1
    store = Store(folder, {"digest": model.engine.vectors_digest(), "model": model.name, "size": str(size)})
    for start in range(0, len(images), 100):
        store.put([(image.image, Stamp(0, 0), image) for image in images[start : start + 100]])
    return store


def _spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the items, evenly spread."""
    chosen = np.linspace(0, len(items) - 1, min(most, len(items))).round().astype(int)
    return [items[i] for i in chosen.tolist()]


def _phrases(session: Session, entries: Mapping[str, int]) -> Truth:
    """The phrases that have boxes, in the images that are indexed; none without Flickr30k Entities."""
    try:
        marked = read_entities(session.data, session.split or "dev")
    except UserError:
        return {}
    truth: Truth = {}
    for image in marked:
        entry = entries.get(image_name(image.image, session.folder))
        for sentence in image.sentences if entry is not None else ():
            for phrase in sentence.phrases:
                words = sentence.phrase(phrase)
                if phrase.box is not None and entry is not None and words:
                    truth.setdefault(words, {}).setdefault(entry, []).append(phrase.box)
    return truth


def _hit(model: Model, snapshot: Snapshot, truth: Truth) -> float:
    """The share of phrases that are right in the first image, at the region that is found there."""
    aligner, phrases = model.require("aligner", "search"), list(truth)
    texts, right = model.embed_text(phrases), 0
    for phrase, text, scores in zip(phrases, texts, score_texts(snapshot, texts, aligner.config.score), strict=True):
        entry = int(scores.argmax())
        image = snapshot.load(entry, "")
        region = int(word_fits(aligner, image, [text])[:, 0].argmax())
        right += is_right(entry, image.boxes[region], truth[phrase])
    return right / len(phrases)

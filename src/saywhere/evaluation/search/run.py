"""Sentences and phrases of a data set looked for in an index of its images."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.data.entities import read_entities
from saywhere.errors import UserError
from saywhere.evaluation.embeddings import embed_images
from saywhere.evaluation.ranking.metric import Recall
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.search.metric import is_right, overlap, recall, score_texts
from saywhere.evaluation.search.presence import PresenceInIndex, answer, measure, said
from saywhere.evaluation.session import Session, image_name
from saywhere.models.grounding import ImageVectors
from saywhere.models.model import Model
from saywhere.models.placing import cut_phrases, word_fits
from saywhere.networks.checkpoint import change_options
from saywhere.search.store import Stamp, Store
from saywhere.search.vectors import Snapshot

INDEX = "index"
"""The folder of a run with the index."""

Truth = dict[str, dict[int, list[np.ndarray]]]
"""By phrase, and by entry of the image, the true boxes."""


@dataclass(frozen=True)
class SearchResult:
    """Hold how well an index answers.

    Attributes:
        recall: of the image of each sentence, by whole vectors.
        overlap: mean share of the ten best images by whole vectors that are in the first tenth (ten at least) by codes.
        hit: share of the phrases whose first image shows them, at a place that overlaps with theirs; None without
            phrases that have boxes.
        phrases: number of them.
        presence: whether it knows what is there; None if the model is not calibrated for phrases, or there is nothing
            to tell.
    """

    recall: Recall
    overlap: float
    hit: float | None
    phrases: int
    presence: PresenceInIndex | None


def run(
    model: Model, session: Session, regions: int | None = None, components: int = 64, queries: int = 1000,
    calibrate: str | Path | None = None,
) -> SearchResult:  # fmt: skip
    """Index the images of a data set, and look for its sentences and, with Flickr30k Entities, for its phrases.

    Args:
        model: with an aligner.
        session: the data and the results.
        regions: of an image at most so many beside the whole of it, instead of the model's own number.
        components: of the codes, whose answers are compared with those of whole vectors.
        queries: at most so many sentences for that, and at most so many different phrases, spread over all; and as many
            sentences and phrases together to see whether the index knows what is there.
        calibrate: folder of the model, whose options get the weights of the probability that a hit shows its query.

    Raises:
        UserError: the model has no aligner, no image can be read, or none has a sentence; or there is nothing to
            calibrate by.
    """
    aligner = model.require("aligner", "search")
    samples = session.read()
    sources = session.sources(samples)
    sentences: dict[str, list[str]] = {}
    for sample in samples:
        sentences.setdefault(image_name(sample.image, session.folder), []).extend(sample.sentences)
    if not any(sentences.values()):
        raise UserError(f"{session.data}: the split {samples.split} has no image with a sentence")
    images = embed_images(model, session, sources, {"data": samples.name, "split": samples.split}, regions)
    with _index(session, model, images) as store:
        store.encode(components)
        snapshot = store.snapshot()
        pairs = [(entry, text) for entry, image in enumerate(images) for text in sentences[image.name]]
        texts = model.embed_text([text for _, text in pairs])
        found = recall(snapshot, texts, [entry for entry, _ in pairs], aligner.config.score)
        shared = overlap(snapshot, _spread(texts, queries), aligner.config.score)
        truth = _phrases(session, {image.name: entry for entry, image in enumerate(images)})
        asked = _spread(sorted(truth), queries)
        hit = _hit(model, snapshot, {phrase: truth[phrase] for phrase in asked}) if asked else None
        presence = _presence(model, snapshot, [sentences[image.name] for image in images], queries)
        result = SearchResult(found, shared, hit, len(asked), presence)
        size = (snapshot.vectors.nbytes + snapshot.regions.nbytes) / len(images)
        known = session.known(samples.name, images=len(images), sentences=len(texts), regions=regions,
                              components=components, bytes_per_image=round(size),
                              code_bytes_per_image=round(snapshot.codes.nbytes / len(images)))  # fmt: skip
    _write(session, result, known)
    if calibrate is not None:
        if presence is None:
            raise UserError(
                f"{calibrate}: these images do not tell when a hit shows what was looked for; and the model must be "
                "calibrated for phrases first: saywhere calibrate --part aligner"
            )
        change_options(Path(calibrate), {"aligner.grounding.hit": presence.weights})
    return result


def _presence(
    model: Model, snapshot: Snapshot, sentences: Sequence[Sequence[str]], queries: int
) -> PresenceInIndex | None:
    """Whether the index knows what is there: half of the images are searched, then the others."""
    grounding = model.require("aligner", "search").config.grounding
    if grounding.presence is None or len(sentences) < 2:
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
    return measure((one, other), grounding.hit)


def _index(session: Session, model: Model, images: Sequence[ImageVectors]) -> Store:
    """An index of these images, whose entries are their places; an earlier one is removed."""
    folder = session.out / INDEX
    shutil.rmtree(folder, ignore_errors=True)
    size = model.require("aligner", "search").config.embed_dim
    store = Store(folder, {"digest": model.engine.vectors_digest(), "model": model.name, "size": str(size)})
    for start in range(0, len(images), 100):
        store.put([(image.name, Stamp(0, 0), image) for image in images[start : start + 100]])
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
                words = " ".join(sentence.words[phrase.start : phrase.stop])
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


def _write(session: Session, result: SearchResult, known: Mapping[str, Any]) -> None:
    figures = result.recall
    rows = [
        ("R@1", f"{figures.r1:.3f}"),
        ("R@5", f"{figures.r5:.3f}"),
        ("R@10", f"{figures.r10:.3f}"),
        ("median rank", f"{figures.median_rank:g}"),
        ("ten best that are in the first tenth by codes", f"{result.overlap:.4f}"),
    ]
    if result.hit is not None:
        rows.append((f"phrase first in an image that shows it, IoU at least 0.5 ({result.phrases:,} phrases)",
                     f"{result.hit:.3f}"))  # fmt: skip
    lines: list[str] = []
    if (there := result.presence) is not None:
        rows += [
            ("a hit that shows its query is more probable than one that does not: AUC", f"{there.auc:.3f}"),
            ("calibration error of that probability", f"{there.calibration_error:.3f}"),
            ("the same of the model's own weights", "" if there.own_error is None else f"{there.own_error:.3f}"),
            (
                "best hit, queries about images of the index and those that none of them shows: AUC",
                f"{there.query_auc:.3f}",
            ),
            ("of these said to be probably not found", f"{there.doubted:.3f}, {there.refused:.3f}"),
            ("best hit, all queries about other images: AUC", f"{there.outside_auc:.3f}"),
            ("the same of a perfect answer", f"{there.outside_limit:.3f}"),
            ("weights of similarity and log-probability of all phrases, constant", ", ".join(map(str, there.weights))),
        ]
        bins = [(f"{mean:.3f}", f"{share:.3f}", count) for mean, share, count in there.reliability]
        lines = ["", *table(("probability", "share of hits that show the query", "hits"), bins)]
    recalled = {name: value for name, value in vars(figures).items() if name != "queries"}
    measured = {"recall": recalled, "overlap": result.overlap, "hit": result.hit, "phrases": result.phrases}
    measured["presence"] = None if there is None else asdict(there)
    text = ["# Search", "", *table(("", ""), rows), *lines, "", *facts(known)]
    write_report(session.out, {"task": "search", **measured, **known}, text)

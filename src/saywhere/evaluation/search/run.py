"""Sentences and phrases of a data set looked for in an index of its images."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saywhere.data.entities import read_entities
from saywhere.errors import UserError
from saywhere.evaluation.embeddings import embed_images
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.search.metric import SearchResult, is_right, overlap, recall, score_texts
from saywhere.evaluation.session import Session, image_name
from saywhere.models.grounding import ImageVectors
from saywhere.models.model import Model
from saywhere.models.placing import word_fits
from saywhere.search.store import Stamp, Store
from saywhere.search.vectors import Snapshot

INDEX = "index"
"""The folder of a run with the index."""

Truth = dict[str, dict[int, list[np.ndarray]]]
"""By phrase, and by entry of the image, the true boxes."""


def run(
    model: Model, session: Session, regions: int | None = None, components: int = 64, queries: int = 1000
) -> SearchResult:
    """Index the images of a data set, and look for its sentences and, with Flickr30k Entities, for its phrases.

    Args:
        model: with an aligner.
        session: the data and the results.
        regions: of an image at most so many beside the whole of it, instead of the model's own number.
        components: of the codes, whose answers are compared with those of whole vectors.
        queries: at most so many sentences for that, and at most so many different phrases, spread over all.

    Raises:
        UserError: the model has no aligner, no image can be read, or none has a sentence.
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
        result = SearchResult(found, shared, hit, len(asked))
        size = (snapshot.vectors.nbytes + snapshot.regions.nbytes) / len(images)
        known = session.known(samples.name, images=len(images), sentences=len(texts), regions=regions,
                              components=components, bytes_per_image=round(size),
                              code_bytes_per_image=round(snapshot.codes.nbytes / len(images)))  # fmt: skip
    _write(session, result, known)
    return result


def _index(session: Session, model: Model, images: Sequence[ImageVectors]) -> Store:
    """An index of these images, whose entries are their places; an earlier one is removed."""
    folder = session.out / INDEX
    shutil.rmtree(folder, ignore_errors=True)
    size = model.require("aligner", "search").config.embed_dim
    store = Store(folder, {"digest": model.digest(), "model": model.name, "size": str(size)})
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
    recalled = {name: value for name, value in vars(figures).items() if name != "queries"}
    measured = {"recall": recalled, "overlap": result.overlap, "hit": result.hit, "phrases": result.phrases}
    lines = ["# Search", "", *table(("", ""), rows), "", *facts(known)]
    write_report(session.out, {"task": "search", **measured, **known}, lines)

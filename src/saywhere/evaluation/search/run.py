"""Sentences and phrases of a data set looked for in an index of its images."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.calibration import Logistic
from saywhere.data import Sample, Samples
from saywhere.data.entities import read_entities
from saywhere.errors import UserError
from saywhere.evaluation.dense.scoring import check_plots
from saywhere.evaluation.embeddings import embed_images
from saywhere.evaluation.search.metric import is_right, overlap, recall, score_texts
from saywhere.evaluation.search.presence import PresenceInIndex, answer, measure, said
from saywhere.evaluation.search.report import SearchResult, write_search_report
from saywhere.evaluation.search.served import SERVED, compare
from saywhere.evaluation.session import Session, image_name
from saywhere.images import ImageError
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.models.placing import cut_phrases, word_fits
from saywhere.search.scan import estimates
from saywhere.search.store import Stamp, Store
from saywhere.search.vectors import Snapshot
from saywhere.training.progress import track

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
            None if url is None else compare(url, snapshot, _spread(texts, min(queries, SERVED)), aligner.config.score)
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

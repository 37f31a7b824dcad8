"""Phrases of marked sentences placed in images by a model, and by controls that do not read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np

from saywhere import boxes as geometry
from saywhere.data.entities import MarkedImage, MarkedPhrase, MarkedSentence
from saywhere.engines.engine import Aligner, DenseCap
from saywhere.errors import UserError
from saywhere.evaluation.embeddings import of_arrays, to_arrays
from saywhere.evaluation.grounding.metric import GroundingResult, measure
from saywhere.evaluation.grounding.placed import ask
from saywhere.evaluation.grounding.presence import PresenceResult
from saywhere.evaluation.grounding.report import write_grounding_report
from saywhere.evaluation.region_store import REGIONS, ArrayStore, RegionStore
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models import densecap
from saywhere.models.aligner import ImageVectors, align, embed_images, region_bonus
from saywhere.models.model import Model
from saywhere.models.phrase_scores import score_regions
from saywhere.regions import Regions

PRIOR = "highest prior"
KINDS = "kinds"
CONTROLS = ("whole image", "largest region", "random region", PRIOR)


@dataclass(frozen=True)
class GroundingScores:
    """Grounding figures of a model and of the :data:`CONTROLS`.

    ``presence`` is how well it tells what is there from what is not; None for one part, or without a calibration.
    """

    model: GroundingResult
    controls: dict[str, GroundingResult]
    presence: PresenceResult | None = None


def run(
    model: Model, session: Session, part: Literal["aligner", "densecap"] | None = None, regions: int | None = None
) -> GroundingScores:
    """Place the phrases of sentences in their images: right where the IoU with the truth is at least 0.5.

    Args:
        model: with the part.
        session: the data (Flickr30k Entities; without ``part`` any with phrases and boxes) and the results.
        part: ``aligner`` reads the whole sentence; ``densecap`` reads each phrase by itself; None answers as
            :meth:`saywhere.Model.ground` does, and is asked for phrases of other images too.
        regions: choose among at most so many of an image, instead of the model's own number.

    Raises:
        UserError: the model lacks the part, no image can be read, or no phrase has a box.
    """
    if part is None:
        scores, count = ask(model, session, regions)
        known = session.known(session.data.name, images=count, regions=regions)
        write_grounding_report(session.out, scores.model, scores.controls, known, scores.presence)
        return GroundingScores(scores.model, scores.controls, scores.presence)
    if part not in ("aligner", "densecap"):
        raise UserError(f"part must be aligner or densecap, not {part!r}")
    model.require(part, "place phrases")
    images = session.read_entities()
    by_name = {image_name(image.image, session.data): image for image in images}
    sources = [Source(image.image, name, Path(image.image.name)) for name, image in by_name.items()]
    if part == "aligner":
        views = _views_of_aligner(model, session, sources, by_name, regions)
    else:
        views = _views_of_detector(model, session, sources, regions)
    asked = [image for name, image in by_name.items() if name not in session.skipped]
    result = ground(asked, views)
    controls = {name: control(name, asked, views) for name in CONTROLS}
    known = session.known(session.data.name, images=len(asked), part=part, regions=regions)
    write_grounding_report(session.out, result, controls, known)
    return GroundingScores(result, controls)


def _views_of_aligner(
    model: Model, session: Session, sources: Sequence[Source], marked: Mapping[str, MarkedImage], limit: int | None
) -> list[View]:
    placer, aligner = model.placer("aligner"), model.require("aligner", "place phrases")
    facts = {"data": str(session.data), "split": session.split, "part": "aligner", "nms_iou": placer.config.nms_iou}
    session.resume({"model": model.digest(), **facts, "regions": limit}, REGIONS)
    store, names = ArrayStore(session.out / REGIONS), {str(source.path): source.name for source in sources}
    phrases = {name: _texts(image) for name, image in marked.items()}

    def see(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[dict[str, np.ndarray]]:
        encodings = model.encode(images)
        embedded = embed_images(aligner, encodings, None, limit, placing=True, plain=True)
        found: list[dict[str, np.ndarray]] = []
        for image, encoding, vectors in zip(images, encodings, embedded, strict=True):
            regions = Regions(vectors.width, vectors.height, vectors.boxes, image=vectors.name)
            kinds = placer.log_kinds(encoding, regions, phrases[names[image.name]])[0]
            found.append({**to_arrays(vectors), KINDS: kinds})
        return found

    seen = [source.name for source in session.each(see, sources, store, store.write, long_side=model.long_side)]
    parts = {name: store.read(name) for name in seen}
    return [
        AlignerView(aligner, of_arrays(name, each), dict(zip(phrases[name], each[KINDS].T, strict=True)))
        for name, each in parts.items()
    ]


def _texts(image: MarkedImage) -> list[str]:
    """The different phrases that have a box."""
    return sorted({s.phrase(p) for s in image.sentences for p in s.phrases if p.box is not None})


def _views_of_detector(model: Model, session: Session, sources: Sequence[Source], limit: int | None) -> list[View]:
    detector = model.require("densecap", "place phrases")
    nms_iou = model.placer("densecap").config.nms_iou
    facts = {"data": str(session.data), "split": session.split, "part": "densecap", "nms_iou": nms_iou}
    session.resume({"model": model.digest(), **facts, "regions": limit}, REGIONS)
    store = RegionStore(session.out / REGIONS)

    def describe(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[Regions]:
        return densecap.describe(detector, model.encode(images), top=limit, nms_iou=nms_iou)

    seen = session.each(describe, sources, store, store.save, long_side=model.long_side)
    return [DetectorView(detector, store.load(source.name)) for source in seen]


class View(Protocol):
    """An image in which phrases are to be placed."""

    @property
    def boxes(self) -> np.ndarray:
        """``(R, 4)`` in pixels of the image: the whole of it first, then the regions."""
        ...

    @property
    def favourite(self) -> np.ndarray:
        """The box ``(4,)`` that is best before anything is read."""
        ...

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> np.ndarray:
        """Return the boxes ``(N, 4)`` of N phrases of a sentence."""
        ...


@dataclass(frozen=True, eq=False)
class AlignerView:
    """An image as an aligner sees it, and the classes beside it.

    Attributes:
        aligner: that embedded the image.
        vectors: its regions.
        kinds: of phrases, how probable it is that each region ``(R,)`` is of the kind that they name, see
            :meth:`saywhere.models.nouns.NounEvidence.log_kinds`.
    """

    aligner: Aligner
    vectors: ImageVectors
    kinds: Mapping[str, np.ndarray]

    @property
    def boxes(self) -> np.ndarray:
        """See :class:`View`."""
        return self.vectors.boxes

    @property
    def favourite(self) -> np.ndarray:
        """The region of the highest bonus."""
        return self.boxes[int(region_bonus(self.aligner.config, self.vectors).argmax())]

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> np.ndarray:
        """Return for each phrase the region with which its words have the largest mean product, and its kind fits."""
        alignment = align(self.aligner, self.vectors, sentence.text, beta=0)
        weight = np.float32(self.aligner.config.grounding.similarity_kind_weight)
        fits = [
            alignment.products[phrase.start : phrase.stop].mean(axis=0) + weight * self.kinds[sentence.phrase(phrase)]
            for phrase in phrases
        ]
        return self.boxes[np.stack(fits).argmax(axis=1)]


@dataclass(frozen=True, eq=False)
class DetectorView:
    """An image as a dense captioner sees it: regions with scores and features."""

    densecap: DenseCap
    regions: Regions

    @property
    def boxes(self) -> np.ndarray:
        """See :class:`View`."""
        whole = np.array([[0, 0, self.regions.width, self.regions.height]], np.float32)
        return np.concatenate((whole, self.regions.boxes))

    @property
    def favourite(self) -> np.ndarray:
        """The region of the highest score; the whole image if there is none."""
        scores = self.regions.scores
        return self.boxes[0] if scores is None or not len(scores) else self.regions.boxes[int(scores.argmax())]

    def find(self, sentence: MarkedSentence, phrases: Sequence[MarkedPhrase]) -> np.ndarray:
        """Return for each phrase the region that is likeliest to be there and called so; the sentence is not read."""
        if not len(self.regions):
            return self.boxes.repeat(len(phrases), axis=0)
        texts = [sentence.phrase(phrase) for phrase in phrases]
        return score_regions(self.densecap.decoder, self.densecap.vocabulary, self.regions, texts).best().boxes


@dataclass(frozen=True, eq=False)
class Question:
    """A phrase with its true box ``(4,)``, and the index of its image."""

    image: int
    phrase: MarkedPhrase
    truth: np.ndarray


def questions(images: Sequence[MarkedImage]) -> Iterator[Question]:
    """Yield every phrase that has a box, in order."""
    for number, image in enumerate(images):
        for sentence in image.sentences:
            for phrase in sentence.phrases:
                if phrase.box is not None:
                    yield Question(number, phrase, phrase.box)


def ground(images: Sequence[MarkedImage], views: Iterable[View]) -> GroundingResult:
    """Return how well the phrases of ``images`` are placed, which ``views`` show in the same order."""
    found = [np.zeros((0, 4), np.float32)]
    for image, view in zip(images, views, strict=True):
        for sentence in image.sentences:
            phrases = [phrase for phrase in sentence.phrases if phrase.box is not None]
            if phrases:
                found.append(view.find(sentence, phrases))
    return _measure(np.concatenate(found), list(questions(images)))


def control(name: str, images: Sequence[MarkedImage], views: Iterable[View], seed: int = 0) -> GroundingResult:
    """Return the figures of an answer that does not read: one of :data:`CONTROLS`.

    The largest region, and the random one (drawn anew for each phrase), are among the regions beside the whole image.
    What a model is better by than its highest prior comes from the words.
    """
    generator = np.random.default_rng(seed)
    boxes = [view.boxes if name != PRIOR else view.favourite[None] for view in views]
    asked = list(questions(images))
    found = [_unread(name, boxes[question.image], generator) for question in asked]
    return _measure(np.stack(found) if found else np.zeros((0, 4), np.float32), asked)


def _unread(name: str, boxes: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    regions = boxes[1:]
    if name in ("whole image", PRIOR) or len(regions) == 0:
        return boxes[0]
    if name == "largest region":
        return regions[int(geometry.area(regions).argmax())]
    return regions[int(generator.integers(len(regions)))]


def _measure(found: np.ndarray, asked: Sequence[Question]) -> GroundingResult:
    truth = np.stack([question.truth for question in asked]) if asked else np.zeros((0, 4), np.float32)
    return measure(found, truth, [question.phrase.types for question in asked])

"""Grounding of phrases: how often the box found for a phrase is the right one, and what is not there is refused.

Phrases are those of Flickr30k Entities, or of any data set with phrases and boxes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.calibration import reliability
from saywhere.data import flickr
from saywhere.data.flickr import MarkedImage, MarkedPhrase, MarkedSentence
from saywhere.data.sample import Sample
from saywhere.engines.engine import Aligner, DenseCap
from saywhere.errors import UserError
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.session import REGIONS, ArrayStore, RegionStore, Session, image_name, of_arrays, to_arrays
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models import densecap
from saywhere.models.aligner import ImageVectors, align, embed_images, region_bonus
from saywhere.models.chunker import Chunker, spans
from saywhere.models.model import Model
from saywhere.models.phrase_scores import score_regions
from saywhere.models.placing import Placer
from saywhere.regions import Regions
from saywhere.text import tokenize
from saywhere.training.calibration import absent
from saywhere.training.chunker import TaggedSentence

RIGHT = 0.5
"""A box is right from this IoU with the true box on."""

PAIRS = 64
"""Pairs of boxes that are compared together."""


@dataclass(frozen=True)
class TypeScore:
    """Grounding figures of one type of entity; attributes as in :class:`GroundingResult`."""

    phrases: int
    accuracy: float
    pointing: float


@dataclass(frozen=True)
class GroundingResult:
    """Grounding figures: how many phrases were grounded correctly.

    Attributes:
        accuracy: share of the phrases whose box has an IoU of at least 0.5 with the true box.
        pointing: share of the phrases whose box has its centre inside the true box (the pointing game).
        phrases: number of phrases.
        by_type: the same by type of entity; a phrase of two types counts in both.
    """

    accuracy: float
    pointing: float
    phrases: int
    by_type: dict[str, TypeScore] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return ``accuracy``, ``pointing``, ``phrases`` and ``by_type``."""
        return {
            "accuracy": self.accuracy,
            "pointing": self.pointing,
            "phrases": self.phrases,
            "by_type": {name: vars(score) for name, score in self.by_type.items()},
        }


def pair_ious(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the IoU ``(N,)`` of each pair of boxes of ``a (N, 4)`` and ``b (N, 4)``."""
    if len(a) != len(b):
        raise ValueError(f"{len(a)} boxes cannot be paired with {len(b)}")
    starts = range(0, len(a), PAIRS)
    parts = [np.diagonal(geometry.iou(a[start : start + PAIRS], b[start : start + PAIRS])) for start in starts]
    return np.concatenate([np.zeros(0, a.dtype), *parts])


def judge(found: np.ndarray, truth: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return masks ``(N,)`` of pairs of boxes ``(N, 4)``: IoU at least 0.5, and centre of the first in the second."""
    centre = (found[:, :2] + found[:, 2:]) / 2
    inside = np.all((centre >= truth[:, :2]) & (centre <= truth[:, 2:]), axis=1)
    return pair_ious(found, truth) >= RIGHT, inside


def measure(found: ArrayLike, truth: ArrayLike, types: Sequence[Sequence[str]]) -> GroundingResult:
    """Compare the boxes found for N phrases with the true ones.

    Args:
        found: ``(N, 4)`` ``x1 y1 x2 y2``.
        truth: ``(N, 4)`` in the same pixels.
        types: the types of entity of each phrase.
    """
    boxes, truths = (np.asarray(rows, np.float32).reshape(-1, 4) for rows in (found, truth))
    if len(boxes) == 0:
        return GroundingResult(0.0, 0.0, 0)
    right, inside = judge(boxes, truths)
    rows: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(types):
        for name in names:
            rows[name].append(i)
    order = sorted(rows, key=lambda name: (-len(rows[name]), name))
    by_type = {
        name: TypeScore(len(rows[name]), share_of(right[rows[name]]), share_of(inside[rows[name]])) for name in order
    }
    return GroundingResult(share_of(right), share_of(inside), len(boxes), by_type)


BINS = 10


@dataclass(frozen=True)
class PresenceResult:
    """How well phrases that an image shows are told from phrases that it does not show.

    Attributes:
        auc: probability that a phrase that is there has a higher score than one that is not; ties count half.
        calibration_error: mean over ten bins of scores, by their share, of the distance between mean score and share
            of phrases that are there.
        found: share of the phrases that are there that are found.
        refused: share of the others that are not.
        accuracy: share of the phrases that are there that are found and placed right.
        phrases, others: how many phrases are there, and how many are not.
    """

    auc: float
    calibration_error: float
    found: float
    refused: float
    accuracy: float
    phrases: int
    others: int

    def to_dict(self) -> dict[str, Any]:
        """Return all figures."""
        return dict(vars(self))


def measure_presence(own: np.ndarray, others: np.ndarray, right: np.ndarray, threshold: float) -> PresenceResult:
    """Compare the scores of N phrases that are there with those of M that are not.

    Args:
        own: ``(N,)`` probabilities.
        others: ``(M,)`` probabilities.
        right: ``(N,)`` whether the phrase's box is right.
        threshold: phrases are found from this probability on.
    """
    scores = np.concatenate((own, others))
    there = np.arange(len(scores)) < len(own)
    seen = own >= threshold
    return PresenceResult(
        area_under_curve(own, others), reliability(scores, there, BINS).ece, share_of(seen),
        share_of(others < threshold), share_of(seen & right), len(own), len(others),
    )  # fmt: skip


def area_under_curve(high: np.ndarray, low: np.ndarray) -> float:
    """Return the share of pairs in which the score of ``high`` is above that of ``low``; 0 without pairs."""
    if not len(high) or not len(low):
        return 0.0
    order = np.sort(low)
    below, upto = (np.searchsorted(order, high, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(high) * len(low)))


def share_of(mask: np.ndarray) -> float:
    """Return the share of a mask that is true; 0 of none."""
    return float(mask.mean()) if len(mask) else 0.0


PLACED_CONTROLS = ("whole image", "largest region")
RARE, COMMON = "rare nouns", "other nouns"


@dataclass(frozen=True, eq=False)
class Asked:
    """The phrases to ground in one image.

    Attributes:
        image: its file.
        phrases: P texts that it shows.
        truths: of each the true boxes ``(K, 4)``, one or more.
        types: of each.
        words: all words that are said of the image.
    """

    image: Path
    phrases: tuple[str, ...]
    truths: tuple[np.ndarray, ...]
    types: tuple[tuple[str, ...], ...]
    words: set[str]


def read_asked(session: Session, placer: Placer) -> list[Asked]:
    """Return what is asked of the images of a session.

    Of Flickr30k Entities every phrase with a box, by the type of entity; of another data set every phrase of an image
    once, with all its boxes. Types tell too whether the text encoder hardly saw the noun of the phrase.

    Raises:
        UserError: no phrase has a box; and what reading raises.
    """
    if flickr.recognises(session.data):
        return [_of_marks(image, placer) for image in session.read_entities()]
    asked = [_of_sample(sample, placer) for sample in session.read() if len(sample.boxes)]
    if not asked:
        raise UserError(f"{session.data}: the split {session.split} has no phrase with a box")
    return asked


def _of_marks(image: MarkedImage, placer: Placer) -> Asked:
    placed = [(s, p, p.box) for s in image.sentences for p in s.phrases if p.box is not None]
    phrases = tuple(s.phrase(p) for s, p, _ in placed)
    types = tuple((*p.types, _familiar(placer, text)) for text, (_, p, _) in zip(phrases, placed, strict=True))
    words = {word for sentence in image.sentences for word in sentence.words}
    return Asked(image.image, phrases, tuple(box[None] for _, _, box in placed), types, words)


def _of_sample(sample: Sample, placer: Placer) -> Asked:
    phrases = tuple(dict.fromkeys(p for references in sample.phrases for p in references))
    truths = tuple(sample.boxes[[p in references for references in sample.phrases]] for p in phrases)
    words = {word for text in (*phrases, *sample.sentences) for word in tokenize(text)}
    return Asked(sample.image, phrases, truths, tuple((_familiar(placer, p),) for p in phrases), words)


def _familiar(placer: Placer, phrase: str) -> str:
    return RARE if placer.is_rare(phrase) else COMMON


@dataclass(frozen=True)
class GroundingScores:
    """Grounding figures of a model and of the :data:`CONTROLS`.

    ``presence`` is how well it tells what is there from what is not; None for one part, or without a calibration.
    """

    model: GroundingResult
    controls: dict[str, GroundingResult]
    presence: PresenceResult | None = None


def place_phrases(model: Model, session: Session, regions: int | None = None) -> tuple[GroundingScores, int]:
    """Place the phrases of images, and as many of others; return the figures, and the number of images.

    Raises:
        UserError: the model cannot place phrases, no image can be read, or no phrase has a box.
    """
    placer = model.placer()
    by_name = {image_name(each.image, session.folder): each for each in read_asked(session, placer)}
    others = absent([each.phrases for each in by_name.values()], [each.words for each in by_name.values()])
    missing = dict(zip(by_name, others, strict=True))
    names = {str(each.image): name for name, each in by_name.items()}
    session.resume({"model": model.digest(), "data": str(session.data), "split": session.split, "part": "all",
                    "regions": regions, "limit": session.limit}, REGIONS)  # fmt: skip
    store = ArrayStore(session.out / REGIONS)

    def place(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[dict[str, np.ndarray]]:
        found: list[dict[str, np.ndarray]] = []
        for image, encoding in zip(images, model.encode(images), strict=True):
            name = names[image.name]
            evidence = placer.evidence(encoding, [*by_name[name].phrases, *missing[name]], None, regions)
            boxes, presence = evidence.regions.boxes, evidence.presence(placer.calibration)
            rows = evidence.rows(placer.config)
            size = np.array([image.width, image.height], np.float32)
            arrays = {"size": size, "boxes": boxes, "found": boxes[rows[: len(by_name[name].phrases)]]}
            found.append(arrays if presence is None else arrays | {"presence": presence})
        return found

    sources = [Source(each.image, name, Path(name)) for name, each in by_name.items()]
    seen = session.each(place, sources, store, store.write, long_side=model.long_side)
    answers = [(by_name[source.name], store.read(source.name)) for source in seen]
    return _measure_placed(answers, placer), len(seen)


def _measure_placed(answers: Sequence[tuple[Asked, dict[str, np.ndarray]]], placer: Placer) -> GroundingScores:
    types = [kinds for asked, _ in answers for kinds in asked.types]
    found = np.concatenate([arrays["found"] for _, arrays in answers])
    truth = _nearest_truths(found, answers)
    controls: dict[str, GroundingResult] = {}
    for name in PLACED_CONTROLS:
        boxes = np.concatenate(
            [np.tile(_placed_control(name, arrays), (len(asked.phrases), 1)) for asked, arrays in answers]
        )
        controls[name] = measure(boxes, _nearest_truths(boxes, answers), types)
    presence = None
    if "presence" in answers[0][1]:
        own = np.concatenate([arrays["presence"][: len(asked.phrases)] for asked, arrays in answers])
        others = np.concatenate([arrays["presence"][len(asked.phrases) :] for asked, arrays in answers])
        presence = measure_presence(own, others, judge(found, truth)[0], placer.least())
    return GroundingScores(measure(found, truth, types), controls, presence)


def _nearest_truths(found: np.ndarray, answers: Sequence[tuple[Asked, dict[str, np.ndarray]]]) -> np.ndarray:
    """Return for each found box ``(N, 4)`` the true box of its phrase that overlaps it most."""
    truths: Iterator[np.ndarray] = (truth for asked, _ in answers for truth in asked.truths)
    return np.stack(
        [true[int(geometry.iou(box[None], true).argmax())] for box, true in zip(found, truths, strict=True)]
    )


def _placed_control(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if name == "whole image":
        return np.concatenate((np.zeros(2, np.float32), arrays["size"]))
    return arrays["boxes"][int(geometry.area(arrays["boxes"]).argmax())]


def write_grounding_report(
    folder: Path,
    result: GroundingResult,
    controls: Mapping[str, GroundingResult],
    known: Mapping[str, Any],
    presence: PresenceResult | None = None,
) -> list[Path]:
    """Write both files into ``folder``, and return their paths.

    Args:
        folder: where to.
        result: the figures of the model.
        controls: those of answers that do not read the phrase, by name.
        known: how they came about, by name.
        presence: how well phrases that are there are told from others.
    """
    rows = [
        (name, f"{each.accuracy:.3f}", f"{each.pointing:.3f}", each.phrases)
        for name, each in {"model": result, **controls}.items()
    ]
    types = [
        (name, kind, score.phrases, f"{score.accuracy:.3f}", f"{score.pointing:.3f}")
        for name, each in {"model": result, **controls}.items()
        for kind, score in each.by_type.items()
    ]
    found = {} if presence is None else presence.to_dict()
    lines = [
        "# Grounding",
        "",
        *table(("", "IoU ≥ 0.5", "pointing", "phrases"), rows),
        "",
        *(
            ["## Found or not", "", *facts({name: _rounded(value) for name, value in found.items()}), ""]
            if found
            else []
        ),
        "## By type of phrase",
        "",
        *table(("", "type", "phrases", "IoU ≥ 0.5", "pointing"), types),
        "",
        *facts(known),
    ]
    row = {"task": "ground", **result.to_dict(), "controls": {name: each.to_dict() for name, each in controls.items()}}
    row |= {"presence": found} if found else {}
    return write_report(folder, {**row, **known}, lines)


def _rounded(value: object) -> object:
    return f"{value:.3f}" if isinstance(value, float) else value


PRIOR = "highest prior"
KINDS = "kinds"
CONTROLS = ("whole image", "largest region", "random region", PRIOR)


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
        scores, count = place_phrases(model, session, regions)
        known = session.known(session.data.name, images=count, regions=regions)
        write_grounding_report(session.out, scores.model, scores.controls, known, scores.presence)
        return scores
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
            regions = Regions(vectors.width, vectors.height, vectors.boxes, image=vectors.image)
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


@dataclass(frozen=True)
class ChunkScores:
    """Precision and recall of phrases, against phrases that people marked.

    Attributes:
        precision: share of the phrases found whose first and last word are those of a marked phrase.
        recall: share of the marked phrases that are found.
        visible_f1: F1 of the phrases that name something visible.
        phrases: number of marked phrases.
        sentences: number of sentences.
        milliseconds: of a processor that a sentence takes.
    """

    precision: float
    recall: float
    visible_f1: float
    phrases: int
    sentences: int
    milliseconds: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _f1(self.precision, self.recall)


def measure_chunks(chunker: Chunker, sentences: Sequence[TaggedSentence]) -> ChunkScores:
    """Cut sentences, and compare the phrases with those that are marked.

    Raises:
        UserError: no phrase is marked.
    """
    start = time.process_time()
    cut = [chunker.chunk(sentence.text) for sentence in sentences]
    seconds = time.process_time() - start
    found = {(i, p.start, p.stop, p.visible) for i, phrases in enumerate(cut) for p in phrases}
    marked = {(i, *span) for i, sentence in enumerate(sentences) for span in spans(sentence.tags)}
    if not marked:
        raise UserError("no phrase of the sentences is marked")
    precision, recall = _shares({each[:3] for each in found}, {each[:3] for each in marked})
    visible = _shares({each for each in found if each[3]}, {each for each in marked if each[3]})
    per_sentence = 1000 * seconds / len(sentences)
    return ChunkScores(precision, recall, _f1(*visible), len(marked), len(sentences), per_sentence)


def _shares(found: Collection[object], marked: Collection[object]) -> tuple[float, float]:
    right = len(set(found) & set(marked))
    return right / max(len(found), 1), right / max(len(marked), 1)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / max(precision + recall, 1e-9)

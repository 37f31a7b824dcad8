"""Grounding of phrases: how often the right box is found, and how often phrases that are not shown are refused.

Phrases are those of Flickr30k Entities, or of any data set with phrases and boxes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import asdict, field
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.calibration import MATCH, Reliability, reliability
from saywhere.data import flickr
from saywhere.data.flickr import MarkedImage, MarkedSentence
from saywhere.data.sample import Sample
from saywhere.engines.engine import Aligner
from saywhere.errors import UserError
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import REGIONS, ArrayStore, Session, image_name
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models.aligner import ImageVectors, align, embed_images, region_bonus
from saywhere.models.chunker import Chunker, spans
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.models.placing import Placer
from saywhere.options import dataclass
from saywhere.text import tokenize
from saywhere.training.calibration import absent
from saywhere.training.chunker import TaggedSentence


@dataclass(frozen=True)
class TypeScore:
    """Grounding figures of one entity type; attributes as in :class:`GroundingResult`."""

    phrases: int
    accuracy: float
    pointing: float


@dataclass(frozen=True)
class GroundingResult:
    """Grounding figures: how many phrases were grounded correctly.

    Attributes:
        accuracy: share of phrases whose box has an IoU of at least 0.5 with a true box.
        pointing: share of phrases whose box has its centre inside a true box (the pointing game).
        by_type: the same by entity type; a phrase with two types counts in both.
    """

    accuracy: float
    pointing: float
    phrases: int
    by_type: dict[str, TypeScore] = field(default_factory=dict)


def judge(found: np.ndarray, truths: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return whether each box ``(N, 4)`` has an IoU of 0.5 with a true one of its phrase, and its centre in one.

    ``truths`` are N arrays ``(M, 4)`` with the boxes of each phrase. Returns two masks ``(N,)``.
    """
    right = [bool((geometry.iou(box[None], true) >= MATCH).any()) for box, true in zip(found, truths, strict=True)]
    centres = (found[:, :2] + found[:, 2:]) / 2
    inside = [
        bool(np.all((centre >= true[:, :2]) & (centre <= true[:, 2:]), axis=1).any())
        for centre, true in zip(centres, truths, strict=True)
    ]
    return np.array(right, bool), np.array(inside, bool)


def measure(found: ArrayLike, truths: Sequence[np.ndarray], types: Sequence[Sequence[str]]) -> GroundingResult:
    """Compare the boxes ``found (N, 4)`` for N phrases with the true ones of each, as :func:`judge`.

    ``types`` are each phrase's entity types.
    """
    boxes = np.asarray(found, np.float32).reshape(-1, 4)
    if len(boxes) == 0:
        return GroundingResult(0.0, 0.0, 0)
    right, inside = judge(boxes, truths)
    rows: dict[str, list[int]] = defaultdict(list)
    for i, names in enumerate(types):
        for name in names:
            rows[name].append(i)
    order = sorted(rows, key=lambda name: (-len(rows[name]), name))
    by_type = {
        name: TypeScore(len(rows[name]), float(right[rows[name]].mean()), float(inside[rows[name]].mean()))
        for name in order
    }
    return GroundingResult(float(right.mean()), float(inside.mean()), len(boxes), by_type)


BINS = 10


@dataclass(frozen=True)
class PresenceResult:
    """How well phrases that an image shows are distinguished from phrases that it does not show.

    A figure of nothing is None, such as ``refused`` without other phrases.

    Attributes:
        auc: probability that a shown phrase has a higher score than one that is not shown; ties count half.
        calibration_error: mean over ten bins of scores, weighted by their size, of the difference between mean score
            and share of shown phrases.
        found: share of shown phrases that are found.
        refused: share of the other phrases that are not found.
        accuracy: share of shown phrases that are found with the right box.
        phrases, others: number of phrases that are shown, and that are not.
        boxes: how well the scores of found phrases agree with the share that is shown and has the right box.
        box_auc: probability that such a phrase has a higher score than a wrong one; ties count half.
    """

    auc: float | None
    calibration_error: float
    found: float | None
    refused: float | None
    accuracy: float | None
    phrases: int
    others: int
    boxes: Reliability | None
    box_auc: float | None


def measure_presence(
    presence: np.ndarray, scores: np.ndarray, there: np.ndarray, right: np.ndarray, threshold: float
) -> PresenceResult:
    """Compare shown phrases with others.

    Args:
        presence: ``(N,)`` probabilities that phrases are shown; those of at least ``threshold`` are found.
        scores: ``(N,)`` probabilities that phrases are shown and their boxes right.
        there, right: ``(N,)`` whether phrases are shown, and boxes right.
    """
    seen, own = presence >= threshold, int(there.sum())
    boxes = reliability(scores[seen], right[seen], BINS) if seen.any() else None
    return PresenceResult(
        area_under_curve(presence[there], presence[~there]), reliability(presence, there, BINS).ece,
        share_of(seen[there]), share_of(~seen[~there]), share_of((seen & right)[there]), own, len(there) - own,
        boxes, area_under_curve(scores[seen & right], scores[seen & ~right]),
    )  # fmt: skip


def area_under_curve(high: np.ndarray, low: np.ndarray) -> float | None:
    """Return the share of pairs in which ``high`` scores above ``low``; ties count half; None without pairs."""
    if not len(high) or not len(low):
        return None
    order = np.sort(low)
    below, upto = (np.searchsorted(order, high, side) for side in ("left", "right"))
    return float((below + upto).sum() / (2 * len(high) * len(low)))


def share_of(mask: np.ndarray) -> float | None:
    """Return the share of True in a mask; None if empty."""
    return float(mask.mean()) if len(mask) else None


CONTROLS = ("whole image", "largest region", "highest prior")
"""Answers that ignore the phrase; the last is for the aligner only. Any gain over these comes from the words."""
RARE, COMMON = "rare nouns", "other nouns"


@dataclass(frozen=True, eq=False)
class Asked:
    """The phrases to ground in one image.

    Attributes:
        phrases: P texts that the image shows.
        truths: one or more true boxes ``(K, 4)`` of each phrase.
        types: of each phrase.
        words: all words in the texts about the image.
        sentences: with the phrases marked, for Flickr30k Entities.
    """

    image: Path
    phrases: tuple[str, ...]
    truths: tuple[np.ndarray, ...]
    types: tuple[tuple[str, ...], ...]
    words: set[str]
    sentences: tuple[MarkedSentence, ...] = ()


def read_asked(session: Session, placer: Placer, part: str | None = None) -> list[Asked]:
    """Return the phrases to ground in the images of a session.

    For Flickr30k Entities these are all phrases with a box, by entity type; for other data sets, each phrase of an
    image once, with all its boxes. ``part`` requires Entities. The types also tell whether a phrase's noun is rare in
    the text encoder's training data.

    Raises:
        UserError: no phrase has a box; or an error in reading.
    """
    if part or flickr.recognises(session.data):
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
    return Asked(image.image, phrases, tuple(box[None] for _, _, box in placed), types, words, image.sentences)


def _of_sample(sample: Sample, placer: Placer) -> Asked:
    phrases = tuple(dict.fromkeys(p for references in sample.phrases for p in references))
    truths = tuple(sample.boxes[[p in references for references in sample.phrases]] for p in phrases)
    words = {word for text in (*phrases, *sample.sentences) for word in tokenize(text)}
    return Asked(sample.image, phrases, truths, tuple((_familiar(placer, p),) for p in phrases), words)


def _familiar(placer: Placer, phrase: str) -> str:
    return RARE if placer.lexicon.is_rare(phrase) else COMMON


@dataclass(frozen=True)
class GroundingScores:
    """Grounding figures of a model and of the :data:`CONTROLS`.

    ``presence`` is how well shown phrases are distinguished from others; None for a single part or without calibration.
    """

    model: GroundingResult
    controls: dict[str, GroundingResult]
    presence: PresenceResult | None = None


def _measure_placed(answers: Sequence[tuple[Asked, dict[str, np.ndarray]]], placer: Placer) -> GroundingScores:
    types = [kinds for asked, _ in answers for kinds in asked.types]
    found = np.concatenate([arrays["found"] for _, arrays in answers])
    truths = [true for asked, _ in answers for true in asked.truths]
    controls: dict[str, GroundingResult] = {}
    for name in CONTROLS if "prior" in answers[0][1] else CONTROLS[:2]:
        boxes = np.concatenate([np.tile(_control(name, arrays), (len(asked.phrases), 1)) for asked, arrays in answers])
        controls[name] = measure(boxes, truths, types)
    presence = None
    if "presence" in answers[0][1]:
        shown, scores = (np.concatenate([arrays[name] for _, arrays in answers]) for name in ("presence", "score"))
        own = [np.arange(len(arrays["presence"])) < len(asked.phrases) for asked, arrays in answers]
        there = np.concatenate(own)
        right = np.zeros(len(there), bool)
        right[there] = judge(found, truths)[0]
        presence = measure_presence(shown, scores, there, right, placer.least())
    return GroundingScores(measure(found, truths, types), controls, presence)


def _control(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if name == "whole image":
        return np.concatenate((np.zeros(2, np.float32), arrays["size"]))
    if name == "highest prior":
        return arrays["prior"]
    return arrays["boxes"][int(geometry.area(arrays["boxes"]).argmax())]


def run(model: Model, session: Session, part: str | None = None) -> GroundingScores:
    """Ground the phrases of images; a box is right from an IoU of 0.5 with the true one.

    Args:
        part: ``aligner`` reads each phrase of Flickr30k Entities in its sentence, with the noun classifier. None
            answers as :meth:`saywhere.Model.ground`, for any data with phrases and boxes, and also for phrases of other
            images.

    Raises:
        UserError: the model lacks the part, no image is readable, or no phrase has a box.
    """
    if part not in (None, "aligner"):
        raise UserError(f"part must be aligner, or none, not {part!r}")
    placer = model.placer(part)
    by_name = {image_name(each.image, session.folder): each for each in read_asked(session, placer, part)}
    session.resume({"model": model.digest(), "data": str(session.data), "split": session.split, "part": part or "all",
                    "limit": session.limit}, REGIONS)  # fmt: skip
    store = ArrayStore(session.out / REGIONS)
    place = _as_aligner(model, by_name) if part else _as_model(model, placer, by_name)

    def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[dict[str, np.ndarray]]:
        named = [names[image.name] for image in images]
        sizes = [{"size": np.array([image.width, image.height], np.float32)} for image in images]
        return [size | found for size, found in zip(sizes, place(model.encode(images), named), strict=True)]

    names = {str(each.image): name for name, each in by_name.items()}
    sources = [Source(each.image, name, Path(name)) for name, each in by_name.items()]
    seen = session.each(ask, sources, store, store.write, long_side=model.long_side)
    answers = [(by_name[source.name], store.read(source.name)) for source in seen]
    scores = _measure_placed(answers, placer)
    known = session.known(session.data.name, images=len(seen), part=part)
    figures = asdict(scores)
    write_report(session.out, {"task": "ground", **figures.pop("model"), **figures, **known})
    return scores


Place = Callable[[Sequence[Encoding], Sequence[str]], list[dict[str, np.ndarray]]]
"""Function of images and their names that returns ``boxes (R, 4)`` and those ``found (P, 4)`` for the phrases."""


def _as_model(model: Model, placer: Placer, by_name: Mapping[str, Asked]) -> Place:
    """Ground phrases as the model does; ``presence`` and ``score`` are for its phrases, then for as many others."""
    others = absent([each.phrases for each in by_name.values()], [each.words for each in by_name.values()])
    missing = dict(zip(by_name, others, strict=True))

    def place(encodings: Sequence[Encoding], names: Sequence[str]) -> list[dict[str, np.ndarray]]:
        found: list[dict[str, np.ndarray]] = []
        for encoding, name in zip(encodings, names, strict=True):
            own = by_name[name].phrases
            phrases = [*own, *missing[name]]
            evidence, presence = placer.presence(encoding, phrases)
            boxes, rows = evidence.regions.boxes, evidence.rows(placer.config)
            arrays = {"boxes": boxes, "found": boxes[rows[: len(own)]]}
            if presence is not None:
                presence = presence * np.exp(placer.log_details(encoding, evidence, phrases, rows)).astype(np.float32)
                score = presence * evidence.box_probability(placer.calibration, placer.config, rows)
                arrays |= {"presence": presence, "score": score}
            found.append(arrays)
        return found

    return place


def _as_aligner(model: Model, by_name: Mapping[str, Asked]) -> Place:
    """Ground each phrase by its words in the sentence and the noun classifier; ``prior`` is the box before reading."""
    placer, aligner = model.placer("aligner"), model.require("aligner", "place phrases")

    def place(encodings: Sequence[Encoding], names: Sequence[str]) -> list[dict[str, np.ndarray]]:
        found: list[dict[str, np.ndarray]] = []
        embedded = embed_images(aligner, encodings, placing=True, plain=True)
        for encoding, name, vectors in zip(encodings, names, embedded, strict=True):
            phrases = sorted(set(by_name[name].phrases))
            kinds = dict(zip(phrases, placer.log_kinds(encoding, vectors.regions, phrases)[0].T, strict=True))
            rows = [row for s in by_name[name].sentences for row in best_regions(aligner, vectors, s, kinds)]
            prior = int(region_bonus(aligner.config, vectors).argmax())
            boxes = vectors.boxes
            found.append({"boxes": boxes[1:] if len(boxes) > 1 else boxes, "found": boxes[rows], "prior": boxes[prior]})
        return found

    return place


def best_regions(
    aligner: Aligner, vectors: ImageVectors, sentence: MarkedSentence, kinds: Mapping[str, np.ndarray]
) -> list[int]:
    """Return for each phrase with a box the region with the highest mean product with its words plus kind score.

    ``kinds`` has for each phrase the log-probabilities ``(R,)`` that regions are of the kind it names.
    """
    products = align(aligner, vectors, sentence.text, beta=0).products
    weight = np.float32(aligner.config.grounding.similarity_kind_weight)
    return [
        int((products[p.start : p.stop].mean(axis=0) + weight * kinds[sentence.phrase(p)]).argmax())
        for p in sentence.phrases
        if p.box is not None
    ]


@dataclass(frozen=True)
class ChunkScores:
    """Precision and recall of chunked phrases against phrases marked by people.

    Attributes:
        precision: share of the found phrases whose first and last word are those of a marked phrase.
        recall: share of the marked phrases that are found.
        visible_f1: F1 of the phrases that name something visible.
        phrases: number of marked phrases.
    """

    precision: float
    recall: float
    visible_f1: float
    phrases: int
    sentences: int

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _f1(self.precision, self.recall)


def measure_chunks(chunker: Chunker, sentences: Sequence[TaggedSentence]) -> ChunkScores:
    """Chunk sentences, and compare the phrases with the marked ones; ``UserError`` if no phrase is marked."""
    cut = [chunker.chunk(sentence.text) for sentence in sentences]
    found = {(i, p.start, p.stop, p.visible) for i, phrases in enumerate(cut) for p in phrases}
    marked = {(i, *span) for i, sentence in enumerate(sentences) for span in spans(sentence.tags)}
    if not marked:
        raise UserError("no phrase of the sentences is marked")
    precision, recall = _shares({each[:3] for each in found}, {each[:3] for each in marked})
    visible = _shares({each for each in found if each[3]}, {each for each in marked if each[3]})
    return ChunkScores(precision, recall, _f1(*visible), len(marked), len(sentences))


def _shares(found: Set[object], marked: Set[object]) -> tuple[float, float]:
    right = len(found & marked)
    return right / max(len(found), 1), right / max(len(marked), 1)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / max(precision + recall, 1e-9)

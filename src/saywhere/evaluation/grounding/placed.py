"""Phrases placed as :meth:`saywhere.Model.ground` places them, and phrases of other images that are to be refused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saywhere import boxes as geometry
from saywhere.data import flickr
from saywhere.data.entities import MarkedImage
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.evaluation.grounding.metric import GroundingResult, judge, measure
from saywhere.evaluation.grounding.presence import PresenceResult, measure_presence
from saywhere.evaluation.region_store import REGIONS, ArrayStore
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.inference import Source
from saywhere.models.model import Model
from saywhere.models.placing import Placer
from saywhere.text import tokenize
from saywhere.training.calibration import absent

CONTROLS = ("whole image", "largest region")
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
class PlacedScores:
    """How well phrases are placed and found; ``presence`` is None for a model that is not calibrated."""

    model: GroundingResult
    controls: dict[str, GroundingResult]
    presence: PresenceResult | None


def ask(model: Model, session: Session, regions: int | None = None) -> tuple[PlacedScores, int]:
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
    return _measure(answers, placer), len(seen)


def _measure(answers: Sequence[tuple[Asked, dict[str, np.ndarray]]], placer: Placer) -> PlacedScores:
    types = [kinds for asked, _ in answers for kinds in asked.types]
    found = np.concatenate([arrays["found"] for _, arrays in answers])
    truth = _nearest(found, answers)
    controls: dict[str, GroundingResult] = {}
    for name in CONTROLS:
        boxes = np.concatenate([np.tile(_control(name, arrays), (len(asked.phrases), 1)) for asked, arrays in answers])
        controls[name] = measure(boxes, _nearest(boxes, answers), types)
    presence = None
    if "presence" in answers[0][1]:
        own = np.concatenate([arrays["presence"][: len(asked.phrases)] for asked, arrays in answers])
        others = np.concatenate([arrays["presence"][len(asked.phrases) :] for asked, arrays in answers])
        presence = measure_presence(own, others, judge(found, truth)[0], placer.least())
    return PlacedScores(measure(found, truth, types), controls, presence)


def _nearest(found: np.ndarray, answers: Sequence[tuple[Asked, dict[str, np.ndarray]]]) -> np.ndarray:
    """Return for each found box ``(N, 4)`` the true box of its phrase that overlaps it most."""
    truths: Iterator[np.ndarray] = (truth for asked, _ in answers for truth in asked.truths)
    return np.stack(
        [true[int(geometry.iou(box[None], true).argmax())] for box, true in zip(found, truths, strict=True)]
    )


def _control(name: str, arrays: dict[str, np.ndarray]) -> np.ndarray:
    if name == "whole image":
        return np.concatenate((np.zeros(2, np.float32), arrays["size"]))
    return arrays["boxes"][int(geometry.area(arrays["boxes"]).argmax())]

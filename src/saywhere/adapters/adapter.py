"""A model of other people as an engine: no parts of saywhere's, but answers to whole questions.

A family knows prompts and how answers are read; a runner computes: transformers with torch, or graphs in ONNX Runtime.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from PIL import Image

from saywhere import boxes as geometry
from saywhere.adapters.sources import HUB, Adapted, Family
from saywhere.calibration import Calibration, Logistic, logit
from saywhere.engines.engine import Aligner, Captioner, DenseCap, Nouns, RpnOutput
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.images import LoadedImage
from saywhere.models.encoding import AT_ONCE, Encoding
from saywhere.web.runtime import cache_folder

NAME = "saywhere-calibration.json"
Question = Literal["box", "phrase"]
QUESTIONS: dict[str, tuple[str, ...]] = {"box": ("logit",), "phrase": ("logit",)}
"""Scores of regions, or of phrases that are looked for, and the evidence: the logit of the model's own score."""


@dataclass(frozen=True)
class ScoreCalibration:
    """What was fitted to a model's scores: each is a probability by its logit; None leaves scores as they are.

    Attributes:
        box: of regions: that the box has an IoU of 0.5 with a true one.
        phrase: of phrases that are looked for: that the image shows them.
        sources: what each was fitted to, for people.
    """

    box: Logistic | None = None
    phrase: Logistic | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def apply(self, question: Question, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities ``(N,)`` for a model's scores ``(N,)``; the scores if they are not calibrated.

        0, which says that there is no box, stays 0.
        """
        fit: Logistic | None = getattr(self, question)
        if fit is None:
            return scores
        return np.where(scores > 0, fit.apply({"logit": logit(scores)}), 0).astype(np.float32)

    @property
    def fits(self) -> dict[str, dict[str, float]]:
        """The weights of what is calibrated."""
        found = {question: getattr(self, question) for question in QUESTIONS}
        return {question: fit.to_dict() for question, fit in found.items() if fit is not None}

    def __str__(self) -> str:
        """What is calibrated; empty if nothing is."""
        called = {"box": "regions", "phrase": "phrases"}
        return f"scores of {' and '.join(called[question] for question in self.fits)} calibrated" if self.fits else ""


def calibration_path(model: Adapted) -> Path:
    """Return the file of a model's calibration."""
    if model.repository is None:
        return model.folder / NAME
    return _kept() / f"{model.repository.replace('/', '--')}.json"


def read_calibration(path: Path, weights: Callable[[], str]) -> ScoreCalibration:
    """Return what a file holds; nothing, and a line on stderr says so, if it is damaged or of other weights.

    ``weights`` returns the digest of the model's weights; it is asked for only if there is a file.
    """
    if not path.is_file():
        return ScoreCalibration()
    stored = _read(path)
    reason = "is damaged" if stored is None else "was made with other weights"
    if stored is not None and stored[0] == weights():
        return stored[1]
    print(f"{path}: {reason}, so scores are not calibrated; run saywhere calibrate again", file=sys.stderr)
    return ScoreCalibration()


def change_calibration(path: Path, weights: str, question: Question, fit: Logistic, source: str) -> None:
    """Put a fit, and what it was fitted to, into a file, which is whole or as it was.

    If the file is damaged or of other weights, nothing else stays in it.
    """
    stored = _read(path)
    before = stored[1] if stored is not None and stored[0] == weights else ScoreCalibration()
    after = replace(before, **{question: fit}, sources={**before.sources, question: source})
    row = {"weights": weights, **after.fits, "sources": dict(after.sources)}
    write_text(path, json.dumps(row, indent=2) + "\n")


def calibrated_models() -> dict[str, str]:
    """Return which models of the hub were calibrated by this user, and what of them, with what it was fitted to."""
    found: dict[str, str] = {}
    for path in sorted(_kept().glob("*.json")):
        if (stored := _read(path)) is not None:
            sources = dict.fromkeys(stored[1].sources.values())
            found[f"{HUB}{path.stem.replace('--', '/', 1)}"] = f"{stored[1]}: {'; '.join(sources)}"
    return found


def _kept() -> Path:
    return cache_folder() / "calibrations"


def _read(path: Path) -> tuple[str, ScoreCalibration] | None:
    """The digest of the weights and the calibration; None if the file cannot be read as one."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        fits = {q: Logistic.from_dict(stored[q], names, q) for q, names in QUESTIONS.items() if q in stored}
        sources = {str(question): str(source) for question, source in stored["sources"].items()}
        return str(stored["weights"]), ScoreCalibration(**fits, sources=sources)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, UserError):
        return None


Located = tuple[np.ndarray, np.ndarray]
"""Boxes ``(P, 4)`` of an image's P phrases in its pixels, and scores ``(P,)``."""
READ = (".json", ".txt", ".model")
"""Files on which answers depend beside the weights."""


class Pixels:
    """Hand the image on as it is: the family's own processor resizes and normalises."""

    def __init__(self, long_side: int) -> None:
        self.long_side = long_side

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return the RGB pixels ``(3, h, w)``, uint8."""
        return np.asarray(image.pixels).transpose(2, 0, 1)

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Return these pixels as ``(h, w, 3)``."""
        return pixels.transpose(1, 2, 0)


class Images:
    """Encode an image as itself: these networks read image and question together."""

    def __init__(self, long_side: int) -> None:
        self.preprocess = Pixels(long_side)

    def encode(self, pixels: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the pixels."""
        return list(pixels)

    def propose(self, maps: np.ndarray) -> RpnOutput:
        """Refuse: there is no localization layer; ``UserError``."""
        raise UserError("a model of transformers has no localization layer")


class Detected(NamedTuple):
    """What a detector says: logits ``(N, Q, T)`` and boxes ``(N, Q, 4)`` as shares, and the texts' ids ``(N, T)``."""

    logits: np.ndarray
    boxes: np.ndarray
    token_ids: np.ndarray


class Runner(Protocol):
    """Computes a network's answers, with its tokenizer and its preparation of images.

    Attributes:
        files: in which its weights are.
        silent: ids of tokens that stand for nothing in a text.
    """

    config: Mapping[str, Any]
    device: Any
    files: Sequence[Path]
    silent: Collection[int]

    def to(self, device: str) -> None:
        """Move the network to a device; ``UserError`` if that cannot be."""
        ...

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without those that it begins and ends with."""
        ...

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return the names of tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without those that are special."""
        ...

    def write(
        self, images: Sequence[Image.Image], prompts: Sequence[str], most_tokens: int, beam_size: int
    ) -> list[tuple[list[int], np.ndarray]]:
        """Return what the network writes of images: ids, with special ones, and natural log-probabilities ``(T,)``.

        Greedy with a ``beam_size`` of 1, else by beam search, for which log-probabilities may be 0.
        """
        ...

    def detect(self, images: Sequence[Image.Image], texts: Sequence[Any], length: int, **options: Any) -> Detected:
        """Return what the network detects by texts, of which at most ``length`` tokens count."""
        ...


class Adapter(ABC):
    """A network of other people and its runner; each subclass is a family.

    Attributes:
        network_class, processor_class: in transformers.
        threshold: a phrase is found from this score on, unless the user says otherwise or scores are calibrated.
        marks: tokens without which a tokenizer is another model's.
        scores: the calibration of its scores; nothing is calibrated unless it is set.
        lock: held while the network works: it is not made for several threads.
    """

    network_class: ClassVar[str]
    processor_class: ClassVar[str]
    threshold: ClassVar[float]
    marks: ClassVar[tuple[str, ...]] = ()
    densecap: DenseCap | None = None
    aligner: Aligner | None = None
    captioner: Captioner | None = None
    nouns: Nouns | None = None

    def __init__(self, folder: Path, family: Family, runner: Runner) -> None:
        self.folder, self.family, self.runner = folder, family, runner
        self.trunk, self.scores, self.calibration = Images(family.long_side), ScoreCalibration(), Calibration()
        self.lock = threading.Lock()

    @property
    def device(self) -> Any:
        """Where the network runs."""
        return self.runner.device

    def to(self, device: str) -> None:
        """Move the network to a device; ``UserError`` if that cannot be."""
        self.runner.to(device)

    @abstractmethod
    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        """Return for each image the box and the score of each of its phrases.

        A phrase without a box has the score 0 and the whole image.
        """

    @functools.cached_property
    def _weights_digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        own = (p for p in self.folder.iterdir() if p.suffix in READ and p.name != NAME)
        for path in sorted({*own, *self.runner.files}):
            with path.open("rb") as file:
                digest.update(os.fsencode(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n"))
        return digest.hexdigest()

    def weights_digest(self) -> str:
        """Return a hash of the weights and the configurations."""
        return self._weights_digest

    def digest(self) -> str:
        """Return a hash of all that answers depend on: of weights, configurations and calibration."""
        if not (fits := self.scores.fits):
            return self._weights_digest
        return hashlib.blake2b(f"{self._weights_digest} {fits}".encode(), digest_size=16).hexdigest()

    def vectors_digest(self) -> str:
        """Refuse: there are no vectors of regions; ``UserError``."""
        raise UserError(f"{self.folder}: {self.family.name} has no vectors for search")


def image_of(encoding: Encoding) -> Image.Image:
    """Return the image that an encoding of these models is."""
    return Image.fromarray(np.ascontiguousarray(encoding.maps.transpose(1, 2, 0)))


def to_pixels(encoding: Encoding, boxes: np.ndarray) -> np.ndarray:
    """Return boxes ``(N, 4)`` given as shares of width and height in pixels of the image, clipped to it."""
    scaled = geometry.scale(np.asarray(boxes, np.float32).reshape(-1, 4), encoding.width, encoding.height)
    return geometry.clip(scaled, encoding.width, encoding.height)


class Job(NamedTuple):
    """What is asked of an image in one pass: its number among the images, and some of its phrases."""

    image: int
    phrases: list[str]


class PhraseDetector(Adapter):
    """A family that scores boxes by phrases; a phrase has the box with the highest score.

    Attributes:
        pads: whether images of several sizes may be answered together.
    """

    pads: ClassVar[bool] = True

    @abstractmethod
    def groups(self, phrases: Sequence[str]) -> list[list[str]]:
        """Return the phrases of an image in groups that fit one pass, in their order."""

    @abstractmethod
    def detect(self, encodings: Sequence[Encoding], phrases: list[list[str]]) -> list[Located]:
        """Return for each image its Q boxes ``(Q, 4)``, as shares of its width and height, and scores ``(Q, P)``."""

    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        jobs = [Job(i, group) for i, own in enumerate(phrases) for group in self.groups(own)]
        parts: list[list[Located]] = [[] for _ in encodings]
        for some in self._batches(encodings, jobs):
            with self.lock:
                detected = self.detect([encodings[job.image] for job in some], [job.phrases for job in some])
            for job, (boxes, scores) in zip(some, detected, strict=True):
                best = scores.argmax(axis=0)
                parts[job.image].append((boxes[best], scores.max(axis=0)))
        return [_joined(encoding, own) for encoding, own in zip(encodings, parts, strict=True)]

    def _batches(self, encodings: Sequence[Encoding], jobs: Sequence[Job]) -> Iterator[list[Job]]:
        """What is asked in one pass; the jobs of an image stay in their order."""
        alike: dict[object, list[Job]] = {}
        for job in jobs:
            alike.setdefault(None if self.pads else encodings[job.image].input_size, []).append(job)
        for group in alike.values():
            yield from (group[start : start + AT_ONCE] for start in range(0, len(group), AT_ONCE))


def _joined(encoding: Encoding, parts: Sequence[Located]) -> Located:
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(boxes for boxes, _ in parts)])
    scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in parts)])
    return to_pixels(encoding, boxes), scores

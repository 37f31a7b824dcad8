"""A third-party model as an engine, which has none of saywhere's parts, but answers whole questions.

A family knows the prompts and how to parse answers; a runner computes, by transformers with torch or by graphs in ONNX
Runtime.
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
from dataclasses import field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
from PIL import Image

from saywhere import boxes as geometry
from saywhere.adapters.sources import HUB, Adapted, Family
from saywhere.calibration import Calibration, Logistic, logit
from saywhere.engines.engine import Aligner, Captioner, DenseCap, Nouns, RpnOutput
from saywhere.errors import UserError
from saywhere.files import cache_folder, write_text
from saywhere.images import LoadedImage
from saywhere.models.encoding import AT_ONCE, Encoding
from saywhere.options import dataclass

NAME = "saywhere-calibration.json"
Question = Literal["box", "phrase"]
QUESTIONS: dict[str, tuple[str, ...]] = {"box": ("logit",), "phrase": ("logit",)}
"""Scores that can be calibrated, of regions or of phrases, and their evidence: the logit of the model's own score."""


@dataclass(frozen=True)
class ScoreCalibration:
    """The fits that turn the logits of a model's scores into probabilities; None leaves scores unchanged.

    Attributes:
        box: fit for regions: the probability that the box has an IoU of at least 0.5 with a true one.
        phrase: fit for grounded phrases: the probability that the image shows them.
        sources: what each was fitted to, as text.
    """

    box: Logistic | None = None
    phrase: Logistic | None = None
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def apply(self, question: Question, scores: np.ndarray) -> np.ndarray:
        """Return the probabilities ``(N,)`` for scores ``(N,)``; without a fit, the scores.

        A score of 0, which means that there is no box, stays 0.
        """
        fit: Logistic | None = getattr(self, question)
        if fit is None:
            return scores
        return np.where(scores > 0, fit.apply({"logit": logit(scores)}), 0).astype(np.float32)

    @property
    def fits(self) -> dict[str, dict[str, float]]:
        """The weights of the fits."""
        found = {question: getattr(self, question) for question in QUESTIONS}
        return {question: fit.to_dict() for question, fit in found.items() if fit is not None}

    def __str__(self) -> str:
        """Return a description of the calibrated scores; empty if there are none."""
        called = {"box": "regions", "phrase": "phrases"}
        return f"scores of {' and '.join(called[question] for question in self.fits)} calibrated" if self.fits else ""


def calibration_path(model: Adapted) -> Path:
    """Return the file of a model's calibration."""
    if model.repository is None:
        return model.folder / NAME
    return _kept() / f"{model.repository.replace('/', '--')}.json"


def read_calibration(path: Path, weights: Callable[[], str]) -> ScoreCalibration:
    """Read a calibration; if it is damaged or for other weights, print a line on stderr and return an empty one.

    ``weights`` returns the digest of the model's weights; it is called only if there is a file.
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
    """Store a fit and its source in a calibration file, atomically.

    Other fits in the file are kept, unless it is damaged or for other weights.
    """
    stored = _read(path)
    before = stored[1] if stored is not None and stored[0] == weights else ScoreCalibration()
    after = replace(before, **{question: fit}, sources={**before.sources, question: source})
    row = {"weights": weights, **after.fits, "sources": dict(after.sources)}
    write_text(path, json.dumps(row, indent=2) + "\n")


def calibrated_models() -> dict[str, str]:
    """Return the hub models that this user has calibrated, each with its calibrated scores and their sources."""
    found: dict[str, str] = {}
    for path in sorted(_kept().glob("*.json")):
        if (stored := _read(path)) is not None:
            sources = dict.fromkeys(stored[1].sources.values())
            found[f"{HUB}{path.stem.replace('--', '/', 1)}"] = f"{stored[1]}: {'; '.join(sources)}"
    return found


def _kept() -> Path:
    return cache_folder() / "calibrations"


def _read(path: Path) -> tuple[str, ScoreCalibration] | None:
    """Return the digest of the weights and the calibration in a file; None if it cannot be read."""
    try:
        stored: Any = json.loads(path.read_text(encoding="utf-8"))
        fits = {q: Logistic.from_dict(stored[q], names, q) for q, names in QUESTIONS.items() if q in stored}
        sources = {str(question): str(source) for question, source in stored["sources"].items()}
        return str(stored["weights"]), ScoreCalibration(**fits, sources=sources)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, UserError):
        return None


Located = tuple[np.ndarray, np.ndarray]
"""Boxes ``(P, 4)`` of P phrases, in pixels of the image, and scores ``(P,)``."""
READ = (".json", ".txt", ".model")
"""Extensions of files that answers depend on, besides the weights."""


class Pixels:
    """Pass the image on unchanged: the family's own processor resizes and normalises it."""

    def __init__(self, long_side: int) -> None:
        self.long_side = long_side

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return the RGB pixels ``(3, h, w)``, uint8."""
        return np.asarray(image.pixels).transpose(2, 0, 1)

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels ``(3, h, w)`` as ``(h, w, 3)``."""
        return pixels.transpose(1, 2, 0)


class Images:
    """Encode an image as itself: these networks read image and question together."""

    def __init__(self, long_side: int) -> None:
        self.preprocess = Pixels(long_side)

    def encode(self, pixels: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the pixels unchanged."""
        return list(pixels)

    def propose(self, maps: np.ndarray) -> RpnOutput:
        """Raise ``UserError``: there is no localization layer."""
        raise UserError("a model of transformers has no localization layer")


class Detected(NamedTuple):
    """A detector's output: logits ``(N, Q, T)``, boxes ``(N, Q, 4)`` as fractions, and token ids ``(N, T)``."""

    logits: np.ndarray
    boxes: np.ndarray
    token_ids: np.ndarray


class Runner(Protocol):
    """The computation of a network, with its tokenizer and image processor.

    Attributes:
        config: the network's configuration.
        device: where it runs.
        files: the files with its weights.
        silent: ids of special tokens, which are not part of a text.
    """

    config: Mapping[str, Any]
    device: Any
    files: Sequence[Path]
    silent: Collection[int]

    def to(self, device: str) -> None:
        """Move the network to a device; raise ``UserError`` if that is impossible."""
        ...

    def token_ids(self, text: str) -> list[int]:
        """Return the ids of a text's tokens, without the special first and last one."""
        ...

    def tokens(self, token_ids: Sequence[int]) -> list[str]:
        """Return the names of tokens."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, without special ones."""
        ...

    def write(
        self, images: Sequence[Image.Image], prompts: Sequence[str], most_tokens: int, beam_size: int
    ) -> list[tuple[list[int], np.ndarray]]:
        """Generate a text for each image: token ids, with special ones, and natural log-probabilities ``(T,)``.

        Decoding is greedy for a ``beam_size`` of 1, otherwise beam search, for which log-probabilities may be 0.
        """
        ...

    def detect(self, images: Sequence[Image.Image], texts: Sequence[Any], length: int, **options: Any) -> Detected:
        """Return the network's detections for texts, which are truncated to ``length`` tokens."""
        ...


class Adapter(ABC):
    """A third-party network and its runner; each subclass is a family.

    Attributes:
        network_class, processor_class: classes of transformers.
        threshold: default minimum score of a found phrase, if scores are not calibrated.
        marks: tokens that the family's tokenizer must have.
        scores: calibration of its scores, empty by default.
        lock: held while the network computes, since it is not thread-safe.
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
        """The device that the network runs on."""
        return self.runner.device

    def to(self, device: str) -> None:
        """Move the network to a device; raise ``UserError`` if that is impossible."""
        self.runner.to(device)

    @abstractmethod
    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        """Return for each image the box and the score of each of its phrases.

        A phrase without a box gets the score 0 and the whole image.
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
        """Return a hash of everything that answers depend on: weights, configurations and calibration."""
        if not (fits := self.scores.fits):
            return self._weights_digest
        return hashlib.blake2b(f"{self._weights_digest} {fits}".encode(), digest_size=16).hexdigest()

    def vectors_digest(self) -> str:
        """Raise ``UserError``: there are no region vectors."""
        raise UserError(f"{self.folder}: {self.family.name} has no vectors for search")


def image_of(encoding: Encoding) -> Image.Image:
    """Return the image in an encoding of these models."""
    return Image.fromarray(np.ascontiguousarray(encoding.maps.transpose(1, 2, 0)))


def to_pixels(encoding: Encoding, boxes: np.ndarray) -> np.ndarray:
    """Convert boxes ``(N, 4)`` from fractions of width and height to pixels of the image, clipped to it."""
    scaled = geometry.scale(np.asarray(boxes, np.float32).reshape(-1, 4), encoding.width, encoding.height)
    return geometry.clip(scaled, encoding.width, encoding.height)


class Job(NamedTuple):
    """The work for one image in one pass: the image's number, and some of its phrases."""

    image: int
    phrases: list[str]


class PhraseDetector(Adapter):
    """A family that scores boxes by phrases; a phrase gets the box with the highest score.

    Attributes:
        pads: whether images of different sizes may be in one batch.
    """

    pads: ClassVar[bool] = True

    @abstractmethod
    def groups(self, phrases: Sequence[str]) -> list[list[str]]:
        """Split the phrases of an image into groups that fit into one pass, in order."""

    @abstractmethod
    def detect(self, encodings: Sequence[Encoding], phrases: list[list[str]]) -> list[Located]:
        """Return for each image Q boxes ``(Q, 4)``, as fractions of its width and height, and scores ``(Q, P)``."""

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
        """Yield the jobs of each pass; the jobs of an image stay in order."""
        alike: dict[object, list[Job]] = {}
        for job in jobs:
            alike.setdefault(None if self.pads else encodings[job.image].input_size, []).append(job)
        for group in alike.values():
            yield from (group[start : start + AT_ONCE] for start in range(0, len(group), AT_ONCE))


def _joined(encoding: Encoding, parts: Sequence[Located]) -> Located:
    boxes = np.concatenate([np.zeros((0, 4), np.float32), *(boxes for boxes, _ in parts)])
    scores = np.concatenate([np.zeros(0, np.float32), *(scores for _, scores in parts)])
    return to_pixels(encoding, boxes), scores

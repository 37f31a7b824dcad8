"""A model of transformers as an engine: no parts of saywhere's, but answers to whole questions."""

from __future__ import annotations

import functools
import hashlib
import importlib
import json
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from PIL import Image

from saywhere import boxes as geometry
from saywhere.adapters.sources import HUB, Adapted, Family
from saywhere.calibration import Calibration, Logistic
from saywhere.engines.engine import Aligner, Captioner, DenseCap, Nouns, RpnOutput
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.images import LoadedImage
from saywhere.models.encoding import Encoding
from saywhere.web.runtime import cache_folder

NAME = "saywhere-calibration.json"
LEAST = 1e-6
"""Scores are taken to be at least so far from 0 and 1, where their logit would be infinite."""
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


def logit(scores: np.ndarray) -> np.ndarray:
    """Return the logits ``(N,)`` of scores ``(N,)`` in double precision."""
    inside = np.clip(scores.astype(np.float64), LEAST, 1 - LEAST)
    return np.log(inside / (1 - inside))


def calibration_path(model: Adapted) -> Path:
    """Return the file of a model's calibration."""
    if model.repository is None:
        return model.folder / NAME
    return _kept() / f"{model.repository.replace('/', '--')}.json"


def read_calibration(path: Path, weights: Callable[[], str]) -> ScoreCalibration:
    """Return what a file holds; nothing, and a line on stderr says so, if it is damaged or of other weights.

    Args:
        path: of the file; if there is none, nothing is calibrated.
        weights: returns the digest of the model's weights, which is asked for only if there is a file.
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
    """Put a fit into a file, which is whole or as it was.

    Args:
        path: of the file; if it is damaged or of other weights, nothing else stays in it.
        weights: digest of the model's weights.
        question: that it answers.
        fit: of scores.
        source: what it was fitted to.
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
READ = (".json", ".txt", ".model", ".safetensors")
"""Files on which answers depend."""


class Pixels:
    """Hand the image on as it is: the family's own processor resizes and normalises."""

    def __init__(self, long_side: int) -> None:
        self.long_side = long_side

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return the RGB pixels ``(3, h, w)``, uint8."""
        return np.asarray(image.pixels).transpose(2, 0, 1)


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


class Adapter(ABC):
    """A network of transformers and its processor; each subclass is a family.

    Args:
        folder: of the model.
        family: that it is of.
        device: of torch.

    Attributes:
        threshold: a phrase is found from this score on, unless the user says otherwise or scores are calibrated.
        scores: the calibration of its scores; nothing is calibrated unless it is set.
        lock: held while the network or the processor works: neither is made for several threads.

    Raises:
        UserError: a file is missing or damaged, or the weights are not those of the family's native class.
    """

    network_class: ClassVar[str]
    processor_class: ClassVar[str]
    threshold: ClassVar[float]
    densecap: DenseCap | None = None
    aligner: Aligner | None = None
    captioner: Captioner | None = None
    nouns: Nouns | None = None

    def __init__(self, folder: Path, family: Family, device: Any) -> None:
        self.folder, self.family, self.device = folder, family, device
        self.trunk, self.scores, self.calibration = Images(family.long_side), ScoreCalibration(), Calibration()
        self.lock = threading.Lock()
        self.processor, network = load_pretrained(folder, family.name, self.processor_class, self.network_class)
        self.network = network.to(device).eval()

    def to(self, device: str) -> None:
        """Move the network to a device; ``UserError`` if there is no such device."""
        from saywhere.engines.torch import find_device

        self.device = find_device(device)
        self.network.to(self.device)

    @abstractmethod
    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        """Return for each image the box and the score of each of its phrases.

        A phrase without a box has the score 0 and the whole image.
        """

    @functools.cached_property
    def _weights_digest(self) -> str:
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(p for p in self.folder.iterdir() if p.suffix in READ and p.name != NAME):
            with path.open("rb") as file:
                digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
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


def load_pretrained(folder: Path, family: str, processor: str, network: str) -> tuple[Any, Any]:
    """Return a processor and a network of these classes, from files of the folder alone.

    Weights are read from safetensors only, and no code of the model's is run.

    Raises:
        UserError: a file is missing or damaged, or weights are missing.
        ImportError: transformers is not installed.
    """
    transformers: Any = importlib.import_module("transformers")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if not any(folder.glob("*.safetensors")):
        raise UserError(f"{folder}: there are no weights in safetensors, and others are not read")
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        prepare = getattr(transformers, processor).from_pretrained(folder, **local)
        made, found = getattr(transformers, network).from_pretrained(
            folder, dtype="float32", use_safetensors=True, output_loading_info=True, **local
        )
    except Exception as error:  # whatever a damaged file leads to in there
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(f"{folder}: cannot be read as a model of {family}: {reason}") from error
    if missing := sorted(found["missing_keys"]):
        raise UserError(
            f"{folder}: {len(missing)} weights are missing, such as {missing[0]}: these are not weights of the class "
            f"{network} of transformers"
        )
    return prepare, made


def image_of(encoding: Encoding) -> Image.Image:
    """Return the image that an encoding of these models is."""
    return Image.fromarray(np.ascontiguousarray(encoding.maps.transpose(1, 2, 0)))


def to_pixels(encoding: Encoding, boxes: np.ndarray) -> np.ndarray:
    """Return boxes ``(N, 4)`` given as shares of width and height in pixels of the image, clipped to it."""
    scaled = geometry.scale(np.asarray(boxes, np.float32).reshape(-1, 4), encoding.width, encoding.height)
    return geometry.clip(scaled, encoding.width, encoding.height)

"""saywhere's questions answered by a third-party model."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere.adapters.adapter import Adapter, calibration_path, read_calibration
from saywhere.adapters.florence2 import Florence2
from saywhere.adapters.sources import Adapted, find_adapted
from saywhere.calibration import Calibration
from saywhere.errors import UserError
from saywhere.models.captioner import Caption
from saywhere.models.densecap import rank
from saywhere.models.encoding import Encoding, answer
from saywhere.models.layout import Layout, require_names
from saywhere.models.lexicon import Lexicon
from saywhere.models.model import Model, Part
from saywhere.models.placing import Evidence, Placer, cut_phrases, found_of, unused_words
from saywhere.options import dataclass, require_ints, require_probabilities, require_texts
from saywhere.regions import Regions

RUNNERS = {"torch": "saywhere.adapters.pretrained", "onnx": "saywhere.adapters.graphs"}
"""The module of the runner for each engine."""


def load(
    name_or_folder: str | Path | Adapted,
    device: str | None = None,
    options: Mapping[str, Any] | None = None,
    threads: int | None = None,
    precision: str = "float32",
) -> Adapter:
    """Load a third-party model, with its calibration, if any; arguments as in :func:`saywhere.loading.load`.

    Instead of a name, the result of :func:`~saywhere.adapters.sources.find_adapted` may be given.

    Raises:
        UserError: a file is missing or damaged, there is no such device or precision, or options are given.
    """
    found = name_or_folder if isinstance(name_or_folder, Adapted) else find_adapted(name_or_folder)
    assert found is not None, "not a model of other people"
    if options:
        raise UserError(f"{found.folder}: {found.family.name} has no options to set, such as {next(iter(options))!r}")
    kind: type[Adapter] = importlib.import_module(found.family.module).ADAPTER
    runner = importlib.import_module(RUNNERS[found.engine]).RUNNER(found, kind, device, threads, precision)
    adapter = kind(found.folder, found.family, runner)
    adapter.scores = read_calibration(calibration_path(found), adapter.weights_digest)
    return adapter


class AdaptedModel(Model):
    """A third-party model that answers the questions that its family can; others raise ``UserError``.

    Scores are the model's own until ``saywhere calibrate`` turns them into probabilities.
    """

    def __init__(self, engine: Adapter, name: str = "model") -> None:
        super().__init__(engine, name)
        self.adapter = engine

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts whose questions (``describe``, ``ground``, ``caption``) the model answers."""
        return ("densecap", "aligner", "captioner") if isinstance(self.adapter, Florence2) else ("aligner",)

    def __repr__(self) -> str:
        calibrated = f", {self.adapter.scores}" if self.adapter.scores.fits else ""
        return f"Model({self.name!r}: {self.adapter.family.name}{calibrated})"

    def check(self, part: Part, what: str) -> None:
        if part == "aligner" or part not in self.parts:
            self.require(part, what)

    def require(self, part: Part, what: str) -> Any:
        verbs = "describe, ground and caption" if isinstance(self.adapter, Florence2) else "ground phrases"
        family = self.adapter.family.name
        raise UserError(f"{self.name} cannot {what}: that needs a model with the part {part}; {family} can {verbs}")

    def _writer(self, part: Part, what: str) -> Florence2:
        self.check(part, what)
        assert isinstance(self.adapter, Florence2)
        return self.adapter

    def describe(
        self, images: Any, boxes: Any = None, *, top: int | None = None, threshold: float | None = None,
        batch: int | None = None, progress: bool = False,
    ) -> Any:  # fmt: skip
        require_ints(0, top=top)
        require_probabilities(threshold=threshold)
        writer = self._writer("densecap", "find regions")
        if boxes is not None and (top is not None or threshold is not None):
            raise UserError("given boxes are all described: top and threshold cannot choose among them")

        def ask(encodings: list[Encoding], given: list[ArrayLike] | None) -> list[Regions]:
            with answering(self.name):
                found = writer.describe(encodings, given)
            if given is not None:
                return found
            calibrated = [self._calibrated(regions) for regions in found]
            return [r[rank(r, None, threshold, top)] for r in calibrated]

        return answer(ask, self._encode, images, boxes, batch=batch, progress=progress)

    def _calibrated(self, regions: Regions) -> Regions:
        assert regions.scores is not None
        return replace(regions, scores=self.adapter.scores.apply("box", regions.scores))

    def caption(
        self, images: Any, *, beam_size: int | None = None, least_probability: float | None = None, boxes: Any = None,
        attention: bool = True, batch: int | None = None, progress: bool = False,
    ) -> Any:  # fmt: skip
        """Return a sentence for an image, without attention; see :meth:`saywhere.Model.caption`."""
        require_ints(1, beam_size=beam_size)
        if least_probability is not None:
            raise UserError(f"{self.name} has no n-grams of captions: leave out least_probability")
        writer = self._writer("captioner", "caption images")
        if boxes is not None:
            raise UserError(f"{self.name} captions whole images and cannot attend to given boxes: leave out boxes")

        def ask(encodings: list[Encoding]) -> list[Caption]:
            with answering(self.name):
                sentences = writer.caption(encodings, beam_size)
            return [
                Caption(sentence, tuple(sentence.split()), e.width, e.height, e.image)
                for e, sentence in zip(encodings, sentences, strict=True)
            ]

        return answer(ask, self._encode, images, batch=batch, progress=progress)

    def placer(self, part: Part | None = None) -> AdaptedPlacer:
        if part is not None:
            self.require(part, f"ground phrases by the part {part}")
        return AdaptedPlacer(None, None, None, "densecap", self.calibration, self.adapter, self.name)

    def _ground(
        self, encodings: list[Encoding], texts: list[Any], boxes: list[Any] | None, part: Part | None,
        limit: int | None, threshold: float | None,
    ) -> list[Regions]:  # fmt: skip
        placer = self.placer(part)
        least = placer.least(threshold)
        for text in texts:
            require_texts(text=text)
        phrases = [[*text] if not isinstance(text, str) else cut_phrases(text) for text in texts]
        require_names(phrase for own in phrases for phrase in own)
        found = placer.place(encodings, phrases, boxes is not None or limit is not None)
        unused = [unused_words(text) if isinstance(text, str) else () for text in texts]
        rows = zip(found, phrases, unused, strict=True)
        return [found_of(each.located(own, words), each.scores >= least) for each, own, words in rows]


@dataclass(frozen=True, eq=False)
class Placed(Evidence):
    """One region for each of P phrases, with their scores ``(P,)``."""

    scores: np.ndarray = field(kw_only=True)

    def presence(self, calibration: Calibration) -> np.ndarray:
        return self.scores

    def located(self, phrases: Sequence[str], unused: Sequence[str] = ()) -> Regions:
        """Return the regions with their phrases and scores."""
        return replace(self.regions, captions=tuple(phrases), scores=self.scores, unused=tuple(unused))


@dataclass(frozen=True, eq=False)
class AdaptedPlacer(Placer):
    """Place phrases in images by a third-party model.

    The model returns one box per phrase and reads subwords. It has no evidence on places and relations, and reports
    neither unknown words nor nouns that are rare in its training data.
    """

    adapter: Adapter
    name: str

    def least(self, threshold: float | None = None) -> float:
        """Return the minimum score of a found phrase.

        Without a given threshold it is 0.5, as for all calibrated models, or for an uncalibrated one the family's own.
        """
        require_probabilities(threshold=threshold)
        if threshold is not None:
            return threshold
        return self.adapter.threshold if self.adapter.scores.phrase is None else self.config.threshold

    def find(
        self, encoding: Encoding, layout: Layout, boxes: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[Regions, np.ndarray, np.ndarray]:
        """Return regions and the model's own scores; arguments as in :meth:`saywhere.models.placing.Placer.find`."""
        require_names(layout.captions)
        (found,) = self.place([encoding], [layout.captions], boxes is not None or limit is not None)
        unused = () if layout.listed else layout.unused  # these models read every word of listed phrases
        return found.located(layout.captions, unused), found.scores, np.zeros(len(layout.phrases), np.float32)

    def read(self, text: str) -> Layout:
        return Layout(tuple(cut_phrases(text)), unused=unused_words(text))

    def evidence(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None = None, limit: int | None = None
    ) -> Evidence:
        return self.place([encoding], [phrases], boxes is not None or limit is not None)[0]

    def presence(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[Evidence, np.ndarray | None]:
        found = self.evidence(encoding, phrases, boxes, limit)
        return found, found.presence(self.calibration)

    def place(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]], chosen: bool) -> list[Placed]:
        """Place the phrases of each image; raise ``UserError`` if boxes or a number of regions are ``chosen``."""
        if chosen:
            raise UserError(f"{self.name} looks everywhere in an image: it cannot choose among given boxes or regions")
        with answering(self.name):
            located = self.adapter.locate(encodings, phrases)
        apply = self.adapter.scores.apply
        return [
            _placed(encoding, boxes, apply("phrase", np.clip(scores, 0, 1)))
            for encoding, (boxes, scores) in zip(encodings, located, strict=True)
        ]

    @cached_property
    def lexicon(self) -> Lexicon:
        return EveryWord(None, None, None, self.by)


class EveryWord(Lexicon):
    """The words of a model that reads subwords: it knows all."""

    def is_unknown(self, phrase: str) -> bool:
        return False

    def is_rare(self, phrase: str) -> bool:
        return False

    def unknown(self, phrases: Sequence[str]) -> dict[str, str | None]:
        return {}


@contextlib.contextmanager
def answering(name: str) -> Iterator[None]:
    """Turn exceptions of a network that cannot process an input into ``UserError``."""
    try:
        yield
    except UserError:
        raise
    except (IndexError, TypeError, ValueError) as error:
        raise UserError(f"{name} cannot process this image or text: {' '.join(str(error).split())[:200]}") from error


def _placed(encoding: Encoding, boxes: np.ndarray, scores: np.ndarray) -> Placed:
    none = np.zeros(len(boxes), np.float32)
    regions = Regions(encoding.width, encoding.height, boxes, image=encoding.image)
    kinds = np.zeros((len(boxes), len(boxes)), np.float32)
    return Placed(
        regions, np.eye(len(boxes), dtype=np.float32), kinds, none > 0, none > 0, none, "densecap", scores=scores
    )

"""A model that needs no weights, and METEOR without its words: answers that are known by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import saywhere
from saywhere.calibration import QUESTIONS, Calibration, Logistic
from saywhere.images import LoadedImage
from saywhere.inference import ImageResult, Source, run_images
from saywhere.loading import DeferredModel
from saywhere.regions import Regions


def load_by(monkeypatch: pytest.MonkeyPatch, load: Callable[..., Any]) -> None:
    """Let commands get their model from ``load`` in the place of :func:`saywhere.load`, and open nothing ahead."""
    monkeypatch.setattr(saywhere, "load", load, raising=False)
    monkeypatch.setattr(DeferredModel, "begin", lambda _: None)


class StubModel:
    """A model of two regions an image (or the given boxes): the whole image and its left half."""

    densecap: Any = None
    origin: Any = None

    def __init__(self, long_side: int = 512) -> None:
        self.long_side = long_side
        self.batches: list[int] = []
        self.options: set[tuple[int | None, float | None]] = set()
        self.sizes: list[tuple[int, int]] = []

    def describe(
        self,
        images: list[LoadedImage],
        boxes: list[np.ndarray] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]:
        self.batches.append(len(images))
        self.options.add((top, threshold))
        self.sizes += [image.pixels.size for image in images]
        given = [None] * len(images) if boxes is None else boxes
        answers = [self.answer(image, chosen) for image, chosen in zip(images, given, strict=True)]
        if threshold is not None:
            answers = [each if each.scores is None else each[each.scores >= threshold] for each in answers]
        return [each[:top] for each in answers]

    def answer(self, image: LoadedImage, boxes: np.ndarray | None) -> Regions:
        """Return the regions of one image."""
        w, h = image.width, image.height
        if boxes is None:
            boxes = np.array([[0, 0, w, h], [0, 0, w / 2, h]], np.float32)
        red = image.pixels.getpixel((0, 0))[0]
        captions = tuple(f"thing {number} in {red}" for number in range(len(boxes)))
        return Regions(w, h, boxes, np.linspace(0.9, 0.4, len(boxes)), captions)


def describe_images(
    model: StubModel, sources: Sequence[Source], boxes: Mapping[str, Any] | None = None, batch: int = 8, **options: Any
) -> Iterator[ImageResult[Regions]]:
    """Yield what ``model`` answers."""

    def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Regions]:
        return model.describe(images, given, **options)

    return run_images(ask, sources, boxes, batch=batch, long_side=model.long_side)


def calibrated(**numbers: tuple[float, ...]) -> Calibration:
    """A calibration with the weights of some questions, in the order of their evidence, and their constants."""
    return Calibration(**{
        question: Logistic(dict(zip(QUESTIONS[question], values[:-1], strict=True)), values[-1])
        for question, values in numbers.items()
    })  # fmt: skip


class StubMeteor:
    """METEOR that is 1 for a caption that is among the references, else 0."""

    version = "stub"

    def score(self, pairs: Sequence[tuple[str, Sequence[str]]]) -> list[float]:
        return [float(said in references) for said, references in pairs]


def same_text(said: Mapping[str, str], true: Mapping[str, Sequence[str]], scorer: object) -> Any:
    """Return 1 as every metric of a caption that is among the references, else 0."""
    from saywhere.evaluation.captions import ORDER, CaptionScores  # which processes of other tests need not import

    each = {name: float(text in true[name]) for name, text in said.items()}
    return CaptionScores(dict.fromkeys(ORDER, sum(each.values()) / len(each)), each)

"""A model for FiftyOne: ``dataset.apply_model(saywhere.integrations.fiftyone.Describer(), "regions")``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import saywhere
from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.formats.classes import NOUNS
from saywhere.models.model import Model
from saywhere.regions import SHOWN

try:
    import fiftyone as fo  # pyright: ignore[reportMissingImports]
    from fiftyone.core.models import Model as FiftyOneModel  # pyright: ignore[reportMissingImports]
except ImportError:
    raise UserError("saywhere.integrations.fiftyone needs the package fiftyone: pip install fiftyone") from None


class Describer(FiftyOneModel):
    """A model for FiftyOne that describes the regions of images, or finds phrases in them.

    Args:
        model: a model, or its name or folder; None: the bundled one.
        phrases: phrases to find instead of describing regions.
        top: maximum number of regions per image; 0: all.
        threshold: minimum probability that a region's box and words are both right, or of a phrase.
    """

    config: Any = None
    """FiftyOne looks for a threshold here; without one, it applies its own."""

    def __init__(
        self,
        model: Model | str | None = None,
        phrases: Sequence[str] = (),
        top: int = 20,
        threshold: float | None = None,
    ) -> None:
        self._model = model if isinstance(model, Model) else saywhere.load(model or saywhere.DEFAULT_MODEL)
        self._phrases, self._top = list(phrases), top
        self._threshold = SHOWN if threshold is None else threshold

    @property
    def media_type(self) -> str:
        """The kind of input: images."""
        return "image"

    @property
    def ragged_batches(self) -> bool:
        """False, although images of a batch may differ in size: True would prevent FiftyOne from making batches."""
        return False

    @property
    def transforms(self) -> None:
        """None: images are passed unchanged."""
        return

    @property
    def preprocess(self) -> bool:
        """False: images are not preprocessed."""
        return False

    @preprocess.setter
    def preprocess(self, value: bool) -> None:
        pass

    def predict(self, arg: np.ndarray) -> Any:
        """Return the ``fiftyone.Detections`` of an RGB image ``(H, W, 3)``, each with an attribute ``phrase``."""
        return self.predict_all([arg])[0]

    def predict_all(self, args: Sequence[np.ndarray]) -> list[Any]:
        """Return the detections of several images."""
        images = [np.asarray(image) for image in args]
        if self._phrases:
            asked: list[str | Sequence[str]] = [self._phrases] * len(images)
            found = self._model.ground(images, asked, threshold=self._threshold)
        else:
            seen = self._model.describe(images, threshold=self._threshold)
            found = [regions.at_least(self._threshold)[: self._top or None] for regions in seen]
        return [_detections(regions) for regions in found]


def _detections(regions: saywhere.Regions) -> Any:
    shares = geometry.scale(geometry.to_size(regions.boxes), 1 / regions.width, 1 / regions.height).tolist()
    return fo.Detections(
        detections=[
            fo.Detection(label=name, bounding_box=box, confidence=region.score, phrase=region.caption)
            for region, name, box in zip(regions, NOUNS.labels(regions), shares, strict=True)
        ]
    )

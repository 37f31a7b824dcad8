"""The one type that every data set is read into."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

import numpy as np

from saywhere.regions import Regions
from saywhere.report import Report


@dataclass(frozen=True, eq=False)
class Sample:
    """An image with its annotated regions and its captions.

    Attributes:
        image: the image's file.
        width, height: size of the image on disk, upright (after EXIF rotation), in pixels.
        boxes: ``(N, 4)`` float32 numpy ``x1 y1 x2 y2`` in pixels of that image, inside it; N may be 0. Anything that
            numpy converts is accepted.
        phrases: for each box its reference phrases, one or more.
        sentences: captions of the whole image, any number.
        phrase_weights: ``(N,)`` how much the phrases of each box count where a network learns words; None for 1 each.

    Raises:
        ValueError: lengths differ, or a box has no phrase.
    """

    image: Path
    width: int
    height: int
    boxes: np.ndarray
    phrases: tuple[tuple[str, ...], ...]
    sentences: tuple[str, ...] = ()
    phrase_weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "boxes", np.asarray(self.boxes, np.float32))
        if self.phrase_weights is not None and len(self.phrase_weights) != len(self.phrases):
            raise ValueError(
                f"{self.image}: {len(self.phrase_weights)} weights for {len(self.phrases)} sets of phrases"
            )
        if self.boxes.shape != (len(self.phrases), 4):
            raise ValueError(f"{self.image}: boxes {self.boxes.shape} for {len(self.phrases)} sets of phrases")
        if not all(self.phrases):
            raise ValueError(f"{self.image}: a box without a phrase")

    def regions(self) -> Regions:
        """Return the boxes as regions, with the first reference of each as its caption."""
        captions = tuple(references[0] for references in self.phrases)
        return Regions(self.width, self.height, self.boxes, captions=captions, image=str(self.image))


@dataclass(frozen=True, eq=False)
class Samples(Sequence[Sample]):
    """Samples of one split in the order of the data set, and the report of reading them.

    Attributes:
        samples: the samples.
        name: name of the format and the data set's folder.
        split: name of the split.
        report: what was left out, missing or broken.
    """

    samples: tuple[Sample, ...]
    name: str
    split: str
    report: Report = field(default_factory=Report)

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> Samples: ...
    def __getitem__(self, index: int | slice) -> Sample | Samples:
        """Return one sample, or for a slice the chosen samples with the same report."""
        if isinstance(index, slice):
            return Samples(self.samples[index], self.name, self.split, self.report)
        return self.samples[index]

    def __repr__(self) -> str:
        return f"Samples({self.name}, {self.split}: {len(self)} images)"

    def phrases(self) -> list[str]:
        """Return every reference phrase of every box."""
        return [phrase for sample in self.samples for references in sample.phrases for phrase in references]

    def sentences(self) -> list[str]:
        """Return every caption of a whole image."""
        return [sentence for sample in self.samples for sentence in sample.sentences]

"""Samples, the common type of all data sets: preprocessing of phrases, sizes on disk, scaling, and the report."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
import zlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import Any, TypeVar, overload

import numpy as np

from saywhere import boxes as geometry
from saywhere import options as user_options
from saywhere.errors import UserError
from saywhere.files import decode, read_whole, split_lines
from saywhere.images import LYING, DiskSize, ImageError, MissingImageError, measure, to_upright
from saywhere.options import dataclass
from saywhere.regions import LARGEST_SIDE, Regions
from saywhere.report import Report, counted
from saywhere.text import tokenize

T = TypeVar("T")
HELD_OUT = 10
"""One training image in this many, by its name, is held out to calibrate probabilities."""
Box = tuple[float, float, float, float]
Labelled = tuple[Box, str]
"""A box ``x1 y1 x2 y2`` and one phrase for it."""


@dataclass(frozen=True)
class PhraseOptions:
    """Options for choosing regions of a data set and preprocessing their phrases.

    Attributes:
        max_words: maximum length; longer phrases are dropped.
        merge: boxes of at least this IoU are merged into their mean, with all their references
            (:func:`saywhere.boxes.merge`). None: only identical boxes are joined.

    Raises:
        UserError: a value is out of range.
    """

    max_words: int | None = None
    merge: float | None = None

    def __post_init__(self) -> None:
        if self.max_words is not None and self.max_words < 1:
            raise UserError(f"max_words must be at least 1, not {self.max_words}")
        if self.merge is not None and not 0 < self.merge <= 1:
            raise UserError(f"merge must be an IoU above 0 and at most 1, not {self.merge}")

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], prefix: str = "data.phrases.") -> PhraseOptions:
        """Read the options of a recipe; error messages name them with ``prefix``.

        Raises:
            UserError: an unknown key or a wrong value.
        """
        return user_options.from_dict(cls, values, prefix=prefix)


def clean(labelled: Sequence[Labelled], options: PhraseOptions, report: Report, name: str) -> list[Labelled]:
    """Clean the phrases of pairs; drop those without words or with too many, and count them in ``report``."""
    kept = []
    for box, phrase in labelled:
        text = " ".join(phrase.split())
        words = len(tokenize(text))
        if words == 0:
            report.problem("phrase without a word", name)
        elif options.max_words is not None and words > options.max_words:
            report.left_out[f"phrases of more than {options.max_words} words"] += 1
        else:
            kept.append((box, text))
    return kept


def join(
    boxes: np.ndarray, phrases: Sequence[str], threshold: float | None
) -> tuple[np.ndarray, list[tuple[str, ...]]]:
    """Join boxes ``(N, 4)`` with one phrase each into fewer boxes ``(M, 4)`` with their distinct phrases.

    Boxes of at least ``threshold`` IoU are merged into their mean. None: only identical boxes are joined, in the order
    of their first occurrence.
    """
    if threshold is None:
        groups: dict[Box, list[int]] = {}
        for i, box in enumerate(boxes.tolist()):
            groups.setdefault(tuple(box), []).append(i)
        members = list(groups.values())
        joined = boxes[[group[0] for group in members]]
    else:
        joined, members = geometry.merge(boxes, threshold)
    return joined, [distinct([phrases[i] for i in group]) for group in members]


def distinct(phrases: Iterable[str]) -> tuple[str, ...]:
    """Return the phrases with distinct words, in their first spelling."""
    found: dict[str, str] = {}
    for phrase in phrases:
        found.setdefault(" ".join(tokenize(phrase)), phrase)
    return tuple(found.values())


def unique(labelled: Iterable[Labelled]) -> list[Labelled]:
    """Return the pairs without those that repeat the box and words of an earlier one."""
    found: dict[tuple[Box, str], Labelled] = {}
    for box, phrase in labelled:
        found.setdefault((box, " ".join(tokenize(phrase))), (box, phrase))
    return list(found.values())


@dataclass(frozen=True, eq=False)
class Sample:
    """An image with its annotated regions and captions.

    Attributes:
        width, height: size of the image file, upright (after EXIF rotation), in pixels.
        boxes: ``(N, 4)`` float32 ``x1 y1 x2 y2`` in these pixels, inside the image; N may be 0. Anything that NumPy
            converts is accepted.
        phrases: one or more reference phrases for each box.
        sentences: captions of the whole image, any number.
        phrase_weights: ``(N,)`` loss weight of each box's phrases where words are trained; None for 1 each.

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
        """Return the boxes as regions, with each one's first reference as its caption."""
        captions = tuple(references[0] for references in self.phrases)
        return Regions(self.width, self.height, self.boxes, captions=captions, image=str(self.image))


@dataclass(frozen=True, eq=False)
class Samples(Sequence[Sample]):
    """Samples of one split in the order of the data set, with the report of reading them.

    Attributes:
        name: format, and name of the data set's folder.
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
        """Return one sample, or for a slice the selected samples with the same report."""
        if isinstance(index, slice):
            return Samples(self.samples[index], self.name, self.split, self.report)
        return self.samples[index]

    def __repr__(self) -> str:
        return f"Samples({self.name}, {self.split}: {counted(len(self), 'image')})"

    def phrases(self) -> list[str]:
        """Return all reference phrases of all boxes."""
        return [phrase for sample in self.samples for references in sample.phrases for phrase in references]

    def sentences(self) -> list[str]:
        """Return all captions of whole images."""
        return [sentence for sample in self.samples for sentence in sample.sentences]


SLACK = 1.05
"""Boxes may exceed the image by this factor before they count as boxes of an image of another size."""

MIN_SIDE = 0.1
"""Boxes of a smaller width or height, in pixels on disk, count as having no area."""


@dataclass
class Annotation:
    """Annotation of one image as in the data set, in the data set's own pixels.

    Attributes:
        name: name of the image in the data set, for reports.
        image: expected path of its file.
        labelled: pairs of a box ``x1 y1 x2 y2`` (origin 0, continuous) and one phrase.
        sentences: captions of the whole image.
        size: width and height of the annotated image; None if they are those on disk.
        broken: whether some of its regions were left out as broken.
    """

    name: str
    image: Path
    labelled: list[Labelled] = field(default_factory=list)
    sentences: tuple[str, ...] = ()
    size: tuple[float, float] | None = None
    broken: bool = False


def assemble(annotations: Sequence[Annotation], options: PhraseOptions, report: Report) -> list[Sample]:
    """Return the samples of ``annotations``; missing or broken data is left out and added to ``report``.

    Annotations of one image are joined.
    """
    sizes = measure_all([annotation.image for annotation in annotations])
    found = _join_images(zip(annotations, sizes, strict=True), report)
    report.listed += len(found)
    samples = []
    for annotation, size in found:
        if isinstance(size, MissingImageError):
            report.problem("missing image", annotation.name)
        elif isinstance(size, ImageError):
            reason = str(size).removeprefix(f"{annotation.image}: ")
            report.problem("image that cannot be read", f"{annotation.name}: {reason}")
        elif annotation.size is None and not fits(annotation, size):
            report.problem("boxes larger than the image, size of the annotated image unknown", annotation.name)
        elif sample := _sample(annotation, size, options, report):
            samples.append(sample)
    return samples


def _join_images(
    annotations: Iterable[tuple[Annotation, DiskSize | ImageError]], report: Report
) -> list[tuple[Annotation, DiskSize | ImageError]]:
    """Join the annotations of each image, given with its size on disk, if their boxes are in the same pixels."""
    found = dict[str, tuple[Annotation, DiskSize | ImageError]]()
    for one, disk in annotations:
        place = os.path.abspath(one.image)
        first, _ = found.setdefault(place, (one, disk))
        if first is one:
            continue
        own = None if isinstance(disk, ImageError) else disk[:2]
        if (first.size or own) != (one.size or own):
            report.problem("image that has another size where it is listed again", one.name)
        else:
            labelled, broken = unique([*first.labelled, *one.labelled]), first.broken or one.broken
            sentences = tuple(dict.fromkeys([*first.sentences, *one.sentences]))
            report.left_out["images that are listed again, whose annotations are joined"] += 1
            joined = replace(first, labelled=labelled, sentences=sentences, broken=broken, size=first.size or one.size)
            found[place] = joined, disk
    return [*found.values()]


def measure_all(paths: Sequence[Path]) -> list[DiskSize | ImageError]:
    """Return the size of each image file, read from its header, or the error if it cannot be read."""

    def measured(path: Path) -> DiskSize | ImageError:
        try:
            return measure(path)
        except ImageError as error:
            return error

    with warnings.catch_warnings():  # around the threads, since the filter is global to the process
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(measured, paths, chunksize=64))


def fits(annotation: Annotation, size: DiskSize) -> bool:
    """Return whether the boxes fit an image of this size; slightly exceeding the border is allowed."""
    right, bottom = (max((box[side] for box, _ in annotation.labelled), default=0.0) for side in (2, 3))
    return right <= size.width * SLACK + 1 and bottom <= size.height * SLACK + 1


def _sample(annotation: Annotation, size: DiskSize, options: PhraseOptions, report: Report) -> Sample | None:
    labelled = clean(annotation.labelled, options, report, annotation.name)
    boxes = np.array([box for box, _ in labelled], np.float32).reshape(-1, 4)
    boxes = to_disk(boxes, annotation.size or size[:2], size)
    inside = geometry.clip(boxes, size.width, size.height)
    if cut := int((np.abs(inside - boxes) > 1).any(axis=1).sum()):
        report.left_out["boxes cut at the border of the image"] += cut
    sides = inside[:, 2:] - inside[:, :2]
    solid, dots = (sides > MIN_SIDE).all(axis=1), (sides <= 1).all(axis=1)
    for _ in range(np.count_nonzero(~solid)):
        report.problem("box without area or outside the image", annotation.name)
    for _ in range(np.count_nonzero(solid & dots)):
        report.problem("box within a pixel: boxes are in pixels, not in shares of the image", annotation.name)
    solid &= ~dots
    labels = [phrase for (_, phrase), keep in zip(labelled, solid.tolist(), strict=True) if keep]
    lost = annotation.broken or len(solid) or (annotation.labelled and options.max_words is None)
    if lost and not labels and not annotation.sentences:
        report.problem("image left out with all its regions", annotation.name)
        return None
    boxes, references = join(inside[solid], labels, options.merge)
    return Sample(annotation.image, size.width, size.height, boxes, tuple(references), annotation.sentences)


def to_disk(boxes: np.ndarray, annotated: tuple[float, float], size: DiskSize) -> np.ndarray:
    """Convert boxes ``(N, 4)`` from pixels of the annotated image to those of the upright image on disk.

    Width and height are scaled separately, so copies with another aspect ratio are handled. If EXIF rotates the image
    by 90 degrees and the annotated size is that before rotation, the boxes are rotated as well.
    """
    width, height = annotated
    if size.orientation in LYING and (width - height) * (size.width - size.height) < 0:
        boxes, (width, height) = to_upright(boxes, size.orientation, width, height), (height, width)
    return geometry.scale(boxes, size.width / width, size.height / height)


def find(root: Path, folders: Iterable[str], names: Sequence[str]) -> Path | None:
    """Return the first of ``names`` that exists, in the first of ``folders`` under ``root``; None if none does."""
    return next((root / f / name for f in folders for name in names if (root / f / name).exists()), None)


def index_images(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the files of several folders by name; among equal names, the one in the first folder."""
    return {path.name: path for folder in reversed(folders) for path in folder.iterdir()}


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file; ``UserError`` if it is not UTF-8."""
    try:
        return split_lines(decode(read_whole(path)))
    except ValueError as error:
        raise UserError(f"{path} is {error}") from error


def number(value: object) -> float:
    """Return ``value`` as a float; ``ValueError`` if it is not a number, or too large for pixels."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST_SIDE:
        raise ValueError(f"{value!r} is not a number of pixels")
    return float(value)


def corner_box(values: object) -> Box:
    """Return ``[x1, y1, x2, y2]`` as a box; ``ValueError`` for anything else, or if x2 < x1 or y2 < y1."""
    if not isinstance(values, (list, tuple)) or len(values) != 4:
        raise ValueError(f"{values!r} is not a box of four numbers")
    x1, y1, x2, y2 = (number(value) for value in values)
    if x2 < x1 or y2 < y1:
        raise ValueError(f"box {values!r} is inside out")
    return x1, y1, x2, y2


def size_box(values: object) -> Box:
    """Return ``[x, y, width, height]`` as a box; ``ValueError`` for anything else."""
    if not isinstance(values, (list, tuple)) or len(values) != 4:
        raise ValueError(f"{values!r} is not a box of four numbers")
    x, y, width, height = (number(value) for value in values)
    return corner_box((x, y, x + width, y + height))


def text(value: object) -> str:
    """Return ``value`` if it is a string; ``ValueError`` otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value


def is_held_out(image: Path) -> bool:
    """Return whether an image of the training split is held out to calibrate probabilities."""
    return zlib.crc32(os.fsencode(image.name)) % HELD_OUT == 0


def evenly(items: Sequence[T], limit: int | None) -> list[T]:
    """Return at most ``limit`` items, evenly spaced; None: all."""
    if limit is None or limit >= len(items):
        return list(items)
    return [items[i * len(items) // limit] for i in range(limit)]


def digest_of(samples: Sequence[Sample]) -> str:
    """Return a hash of a data set's annotations and the sizes of its image files."""
    digest = hashlib.blake2b(digest_size=8)
    for sample in samples:
        texts = [sample.image.name, sample.width, sample.height, sample.phrases, sample.sentences]
        size = sample.image.stat().st_size if sample.image.exists() else None  # it may have been removed meanwhile
        digest.update(json.dumps([*texts, size]).encode())
        digest.update(np.ascontiguousarray(sample.boxes).tobytes())
    return digest.hexdigest()

"""From the annotations of any format to samples: sizes on disk, scaling, preprocessing, the report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from saywhere import boxes as geometry
from saywhere.data import phrases
from saywhere.data.phrases import Labelled, PhraseOptions
from saywhere.data.sample import Report, Sample
from saywhere.images import LYING, DiskSize, ImageError, MissingImageError, measure

SLACK = 1.05
"""Annotated boxes may leave a picture by this factor before they are taken for boxes of a picture of another size."""

MIN_SIDE = 0.1
"""Boxes of a smaller width or height, in pixels on disk, have no area to speak of."""


@dataclass
class Annotation:
    """What a data set says of one picture, in its own pixels.

    Attributes:
        name: what the data set calls the picture, for reports.
        image: where its file should be.
        labelled: pairs of a box ``x1 y1 x2 y2`` (origin 0, continuous) and one phrase.
        sentences: captions of the whole picture.
        size: width and height of the picture that was annotated; None if they are those on disk.
    """

    name: str
    image: Path
    labelled: list[Labelled] = field(default_factory=list)
    sentences: tuple[str, ...] = ()
    size: tuple[float, float] | None = None


def assemble(annotations: Sequence[Annotation], options: PhraseOptions, report: Report) -> list[Sample]:
    """The samples of ``annotations``; what is missing or broken goes to ``report`` and is left out."""
    report.listed += len(annotations)
    sizes = measure_all([annotation.image for annotation in annotations])
    samples = []
    for annotation, size in zip(annotations, sizes, strict=True):
        if isinstance(size, MissingImageError):
            report.problem("missing picture", annotation.name)
        elif isinstance(size, ImageError):
            reason = str(size).removeprefix(f"{annotation.image}: ")
            report.problem("picture that cannot be read", f"{annotation.name}: {reason}")
        elif annotation.size is None and not fits(annotation, size):
            report.problem("boxes larger than the picture, size of the annotated picture unknown", annotation.name)
        elif sample := _sample(annotation, size, options, report):
            samples.append(sample)
    return samples


def measure_all(paths: Sequence[Path]) -> list[DiskSize | ImageError]:
    """Sizes of picture files from their headers; for a file that cannot be read, what is wrong with it."""

    def measured(path: Path) -> DiskSize | ImageError:
        try:
            return measure(path)
        except ImageError as error:
            return error

    with warnings.catch_warnings():  # around the threads, because the filter belongs to the process
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(measured, paths, chunksize=64))


def extent(annotation: Annotation) -> tuple[float, float]:
    """The right and bottom end of all boxes, in annotated pixels."""
    corners = [(box[2], box[3]) for box, _ in annotation.labelled]
    return max((x for x, _ in corners), default=0.0), max((y for _, y in corners), default=0.0)


def fits(annotation: Annotation, size: DiskSize) -> bool:
    """Whether the boxes may be those of a picture of this size; a small step over the border is allowed."""
    right, bottom = extent(annotation)
    return right <= size.width * SLACK + 1 and bottom <= size.height * SLACK + 1


def _sample(annotation: Annotation, size: DiskSize, options: PhraseOptions, report: Report) -> Sample | None:
    labelled = phrases.clean(annotation.labelled, options, report, annotation.name)
    boxes = torch.tensor([box for box, _ in labelled], dtype=torch.float32).reshape(-1, 4)
    boxes = to_disk(boxes, annotation.size or size[:2], size)
    inside = geometry.clip(boxes, size.width, size.height)
    if cut := int(((inside - boxes).abs() > 1).any(dim=1).sum()):
        report.left_out["boxes cut at the border of the picture"] += cut
    solid = ((inside[:, 2:] - inside[:, :2]) > MIN_SIDE).all(dim=1).tolist()
    for _ in range(solid.count(False)):
        report.problem("box without area or outside the picture", annotation.name)
    labels = [phrase for (_, phrase), keep in zip(labelled, solid, strict=True) if keep]
    if len(labels) < options.min_regions:
        report.left_out[f"pictures of fewer than {options.min_regions} regions"] += 1
        return None
    if options.max_regions is not None and len(labels) > options.max_regions:
        report.left_out[f"pictures of more than {options.max_regions} regions"] += 1
        return None
    boxes, references = phrases.join(inside[solid], labels, options.merge)
    return Sample(annotation.image, size.width, size.height, boxes, tuple(references), annotation.sentences)


def to_disk(boxes: Tensor, annotated: tuple[float, float], size: DiskSize) -> Tensor:
    """Boxes ``(N, 4)`` of the annotated picture in pixels of the upright picture on disk.

    Width and height are scaled each by its own factor, so that squashed copies are right too. Where EXIF turns the
    picture on its side and the annotated size is that of the picture before the turn, the boxes are turned with it.
    """
    width, height = annotated
    if size.orientation in LYING and (width - height) * (size.width - size.height) < 0:
        boxes, (width, height) = turn(boxes, width, height, size.orientation), (height, width)
    return geometry.scale(boxes, size.width / width, size.height / height)


def turn(boxes: Tensor, width: float, height: float, orientation: int) -> Tensor:
    """Boxes of a picture ``width x height`` as stored, after the turn of EXIF orientation 5, 6, 7 or 8."""
    x1, y1, x2, y2 = boxes.unbind(-1)
    if orientation in (6, 7):
        y1, y2 = height - y2, height - y1
    if orientation in (7, 8):
        x1, x2 = width - x2, width - x1
    return torch.stack((y1, x1, y2, x2), dim=-1)

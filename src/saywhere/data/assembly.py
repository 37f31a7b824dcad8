"""From the annotations of any format to samples: sizes on disk, scaling, preprocessing, the report."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from saywhere import boxes as geometry
from saywhere.data import phrases
from saywhere.data.phrases import Labelled, PhraseOptions
from saywhere.data.sample import Sample
from saywhere.images import LYING, DiskSize, ImageError, MissingImageError, measure
from saywhere.report import Report

SLACK = 1.05
"""Annotated boxes may leave an image by this factor before they are taken for boxes of an image of another size."""

MIN_SIDE = 0.1
"""Boxes of a smaller width or height, in pixels on disk, count as having no area."""


@dataclass
class Annotation:
    """Annotation of one image as the data set has it, in the data set's own pixels.

    Attributes:
        name: of the image in the data set, for reports.
        image: where its file should be.
        labelled: pairs of a box ``x1 y1 x2 y2`` (origin 0, continuous) and one phrase.
        sentences: captions of the whole image.
        size: width and height of the image that was annotated; None if they are those on disk.
        broken: whether regions of it were left out because they are broken.
    """

    name: str
    image: Path
    labelled: list[Labelled] = field(default_factory=list)
    sentences: tuple[str, ...] = ()
    size: tuple[float, float] | None = None
    broken: bool = False


def assemble(annotations: Sequence[Annotation], options: PhraseOptions, report: Report) -> list[Sample]:
    """Return the samples of ``annotations``; what is missing or broken is left out and added to ``report``."""
    report.listed += len(annotations)
    sizes = measure_all([annotation.image for annotation in annotations])
    samples = []
    for annotation, size in zip(annotations, sizes, strict=True):
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


def measure_all(paths: Sequence[Path]) -> list[DiskSize | ImageError]:
    """Return the size of each image file, read from its header, or the error that says why it cannot be read."""

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
    """Return the right-most and bottom-most coordinate of all boxes, in annotated pixels; 0 without boxes."""
    corners = [(box[2], box[3]) for box, _ in annotation.labelled]
    return max((x for x, _ in corners), default=0.0), max((y for _, y in corners), default=0.0)


def fits(annotation: Annotation, size: DiskSize) -> bool:
    """Return whether the boxes fit an image of this size; a small step over the border is allowed."""
    right, bottom = extent(annotation)
    return right <= size.width * SLACK + 1 and bottom <= size.height * SLACK + 1


def _sample(annotation: Annotation, size: DiskSize, options: PhraseOptions, report: Report) -> Sample | None:
    labelled = phrases.clean(annotation.labelled, options, report, annotation.name)
    boxes = np.array([box for box, _ in labelled], np.float32).reshape(-1, 4)
    boxes = to_disk(boxes, annotation.size or size[:2], size)
    inside = geometry.clip(boxes, size.width, size.height)
    if cut := int((np.abs(inside - boxes) > 1).any(axis=1).sum()):
        report.left_out["boxes cut at the border of the image"] += cut
    solid = ((inside[:, 2:] - inside[:, :2]) > MIN_SIDE).all(axis=1)
    for _ in range(np.count_nonzero(~solid)):
        report.problem("box without area or outside the image", annotation.name)
    labels = [phrase for (_, phrase), keep in zip(labelled, solid.tolist(), strict=True) if keep]
    lost = annotation.broken or len(solid) or (annotation.labelled and options.max_words is None)
    if lost and not labels and not annotation.sentences:
        report.problem("image left out with all its regions", annotation.name)
        return None
    if len(labels) < options.min_regions:
        report.left_out[f"images of fewer than {options.min_regions} regions"] += 1
        return None
    if options.max_regions is not None and len(labels) > options.max_regions:
        report.left_out[f"images of more than {options.max_regions} regions"] += 1
        return None
    boxes, references = phrases.join(inside[solid], labels, options.merge)
    return Sample(annotation.image, size.width, size.height, boxes, tuple(references), annotation.sentences)


def to_disk(boxes: np.ndarray, annotated: tuple[float, float], size: DiskSize) -> np.ndarray:
    """Convert boxes ``(N, 4)`` from pixels of the annotated image to pixels of the upright image on disk.

    Width and height are each scaled by their own factor, so copies with another aspect ratio are right too. If EXIF
    turns the image on its side and the annotated size is the one before the turn, the boxes are turned as well.

    Args:
        boxes: ``x1 y1 x2 y2`` in pixels of the annotated image.
        annotated: width and height of that image.
        size: of the file on disk.
    """
    width, height = annotated
    if size.orientation in LYING and (width - height) * (size.width - size.height) < 0:
        boxes, (width, height) = turn(boxes, width, height, size.orientation), (height, width)
    return geometry.scale(boxes, size.width / width, size.height / height)


def turn(boxes: np.ndarray, width: float, height: float, orientation: int) -> np.ndarray:
    """Turn boxes of an image stored as ``width x height`` by EXIF orientation 5, 6, 7 or 8."""
    x1, y1, x2, y2 = boxes[..., 0], boxes[..., 1], boxes[..., 2], boxes[..., 3]
    if orientation in (6, 7):
        y1, y2 = height - y2, height - y1
    if orientation in (7, 8):
        x1, x2 = width - x2, width - x1
    return np.stack((y1, x1, y2, x2), axis=-1)

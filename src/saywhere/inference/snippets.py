"""A data set of regions, made by a model.

Of one that has only sentences an aligner makes it (Alignments, sections 3.1.4 and 3.2); of one whose boxes have only
names of classes a dense captioner does.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from saywhere.files import write_atomically
from saywhere.images import LoadedImage
from saywhere.inference.results import json_line
from saywhere.models.aligner import align
from saywhere.models.densecap import describe
from saywhere.models.model import Model
from saywhere.models.nouns import fuller_phrase, noun_tree
from saywhere.regions import Regions


def find_snippets(
    model: Model, images: Sequence[LoadedImage], sentences: Mapping[str, Sequence[str]], beta: float | None = None
) -> list[Regions]:
    """Return the pieces of each image's sentences on the regions that they are about, sentence by sentence.

    Args:
        model: one that has an aligner.
        images: opened.
        sentences: of each image, by its name.
        beta: affinity of neighbouring words to the same region (Eq. 12); the model's own if None.

    Raises:
        UserError: the model has no aligner, or a sentence has no word.
    """
    aligner = model.require("aligner", "align words with regions")
    found: list[Regions] = []
    for image, embedded in zip(images, model.embed(list(images)), strict=True):
        aligned = [align(aligner, embedded, sentence, beta) for sentence in sentences[image.name]]
        pairs = [pair for alignment in aligned for pair in alignment.snippets()]
        boxes = np.array([box for box, _ in pairs], np.float32).reshape(-1, 4)
        captions = tuple(text for _, text in pairs)
        found.append(Regions(image.width, image.height, boxes, captions=captions, image=image.name))
    return found


def find_phrases(
    model: Model, images: Sequence[LoadedImage], regions: Mapping[str, tuple[np.ndarray, Sequence[str]]]
) -> list[Regions]:
    """Return each image's boxes with the dense captioner's phrases, in which the nouns are those of the given labels.

    Args:
        model: one that has a dense captioner.
        images: opened.
        regions: of each image, by its name: boxes ``(N, 4)`` and N labels, such as "a chair".

    Raises:
        UserError: the model has no dense captioner.
    """
    detector, tree = model.require("densecap", "describe boxes"), noun_tree()
    found: list[Regions] = []
    given = [regions[image.name] for image in images]
    described = describe(detector, model.encode(list(images)), [boxes for boxes, _ in given])
    for image, said, (_, names) in zip(images, described, given, strict=True):
        pairs = zip(said.captions or (), names, strict=True)
        captions = tuple(fuller_phrase(tree, phrase, name) for phrase, name in pairs)
        found.append(Regions(image.width, image.height, said.boxes, captions=captions, image=image.name))
    return found


def write_snippets(rows: Iterable[tuple[Path, str, Regions]], file: Path) -> int:
    """Write a data set in lines of JSON (docs/data.md) that :func:`saywhere.data.read` reads.

    Args:
        rows: of each image its file, its split and its snippets.
        file: ends with ``.jsonl``; images are named by the way to them from its folder.

    Returns:
        how many snippets were written.
    """
    lines, count = [], 0
    for image, split, regions in rows:
        pairs = zip(regions.boxes.tolist(), regions.captions or (), strict=True)
        snippets = [{"box": box, "phrase": words} for box, words in pairs]
        name = Path(os.path.relpath(image.resolve(), file.resolve().parent)).as_posix()
        size = {"width": regions.width, "height": regions.height}
        lines.append(json_line({"split": split, **size, "regions": snippets}, name))
        count += len(snippets)
    write_atomically(file, lambda stream: stream.writelines(lines))
    return count

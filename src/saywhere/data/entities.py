"""Flickr30k Entities: sentences whose phrases are marked with the boxes of the things they name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from saywhere import boxes as geometry
from saywhere.data import flickr
from saywhere.data.assembly import measure_all, to_disk
from saywhere.data.files import read_lines
from saywhere.errors import UserError
from saywhere.images import DiskSize, ImageError
from saywhere.report import Report
from saywhere.text import tokenize

_PIECE = re.compile(r"\[/EN#(?P<entity>[^/\s]+)/(?P<types>\S+) (?P<phrase>[^\]]*)\]|(?P<plain>[^\[]+|\[)")


@dataclass(frozen=True, eq=False)
class MarkedPhrase:
    """A phrase of a sentence and its box.

    Attributes:
        start, stop: index of its first word in the words of the sentence, and of the word after its last.
        entity: identifier of the thing it names, the same in all sentences of the image.
        types: such as ``people``, ``clothing``, ``bodyparts``, ``animals``, ``vehicles``, ``instruments``, ``scene``,
            ``other``; mostly one.
        box: ``(4,)`` float32 ``x1 y1 x2 y2`` in pixels of the image on disk, the union if the entity has several;
            None if it has none.
    """

    start: int
    stop: int
    entity: str
    types: tuple[str, ...]
    box: np.ndarray | None


@dataclass(frozen=True, eq=False)
class MarkedSentence:
    """The ``words`` of a sentence, as :func:`saywhere.text.tokenize` returns them, and its phrases in order."""

    words: tuple[str, ...]
    phrases: tuple[MarkedPhrase, ...]

    @property
    def text(self) -> str:
        """The words joined by spaces; tokenizing it gives the same words again."""
        return " ".join(self.words)

    def phrase(self, phrase: MarkedPhrase) -> str:
        """Return the words of one of its phrases joined by spaces."""
        return " ".join(self.words[phrase.start : phrase.stop])


@dataclass(frozen=True, eq=False)
class MarkedImage:
    """An image: its file, its upright size on disk in pixels, and its sentences."""

    image: Path
    width: int
    height: int
    sentences: tuple[MarkedSentence, ...]


def read_entities(root: str | Path, split: str, report: Report | None = None) -> list[MarkedImage]:
    """Return the images of one split of Flickr8k or Flickr30k with the marked sentences of Flickr30k Entities.

    An image whose file or annotation is missing or broken is left out and named in ``report``.

    Raises:
        UserError: no such data set or split, or one without Entities.
    """
    root, report = Path(root), Report() if report is None else report
    if not flickr.recognises(root):
        raise UserError(f"{root}: not Flickr8k or Flickr30k; docs/data.md describes the format")
    known = flickr.splits(root)
    if split not in known:
        raise UserError(f"{root}: no split {split!r}; it has {', '.join(known) or 'none'}")
    images = flickr.find_images(root)
    find_marks(images / "any.jpg")
    names = [line.strip().removesuffix(".jpg") for line in read_lines(known[split]) if line.strip()]
    report.listed += len(names)
    files = [images / f"{name}.jpg" for name in names]
    found: list[MarkedImage] = []
    for name, file, size in zip(names, files, measure_all(files), strict=True):
        if isinstance(size, ImageError):
            report.problem("image that cannot be read", f"{name}.jpg")
            continue
        try:
            found.append(MarkedImage(file, size.width, size.height, read_marks(file, size)))
        except (OSError, ValueError) as error:
            report.problem("missing or broken annotation", f"{name} ({error})")
    if not found:
        raise UserError(f"{root}: the split {split} has no image with Entities that can be read")
    return found


def find_marks(image: Path) -> tuple[Path, Path]:
    """Return the paths of the Entities files of an image: the marked sentences, and the boxes.

    Raises:
        UserError: there is no Entities folder beside the folder of the image.
    """
    root = image.parent.parent
    folder = next((root / f for f in flickr.ENTITIES_FOLDERS if (root / f / "Annotations").is_dir()), None)
    if folder is None:
        raise UserError(f"{root}: no Entities/Annotations and Entities/Sentences (Flickr30k Entities)")
    key = image.stem.split("_")[0]
    return folder / "Sentences" / f"{key}.txt", folder / "Annotations" / f"{key}.xml"


def read_marks(image: Path, size: DiskSize) -> tuple[MarkedSentence, ...]:
    """Return the marked sentences of one image of ``size`` on disk, with boxes in its pixels.

    Raises:
        OSError, ValueError: a file is missing or broken.
    """
    sentences, annotation = find_marks(image)
    annotated, boxes = flickr.read_boxes(annotation)
    rows = np.array(list(boxes.values()), np.float32).reshape(-1, 4)
    on_disk = geometry.clip(to_disk(rows, annotated, size), size.width, size.height)
    placed = dict(zip(boxes, on_disk, strict=True))
    return tuple(read_marked(line, placed) for line in read_lines(sentences) if line.strip())


def read_marked(line: str, boxes: Mapping[str, np.ndarray]) -> MarkedSentence:
    """Parse a line of ``Sentences/*.txt``, such as ``[/EN#1/people A man] in [/EN#2/clothing a red shirt]``.

    Args:
        line: the text.
        boxes: the box ``(4,)`` of each entity that has one.
    """
    words: list[str] = []
    phrases: list[MarkedPhrase] = []
    for piece in _PIECE.finditer(line):
        start = len(words)
        words += tokenize(flickr.tidy(piece["phrase"] if piece["entity"] else piece["plain"]))
        if piece["entity"] and len(words) > start:
            types = tuple(piece["types"].split("/"))
            phrases.append(MarkedPhrase(start, len(words), piece["entity"], types, boxes.get(piece["entity"])))
    return MarkedSentence(tuple(words), tuple(phrases))


def count_phrases(images: Sequence[MarkedImage]) -> int:
    """Return how many phrases have a box."""
    return sum(phrase.box is not None for p in images for s in p.sentences for phrase in s.phrases)

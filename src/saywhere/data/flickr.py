"""Flickr8k and Flickr30k with the boxes and phrases of Flickr30k Entities.

Each phrase of an entity belongs to the entity's box. If an entity has several boxes ("two dogs"), their union is
used, which is what the phrase describes. Entities without a box (scenes, invisible things) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree.ElementTree import Element

import numpy as np

from saywhere import boxes as geometry
from saywhere.data.sample import (
    Annotation,
    Box,
    Sample,
    digest_of,
    find,
    measure_all,
    number,
    read_lines,
    to_disk,
    unique,
)
from saywhere.errors import NoSplitError, UserError
from saywhere.formats.reading import read_xml
from saywhere.images import DiskSize, ImageError
from saywhere.options import dataclass
from saywhere.report import Report
from saywhere.text import tokenize

TOKEN_FILES = ("Flickr8k.token.txt", "results_20130124.token")
TEXT_FOLDERS = (".", "Flickr8k_text", "Entities", "flickr30k_entities")
IMAGE_FOLDERS = ("Images", "images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")
ENTITIES_FOLDERS = ("Entities", "flickr30k_entities", ".")

_PIECE = re.compile(r"\[/EN#(?P<entity>[^/\s]+)/(?P<types>\S+) (?P<phrase>[^\]]*)\]|(?P<plain>[^\[]+|\[)")
_SUFFIX = re.compile(r"\s+(?='(?:s|re|ve|ll|d|m)\b|n't\b)", re.IGNORECASE)


def recognises(root: Path) -> bool:
    """Return whether the folder has the captions of Flickr8k or Flickr30k."""
    return find(root, TEXT_FOLDERS, TOKEN_FILES) is not None


def splits(root: Path) -> dict[str, Path]:
    """Return the list files of the existing splits: ``train dev test`` (Flickr8k), ``train val test`` (Flickr30k)."""
    found = {}
    for name in ("train", "dev", "val", "test"):
        if file := find(root, TEXT_FOLDERS, (f"Flickr_8k.{name}Images.txt", f"{name}.txt")):
            found[name] = file
    return found


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of one split, in the order of its list, with boxes in pixels of the XML's ``<size>``."""
    names = [line.strip() for line in read_lines(splits(root)[split]) if line.strip()]
    images = find_images(root)
    entities = _find_entities(root)
    if entities is None:
        report.notes.append("no Entities/Annotations: the images have sentences and no regions")
    sentences = _sentences(root)
    found = []
    for name in names:
        name = name if name.endswith(".jpg") else f"{name}.jpg"
        annotation = Annotation(name, images / name, sentences=tuple(sentences.get(name, ())))
        if not annotation.sentences:
            report.problem("image without sentences", name)
        if entities is None or _add_entities(annotation, entities, report):
            found.append(annotation)
        else:
            report.listed += 1
    return found


def find_images(root: Path) -> Path:
    """Return the folder of the images; ``UserError`` if there is none."""
    images = find(root, (".",), IMAGE_FOLDERS)
    if images is None:
        raise UserError(f"{root}: no folder of images; one of {', '.join(IMAGE_FOLDERS)} is expected")
    return images


def _add_entities(annotation: Annotation, folder: Path, report: Report) -> bool:
    """Add the image's Entities; return whether they are readable. If not, they are named in the report."""
    marked, boxed = _entities_of(annotation.name, folder)
    try:
        size, boxes = read_boxes(boxed)
        mentions = [m for line in read_lines(marked) for m in _PIECE.finditer(line) if m["entity"]]
    except FileNotFoundError as error:
        report.problem("missing annotation", Path(error.filename).name)
        return False
    except (OSError, ValueError) as error:
        report.problem("broken annotation", f"{marked.stem} ({error})")
        return False
    annotation.size = size
    for mention in mentions:
        if box := boxes.get(mention["entity"]):
            annotation.labelled.append((box, tidy(mention["phrase"])))
        else:
            report.left_out["phrases without a box (scenes, not visible)"] += 1
    annotation.labelled = unique(annotation.labelled)
    return True


def read_boxes(path: Path) -> tuple[tuple[float, float], dict[str, Box]]:
    """Read an Entities XML file: the size ``(width, height)``, and the box of each entity (the union of its boxes).

    The file counts pixels from 1, both ends inclusive: ``xmin..xmax`` becomes ``xmin - 1 .. xmax``.

    Raises:
        OSError: no such file.
        ValueError: it is not XML, or a part is missing or not a number.
    """
    tree = read_xml(path)
    width, height = (_number(tree, f"size/{side}") for side in ("width", "height"))
    if width <= 0 or height <= 0:
        raise ValueError(f"size {width:g} x {height:g}")
    boxes: dict[str, Box] = {}
    for thing in tree.findall("object"):
        names = [(name.text or "").strip() for name in thing.findall("name")]
        for frame in thing.findall("bndbox"):
            x1, y1, x2, y2 = (_number(frame, side) for side in ("xmin", "ymin", "xmax", "ymax"))
            for name in names:
                old = boxes.get(name, (x1 - 1, y1 - 1, x2, y2))
                boxes[name] = (min(old[0], x1 - 1), min(old[1], y1 - 1), max(old[2], x2), max(old[3], y2))
    return (width, height), boxes


def count_boxes(path: Path) -> dict[str, int]:
    """Return the number of boxes of each entity in an Entities XML file; raises as :func:`read_boxes`."""
    found: dict[str, int] = {}
    for thing in read_xml(path).findall("object"):
        for name in thing.findall("name"):
            key = (name.text or "").strip()
            found[key] = found.get(key, 0) + len(thing.findall("bndbox"))
    return found


def tidy(text: str) -> str:
    """Rejoin apostrophes in tokenized text: ``the water 's edge`` becomes ``the water's edge``."""
    return _SUFFIX.sub("", text.strip())


def _number(tree: Element, path: str) -> float:
    text = tree.findtext(path)
    if text is None:
        raise ValueError(f"no <{path}>")
    return number(float(text))


def _sentences(root: Path) -> dict[str, list[str]]:
    """Return the captions of each image, from lines ``name.jpg#i<TAB>sentence``."""
    file = find(root, TEXT_FOLDERS, TOKEN_FILES)
    if file is None:
        raise UserError(f"{root}: no {' or '.join(TOKEN_FILES)}")
    found: dict[str, list[str]] = {}
    for line in read_lines(file):
        key, tab, sentence = line.partition("\t")
        if tab and sentence.strip():
            found.setdefault(key.rpartition("#")[0], []).append(tidy(sentence))
    return found


@dataclass(frozen=True, eq=False)
class MarkedPhrase:
    """A phrase of a sentence, and its box.

    Attributes:
        start, stop: index of the first word in the sentence, and of the word after the last.
        entity: identifier of what the phrase names, the same in all sentences of the image.
        types: such as ``people``, ``clothing``, ``bodyparts``, ``animals``, ``vehicles``, ``instruments``, ``scene``,
            ``other``; mostly one.
        box: ``(4,)`` float32 ``x1 y1 x2 y2`` in pixels of the image file, the union if the entity has several boxes;
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
        """The words joined by spaces; tokenizing it returns the same words."""
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


def digest_of_marked(images: Sequence[MarkedImage]) -> str:
    """Return a hash of images' sentences and boxed phrases and of the sizes of their files."""
    samples = []
    for one in images:
        boxed = [(each, phrase) for each in one.sentences for phrase in each.phrases if phrase.box is not None]
        boxes = np.array([phrase.box for _, phrase in boxed]).reshape(-1, 4)
        phrases = tuple((each.phrase(phrase), phrase.entity) for each, phrase in boxed)
        sentences = tuple(each.text for each in one.sentences)
        samples.append(Sample(one.image, one.width, one.height, boxes, phrases, sentences))
    return digest_of(samples)


def read_entities(root: str | Path, split: str, report: Report | None = None) -> list[MarkedImage]:
    """Return the images of a split of Flickr8k or Flickr30k with the marked sentences of Flickr30k Entities.

    Images whose file or annotation is missing or broken are left out and named in ``report``.

    Raises:
        UserError: no such data set or split, or one without Entities.
    """
    root, report = Path(root), Report() if report is None else report
    if not recognises(root):
        raise UserError(f"{root}: not Flickr8k or Flickr30k; docs/data.md describes the format")
    known = splits(root)
    if split not in known:
        raise NoSplitError.of(root, split, known)
    images = find_images(root)
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
    """Return the paths of an image's Entities files: the marked sentences, and the boxes.

    Raises:
        UserError: there is no Entities folder beside the image folder.
    """
    root = image.parent.parent
    if (folder := _find_entities(root)) is None:
        raise UserError(f"{root}: no Entities/Annotations and Entities/Sentences (Flickr30k Entities)")
    return _entities_of(image.name, folder)


def _find_entities(root: Path) -> Path | None:
    return next((root / f for f in ENTITIES_FOLDERS if (root / f / "Annotations").is_dir()), None)


def _entities_of(name: str, folder: Path) -> tuple[Path, Path]:
    """Return an image's files in the Entities folder."""
    key = Path(name).stem.split("_")[0]
    return folder / "Sentences" / f"{key}.txt", folder / "Annotations" / f"{key}.xml"


def read_marks(image: Path, size: DiskSize) -> tuple[MarkedSentence, ...]:
    """Return the marked sentences of an image of ``size`` on disk, with boxes in its pixels.

    Raises:
        OSError, ValueError: a file is missing or broken.
    """
    sentences, annotation = find_marks(image)
    annotated, boxes = read_boxes(annotation)
    rows = np.array(list(boxes.values()), np.float32).reshape(-1, 4)
    on_disk = geometry.clip(to_disk(rows, annotated, size), size.width, size.height)
    placed = dict(zip(boxes, on_disk, strict=True))
    return tuple(read_marked(line, placed) for line in read_lines(sentences) if line.strip())


def read_marked(line: str, boxes: Mapping[str, np.ndarray]) -> MarkedSentence:
    """Parse a line of ``Sentences/*.txt``, such as ``[/EN#1/people A man] in [/EN#2/clothing a red shirt]``.

    ``boxes`` has one ``(4,)`` for each entity with a box.
    """
    words: list[str] = []
    phrases: list[MarkedPhrase] = []
    for piece in _PIECE.finditer(line):
        start = len(words)
        words += tokenize(tidy(piece["phrase"] if piece["entity"] else piece["plain"]))
        if piece["entity"] and len(words) > start:
            types = tuple(piece["types"].split("/"))
            phrases.append(MarkedPhrase(start, len(words), piece["entity"], types, boxes.get(piece["entity"])))
    return MarkedSentence(tuple(words), tuple(phrases))


def count_phrases(images: Sequence[MarkedImage]) -> int:
    """Return the number of phrases with a box."""
    return sum(phrase.box is not None for p in images for s in p.sentences for phrase in s.phrases)

"""Flickr8k and Flickr30k with the boxes and phrases of Flickr30k Entities.

An entity's phrase belongs to its box. An entity with several boxes ("two dogs") gives its phrase to their union, which
is what the phrase describes. Entities without a box (scenes, things not visible) are left out.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from saywhere.data.assembly import Annotation
from saywhere.data.files import find, read_lines
from saywhere.data.phrases import Box, unique
from saywhere.data.sample import Report
from saywhere.errors import UserError

TOKEN_FILES = ("Flickr8k.token.txt", "results_20130124.token")
TEXT_FOLDERS = (".", "Flickr8k_text", "Entities", "flickr30k_entities")
IMAGE_FOLDERS = ("Images", "images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")
ENTITIES_FOLDERS = ("Entities", "flickr30k_entities", ".")

_MENTION = re.compile(r"\[/EN#(?P<entity>[^/\s]+)/\S+ (?P<phrase>[^\]]*)\]")
_SUFFIX = re.compile(r"\s+(?='(?:s|re|ve|ll|d|m)\b|n't\b)", re.IGNORECASE)


def recognises(root: Path) -> bool:
    """Whether the folder holds the captions of Flickr8k or Flickr30k."""
    return find(root, TEXT_FOLDERS, TOKEN_FILES) is not None


def splits(root: Path) -> dict[str, Path]:
    """The splits whose lists are there: ``train dev test`` (Flickr8k) or ``train val test`` (Flickr30k)."""
    names = {"train": ("train",), "dev": ("dev",), "val": ("val",), "test": ("test",)}
    found = {}
    for name in names:
        if file := find(root, TEXT_FOLDERS, (f"Flickr_8k.{name}Images.txt", f"{name}.txt")):
            found[name] = file
    return found


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """The pictures of one split, in the order of its list, with boxes in the pixels of the XML's ``<size>``."""
    names = [line.strip() for line in read_lines(splits(root)[split]) if line.strip()]
    images = find_images(root)
    entities = next((root / f for f in ENTITIES_FOLDERS if (root / f / "Annotations").is_dir()), None)
    if entities is None:
        report.notes.append("no Entities/Annotations: the pictures have sentences and no regions")
    sentences = _sentences(root)
    found = []
    for name in names:
        name = name if name.endswith(".jpg") else f"{name}.jpg"
        annotation = Annotation(name, images / name, sentences=tuple(sentences.get(name, ())))
        if not annotation.sentences:
            report.problem("picture without sentences", name)
        if entities is None or _add_entities(annotation, entities, report):
            found.append(annotation)
        else:
            report.listed += 1
    return found


def find_images(root: Path) -> Path:
    """The folder of the pictures; ``UserError`` if there is none."""
    images = find(root, (".",), IMAGE_FOLDERS)
    if images is None:
        raise UserError(f"{root}: no folder of pictures; one of {', '.join(IMAGE_FOLDERS)} is expected")
    return images


def _add_entities(annotation: Annotation, folder: Path, report: Report) -> bool:
    """Whether the picture's Entities could be read; if not, the report names it."""
    key = Path(annotation.name).stem.split("_")[0]
    marked = folder / "Sentences" / f"{key}.txt"
    try:
        size, boxes = read_boxes(folder / "Annotations" / f"{key}.xml")
        mentions = [m for line in read_lines(marked) for m in _MENTION.finditer(line)]
    except FileNotFoundError as error:
        report.problem("missing annotation", Path(error.filename).name)
        return False
    except (ElementTree.ParseError, OSError, ValueError) as error:
        report.problem("broken annotation", f"{key} ({error})")
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
    """The size ``(width, height)`` and each entity's box (the union of its boxes) of a Flickr30k Entities XML file.

    The file's pixels count from 1 and both ends are inside: ``xmin..xmax`` becomes ``xmin - 1 .. xmax``.

    Raises:
        ValueError: a part is missing or is not a number (also ``ElementTree.ParseError``); ``OSError``: no such file.
    """
    tree = ElementTree.parse(path).getroot()
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


def tidy(text: str) -> str:
    """Tokenised text with its apostrophes put back: ``the water 's edge`` becomes ``the water's edge``."""
    return _SUFFIX.sub("", text.strip())


def _number(tree: ElementTree.Element, path: str) -> float:
    text = tree.findtext(path)
    if text is None:
        raise ValueError(f"no <{path}>")
    return float(text)


def _sentences(root: Path) -> dict[str, list[str]]:
    """Captions by picture name from ``name.jpg#i<TAB>sentence`` lines."""
    file = find(root, TEXT_FOLDERS, TOKEN_FILES)
    if file is None:
        raise UserError(f"{root}: no {' or '.join(TOKEN_FILES)}")
    found: dict[str, list[str]] = {}
    for line in read_lines(file):
        key, tab, sentence = line.partition("\t")
        if tab and sentence.strip():
            found.setdefault(key.rpartition("#")[0], []).append(tidy(sentence))
    return found

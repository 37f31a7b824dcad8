"""Flickr8k and Flickr30k with the boxes and phrases of Flickr30k Entities.

Each phrase of an entity belongs to the entity's box. If the entity has several boxes ("two dogs"), it belongs to their
union, which is what the phrase describes. Entities without a box (scenes, things not visible) are left out.
"""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree.ElementTree import Element

from saywhere.data.assembly import Annotation
from saywhere.data.files import find, read_lines
from saywhere.data.phrases import Box, unique
from saywhere.errors import UserError
from saywhere.formats.xml_files import read_xml
from saywhere.report import Report

TOKEN_FILES = ("Flickr8k.token.txt", "results_20130124.token")
TEXT_FOLDERS = (".", "Flickr8k_text", "Entities", "flickr30k_entities")
IMAGE_FOLDERS = ("Images", "images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images")
ENTITIES_FOLDERS = ("Entities", "flickr30k_entities", ".")

_MENTION = re.compile(r"\[/EN#(?P<entity>[^/\s]+)/\S+ (?P<phrase>[^\]]*)\]")
_SUFFIX = re.compile(r"\s+(?='(?:s|re|ve|ll|d|m)\b|n't\b)", re.IGNORECASE)


def recognises(root: Path) -> bool:
    """Return whether the folder holds the captions of Flickr8k or Flickr30k."""
    return find(root, TEXT_FOLDERS, TOKEN_FILES) is not None


def splits(root: Path) -> dict[str, Path]:
    """Return the lists of the splits that there are: ``train dev test`` (Flickr8k), ``train val test`` (Flickr30k)."""
    found = {}
    for name in ("train", "dev", "val", "test"):
        if file := find(root, TEXT_FOLDERS, (f"Flickr_8k.{name}Images.txt", f"{name}.txt")):
            found[name] = file
    return found


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of one split, in the order of its list, with boxes in pixels of the XML's ``<size>``."""
    names = [line.strip() for line in read_lines(splits(root)[split]) if line.strip()]
    images = find_images(root)
    entities = next((root / f for f in ENTITIES_FOLDERS if (root / f / "Annotations").is_dir()), None)
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
    """Add the image's Entities; return whether they could be read. If not, they are named in the report."""
    key = Path(annotation.name).stem.split("_")[0]
    marked = folder / "Sentences" / f"{key}.txt"
    try:
        size, boxes = read_boxes(folder / "Annotations" / f"{key}.xml")
        mentions = [m for line in read_lines(marked) for m in _MENTION.finditer(line)]
    except FileNotFoundError as error:
        report.problem("missing annotation", Path(error.filename).name)
        return False
    except (OSError, ValueError) as error:
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
    """Read the size ``(width, height)`` and the box of each entity (the union of its boxes) from an Entities XML file.

    The file counts pixels from 1 and includes both ends: ``xmin..xmax`` becomes ``xmin - 1 .. xmax``.

    Raises:
        OSError: there is no such file.
        ValueError: it is not XML, or a part is missing or is not a number.
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


def tidy(text: str) -> str:
    """Rejoin the apostrophes of tokenised text: ``the water 's edge`` becomes ``the water's edge``."""
    return _SUFFIX.sub("", text.strip())


def _number(tree: Element, path: str) -> float:
    text = tree.findtext(path)
    if text is None:
        raise ValueError(f"no <{path}>")
    return float(text)


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

"""Pascal VOC: an XML file per image, in 1-based pixels, with phrase and scores besides the class of each object."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

from saywhere.files import TOO_LONG, fits
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import (
    OtherShape,
    Row,
    leave_out,
    legal,
    mark_of,
    placed,
    read_xml,
    reader,
    to_regions,
    without_draft,
    write_xml,
)
from saywhere.regions import Regions
from saywhere.report import Report

CORNERS = ("xmin", "ymin", "xmax", "ymax")
FIRST = (1, 1, 0, 0)
"""Offsets of the corners: a box from 0 to 10 covers VOC's pixels 1 to 10."""
OTHER_SHAPES = {"polygon": "polygon", "robndbox": "rotated box"}
"""Elements of LabelMe and roLabelImg in place of ``bndbox``."""


by_name = partial(placed, rename=lambda place: place.with_suffix(".xml"))


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> dict[str, str]:
    """Write a file for each image into a folder; return the images whose names are too long, with that reason."""
    found = by_name(path, images).items()
    return {one.image or "": TOO_LONG for place, one in found if not fits(_write_one, place, one, classes)}


def _write_one(path: Path, regions: Regions, classes: Classes) -> None:
    root = xml.Element("annotation")
    xml.SubElement(root, "filename").text = legal(regions.image)
    size = xml.SubElement(root, "size")
    for tag, value in (("width", regions.width), ("height", regions.height), ("depth", 3)):
        xml.SubElement(size, tag).text = str(value)
    for region, name in zip(regions, classes.labels(regions), strict=True):
        entry = xml.SubElement(root, "object")
        score, sure = (None if v is None else f"{v:.5f}" for v in (region.score, region.caption_score))
        texts = {"name": name, "phrase": region.caption, "score": score, "phrase_score": sure}
        texts["draft"] = mark_of(region, name)
        for tag, text in (texts | {"truncated": "0", "difficult": "0"}).items():
            if text is not None:
                xml.SubElement(entry, tag).text = legal(text)
        box = xml.SubElement(entry, "bndbox")
        for corner, value, first in zip(CORNERS, region.box, FIRST, strict=True):
            xml.SubElement(box, corner).text = f"{value + first:.2f}"
    write_xml(path, root)


@reader("voc")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each ``.xml`` file in a folder; the text is the phrase or, without one, the class.

    An image has its path if it lies beside its file, or as in VOC's own layout in the folder beside that of the files.
    """
    files = sorted(path.rglob("*.xml"))
    if not files and any(path.iterdir()):
        raise ValueError("no file in it ends with .xml")
    names = Classes.of(name for file in files for name in _names(file))
    for file in files:
        with leave_out(report, "broken file", file.relative_to(path)):
            root = read_xml(file)
            size = _text(root, "size/width"), _text(root, "size/height")
            image = _image(file, _text(root, "filename"))
            yield from to_regions(image, size, root.iter("object"), partial(_rows, names), report)


def _names(file: Path) -> list[str | None]:
    """Return the classes of the objects with a phrase in a file; none if it is broken."""
    with suppress(OSError, ValueError):
        return [entry.findtext("name") for entry in read_xml(file).iter("object") if entry.findtext("phrase")]
    return []


def _image(file: Path, name: str) -> str:
    folders = file.parent, *(file.parent.parent / folder for folder in ("JPEGImages", "images"))
    return next((str(folder / name) for folder in folders if name and (folder / name).is_file()), name)


def _rows(classes: Classes, entry: xml.Element) -> Iterator[Row]:
    if entry.find("bndbox") is None and (other := [tag for tag in OTHER_SHAPES if entry.find(tag) is not None]):
        raise OtherShape(OTHER_SHAPES[other[0]])
    corners = zip(CORNERS, FIRST, strict=True)
    x1, y1, x2, y2 = (float(_text(entry, f"bndbox/{corner}")) - first for corner, first in corners)
    phrase = entry.findtext("phrase")
    texts = entry.findtext("score"), entry.findtext("phrase_score") if phrase else None
    score, sure = (float(text) if text else None for text in texts)
    name = entry.findtext("name") if phrase else _text(entry, "name")
    row = Row((x1, y1, x2, y2), phrase or None, score, sure, name)
    yield without_draft(row, entry.findtext("draft"), classes)


def _text(entry: xml.Element, tag: str) -> str:
    found = entry.findtext(tag)
    if found is None:
        raise KeyError(tag)
    return found

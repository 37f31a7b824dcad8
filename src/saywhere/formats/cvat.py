"""CVAT: ``annotations.xml`` ("CVAT for images 1.1"), with phrase and scores as attributes of each box."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path

from saywhere.formats import reading
from saywhere.formats.classes import NOUNS, Classes
from saywhere.regions import Regions
from saywhere.report import Report

CORNERS = ("xtl", "ytl", "xbr", "ybr")
ATTRIBUTES = ("phrase", "score", "phrase_score", "draft")
OF_THE_IMAGE = "tag"
"""The element for a class of the whole image; all other elements are regions."""


def write(path: Path, images: Iterable[Regions], classes: Classes = NOUNS) -> None:
    """Write the boxes of all images, and the classes with their attributes, as a CVAT task declares them."""
    found = list(images)
    root = xml.Element("annotations")
    xml.SubElement(root, "version").text = "1.1"
    known = xml.SubElement(xml.SubElement(xml.SubElement(root, "meta"), "task"), "labels")
    for name in classes.all(found):
        kind = xml.SubElement(known, "label")
        xml.SubElement(kind, "name").text = name
        attributes = xml.SubElement(kind, "attributes")
        for attribute in ATTRIBUTES:
            one = xml.SubElement(attributes, "attribute")
            for tag, text in (("name", attribute), ("mutable", "False"), ("input_type", "text")):
                xml.SubElement(one, tag).text = text
    for number, regions in enumerate(found):
        size = {"width": str(regions.width), "height": str(regions.height)}
        image = xml.SubElement(root, "image", {"id": str(number), "name": reading.legal(regions.image), **size})
        for region, name in zip(regions, classes.labels(regions), strict=True):
            corners = {corner: f"{value:.2f}" for corner, value in zip(CORNERS, region.box, strict=True)}
            kind = {"label": name, "source": "auto", "occluded": "0"}
            box = xml.SubElement(image, "box", {**kind, **corners, "z_order": "0"})
            score, sure = (None if v is None else f"{v:.5f}" for v in (region.score, region.caption_score))
            mark = reading.mark_of(region, name)
            for attribute, text in zip(ATTRIBUTES, (region.caption, score, sure, mark), strict=True):
                if text is not None:
                    xml.SubElement(box, "attribute", name=attribute).text = reading.legal(text)
    reading.write_xml(path, root)


@reading.reader("cvat")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase or, without one, the class."""
    root = reading.read_xml(path)
    if root.find("track") is not None:
        raise ValueError('it has the tracks of a video; export it as "CVAT for images"')
    told = (name.text for name in root.iterfind("meta//label/name"))
    names = Classes.of([*told, *(box.get("label") for box in root.iter("box"))])
    for image in root.iter("image"):
        with reading.leave_out(report, "broken image", image.get("name")):
            size = image.attrib["width"], image.attrib["height"]
            shapes = [shape for shape in image if shape.tag != OF_THE_IMAGE]
            yield from reading.to_regions(image.attrib["name"], size, shapes, partial(_rows, names), report)


def _rows(classes: Classes, shape: xml.Element) -> Iterator[reading.Row]:
    if shape.tag != "box":
        raise reading.OtherShape(shape.tag)
    reading.require_upright(shape.get("rotation"))
    more = {one.attrib["name"]: one.text or "" for one in shape.iter("attribute")}
    x1, y1, x2, y2 = (float(shape.attrib[corner]) for corner in CORNERS)
    phrase = more.get("phrase")
    texts = more.get("score"), more.get("phrase_score") if phrase else None
    score, sure = (float(text) if text else None for text in texts)
    name = shape.attrib["label"]
    row = reading.Row((x1, y1, x2, y2), phrase or None, score, sure, name)
    yield reading.without_draft(row, more.get("draft"), classes)

"""CVAT: ``annotations.xml`` of "CVAT for images 1.1", with the phrase and the score as attributes of each box."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import Row, explain, to_regions, upright
from saywhere.formats.xml_files import legal, write_xml
from saywhere.regions import Regions

CORNERS = ("xtl", "ytl", "xbr", "ybr")


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write the boxes of all images, and the classes with their two attributes as CVAT asks for them in a task."""
    found = list(images)
    root = xml.Element("annotations")
    xml.SubElement(root, "version").text = "1.1"
    known = xml.SubElement(xml.SubElement(xml.SubElement(root, "meta"), "task"), "labels")
    for name in classes(found):
        kind = xml.SubElement(known, "label")
        xml.SubElement(kind, "name").text = name
        attributes = xml.SubElement(kind, "attributes")
        for attribute in ("phrase", "score"):
            one = xml.SubElement(attributes, "attribute")
            for tag, text in (("name", attribute), ("mutable", "False"), ("input_type", "text")):
                xml.SubElement(one, tag).text = text
    for number, regions in enumerate(found):
        size = {"width": str(regions.width), "height": str(regions.height)}
        image = xml.SubElement(root, "image", {"id": str(number), "name": legal(regions.image), **size})
        for region, name in zip(regions, labels(regions), strict=True):
            corners = {corner: f"{value:.2f}" for corner, value in zip(CORNERS, region.box, strict=True)}
            kind = {"label": name, "source": "auto", "occluded": "0"}
            box = xml.SubElement(image, "box", {**kind, **corners, "z_order": "0"})
            score = None if region.score is None else f"{region.score:.5f}"
            for attribute, text in (("phrase", region.caption), ("score", score)):
                if text is not None:
                    xml.SubElement(box, "attribute", name=attribute).text = legal(text)
    write_xml(path, root)


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image; the text is the phrase if there is one, and the class otherwise."""
    with explain(path, "cvat"):
        root = xml.parse(path).getroot()
        if root.find("track") is not None:
            raise ValueError('it has the tracks of a video; export it as "CVAT for images"')
        for image in root.iter("image"):
            width, height = int(image.attrib["width"]), int(image.attrib["height"])
            yield to_regions(image.attrib["name"], width, height, [_row(box) for box in image.iter("box")])


def _row(box: xml.Element) -> Row:
    upright(box.get("rotation"))
    more = {one.attrib["name"]: one.text or "" for one in box.iter("attribute")}
    x1, y1, x2, y2 = (float(box.attrib[corner]) for corner in CORNERS)
    score = more.get("score")
    return Row((x1, y1, x2, y2), more.get("phrase") or box.attrib["label"], float(score) if score else None)

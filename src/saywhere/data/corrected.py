"""Regions drawn or corrected by people: exports of Label Studio (JSON) and CVAT (XML), and XMP sidecars."""

from __future__ import annotations

import json
from pathlib import Path

from saywhere.data.sample import Annotation, unique
from saywhere.formats import xmp
from saywhere.formats.reading import Reader, read_xml
from saywhere.regions import Regions
from saywhere.report import Report

SPLIT = "train"
"""The only split of an export."""


def is_label_studio(root: Path) -> bool:
    """Return whether ``root`` is a JSON file with a list of tasks."""
    if root.suffix.lower() != ".json" or not root.is_file():
        return False
    try:
        tasks = json.loads(root.read_bytes())
    except (ValueError, RecursionError):
        return False
    return isinstance(tasks, list) and bool(tasks) and isinstance(tasks[0], dict) and "data" in tasks[0]


def is_cvat(root: Path) -> bool:
    """Return whether ``root`` is an XML file of annotations, whole or not."""
    if root.suffix.lower() != ".xml" or not root.is_file():
        return False
    try:
        with root.open("rb") as file:
            return b"<annotations" in file.read(1024) or read_xml(root).tag == "annotations"
    except (OSError, ValueError):
        return False


def is_xmp(root: Path) -> bool:
    """Return whether ``root`` is a folder that contains, at any depth, XMP sidecars or images with embedded regions."""
    if not root.is_dir():
        return False
    images = (path for path in root.rglob("*") if path.suffix.lower() in xmp.EMBEDDING)
    return any(map(Path.is_file, root.rglob("*.xmp"))) or any(map(xmp.has_regions, images))


def splits(root: Path) -> list[str]:
    """Return the only split."""
    return [SPLIT]


def read_export(read: Reader, root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of an export, with ``read`` for its format; images are searched beside it and in ``images``."""
    folder = root.parent
    found = [_annotation(regions, _image(folder, regions.image or "")) for regions in read(root, None, report)]
    if lost := next((one for one in found if not one.image.exists()), None):
        places = f"{folder} by their names, with and without folders, and in {folder / 'images'}"
        way_out = f"copy them there, or {root.name} into the folder that has {lost.name}"
        report.notes.append(f"images are looked for in {places}: {way_out}")
    return found


def read_xmp(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images that have regions in a sidecar or embedded."""
    return [_annotation(regions, Path(regions.image or "")) for regions in xmp.read(root, None, report)]


def _annotation(regions: Regions, image: Path) -> Annotation:
    texts = zip(regions.boxes.tolist(), regions.captions or (), strict=True)
    labelled = unique([(tuple(box), caption) for box, caption in texts])
    return Annotation(regions.image or "", image, labelled, size=(regions.width, regions.height))


def _image(folder: Path, name: str) -> Path:
    """Return the first existing path where an export's image may be, or else the simplest one.

    Label Studio prefixes uploaded files with eight digits and a dash.
    """
    base = Path(name).name
    names = [name, f"images/{base}", base, f"images/{base[9:]}", base[9:]]
    return next((folder / one for one in names if (folder / one).is_file()), folder / name)

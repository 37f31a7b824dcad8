"""The formats that results are converted to and from, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from saywhere.files import write_text
from saywhere.formats import coco, cvat, fiftyone, label_studio, table, voc, yolo
from saywhere.formats.reading import checked, explain
from saywhere.regions import Regions


@dataclass(frozen=True)
class Format:
    """Say what a format is and how it is written and read.

    Attributes:
        about: one line for the help.
        write: regions of images to a file, or into a folder.
        read: a file or folder, and the folder of its images, to regions; None if sizes or classes cannot be had back.
        folder: whether it is a folder.
    """

    about: str
    write: Callable[[Path, Iterable[Regions]], None]
    read: Callable[[Path, Path | None], Iterator[Regions]] | None
    folder: bool = False


def _write_lines(path: Path, images: Iterable[Regions]) -> None:
    write_text(path, "".join(json.dumps(regions.to_dict()) + "\n" for regions in images))


def _read_lines(path: Path, images: Path | None = None) -> Iterator[Regions]:
    with explain(path, "saywhere"), path.open(encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield checked(Regions.from_dict(json.loads(line)))


FORMATS: dict[str, Format] = {
    "saywhere": Format("JSON lines, as describe --json writes them", _write_lines, _read_lines),
    "coco": Format("annotations with images and categories", coco.write_annotations, coco.read),
    "coco-results": Format("a list of detections, for COCO's evaluator", coco.write_results, None),
    "label-studio": Format("tasks with predictions, or an export", label_studio.write, label_studio.read),
    "cvat": Format("annotations.xml of CVAT for images 1.1", cvat.write, cvat.read),
    "fiftyone": Format("labels.json of FiftyOneImageDetectionDataset", fiftyone.write, fiftyone.read),
    "yolo": Format("a folder with data.yaml and labels", yolo.write, yolo.read, folder=True),
    "voc": Format("a folder with an XML file for each image", voc.write, voc.read, folder=True),
    "csv": Format("a line for each region", table.write, table.read),
}
"""What the nouns of phrases are classes in, wherever a format has classes."""

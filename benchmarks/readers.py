"""Write results in other programs' formats, read them with those programs' own libraries, and compare.

    python benchmarks/readers.py regions.jsonl --images photos

``regions.jsonl`` is what ``saywhere describe photos --json regions.jsonl`` wrote; the images lie in the folder itself,
not in folders below it. The table marks libraries that are not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import io
import json
import logging
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from saywhere import Regions
from saywhere.formats.registry import FORMATS
from saywhere.report import Report

Found = dict[str, np.ndarray]
"""Of each image, by its name without suffix, the boxes ``(N, 4)`` ``x1 y1 x2 y2`` in pixels."""


def corners(boxes: Sequence[Any]) -> np.ndarray:
    rows = np.array(boxes, float).reshape(-1, 4)
    return np.concatenate((rows[:, :2], rows[:, :2] + rows[:, 2:]), axis=1)


def by_pycocotools(out: Path, images: Path) -> Found:
    from pycocotools.coco import COCO

    truth = COCO(str(out))
    rows = {row["id"]: Path(row["file_name"]).stem for row in truth.loadImgs(truth.getImgIds())}
    boxes = {number: [a["bbox"] for a in truth.loadAnns(truth.getAnnIds([number]))] for number in rows}
    return {name: corners(boxes[number]) for number, name in rows.items()}


def by_supervision(out: Path, images: Path) -> Found:
    import supervision

    data = supervision.DetectionDataset
    if out.is_file():
        found = data.from_coco(str(images), str(out))
    elif (out / "data.yaml").is_file():
        found = data.from_yolo(str(images), str(out / "labels"), str(out / "data.yaml"))
    else:
        found = data.from_pascal_voc(str(images), str(out))
    return {Path(path).stem: np.asarray(one.xyxy, float) for path, one in found.annotations.items()}


def by_label_studio(out: Path, images: Path) -> Found:
    """Validate the predictions against the labeling interface; export them to COCO as corrected annotations are."""
    from label_studio_sdk.converter import Converter
    from label_studio_sdk.label_interface import LabelInterface

    interface, tasks = out.with_suffix(".xml").read_text(encoding="utf-8"), json.loads(out.read_bytes())
    checker = LabelInterface(interface)
    checker.validate()
    for number, task in enumerate(tasks, 1):
        errors = checker.validate_prediction(task["predictions"][0], return_errors=True)
        if errors:
            raise ValueError(errors[0])
        task |= {"id": number, "annotations": [{"id": number, "result": task["predictions"][0]["result"]}]}
    corrected, folder = out.with_name("corrected.json"), out.with_name("exported")
    corrected.write_text(json.dumps(tasks), encoding="utf-8")
    Converter(interface, str(out.parent), upload_dir=str(images)).convert(
        str(corrected), str(folder), "COCO", is_dir=False
    )
    content = json.loads((folder / "result.json").read_bytes())
    boxes: dict[int, list[list[float]]] = {row["id"]: [] for row in content["images"]}
    for row in content["annotations"]:
        boxes[row["image_id"]].append(row["bbox"])
    return {Path(row["file_name"].partition("?d=")[2]).stem: corners(boxes[row["id"]]) for row in content["images"]}


def by_fiftyone(out: Path, images: Path) -> Found:
    """Read with the importer alone, as FiftyOne's database is a separate program."""
    from fiftyone.utils.data.importers import FiftyOneImageDetectionDatasetImporter

    importer = FiftyOneImageDetectionDatasetImporter(data_path=str(images), labels_path=str(out))
    importer.setup()
    found: Found = {}
    with importer:
        for path, _, label in importer:
            regions = described(images / Path(path).name)
            shares = [one.bounding_box for one in label.detections]
            found[Path(path).stem] = corners(shares) * np.tile(regions, 2)
    return found


def described(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.array(image.size, float)


def by_ourselves(format: str) -> Callable[[Path, Path], Found]:
    """Read with ``saywhere convert-results --from``."""
    read = FORMATS[format].read
    assert read is not None
    return lambda out, images: {Path(str(one.image)).stem: one.boxes for one in read(out, images, Report())}


class Reader(NamedTuple):
    package: str
    format: str
    read: Callable[[Path, Path], Found]


READERS = (
    Reader("pycocotools", "coco", by_pycocotools),
    Reader("supervision", "coco", by_supervision),
    Reader("supervision", "yolo", by_supervision),
    Reader("supervision", "voc", by_supervision),
    Reader("label-studio-sdk", "label-studio", by_label_studio),
    Reader("fiftyone", "fiftyone", by_fiftyone),
    *(Reader("saywhere", name, by_ourselves(name)) for name, one in FORMATS.items() if one.read and not one.beside),
)


class Row(NamedTuple):
    """A format as read by a library: None if it is not installed."""

    package: str
    version: str | None
    format: str
    images: int = 0
    regions: int = 0
    distance: float = 0.0

    def __str__(self) -> str:
        if self.version is None:
            return f"| {self.format} | {self.package} | not installed | | |"
        counts = f"{self.images} | {self.regions}"
        return f"| {self.format} | {self.package} {self.version} | {counts} | {self.distance:.3f} |"


def compare(lines: Path, images: Path) -> Iterator[Row]:
    """Yield a row for each reader; ``distance`` is the largest shift of a side of a box, in pixels.

    Raises:
        ValueError: a library has other images or another number of boxes.
    """
    rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    whole = [replace(Regions.from_dict(row), image=Path(row["image"]).name) for row in rows]
    for package, format, read in READERS:
        try:
            version = importlib.metadata.version(package)
            if package == "saywhere" and (needed := {"yolo": "pyyaml", "parquet": "pyarrow"}.get(format)):
                importlib.metadata.version(needed)
        except importlib.metadata.PackageNotFoundError:
            yield Row(package, None, format)
            continue
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            out = Path(folder) / FORMATS[format].name
            FORMATS[format].write(out, whole)
            found = read(out, images.resolve())
        wanted = {Path(str(one.image)).stem: one.boxes for one in whole}
        if {name: len(boxes) for name, boxes in found.items()} != {name: len(boxes) for name, boxes in wanted.items()}:
            raise ValueError(f"{package}: read other regions of {format} than were written")
        far = max((np.abs(found[name] - wanted[name]).max(initial=0) for name in wanted), default=0.0)
        yield Row(package, version, format, len(found), sum(map(len, found.values())), float(far))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--images", type=Path, required=True)
    options = parser.parse_args(arguments)
    logging.disable(logging.WARNING)
    print("| format | read by | images | regions | largest distance of a side, pixels |\n|---|---|---|---|---|")
    for row in compare(options.lines, options.images):
        print(row, flush=True)


if __name__ == "__main__":
    main()

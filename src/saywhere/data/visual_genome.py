"""Visual Genome's ``region_descriptions.json`` (versions 1.0 to 1.4), its images, and their sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from saywhere.data.sample import Annotation, Labelled, find, index_images, number, size_box, text, unique
from saywhere.errors import UserError
from saywhere.files import read_json
from saywhere.report import Report

REGIONS = "region_descriptions.json"
SIZES = "image_data.json"
SPLITS = "densecap_splits.json"
IMAGE_FOLDERS = ("VG_100K", "VG_100K_2", "images/VG_100K", "images/VG_100K_2", "images")


def recognises(root: Path) -> bool:
    """Return whether the folder has the region descriptions."""
    return (root / REGIONS).is_file()


def splits(root: Path) -> list[str]:
    """Return the splits of DenseCap's ``densecap_splits.json``; without that file everything is ``train``."""
    file = find(root, (".", "info"), (SPLITS,))
    return list(read_json(file)) if file else ["train"]


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of one split in the order of the file, with boxes in pixels of the annotated image."""
    folders = [root / name for name in IMAGE_FOLDERS if (root / name).is_dir()]
    if not folders:
        raise UserError(f"{root}: no folder of images; one of {', '.join(IMAGE_FOLDERS)} is expected")
    images = index_images(folders)
    wanted = _wanted(root, split)
    sizes = _sizes(root, report)
    found, seen = list[Annotation](), set[int]()
    for entry in read_json(root / REGIONS, list):
        key = _key(entry)
        if key is None:
            report.problem("broken annotation", f"an entry without an id in {REGIONS}")
        elif wanted is None or key in wanted:
            seen.add(key)
            if key not in sizes:
                report.listed += 1
                report.problem(f"no size in {SIZES}", str(key))
                continue
            image = images.get(f"{key}.jpg", folders[0] / f"{key}.jpg")
            labelled, broken = _regions(entry, report)
            found.append(Annotation(f"{key}.jpg", image, labelled, size=sizes[key], broken=broken))
    for key in sorted((wanted or set()) - seen):
        report.listed += 1
        report.problem("missing annotation", str(key))
    return found


def _wanted(root: Path, split: str) -> set[int] | None:
    """Return the ids of a split; None for all."""
    file = find(root, (".", "info"), (SPLITS,))
    if file is None:
        return None
    ids = read_json(file)[split]
    if not isinstance(ids, list) or not all(isinstance(key, int) for key in ids):
        raise UserError(f"{file}: split {split!r} is not a list of image ids")
    return set(ids)


def _sizes(root: Path, report: Report) -> dict[int, tuple[float, float]]:
    """Return the width and height of the original images by id; boxes are in their pixels."""
    if not (root / SIZES).is_file():
        raise UserError(f"{root / SIZES}: is missing; it has the sizes of the images that were annotated")
    sizes = {}
    for entry in read_json(root / SIZES, list):
        key = _key(entry)
        try:
            width, height = number(entry["width"]), number(entry["height"])
            if key is None or width <= 0 or height <= 0:
                raise ValueError(f"{key}: {width:g} x {height:g}")
        except (KeyError, TypeError, ValueError):
            report.problem(f"broken entry in {SIZES}", str(key))
        else:
            sizes[key] = (width, height)
    return sizes


def _key(entry: Any) -> int | None:
    """Return the id of an image: ``id`` in region descriptions, ``image_id`` in image data (swapped in version 1.0)."""
    if not isinstance(entry, dict):
        return None
    key = entry.get("image_id", entry.get("id"))
    return key if isinstance(key, int) else None


def _regions(entry: dict[str, Any], report: Report) -> tuple[list[Labelled], bool]:
    """Return the regions of an image, and whether some were left out as broken."""
    regions = entry.get("regions")
    if not isinstance(regions, list):
        report.problem("broken annotation", f"{_key(entry)} (no list of regions)")
        return [], True
    found: list[Labelled] = []
    for region in regions:
        try:
            box = size_box([region[side] for side in ("x", "y", "width", "height")])
            found.append((box, text(region["phrase"])))
        except (KeyError, TypeError, ValueError):
            name = region.get("region_id") if isinstance(region, dict) else region
            report.problem("broken region", f"{_key(entry)}: region {name}")
    return unique(found), len(found) < len(regions)

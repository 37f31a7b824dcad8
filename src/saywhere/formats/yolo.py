"""YOLO: ``data.yaml`` with the classes, and in ``labels/`` a text file per image, with fractions of its sides."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from saywhere import archives
from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import TOO_LONG, decode, fits, parse_yaml, split_lines, write_atomically, write_text
from saywhere.formats.classes import NOUNS, Classes
from saywhere.formats.reading import (
    OtherShape,
    Row,
    by_stem,
    in_pixels,
    leave_out,
    numbered,
    reader,
    reason,
    to_regions,
)
from saywhere.images import SUFFIXES, measure
from saywhere.regions import Regions
from saywhere.report import Report

SPLITS = {"train": ("train",), "val": ("val",), "valid": ("val",), "test": ("test",)}
"""Keys of ``data.yaml`` for the folders in ``images/`` that are splits."""


def write(path: Path, images: Iterable[Regions], copy_images: bool = False, classes: Classes = NOUNS) -> dict[str, str]:
    """Write class, centre and size of each region into the folder ``path``; the format has no phrases and scores.

    (Detectors write scores as a sixth column, which training programs refuse.)

    With ``copy_images`` the images are copied to ``images/``; only then does ``data.yaml`` name that folder, for
    training and validation. If all images are in ``images/train/``, ``images/val/`` and the like, so they stay.

    Returns:
        the images that are left out because their names are too long for a file, or because they cannot be copied,
        with the reasons. Raises like :func:`by_stem`.
    """
    found = by_name(images)
    numbers = replace(classes, ids=()).numbers([*found.values()], start=0)
    left_out: dict[str, str] = {}
    for place, regions in found.items():
        shares = geometry.to_center(geometry.scale(regions.boxes, 1 / regions.width, 1 / regions.height)).tolist()
        lines: list[str] = []
        for name, box in zip(classes.labels(regions), shares, strict=True):
            lines.append(" ".join([str(numbers[name]), *(f"{value:.6f}" for value in box)]) + "\n")
        name = regions.image or ""
        if copy_images and (why := _copy(name, path / "images" / place.parent)):
            left_out[name] = why
        elif not fits(write_text, path / "labels" / f"{place}.txt", "".join(lines)):
            left_out[name] = TOO_LONG
    listed = "".join(f"\n  {number}: {json.dumps(name, ensure_ascii=False)}" for name, number in numbers.items())
    splits = sorted({SPLITS.get(str(place.parent), ("train", "val")): place.parent for place in found}.items())
    folders = {key: folder for keys, folder in splits for key in keys}
    some = next(iter(folders.values()), Path())
    folders = {"train": some, "val": some} | folders
    places = "".join(f"{key}: {Path('images', folder).as_posix()}\n" for key, folder in folders.items())
    places = places if copy_images else ""
    write_text(path / "data.yaml", f"{places}names:{listed or ' {}'}\n")
    return left_out


def by_name(images: Iterable[Regions]) -> dict[Path, Regions]:
    """Return the regions of images by name without suffix, in the folder of its split if each image has one.

    The split is the folder in ``images/``: ``images/train/a.jpg``. Raises like :func:`by_stem`.
    """
    rows, splits = list(images), dict[Path, list[Regions]]()
    for regions in rows:
        parts = [*Path(regions.image or "").parts[:-1]]
        inside = parts[len(parts) - parts[::-1].index("images") :][:1] if "images" in parts else []
        splits.setdefault(Path(*inside) if inside and inside[0] in SPLITS else Path(), []).append(regions)
    if Path() in splits:
        splits = {Path(): rows}
    return {split / stem: one for split, some in splits.items() for stem, one in by_stem(some, "YOLO").items()}


def _copy(name: str, folder: Path) -> str | None:
    """Copy an image, which may be in an archive, into a folder; return why that failed, or None."""
    try:
        data = archives.read_member(name)
        data = Path(name).read_bytes() if data is None else data
    except OSError as error:
        return f"cannot be copied: {error.strerror or error}"
    place = folder / Path(name).name
    return None if fits(write_atomically, place, lambda stream: stream.write(data)) else TOO_LONG


@reader("yolo")
def read(path: Path, images: Path | None, report: Report) -> Iterator[Regions]:
    """Yield the regions of each image in ``images`` that has a text file, with the classes as texts.

    Images with the same name, in ``train/`` and ``val/``, are told apart by the folder of the text file.

    ``labels/classes.txt``, where some programs write the classes, is ignored.

    Raises:
        UserError: PyYAML is not installed.
    """
    found = _ImagesByStem(images)
    try:
        names = _names(parse_yaml((path / "data.yaml").read_bytes()))
        numbered(((name, number) for number, name in names.items()), report)
    except ModuleNotFoundError as error:
        raise UserError("reading YOLO's data.yaml needs PyYAML: pip install 'saywhere[yolo]'") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{path / 'data.yaml'}: not in the format yolo: {reason(error)}") from error
    files = sorted((path / "labels").rglob("*.txt"))
    stems = Counter(file.stem for file in files)
    for file in files:
        if file.name == "classes.txt" and file.stem not in found:
            continue
        with leave_out(report, "file that cannot be used", file.relative_to(path)):
            of_image = file.relative_to(path / "labels").with_suffix("")
            place, width, height = found.at(of_image, alone=stems[file.stem] == 1)
            lines = [line.split() for line in split_lines(decode(file.read_bytes())) if line.strip()]
            yield from to_regions(place, (width, height), lines, partial(_rows, names, width, height), report)


class _ImagesByStem:
    """The images in a folder, by name without folder and suffix; raises ``UserError`` if no folder is given."""

    def __init__(self, folder: Path | None) -> None:
        if folder is None:
            raise UserError("the format yolo has no sizes of images: give the folder of the images by --images DIR")
        self._folder, self._found = folder, dict[str, list[Path]]()
        for path in sorted(folder.rglob("*")):
            if path.suffix.lower() in SUFFIXES:
                self._found.setdefault(path.stem, []).append(path)

    def __contains__(self, stem: str) -> bool:
        return stem in self._found

    def at(self, place: Path, alone: bool) -> tuple[str, int, int]:
        """Return path, width and height of the image with the stem and folders of ``place`` (folders ``images`` aside).

        If it is ``alone``, a single image with the stem in other folders will do. Otherwise raises ``UserError``.
        """
        paths = self._found.get(place.name, [])
        folders = [[part for part in path.relative_to(self._folder).parent.parts if part != "images"] for path in paths]
        here = [path for path, parts in zip(paths, folders, strict=True) if parts == list(place.parent.parts)]
        one = here or paths if alone else here
        if len(one) != 1:
            raise UserError(f"{len(one)} images in {self._folder} have this name, and it must be one")
        size = measure(one[0])
        return str(one[0]), size.width, size.height


def _rows(names: dict[int, str], width: int, height: int, parts: list[str]) -> Iterator[Row]:
    if len(parts) > 6 and len(parts) % 2:
        raise OtherShape("polygon")
    if len(parts) not in (5, 6):
        raise ValueError(f"{len(parts)} numbers in a line; a box has 5, or 6 with its score")
    number, score = float(parts[0]), float(parts[5]) if len(parts) == 6 else None
    if number not in names:
        raise ValueError(f"no class has the number {parts[0]}")
    x, y, w, h = (float(part) for part in parts[1:5])
    yield Row(in_pixels((x - w / 2, y - h / 2, w, h), width, height), None, score, label=names[int(number)])


def _names(content: dict[str, Any]) -> dict[int, str]:
    """Return the classes in ``data.yaml`` by number, from a list or a mapping."""
    names = content["names"] or ()
    found = {int(number): name for number, name in (names.items() if isinstance(names, dict) else enumerate(names))}
    for number, name in found.items():
        if isinstance(names, str) or isinstance(name, bool) or not isinstance(name, str | int | float):
            raise ValueError(f"the class {number} is {name!r}, which is not a text; put it in quotes")
    if len(found) < len(names):
        raise ValueError("two classes have one number")
    return {number: str(name) for number, name in found.items()}

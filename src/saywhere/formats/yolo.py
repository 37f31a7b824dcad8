"""YOLO: ``data.yaml`` with the classes, and in ``labels/`` a text file for each image, in shares of its sides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import fits, write_text
from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import ImagesByStem, Row, explain, in_pixels, to_regions
from saywhere.regions import Regions


def write(path: Path, images: Iterable[Regions]) -> list[str]:
    """Write class, centre and size of each region into the folder ``path``; phrases and scores have no place there.

    (A sixth column with scores is what detectors write; programs that train refuse it.)

    Returns:
        the names of images that are too long for such a file; these images are left out.

    Raises:
        UserError: two images have one name in different folders.
    """
    found = list(images)
    names = classes(found)
    numbers = {name: number for number, name in enumerate(names)}
    by_stem: dict[str, Regions] = {}
    for regions in found:
        stem = Path(regions.image or "image").stem
        if stem in by_stem:
            other = by_stem[stem].image
            raise UserError(f"{regions.image} and {other}: YOLO's files have the names of images, which must differ")
        by_stem[stem] = regions
    left_out: list[str] = []
    for stem, regions in by_stem.items():
        shares = geometry.to_center(geometry.scale(regions.boxes, 1 / regions.width, 1 / regions.height)).tolist()
        lines: list[str] = []
        for name, box in zip(labels(regions), shares, strict=True):
            lines.append(" ".join([str(numbers[name]), *(f"{value:.6f}" for value in box)]) + "\n")
        if not fits(write_text, path / "labels" / f"{stem}.txt", "".join(lines)):
            left_out.append(regions.image or "")
    listed = "".join(f"  {number}: {json.dumps(name, ensure_ascii=False)}\n" for name, number in numbers.items())
    write_text(path / "data.yaml", f"path: .\ntrain: images\nval: images\nnames:\n{listed}")
    return left_out


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image under ``images`` that has a text file; the texts are the classes."""
    found = ImagesByStem(images, "yolo")
    with explain(path / "data.yaml", "yolo"):
        names = _names((path / "data.yaml").read_text(encoding="utf-8"))
    for file in sorted((path / "labels").rglob("*.txt")):
        place, width, height = found[file.stem]
        with explain(file, "yolo"):
            rows = [_row(line.split(), names, width, height) for line in file.read_text().splitlines() if line.strip()]
            yield to_regions(place, width, height, rows)


def _row(parts: list[str], names: dict[int, str], width: int, height: int) -> Row:
    if len(parts) not in (5, 6):
        raise ValueError(f"{len(parts)} numbers in a line; a box has 5, or 6 with its score")
    number, score = int(parts[0]), float(parts[5]) if len(parts) == 6 else None
    x, y, w, h = (float(part) for part in parts[1:5])
    return Row(in_pixels((x - w / 2, y - h / 2, w, h), width, height), names[number], score)


def _names(text: str) -> dict[int, str]:
    """The classes in ``data.yaml`` by number: behind ``names:`` in brackets or braces, or in the lines below it."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    first = next((number for number, line in enumerate(lines) if line.startswith("names:")), None)
    if first is None:
        raise KeyError("names")
    inline = lines[first].removeprefix("names:").partition("#")[0].strip()
    entries = inline.strip("[]{}").split(",") if inline else []
    for line in lines[first + 1 :] if not inline else ():
        if not line.startswith((" ", "\t", "-")):
            break
        entries.append(line.strip().removeprefix("-"))
    found: dict[int, str] = {}
    for entry in (entry.strip() for entry in entries if entry.strip()):
        number, colon, name = entry.partition(":")
        numbered = colon and number.isdigit()
        found[int(number) if numbered else len(found)] = _name((name if numbered else entry).strip())
    return found


def _name(text: str) -> str:
    return json.loads(text) if text.startswith('"') else text.strip("'")

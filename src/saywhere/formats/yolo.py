"""YOLO: ``data.yaml`` with the classes, and in ``labels/`` a text file for each image, in shares of its sides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.files import write_text
from saywhere.formats.labels import classes, labels
from saywhere.formats.reading import Row, explain, images_by_stem, in_pixels, to_regions
from saywhere.regions import Regions


def write(path: Path, images: Iterable[Regions]) -> None:
    """Write class, centre, size and score of each region into the folder ``path``; phrases have no place there.

    Raises:
        UserError: two images have one name in different folders.
    """
    found = list(images)
    names = classes(found)
    numbers = {name: number for number, name in enumerate(names)}
    written: dict[str, str] = {}
    for regions in found:
        image = regions.image or "image"
        stem = Path(image).stem
        if stem in written:
            raise UserError(
                f"{image} and {written[stem]}: YOLO's files are named after their images, which must differ"
            )
        written[stem] = image
        shares = geometry.to_center(geometry.scale(regions.boxes, 1 / regions.width, 1 / regions.height)).tolist()
        lines: list[str] = []
        for region, name, box in zip(regions, labels(regions), shares, strict=True):
            score = [] if region.score is None else [f"{region.score:.5f}"]
            lines.append(" ".join([str(numbers[name]), *(f"{value:.6f}" for value in box), *score]) + "\n")
        write_text(path / "labels" / f"{stem}.txt", "".join(lines))
    listed = "".join(f"  {number}: {json.dumps(name, ensure_ascii=False)}\n" for name, number in numbers.items())
    write_text(path / "data.yaml", f"path: .\ntrain: images\nval: images\nnames:\n{listed}")


def read(path: Path, images: Path | None = None) -> Iterator[Regions]:
    """Yield the regions of each image under ``images`` that has a text file; the texts are the classes."""
    found = images_by_stem(images, "yolo")
    with explain(path / "data.yaml", "yolo"):
        names = _names((path / "data.yaml").read_text(encoding="utf-8"))
    for file in sorted((path / "labels").rglob("*.txt")):
        if file.stem not in found:
            raise UserError(f"{file}: no image of this name is in {images}")
        place, width, height = found[file.stem]
        with explain(file, "yolo"):
            rows = [_row(line.split(), names, width, height) for line in file.read_text().splitlines() if line.strip()]
            yield to_regions(str(place), width, height, rows)


def _row(parts: list[str], names: dict[int, str], width: int, height: int) -> Row:
    number, score = int(parts[0]), float(parts[5]) if len(parts) > 5 else None
    x, y, w, h = (float(part) for part in parts[1:5])
    return Row(in_pixels((x - w / 2, y - h / 2, w, h), width, height), names[number], score)


def _names(text: str) -> dict[int, str]:
    """The classes in ``data.yaml``: lines ``NUMBER: name`` below ``names:``, or a list in brackets behind it."""
    _, _, rest = text.partition("names:")
    if not rest:
        raise KeyError("names")
    first, _, below = rest.partition("\n")
    if first.strip():
        return {number: part.strip().strip("'\"") for number, part in enumerate(first.strip().strip("[]").split(","))}
    found: dict[int, str] = {}
    for line in below.splitlines():
        number, colon, name = line.strip().partition(":")
        if not (line[:1].isspace() and colon and number.isdigit()):
            break
        found[int(number)] = _name(name.strip())
    return found


def _name(text: str) -> str:
    return json.loads(text) if text.startswith('"') else text.strip("'")

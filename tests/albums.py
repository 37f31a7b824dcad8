"""Data sets in lines of JSON, with images of noise."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from photographs import noise
from PIL import Image


def write_rows(file: str | Path, *rows: object) -> Path:
    """Write lines of JSON; return the file."""
    (file := Path(file)).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def write_noise(folder: Path, count: int, width: int = 96, height: int = 64, name: str = "{}.png") -> Path:
    """Write images of noise, each another one, named by their numbers, into a folder; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        noise(width, height, number).save(folder / name.format(number))
    return folder


def write_album(
    folder: Path, said: Iterable[Mapping[str, Any]], images: Iterable[Image.Image] | None = None, name: str = "{}.png"
) -> Path:
    """Write a data set of the split dev, or of that which the rows name; return its file.

    Args:
        said: of each image the row, without its name: ``regions``, ``sentences``.
        images: of noise if they are not given.
        name: of the images by their numbers.
    """
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    rows = [{"image": name.format(number), "split": "dev", "regions": [], **row} for number, row in enumerate(said)]
    for row, image in zip(rows, images or (noise(96, 64, number) for number in range(len(rows))), strict=True):
        image.save(folder / row["image"])
    return write_rows(folder / "data.jsonl", *rows)

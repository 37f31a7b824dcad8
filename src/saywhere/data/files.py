"""Parsing that the formats share: folders, lines, JSON, boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from saywhere.data.sample import Box
from saywhere.errors import UserError
from saywhere.regions import LARGEST_SIDE
from saywhere.syntax import decode, parse_json, split_lines


def find(root: Path, folders: Iterable[str], names: Sequence[str]) -> Path | None:
    """Return the first of ``names`` that exists, in the first of ``folders`` under ``root``; None if none does."""
    return next((root / f / name for f in folders for name in names if (root / f / name).exists()), None)


def index_images(folders: Sequence[Path]) -> dict[str, Path]:
    """Return the files of several folders by name; of two with one name, the one in the first folder."""
    return {path.name: path for folder in reversed(folders) for path in folder.iterdir()}


def read_lines(path: Path) -> list[str]:
    """Return the lines of a UTF-8 text file.

    Raises:
        UserError: it is not UTF-8.
    """
    try:
        return split_lines(decode(path.read_bytes()))
    except ValueError as error:
        raise UserError(f"{path} is {error}") from error


def read_json(path: Path, kind: type) -> Any:
    """Return the content of a JSON file.

    Args:
        path: the file.
        kind: of its outermost value, list or dict.

    Raises:
        UserError: it is not JSON, or of another kind.
    """
    try:
        content = parse_json(path.read_bytes())
    except ValueError as error:
        raise UserError(f"{path} is not a JSON file: {error}") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} must be a JSON {kind.__name__}, not a {type(content).__name__}")
    return content


def number(value: object) -> float:
    """Return ``value`` as a float; ``ValueError`` if it is no number, or larger than those of pixels can be."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < LARGEST_SIDE:
        raise ValueError(f"{value!r} is not a number of pixels")
    return float(value)


def corner_box(values: object) -> Box:
    """Return ``[x1, y1, x2, y2]`` as a box; ``ValueError`` if it is something else or inside out."""
    if not isinstance(values, (list, tuple)) or len(values) != 4:
        raise ValueError(f"{values!r} is not a box of four numbers")
    x1, y1, x2, y2 = (number(value) for value in values)
    if x2 < x1 or y2 < y1:
        raise ValueError(f"box {values!r} is inside out")
    return x1, y1, x2, y2


def size_box(values: object) -> Box:
    """Return ``[x, y, width, height]`` as a box; ``ValueError`` if it is something else."""
    if not isinstance(values, (list, tuple)) or len(values) != 4:
        raise ValueError(f"{values!r} is not a box of four numbers")
    x, y, width, height = (number(value) for value in values)
    return corner_box((x, y, x + width, y + height))


def text(value: object) -> str:
    """Return ``value`` if it is a string; ``ValueError`` otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value

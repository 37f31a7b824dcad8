"""Sentences about whole pictures in lines of JSON: what a program said of each, or what is true of each."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from saywhere.errors import UserError


def read_captions(path: Path) -> dict[str, str]:
    """The caption of each picture, by its ``image``.

    A line is ``{"image": NAME, "caption": TEXT}``, or one of ``saywhere describe`` with a single caption, of a box
    around the whole picture.

    Raises:
        UserError: the file cannot be read or is empty, a line is neither, or a picture has two lines.
    """
    found: dict[str, str] = {}
    for where, name, texts in _lines(path):
        if len(texts) != 1:
            raise UserError(f"{where}: {name} has {len(texts)} captions; one sentence about the picture is needed")
        if name in found:
            raise UserError(f"{where}: a second line for {name}")
        found[name] = texts[0]
    return found


def read_references(path: Path) -> dict[str, list[str]]:
    """The true sentences of each picture: ``{"image": NAME, "captions": [TEXT, ...]}``, or a line for each sentence.

    Raises:
        UserError: the file cannot be read or is empty, or a line is malformed.
    """
    found: dict[str, list[str]] = {}
    for _, name, texts in _lines(path):
        found.setdefault(name, []).extend(texts)
    return found


def _lines(path: Path) -> list[tuple[str, str, list[str]]]:
    """Of each line its place, the picture and the sentences."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    rows = [(f"{path} line {number}", line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise UserError(f"{path}: is empty")
    return [(where, *_parsed(where, line)) for where, line in rows]


def _parsed(where: str, line: bytes) -> tuple[str, list[str]]:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: not JSON ({error})") from error
    row = row if isinstance(row, dict) else {}
    texts = [row["caption"]] if "caption" in row else row.get("captions")
    good = isinstance(row.get("image"), str) and isinstance(texts, list) and all(isinstance(t, str) for t in texts)
    if not good:
        raise UserError(f'{where}: neither {{"image": NAME, "caption": TEXT}} nor "captions": [TEXT, ...]')
    return os.path.normpath(row["image"]), texts

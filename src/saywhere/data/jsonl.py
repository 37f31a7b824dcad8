"""A format for your own data: JSON lines, one per image. docs/data.md describes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from saywhere.data.sample import Annotation, Labelled, corner_box, number, read_lines, text, unique
from saywhere.errors import UserError
from saywhere.files import parse_json
from saywhere.report import Report

SPLIT_NAMES = ("train", "dev", "val", "test")


def recognises(root: Path) -> bool:
    """Return whether ``root`` is a ``.jsonl`` file or a folder with one."""
    return bool(_files(root))


def splits(root: Path) -> list[str]:
    """Return the splits of all lines, in order of first occurrence."""
    rows = ((row, file) for file in _files(root) for _, row in _rows(file) if isinstance(row, dict))
    return list(dict.fromkeys(_split(row, file) for row, file in rows))


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of one split in the order of the lines; broken lines are named in the report."""
    found = []
    for file in _files(root):
        for line, row in _rows(file):
            name = f"{file.name}:{line}"
            if isinstance(row, str):
                report.problem("broken line", f"{name} ({row})")
            elif _split(row, file) == split:
                try:
                    found.append(_annotation(row, file, name, report))
                except (KeyError, TypeError, ValueError) as error:
                    reason = f"no {error}" if isinstance(error, KeyError) else error
                    report.listed += 1
                    report.problem("broken line", f"{name} ({reason})")
    return found


def _annotation(row: dict[str, Any], file: Path, name: str, report: Report) -> Annotation:
    image = text(row["image"])
    size = None
    if "width" in row or "height" in row:
        size = number(row["width"]), number(row["height"])
        if min(size) <= 0:
            raise ValueError(f"size {size[0]:g} x {size[1]:g}")
    sentences = tuple(text(sentence) for sentence in _list(row, "sentences"))
    labelled, broken = [], False
    for i, region in enumerate(_list(row, "regions")):
        try:
            labelled += _labelled(region)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            report.problem("broken region", f"{name} region {i} ({reason})")
            broken = True
    return Annotation(image, file.parent / image, unique(labelled), sentences, size, broken)


def _labelled(region: dict[str, Any]) -> list[Labelled]:
    box = corner_box(region["box"])
    references = region["phrases"] if "phrases" in region else [region["phrase"]]
    if not isinstance(references, list) or not references:
        raise ValueError("phrases is not a list of texts")
    return [(box, text(phrase)) for phrase in references]


def _list(row: dict[str, Any], key: str) -> list[Any]:
    value = row.get(key, [])
    if not isinstance(value, list):
        raise ValueError(f"{key} is not a list")
    return value


def _split(row: dict[str, Any], file: Path) -> str:
    return str(row.get("split", file.stem if file.stem in SPLIT_NAMES else "train"))


def _rows(file: Path) -> Iterator[tuple[int, dict[str, Any] | str]]:
    """Yield line numbers, from 1, with rows or with the reason why a line is broken.

    ``UserError`` if all lines are broken, or are results.
    """
    lines = [(i, line) for i, line in enumerate(read_lines(file), start=1) if line.strip()]
    rows = [(i, _row(line)) for i, line in lines]
    if all(isinstance(row, str) for _, row in rows):
        wrong = f"no line is a JSON object (line {rows[0][0]}: {rows[0][1]})" if rows else "it is empty"
        raise UserError(f"{file} is not a file of JSON lines: {wrong}")
    if all(isinstance(row, dict) and "boxes" in row and "regions" not in row for _, row in rows):
        way_out = "correct them in a program such as Label Studio (convert-results --to), and train on its export"
        raise UserError(f"{file}: has results of saywhere describe, and no regions to learn from; {way_out}")
    yield from rows


def _row(line: str) -> dict[str, Any] | str:
    try:
        row = parse_json(line)
    except ValueError as error:
        return f"not JSON: {error}"
    return row if isinstance(row, dict) else "not a JSON object"


def _files(root: Path) -> list[Path]:
    if root.is_dir():
        return sorted(root.glob("*.jsonl"))
    return [root] if root.is_file() and root.suffix == ".jsonl" else []

"""``report.json`` and ``report.md`` of a task: the same figures for programs and for readers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import saywhere
from saywhere.files import write_atomically


def write_report(folder: Path, row: Mapping[str, Any], lines: Sequence[str]) -> None:
    """Write ``report.json`` (``row`` and our version) and ``report.md`` (``lines``), each whole or not at all."""
    texts = {
        "report.json": json.dumps({**row, "saywhere": saywhere.__version__}, indent=2) + "\n",
        "report.md": "\n".join(lines) + "\n",
    }
    for name, text in texts.items():
        data = text.encode("utf-8", "replace")
        write_atomically(folder / name, lambda stream, data=data: stream.write(data))


def table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines of a Markdown table; None is an empty cell."""
    cells = [[cell(value) for value in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|---" * len(head) + "|", *lines[1:]]


def facts(values: Mapping[str, object]) -> list[str]:
    """A table without a head of what is known; empty values and zeros are left out."""
    return table(("", ""), [(name, value) for name, value in values.items() if value])


def cell(value: object) -> str:
    """A value as the text of one cell."""
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    return " ".join(text.split()).replace("|", "\\|")

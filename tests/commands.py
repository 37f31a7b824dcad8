"""Commands as users call them, in this process, and what they write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from saywhere.cli import app


def run(*words: object, code: int = 0) -> Result:
    """Call ``saywhere`` with these words, which is to end with ``code``; what is no error of a user is raised."""
    result = CliRunner().invoke(app, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == code, f"{result.exit_code}: {result.output}"
    return result


def error_of(result: Result) -> str:
    """Return the line of an error, the only one that a command wrote to stderr."""
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1, result.output
    return result.stderr


def rows(file: str | Path) -> list[dict[str, Any]]:
    """Read JSON lines."""
    return [json.loads(line) for line in Path(file).read_text().splitlines()]


def report(folder: str | Path = "out") -> dict[str, Any]:
    """Read the report that ``saywhere evaluate`` wrote into a folder."""
    return json.loads(Path(folder, "report.json").read_text())

"""What must be the same when an evaluation is resumed, or repeated, in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import write_text

SETTINGS = "settings.json"
REPORT = "report.json"


def ensure_same_task(folder: Path, task: str) -> None:
    """Refuse a folder whose report, or whose run that was stopped, is of another task: it would be lost.

    Raises:
        UserError: it is so, or the folder is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, and no folder for results")
    for path in (folder / REPORT, folder / SETTINGS):
        if (other := _read(path).get("task", task)) != task:
            raise UserError(f"{path}: is of the task {other}, not {task}; give another --out, or remove it")


def ensure_same_run(folder: Path, wanted: Mapping[str, object], made: str, task: str | None = None) -> None:
    """Prepare ``folder`` for a run with the settings ``wanted``, a new one or one that is resumed.

    Args:
        folder: of the evaluation.
        wanted: what the results depend on, as JSON can hold it.
        made: the file or folder in it that holds the results; if it is missing or empty, the run is new.
        task: of the evaluation, which is noted for :func:`ensure_same_task`.

    Raises:
        UserError: there are results that were made with other settings.
    """
    results, path = folder / made, folder / SETTINGS
    if any(results.iterdir()) if results.is_dir() else results.exists() and results.stat().st_size:
        known = _read(path)
        if changed := [key for key, value in wanted.items() if known.get(key) != value]:
            what = f"with another {' and another '.join(changed)}" if known else "by an unknown program"
            raise UserError(f"{results}: was made {what}; remove it, or give another --out")
    write_text(path, json.dumps({**({"task": task} if task else {}), **wanted}, indent=2) + "\n")


def _read(path: Path) -> dict[str, Any]:
    """What a file of JSON holds; nothing if it cannot be read."""
    try:
        stored = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}

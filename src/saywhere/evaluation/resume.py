"""What must be the same when an interrupted evaluation is resumed in its folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import write_text

SETTINGS = "settings.json"


def ensure_same_run(folder: Path, wanted: Mapping[str, object], made: str) -> None:
    """Prepare ``folder`` for a run with the settings ``wanted``, a new one or one that is resumed.

    Args:
        folder: of the evaluation.
        wanted: what the results depend on, as JSON can hold it.
        made: the file or folder in it that holds the results; if it is missing or empty, the run is new.

    Raises:
        UserError: there are results that were made with other settings.
    """
    results, path = folder / made, folder / SETTINGS
    if any(results.iterdir()) if results.is_dir() else results.exists() and results.stat().st_size:
        try:
            before = json.loads(path.read_bytes())
        except (OSError, ValueError):
            before = {}
        known = before if isinstance(before, dict) else {}
        if changed := [key for key, value in wanted.items() if known.get(key) != value]:
            what = f"with another {' and another '.join(changed)}" if known else "by an unknown program"
            raise UserError(f"{results}: was made {what}; remove it, or give another --out")
    write_text(path, json.dumps(wanted, indent=2) + "\n")

"""What must be the same when an interrupted evaluation goes on in the folder that it began."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from saywhere.errors import UserError
from saywhere.files import write_text

SETTINGS = "settings.json"


def model_digest(model: Any) -> str:
    """A digest of a model's configuration and weights."""
    import torch

    digest = hashlib.blake2b(json.dumps(model.config.to_dict(), sort_keys=True).encode(), digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(value.detach().cpu().contiguous().reshape(-1).view(dtype=torch.uint8).numpy().data)
    return digest.hexdigest()


def take_up(folder: Path, wanted: Mapping[str, object], made: str) -> None:
    """Prepare ``folder`` for a run with the settings ``wanted``, new or to go on with.

    Args:
        folder: of the evaluation.
        wanted: what the results depend on, as JSON can hold it.
        made: the file or folder in it that holds the results; if it is not there or empty, the run is new.

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

"""What takes seconds to make is made once for all processes of a run of the tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that ``make`` writes, here or in another process; nobody is to change it."""
    folder = Path(os.environ["SAYWHERE_TESTS_SHARED"], name)
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            part = folder.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)  # of what failed
            part.mkdir()
            make(part)
            part.rename(folder)
    return folder

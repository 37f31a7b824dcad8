"""Files that are whole or not there."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield the path of a file to fill, which takes the place of ``path`` at the end, or vanishes after an error.

    Folders are made.

    Raises:
        OSError: naming ``path``, such as a full disk.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield part
        os.replace(part, path)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a file that is at ``path`` when it is complete, and not before; folders are made."""
    with atomic_path(path) as part, open(part, "wb") as stream:
        write(stream)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8; the file is whole or not there."""
    write_atomically(path, lambda stream: stream.write(text.encode()))

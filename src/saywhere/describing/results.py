"""Results on disk: JSON lines that survive a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.regions import Regions


ORIGINAL_SIDE = 720
"""Pixels on the long side of the pictures beside the original program's ``results.json``."""

_BEGINNING = b'{"image":'
"""What each line begins with: only a half line that does is taken for one of ours and cut off."""


class ResultsFile:
    """JSON lines of :meth:`Regions.to_dict`, one a picture, each written whole.

    A file that is there is gone on with: :attr:`done` has the pictures in it, and the half line that a killed run may
    have left at its end is cut off.

    Raises:
        UserError: the file is not one of these, or cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._starts: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        except (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
        try:
            self._take_up()
        except BaseException:
            self.close()
            raise

    def _take_up(self) -> None:
        end, whole = 0, True
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                row = _parsed(line)
                whole = line.endswith(b"\n")
                if row is not None:
                    self._starts[row["image"]] = end
                elif not whole and line[: len(_BEGINNING)] == _BEGINNING[: len(line)]:
                    whole = True  # without this torn line
                    break
                elif line.strip():
                    raise UserError(f"{self.path} line {number} is not a result of saywhere; give another file")
                end += len(line)
        os.ftruncate(self._file, end)
        self._end = end
        if not whole:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        """Append all of ``data``, or nothing of it."""
        try:
            written = 0
            while written < len(data):
                written += os.write(self._file, data[written:])
        except BaseException as error:
            os.ftruncate(self._file, self._end)
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise
        self._end += len(data)

    @property
    def done(self) -> frozenset[str]:
        """Names of the pictures that are in the file."""
        return frozenset(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[Regions]:
        """The results in the order of the file."""
        return (self[name] for name in list(self._starts))

    def __getitem__(self, name: str) -> Regions:
        """The stored result of a picture."""
        from saywhere.regions import Regions

        with open(self.path, "rb") as lines:
            lines.seek(self._starts[name])
            try:
                return Regions.from_dict(json.loads(lines.readline()))
            except ValueError as error:
                raise UserError(f"{self.path}: the result for {name} cannot be used ({error})") from error

    def append(self, regions: Regions, name: str) -> None:
        """Add the result of the picture ``name``; if the disk is full the file is as it was, and OSError is raised."""
        row = {"image": name, **{key: value for key, value in regions.to_dict().items() if key != "image"}}
        try:
            line = (json.dumps(row, ensure_ascii=False) + "\n").encode()
        except UnicodeEncodeError:  # a file name that is not UTF-8
            line = (json.dumps(row) + "\n").encode()
        start = self._end
        self._write(line)
        self._starts[name] = start

    def close(self) -> None:
        """Close the file; nothing is lost if it is not called."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> ResultsFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) and isinstance(row.get("image"), str) and "boxes" in row else None

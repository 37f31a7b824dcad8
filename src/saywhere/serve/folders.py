"""The folders that other programs may read images from, and no file outside them."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import OPENING

FILE_BYTES = 256 << 20
"""Largest file that is read."""


class Folders:
    """Read files below some folders; links in their own paths are followed once. ``UserError`` if one is no folder."""

    def __init__(self, folders: Sequence[str | Path]) -> None:
        for folder in folders:
            if not os.path.isdir(folder):
                raise UserError(f"{folder} is not a folder; give one with images")
        self.roots = tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))

    def resolve(self, path: str) -> str:
        """Return where a file is, without links; a relative path is tried below each folder.

        ``UserError`` if it is outside the folders (by ``..`` or a link, too), or not there.
        """
        shown, inside = path[:200], False
        for root in self.roots:
            try:
                real = os.path.realpath(os.path.join(root, path))
            except (OSError, ValueError):  # a NUL in it
                raise UserError(f"{shown!r} is not a path") from None
            if any(real == one or real.startswith(os.path.join(one, "")) for one in self.roots):
                inside = True
                if os.path.lexists(real):
                    return real
        if not inside:
            raise UserError(f"{shown}: outside the folders of this server ({', '.join(self.roots)})")
        raise UserError(f"{shown}: no such file in the folders of this server ({', '.join(self.roots)})")

    def read(self, path: str) -> bytes:
        """Return the content of a file; ``UserError`` if it is not in the folders, no file, or too large."""
        real, shown = self.resolve(path), path[:200]
        try:
            number = os.open(real, OPENING | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise UserError(f"{shown}: cannot be read ({error.strerror})") from None
        try:
            now = os.fstat(number)
            if not stat.S_ISREG(now.st_mode):
                raise UserError(f"{shown}: is {'a folder' if stat.S_ISDIR(now.st_mode) else 'not a file'}")
            # Another file may have come into its place, or a link into that of a folder, since it was resolved.
            if os.path.realpath(real) != real or not os.path.samestat(now, os.lstat(real)):
                raise UserError(f"{shown}: changed while it was opened; ask again")
            if now.st_size > FILE_BYTES:
                raise UserError(f"{shown}: larger than {FILE_BYTES >> 20} MB; make a smaller copy")
            with os.fdopen(number, "rb", closefd=False) as file:
                return file.read(FILE_BYTES)
        finally:
            os.close(number)

"""Access to images for other programs, limited to files in given folders."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from saywhere.errors import UserError
from saywhere.files import OPENING, TAR

FILE_BYTES = 256 << 20
"""Maximum size of a file that is read, in bytes."""


class Outside(UserError):
    """A path outside the folders, also through ``..`` or a link."""


class Folders:
    """Folders whose files may be read; links in the folders' own paths are resolved once, at construction.

    Raises ``UserError`` if one is not a folder.
    """

    def __init__(self, folders: Sequence[str | Path]) -> None:
        for folder in folders:
            if not os.path.isdir(folder):
                raise UserError(f"{folder}: is not a folder; give one with images")
        self.roots = tuple(dict.fromkeys(os.path.realpath(folder) for folder in folders))

    def resolve(self, path: str) -> str:
        """Return the real path of a file, or of an image in an archive; a relative path is looked up in each folder.

        Raises ``Outside`` if it is outside the folders, another ``UserError`` if it does not exist.
        """
        shown, inside = path[:200], False
        for root in self.roots:
            try:
                real = os.path.realpath(os.path.join(root, path))
            except (OSError, ValueError):  # for instance a NUL in it
                raise UserError(f"{shown!r} is not a path") from None
            if any(real == one or real.startswith(os.path.join(one, "")) for one in self.roots):
                inside = True
                if os.path.lexists(real) or _split(real)[1]:
                    return real
        if not inside:
            raise Outside(f"{shown}: outside the folders of this server ({', '.join(self.roots)})")
        raise UserError(f"{shown}: no such file in the folders of this server ({', '.join(self.roots)})")

    def read(self, path: str) -> bytes:
        """Return the content of a file, or of an image in an archive.

        Raises ``UserError`` if it is outside the folders, not a file, or too large.
        """
        (real, place), shown = _split(self.resolve(path)), path[:200]
        try:
            number = os.open(real, OPENING | getattr(os, "O_NOFOLLOW", 0))
        except OSError as error:
            raise UserError(f"{shown}: cannot be read ({error.strerror})") from None
        try:
            now = os.fstat(number)
            if not stat.S_ISREG(now.st_mode):
                raise UserError(f"{shown}: is {'a folder' if stat.S_ISDIR(now.st_mode) else 'not a file'}")
            # Since it was resolved, it may have been replaced by another file, or one of its folders by a link.
            if os.path.realpath(real) != real or not os.path.samestat(now, os.lstat(real)):
                raise UserError(f"{shown}: changed while it was opened; try again")
            start, size = place or (0, now.st_size)
            if size > FILE_BYTES:
                raise UserError(f"{shown}: larger than {FILE_BYTES >> 20} MB; make a smaller copy")
            with os.fdopen(number, "rb", closefd=False) as file:
                file.seek(start)
                return file.read(size if place else FILE_BYTES)
        finally:
            os.close(number)


def _split(real: str) -> tuple[str, tuple[int, int] | None]:
    """Return an archive and the offset and size of a file in it; for other paths, the path and None."""
    if f"{TAR}/" in real:
        from saywhere import archives

        with contextlib.suppress(OSError):
            if (parts := archives.split(real)) and (place := archives.list_archive(parts[0]).members.get(parts[1])):
                return parts[0], place
    return real, None

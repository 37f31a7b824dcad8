"""Files that are whole or not there, also after a power cut, and names that file systems take."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, ParamSpec

from saywhere.errors import UserError

P = ParamSpec("P")

LONGEST_NAME = 255
"""Bytes of a file's name that file systems take."""
TOO_LONG = "its name is too long for the file that would be written"
"""What is said of an image or a video where :func:`fits` says no."""
NOT_SYNCED = frozenset((errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP))
"""What file systems answer that have no fsync of a file or folder."""
_PART = re.compile(r"\.[0-9a-f]{16}\.part")


def short_name(name: str) -> str:
    """Return 16 letters and digits that stand for a name of any length."""
    import hashlib

    return hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()


def part_of(path: Path) -> Path:
    """Return where a file or folder is written before it takes the place of ``path``: a short hidden name beside it."""
    return path.with_name(f".{short_name(path.name)}.part")


def beside(path: Path, pattern: str) -> Path:
    """Return a path beside ``path``: its name is ``pattern`` with that of ``path``, or its short name, for ``{}``."""
    name = pattern.format(path.name)
    return path.with_name(name if len(os.fsencode(name)) <= LONGEST_NAME else pattern.format(short_name(path.name)))


def fit_name(stem: str, ending: str) -> str:
    """Return ``stem`` and ``ending`` as a file's name, with the end of ``stem`` left out where it would be too long."""
    while len(os.fsencode(stem + ending)) > LONGEST_NAME:
        stem = stem[:-1]
    return stem + ending


def fits(write: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> bool:
    """Call what writes a file; return whether the file could have its name, and was not refused as too long."""
    try:
        write(*arguments, **options)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False
    return True


def printable(name: str) -> str:
    """Return a file name as text that can be printed on one line, also if it is not UTF-8 or has control characters."""
    text = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def sync(file: Path | int) -> None:
    """Wait until the bytes of a file (a path, or open for writing), or the names in a folder, are on the disk."""
    try:
        if isinstance(file, int):
            os.fsync(file)
        elif os.name != "nt":  # where only files that are open for writing can be waited for
            opened = os.open(file, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
    except PermissionError:  # a folder that may be written to, but not read
        return
    except OSError as error:
        if error.errno not in NOT_SYNCED:
            raise


def require_there(file: int, path: Path) -> None:
    """Refuse an open file that was removed meanwhile, for what is written to it is lost when it is closed.

    Raises:
        UserError: it was.
    """
    if os.fstat(file).st_nlink == 0:
        raise UserError(f"{path}: was removed while this run wrote to it; give the same command again")


def put_in_place(part: Path, path: Path) -> None:
    """Give a file or folder its name when all its bytes are on the disk, and wait until the name is, too.

    What is put into a folder that has no name of its own yet is waited for with that folder.
    """
    if any(_PART.fullmatch(folder.name) for folder in path.parents):
        os.replace(part, path)
        return
    if part.is_dir():
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(16) as pool:  # the disk writes together what is waited for at the same time
            list(pool.map(sync, part.rglob("*")))
    sync(part)
    os.replace(part, path)
    sync(path.parent)


@contextmanager
def atomic_path(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield the path of a file to fill, which takes the place of ``path`` at the end, or vanishes after an error.

    Folders are made. After a power cut, too, ``path`` is the old file or the new one. If it is a link, the file that it
    leads to is replaced; the mode of an old file stays. Another process that writes the same file is waited for.

    Args:
        path: of the file.
        folder: fill a new folder instead; there must be none at ``path`` at the end, or an empty one.

    Raises:
        OSError: naming ``path``, such as a full disk.
    """
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    part, held = part_of(place), None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        held = _hold(part, folder)
        yield part
        with suppress(OSError):  # there is none, or its file system has no modes
            os.chmod(part, os.stat(place).st_mode & 0o7777)
        put_in_place(part, place)
    except BaseException as error:
        if held is not None:
            with suppress(OSError):
                _remove(part)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if held is not None and held >= 0:
            os.close(held)


def _hold(part: Path, folder: bool) -> int:
    """Make an empty file or folder that no other process fills: return what holds it until it is closed, or -1."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be renamed either
        _remove(part)
        part.mkdir() if folder else part.touch()
        return -1
    while True:
        if folder:
            part.mkdir(exist_ok=True)
        held = os.open(part, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):  # of a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(held), os.stat(part)):  # and it has not been put in place meanwhile
                    for left_over in part.iterdir() if folder else ():  # by a run that was killed
                        _remove(left_over)
                    if not folder:
                        os.ftruncate(held, 0)
                    return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with all in it, if there is one."""
    if path.is_dir() and not path.is_symlink():
        import shutil

        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let ``write`` fill a file that is at ``path`` when it is complete, and not before; folders are made."""
    with atomic_path(path) as part, open(part, "wb") as stream:
        write(stream)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` as UTF-8; the file is whole or not there."""
    write_atomically(path, lambda stream: stream.write(text.encode()))

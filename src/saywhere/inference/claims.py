"""Write access: claims to parts of a job that several processes share, and file locks.

A claim is a file that only one process can create, on one machine or on many with a shared file system. Its
modification time is a heartbeat. If that has stopped, a claim of the next generation takes over. So no claim is ever
deleted to make room for another, and only one process succeeds.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from saywhere.errors import UserError
from saywhere.files import short_name

T = TypeVar("T")

BEAT = 10.0
"""Seconds between heartbeats."""
STALE = 60.0
"""Seconds without a heartbeat after which a process counts as dead."""
LOCK_WAIT = 5.0
"""Seconds to wait for a lock; a killed process holds its locks until its last thread has ended."""
LOCK_PAUSE = 0.02
"""Seconds between attempts."""
NO_LOCKS = frozenset((errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP))
"""Errors of file systems without locks, such as Lustre without the option ``flock``."""


class LostClaimError(Exception):
    """Another process has taken over this one's work, because it seemed dead."""


class Claim:
    """The right to work on a part, held until it is released; a context manager.

    Attributes:
        generation: number of earlier claims that were taken over.
    """

    def __init__(self, folder: Path, name: str, generation: int) -> None:
        self.folder, self.name, self.generation = folder, name, generation
        self._released = threading.Event()

    @property
    def _lock(self) -> Path:
        return _lock(self.folder, self.name, self.generation)

    def held(self) -> bool:
        """Return whether the claim has not been taken over."""
        return self._lock.exists() and not _lock(self.folder, self.name, self.generation + 1).exists()

    def check(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items while the claim is held; ``LostClaimError`` when it no longer is."""
        for item in items:
            if not self.held():
                raise LostClaimError(self.name)
            yield item

    def _beat(self) -> None:
        while not self._released.wait(BEAT):
            try:
                os.utime(self._lock)
            except FileNotFoundError:
                return
            except OSError:  # a file system that is temporarily unavailable
                continue

    def release(self) -> None:
        """Release the claim; if it was lost, the claims of others stay."""
        self._released.set()
        for generation in range(self.generation, -1, -1):
            _lock(self.folder, self.name, generation).unlink(missing_ok=True)

    def __enter__(self) -> Claim:
        threading.Thread(target=self._beat, daemon=True, name="saywhere-heartbeat").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Claims:
    """Make claims in a shared folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._seen: dict[str, tuple[int, float]] = {}

    def make(self, name: str) -> Claim | None:
        """Claim a part; None if another process works on it, or the folder is gone."""
        before = self._generations(name)
        if before and not self._is_dead(_lock(self.folder, name, before[-1])):
            return None
        claim = Claim(self.folder, name, before[-1] + 1 if before else 0)
        try:
            _lock(self.folder, name, claim.generation).touch(exist_ok=False)
        except (FileExistsError, FileNotFoundError):
            return None
        if self._generations(name)[-1:] != [claim.generation]:  # others took over and finished in the meantime
            _lock(self.folder, name, claim.generation).unlink(missing_ok=True)
            return None
        return claim

    def _generations(self, name: str) -> list[int]:
        try:
            found = [file.rsplit(".", 2) for file in os.listdir(self.folder)]
        except FileNotFoundError:  # merged by another process
            return []
        return sorted(int(parts[1]) for parts in found if parts[::2] == [name, "lock"] and parts[1].isdecimal())

    def _is_dead(self, lock: Path) -> bool:
        """Return whether the heart of a claim has not beaten for a time, by our clock."""
        try:
            beat = lock.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        seen, since = self._seen.setdefault(lock.name, (beat, time.monotonic()))
        if seen != beat:
            self._seen[lock.name] = (beat, time.monotonic())
            return False
        return time.monotonic() - since >= STALE


def _lock(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.lock"


def lock(file: int) -> bool | None:
    """Lock an open file for this process until it is closed; wait briefly for a process that is just ending.

    Returns False if another process has the lock, None if the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # on Windows users must not start two runs at a time
        return True

    def attempt() -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    try:
        return _patiently(attempt, LOCK_WAIT)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise


def _patiently(attempt: Callable[[], T], seconds: float) -> T:
    """Repeat an attempt for some seconds until it returns something true."""
    end = time.monotonic() + seconds
    while not (found := attempt()) and time.monotonic() < end:
        time.sleep(LOCK_PAUSE)
    return found


def claim_file(file: int, path: Path, way_out: str) -> Claim | None:
    """Become the only writer of an open file, until it is closed.

    ``path`` is that of the file, or of the folder it stands for. ``way_out`` is the advice in the ``UserError`` if
    another process is writing.

    Returns:
        None, or on a file system without locks a claim beside the file, to be released when the file is closed.
    """
    locked, claim = lock(file), None
    if locked is None:
        claims = Claims(path.parent)
        claim = _patiently(lambda: claims.make(f".{short_name(path.name)}"), STALE + LOCK_WAIT)
    if not locked and not claim:
        raise UserError(f"{path}: another run is writing to it; {way_out}")
    return claim and claim.__enter__()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Create a folder if needed and keep other runs out of it (``UserError``); the lock ends with the process."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as file:
            claim = claim_file(file.fileno(), folder, "wait for it, or name another folder with --out")
            try:
                if os.fstat(file.fileno()).st_nlink:  # the previous holder has not deleted the folder
                    yield
                    return
            finally:
                if claim is not None:
                    claim.release()

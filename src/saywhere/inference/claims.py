"""Write access: claims to parts of a job that several processes share, and file locks.

A claim is a file that only one process can create, on one machine or on many with a shared file system. Its
modification time is a heartbeat. If its process is gone, or the heartbeat has stopped, a claim of the next generation
takes over. So no claim is ever deleted to make room for another, and only one process succeeds.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from saywhere.errors import UserError
from saywhere.files import short_name

T = TypeVar("T")

BEAT = 10.0
"""Seconds between heartbeats."""
STALE = 120.0
"""Seconds without a heartbeat after which a process on another machine counts as dead."""
LOCK_WAIT = 5.0
"""Seconds to wait for a lock; a killed process holds its locks until its last thread has ended."""
LOCK_PAUSE = 0.02
"""Seconds between attempts."""
NO_LOCKS = frozenset((errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP))
"""Errors of file systems without locks, such as Lustre without the option ``flock``."""
NO_LINKS = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK))
"""Errors of file systems without hard links."""
PROCESSES = Path("/proc")
"""Where the system lists its processes."""


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
            _create(_lock(self.folder, name, claim.generation), json.dumps(owner()))
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
        """Return whether the process of a claim is gone: the system knows its own processes.

        Those of other machines count as dead after a time without heartbeat, by our clock.
        """
        try:
            text, beat = lock.read_text(encoding="utf-8", errors="replace"), lock.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if not text:  # its process was killed before it wrote its identity
            return True
        if (lives := _lives(text)) is not None:
            return not lives
        seen, since = self._seen.setdefault(lock.name, (beat, time.monotonic()))
        if seen != beat:
            self._seen[lock.name] = (beat, time.monotonic())
            return False
        return time.monotonic() - since >= STALE


def _lock(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.lock"


def owner() -> dict[str, Any]:
    """Return the identity of this process for claims."""
    started, _ = _status(os.getpid()) or ("", True)
    return {"host": socket.gethostname(), "place": _place(), "process": os.getpid(), "started": started}


def _place() -> str:
    """Return an id of the current boot and container, shared by processes that see each other; empty if unknown."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _lives(text: str) -> bool | None:
    """Return whether the process with this claim text is alive; None if this machine cannot tell."""
    try:
        holder = json.loads(text)
        place, process, started = holder["place"], holder["process"], holder["started"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    here = _place()
    if not here or place != here or not isinstance(process, int) or not 0 < process < 1 << 31:
        return None
    try:
        os.kill(process, 0)  # only tests for existence
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's process
        pass
    found = _status(process)
    return None if found is None else found == (started, True)


def _status(process: int) -> tuple[str, bool] | None:
    """Return the start time of a process, which distinguishes it from later ones with its id, and whether it works.

    A killed process works until its last thread has ended: it holds its locks although it is already a zombie. None if
    the system does not tell, such as for other users' processes under ``hidepid``.
    """
    try:
        text = (PROCESSES / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[19], fields[0] not in "ZX" or int(fields[17]) > 1


def _create(path: Path, text: str) -> None:
    """Create a file with its text atomically, unless it exists."""
    part = path.with_name(f".{uuid.uuid4().hex}.claim")
    try:
        part.write_text(text, encoding="utf-8")
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno in NO_LINKS:
                with open(path, "x", encoding="utf-8") as stream:
                    stream.write(text)
            elif part.stat().st_nlink < 2:  # otherwise it was created, and only a server's answer was lost
                raise
    finally:
        part.unlink(missing_ok=True)


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
        return _patiently(attempt)
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise


def _patiently(attempt: Callable[[], T]) -> T:
    """Repeat an attempt for a while until it returns something true."""
    end = time.monotonic() + LOCK_WAIT
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
    locked = lock(file)
    if locked is None:
        name = f".{short_name(path.name)}"
        claims = Claims(path.parent)
        if claim := _patiently(lambda: claims.make(name)):
            return claim.__enter__()
        left = f"if that was killed on another machine, remove {name}.*.lock beside it"
        raise UserError(f"{path}: another run is writing to it; {way_out}, or {left}")
    if not locked:
        raise UserError(f"{path}: another run is writing to it; {way_out}")
    return None


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

"""Which process may write: claims to parts of a work that several processes share, and locks of files.

A claim is a file that only one process can make, on one machine or on many with one file system. Its time is its
heartbeat: a claim whose process is gone, or whose heart has stopped, is taken over by a claim of the next generation,
so that no claim is ever removed to make room for another one, and of two processes only one succeeds.
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
"""Seconds between two signs of life."""
STALE = 120.0
"""Seconds without one after which the process of another machine counts as dead."""
LOCK_WAIT = 5.0
"""Seconds that a lock is waited for: a killed process holds its own until the last of its threads has ended."""
LOCK_PAUSE = 0.02
"""Seconds from one try to the next."""
NO_LOCKS = frozenset((errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP))
"""What file systems answer that have no locks, such as Lustre without the option ``flock``."""
NO_LINKS = frozenset((errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK))
"""What file systems answer that have no hard links."""
PROCESSES = Path("/proc")
"""Where the system says what processes there are."""


class LostClaimError(Exception):
    """Another process has taken over what this one works on, because it seemed dead."""


class Claim:
    """The right to work on a part, held until it is released; use it as a context manager.

    Attributes:
        generation: how often it was taken over before.
    """

    def __init__(self, folder: Path, name: str, generation: int) -> None:
        self.folder, self.name, self.generation = folder, name, generation
        self._released = threading.Event()

    @property
    def _lock(self) -> Path:
        return _lock(self.folder, self.name, self.generation)

    def held(self) -> bool:
        """Return whether no other process has taken over."""
        return self._lock.exists() and not _lock(self.folder, self.name, self.generation + 1).exists()

    def check(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items as long as the claim is held; ``LostClaimError`` if it is not any more."""
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
            except OSError:  # a file system that is away for a moment
                continue

    def release(self) -> None:
        """Give up the right; a lost claim leaves those of others alone."""
        self._released.set()
        for generation in range(self.generation, -1, -1):
            _lock(self.folder, self.name, generation).unlink(missing_ok=True)

    def __enter__(self) -> Claim:
        threading.Thread(target=self._beat, daemon=True, name="saywhere-heartbeat").start()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class Claims:
    """Make claims in a folder that all processes see."""

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
        if self._generations(name)[-1:] != [claim.generation]:  # others took over, and were done, since we looked
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
        """Whether a claim's process is gone: on this machine the system knows.

        Of others it is believed when no heartbeat has come for some time by our clock.
        """
        try:
            text, beat = lock.read_text(encoding="utf-8", errors="replace"), lock.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        if not text:  # whoever made it was killed before it could say who it was
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
    """Return what a claim says of this process."""
    started, _ = _status(os.getpid()) or ("", True)
    return {"host": socket.gethostname(), "place": _place(), "process": os.getpid(), "started": started}


def _place() -> str:
    """The machine since its start, and the container, of processes that see each other; empty if it is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _lives(text: str) -> bool | None:
    """Whether the process is there whose claim has this text; None if this machine cannot know."""
    try:
        holder = json.loads(text)
        place, process, started = holder["place"], holder["process"], holder["started"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    here = _place()
    if not here or place != here or not isinstance(process, int) or not 0 < process < 1 << 31:
        return None
    try:
        os.kill(process, 0)  # asks, and sends nothing
    except ProcessLookupError:
        return False
    except PermissionError:  # it is another user's
        pass
    found = _status(process)
    return None if found is None else found == (started, True)


def _status(process: int) -> tuple[str, bool] | None:
    """When a process was started, which tells it from a later one of the same number, and whether it still does work.

    A killed process does until the last of its threads has ended: its locks are held so long, although it is a zombie
    already. None if the system does not say it, as for the processes of others where ``/proc`` has ``hidepid``.
    """
    try:
        text = (PROCESSES / str(process) / "stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return fields[19], fields[0] not in "ZX" or int(fields[17]) > 1


def _create(path: Path, text: str) -> None:
    """Make a file that has its text from the first moment on, if there is none."""
    part = path.with_name(f".{uuid.uuid4().hex}.claim")
    try:
        part.write_text(text, encoding="utf-8")
        try:
            os.link(part, path)
        except OSError as error:
            if error.errno in NO_LINKS:
                with open(path, "x", encoding="utf-8") as stream:
                    stream.write(text)
            elif part.stat().st_nlink < 2:  # else it was made, and only the answer of a server was lost
                raise
    finally:
        part.unlink(missing_ok=True)


def lock(file: int) -> bool | None:
    """Lock an open file for this process, until it is closed; wait a little for a process that is just ending.

    Return whether no other process has it; None if the file system has no locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows, where users start one run at a time
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
    """What an attempt gives, again and again for a while where that is nothing."""
    end = time.monotonic() + LOCK_WAIT
    while not (found := attempt()) and time.monotonic() < end:
        time.sleep(LOCK_PAUSE)
    return found


def claim_file(file: int, path: Path, way_out: str) -> Claim | None:
    """Become the one process that writes to an open file; its lock is given up when it is closed.

    ``path`` is of it, or of the folder that it stands for; ``way_out`` is what the ``UserError`` says to do if another
    process writes to it.

    Returns:
        where the file system has no locks a claim beside the file, to be released when it is closed.
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
    """Make a folder if there is none, and keep other runs out of it (``UserError``); a killed run releases it."""
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "lock").open("a") as file:
            claim = claim_file(file.fileno(), folder, "wait for it, or name another folder with --out")
            try:
                if os.fstat(file.fileno()).st_nlink:  # and the folder was not removed by who had the lock
                    yield
                    return
            finally:
                if claim is not None:
                    claim.release()

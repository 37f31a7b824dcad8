"""Claims to parts of a work that several processes share, on one machine or on many with one file system.

A claim is a file that only one process can make. Its time is its heartbeat: a claim whose process is gone, or whose
heart has stopped, is taken over by a claim of the next generation, so that no claim is ever removed to make room for
another one, and of two processes that take over only one succeeds.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

BEAT = 10.0
"""Seconds between two signs of life."""
STALE = 120.0
"""Seconds without one after which the process of another machine counts as dead."""


class LostClaimError(Exception):
    """Another process has taken over what this one works on, because it seemed dead."""


class Claim:
    """The right to work on a part, held until it is released; use it as a context manager.

    Attributes:
        name: of the part.
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
        """Yield the items as long as the claim is held.

        Raises:
            LostClaimError: it is not any more.
        """
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
    """Make claims in a folder.

    Args:
        folder: that all processes see.
    """

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
            file = os.open(_lock(self.folder, name, claim.generation), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
        except (FileExistsError, FileNotFoundError):
            return None
        with os.fdopen(file, "w", encoding="utf-8") as stream:
            json.dump(owner(), stream)
        if self._generations(name)[-1:] != [claim.generation]:  # others took over, and were done, since we looked
            _lock(self.folder, name, claim.generation).unlink(missing_ok=True)
            return None
        return claim

    def _generations(self, name: str) -> list[int]:
        try:
            found = [file.split(".") for file in os.listdir(self.folder)]
        except FileNotFoundError:  # merged by another process
            return []
        return sorted(int(parts[1]) for parts in found if len(parts) == 3 and (parts[0], parts[2]) == (name, "lock"))

    def _is_dead(self, lock: Path) -> bool:
        """Whether a claim's process is gone.

        On this machine the system knows; of others it is believed when the heartbeat has not come for some time by our
        own clock, since those of machines differ.
        """
        try:
            holder, beat = json.loads(lock.read_text(encoding="utf-8") or "{}"), lock.stat().st_mtime_ns
        except FileNotFoundError:
            return False
        except ValueError:  # killed while it wrote this
            holder, beat = {}, lock.stat().st_mtime_ns
        place = _place()
        if place and holder.get("place") == place:
            return _started(int(holder["process"])) != holder["started"]
        seen, since = self._seen.setdefault(lock.name, (beat, time.monotonic()))
        if seen != beat:
            self._seen[lock.name] = (beat, time.monotonic())
            return False
        return time.monotonic() - since >= STALE


def _lock(folder: Path, name: str, generation: int) -> Path:
    return folder / f"{name}.{generation}.lock"


def owner() -> dict[str, Any]:
    """Return what a claim says of this process."""
    return {"host": socket.gethostname(), "place": _place(), "process": os.getpid(), "started": _started(os.getpid())}


def _place() -> str:
    """What processes that can see each other have in common: the machine since its start, and the container.

    Empty on systems that do not say it; there only heartbeats tell.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{socket.gethostname()} {boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(process: int) -> str:
    """When a process was started, which tells it from a later one of the same number; empty if it is gone."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    state, *fields = text.rpartition(")")[2].split()
    return "" if state in "ZX" else fields[18]

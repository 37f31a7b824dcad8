"""What an index notes of files: of images what they were, of videos also how far they were looked through."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import Any

VIDEOS = """
CREATE TABLE IF NOT EXISTS videos (path BLOB PRIMARY KEY, size INTEGER NOT NULL, time INTEGER NOT NULL,
    hash BLOB NOT NULL, state TEXT NOT NULL)
"""
"""The table of videos; an index from before there were any has none."""
MARK = "\0"
"""Between the path of a video and the time of a moment of it: no path of a file has it."""
AFTER = b"\1"
"""Entries from a path on to the path with this behind it are the file's: the image, or the moments of the video."""


@dataclass(frozen=True)
class Stamp:
    """State of a file when it was embedded.

    Attributes:
        size: in bytes.
        time: of its last change, in nanoseconds.
        hash: of its content; empty if it was replaced while it was embedded, so that the next run embeds it anew. Of a
            video it is empty until the last frame was looked at.
    """

    size: int
    time: int
    hash: bytes = b""


@dataclass(frozen=True)
class Video:
    """Progress through a video.

    Attributes:
        path: of the file, from the root on.
        stamp: of the file.
        every: ticks from one look to the next.
        ticks: of the last look; None before the first one.
        kept: seconds of the last moment that is in the index; None if there is none.
        damage: how many frames could not be read, and the spans of seconds where they are.
    """

    path: str
    stamp: Stamp
    every: int
    ticks: int | None = None
    kept: float | None = None
    damage: tuple[int, list[list[float]]] = field(default_factory=lambda: (0, []))

    def row(self) -> tuple[Any, ...]:
        """Return it as a row of the table."""
        state = {"every": self.every, "ticks": self.ticks, "kept": self.kept, "damage": self.damage}
        return os.fsencode(self.path), self.stamp.size, self.stamp.time, self.stamp.hash, json.dumps(state)

    @classmethod
    def of(cls, path: bytes, size: int, time: int, digest: bytes, state: str) -> Video:
        """Return the video of a row."""
        return cls(os.fsdecode(path), Stamp(size, time, digest), **json.loads(state))


def moment_name(video: str, time: float) -> str:
    """Return the name by which an index knows a moment of a video, in seconds to the millisecond."""
    return f"{video}{MARK}{round(1000 * time):010}"


def split_moment(name: str) -> tuple[str, float | None]:
    """Return the path of an entry and its time; None for an image."""
    path, _, time = name.partition(MARK)
    return path, int(time) / 1000 if time else None

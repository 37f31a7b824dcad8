"""What an index notes of files, whether its vectors are in a folder or on a server."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import NamedTuple

from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors

MARK = "\0"
"""Separates the path of a video from the time of a moment; no path of a file contains it."""
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
        taken: when the photograph was taken, by its EXIF data or else the time of the file, such as
            ``2024-05-01T12:30:00``; empty if it was replaced meanwhile, too.
    """

    size: int
    time: int
    hash: bytes = b""
    taken: str = field(default="", compare=False)


@dataclass(frozen=True)
class Only:
    """Which images of an index are searched; a moment of a video counts as the file.

    Attributes:
        after: the first day, such as ``2024-05-01``; empty for any.
        before: the first day that is too late; empty for none.
        under: names of folders or paths, in one of which an image must be.

    Example:
        >>> only = Only.of(after="2024-05-01", under="holidays/")
        >>> only.accepts("/photos/holidays/a.jpg", "2024-05-01T12:30:00"), only.accepts("/photos/a.jpg", "2024-06-01")
        (True, False)
    """

    after: str = ""
    before: str = ""
    under: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        after: str | date | None = None,
        before: str | date | None = None,
        under: str | Path | Sequence[str | Path] = (),
    ) -> Only:
        """Return the filter of dates and folders as a user gives them; ``UserError`` if something else than a date."""
        folders = [under] if isinstance(under, str | Path) else under
        return cls(_day("after", after), _day("before", before), tuple(_folder(str(folder)) for folder in folders))

    def __bool__(self) -> bool:
        return bool(self.after or self.before or self.under)

    def accepts(self, path: str, taken: str) -> bool:
        """Return whether a file is searched."""
        here = not self.under or any(
            path.startswith(needle) if os.path.isabs(folder) else needle in path
            for folder, needle in zip(self.under, self.needles, strict=True)
        )
        return here and self.after <= taken and (not self.before or taken < self.before)

    @property
    def needles(self) -> tuple[str, ...]:
        """The folders as they stand in a path: from the root on, or anywhere between two separators."""
        return tuple(f"{'' if os.path.isabs(part) else os.sep}{part}{os.sep}" for part in self.under)


def _day(name: str, value: str | date | None) -> str:
    if value is None:
        return ""
    try:
        return (value if isinstance(value, date) else date.fromisoformat(value)).isoformat()[:10]
    except (TypeError, ValueError):
        raise UserError(f"{name} must be a date such as 2024-05-01, not {value!r}") from None


def _folder(text: str) -> str:
    whole = os.path.normpath(text)
    return os.path.abspath(text) if whole == os.curdir or whole.startswith(os.pardir) else whole.rstrip(os.sep)


@dataclass(frozen=True)
class Video:
    """Progress through a video.

    Attributes:
        path: of the file, from the root on.
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

    @property
    def state(self) -> str:
        """The JSON of all but path and stamp."""
        return json.dumps({"every": self.every, "ticks": self.ticks, "kept": self.kept, "damage": self.damage})


def moment_name(video: str, time: float) -> str:
    """Return the name by which an index knows a moment of a video, in seconds to the millisecond."""
    return f"{video}{MARK}{round(1000 * time):010}"


def split_moment(name: str) -> tuple[str, float | None]:
    """Return the path of an entry and its time; None for an image."""
    path, _, time = name.partition(MARK)
    return path, int(time) / 1000 if time else None


class Found(NamedTuple):
    """An image that a search has found.

    Attributes:
        similarity: to the query.
        vectors: of the image, whose name is its path.
        time: of a moment of a video, in seconds; None for an image.
        entry: by which :meth:`saywhere.search.store.Store.locate` finds it again.
        lead: by how many standard deviations the similarity, with what the classes add to it for the order, is above
            the mean of all images that were searched.
        among: number of these.
    """

    similarity: float
    vectors: ImageVectors
    time: float | None
    entry: str = ""
    lead: float = 0.0
    among: int = 0


class Located(NamedTuple):
    """What an entry of an index is: see :class:`Found`, and the ``stamp`` of the file when it was embedded."""

    path: str
    time: float | None
    stamp: Stamp

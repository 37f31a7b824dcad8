"""Index stores: what an index notes of files, and what it asks of the place of its vectors, a folder or a server."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors
from saywhere.search.scan import Question

VIDEOS = """
CREATE TABLE IF NOT EXISTS videos (path BLOB PRIMARY KEY, size INTEGER NOT NULL, time INTEGER NOT NULL,
    hash BLOB NOT NULL, state TEXT NOT NULL)
"""
"""The table of videos; an index from before there were any has none."""
DATES = "CREATE TABLE IF NOT EXISTS dates (path BLOB PRIMARY KEY, taken TEXT NOT NULL)"
"""The table of when images were taken; an index from before it was noted has none."""
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
            ``2024-05-01T12:30:00``; empty if that was not noted.
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
        """Return the filter of dates and folders as a user gives them.

        Raises:
            UserError: something else than a date.
        """
        folders = [under] if isinstance(under, str | Path) else under
        return cls(_day("after", after), _day("before", before), tuple(_folder(str(folder)) for folder in folders))

    def __bool__(self) -> bool:
        return bool(self.after or self.before or self.under)

    @property
    def dated(self) -> bool:
        """Whether it asks for dates."""
        return bool(self.after or self.before)

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


def undated(place: object, count: int) -> UserError:
    """Return the error that dates are asked for which an index does not have."""
    what = "an image has" if count == 1 else f"{count:,} images have"
    return UserError(f"{place}: {what} no date, for an earlier version indexed them; saywhere index PATH... notes them")


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
        entry: by which :meth:`ImageStore.locate` finds it again.
        lead: by how many standard deviations the similarity is above the mean of all images that were searched.
        among: number of these.
    """

    similarity: float
    vectors: ImageVectors
    time: float | None
    entry: str = ""
    lead: float = 0.0
    among: int = 0


class Located(NamedTuple):
    """Source of an entry of an index.

    Attributes:
        path: of the image, or of the video that it is a moment of.
        time: of the moment, in seconds; None for an image.
        stamp: of the file when it was embedded.
    """

    path: str
    time: float | None
    stamp: Stamp


class ImageStore(Protocol):
    """Keep the vectors of images and of moments of videos, and find the nearest ones.

    Images are named by their paths, moments by :func:`saywhere.search.stores.moment_name`. Writing may be for one
    process at a time; others read meanwhile, and see what was written. What was written is kept.
    """

    @property
    def facts(self) -> Mapping[str, str]:
        """What the index was made for: ``digest`` and ``model`` of the vectors, and their ``size``."""
        ...

    @property
    def folder(self) -> Path | None:
        """The folder that has the index; None if it is elsewhere."""
        ...

    def __len__(self) -> int: ...

    def __contains__(self, name: str) -> bool: ...

    def load(self, name: str) -> ImageVectors | None:
        """Return an image, or a moment, as it was embedded; None if it is not in the index."""
        ...

    def locate(self, entry: str) -> Located | None:
        """Return what an entry is, by the name that a search gave it; None if there is none, or not any more."""
        ...

    def nearest(
        self, question: Question, top: int, *, exact: bool = False, threads: int = 1, only: Only | None = None
    ) -> list[Found]:
        """Return the images that fit one query best, best first.

        Args:
            question: of one query.
            top: at most so many.
            exact: take no shortcuts, if the store has any.
            threads: that share the work, where it is done here.
            only: which images are searched; all if None.

        Raises:
            UserError: dates are asked for, and those of some images are not known.
        """
        ...

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamp of every image, by its path; moments have none."""
        ...

    def videos(self) -> dict[str, Video]:
        """Return the videos, by their paths."""
        ...

    def put(self, images: Sequence[tuple[str, Stamp, ImageVectors]], video: Video | None = None) -> None:
        """Add images, in place of those of the same name.

        Args:
            images: with their names.
            video: that the images are moments of, as far as it was looked through.
        """
        ...

    def remove(self, paths: Iterable[str]) -> int:
        """Forget images, and videos with all their moments; return how many of the paths were there."""
        ...

    def restamp(self, stamps: Mapping[str, Stamp]) -> None:
        """Note the stamps of images and videos whose content is as it was."""
        ...

    def tidy(self) -> None:
        """Remove what killed runs have left behind."""
        ...

    def settle(self, components: int | None = None) -> None:
        """Do what is to be done at the end of a run.

        Args:
            components: of codes, where the store has them; 0 for none, None for as many as before.
        """
        ...

    def repair(self) -> int:
        """Forget what is damaged, so that the next run embeds it anew; return how many images and videos that are."""
        ...

    def close(self) -> None:
        """Let go of files or connections; a closed store cannot be used any more."""
        ...


class Place(Protocol):
    """Location of an index. ``str`` of it is its name in messages."""

    @property
    def folder(self) -> Path | None:
        """The folder that has it; None if it is elsewhere."""
        ...

    def exists(self) -> bool:
        """Return whether there is an index."""
        ...

    def open(self, facts: Mapping[str, str] | None = None) -> ImageStore:
        """Return the store, which is made if it is not there.

        Args:
            facts: of a new one, see :class:`ImageStore`. If None, it must be there.

        Raises:
            UserError: there is none, or it cannot be used.
        """
        ...

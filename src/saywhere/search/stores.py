"""Metadata of files in an index, for stores in folders and on servers."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import field
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import normalize

from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors
from saywhere.options import dataclass

MARK = "\0"
"""Separates the path of a video from the time of a frame; no file path contains it."""
AFTER = b"\1"
"""Entries from a path up to the path with this suffix belong to the file: the image, or the frames of the video."""


@dataclass(frozen=True)
class Stamp:
    """State of a file when it was embedded.

    Attributes:
        size: file size in bytes.
        time: modification time in nanoseconds.
        hash: hash of the content. Empty if the file changed during embedding, so that the next run embeds it again, and
            for a video that is not sampled to its end.
        taken: when the photograph was taken, from EXIF or else the file's time, such as ``2024-05-01T12:30:00``; empty
            if the file changed during embedding.
    """

    size: int
    time: int
    hash: bytes = b""
    taken: str = field(default="", compare=False)


@dataclass(frozen=True)
class Only:
    """Filter of the images to search; a video frame counts as its file.

    Attributes:
        after: first date, such as ``2024-05-01``; empty: no limit.
        before: first date that is too late; empty: no limit.
        under: names or paths of folders, one of which an image must be in.

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
        """Return the filter for dates and folders from a user; ``UserError`` for an invalid date."""
        folders = [under] if isinstance(under, str | Path) else under
        forms = (normalize(form, _folder(str(each))) for each in folders for form in ("NFC", "NFD"))  # macOS has NFD
        return cls(_day("after", after), _day("before", before), tuple(dict.fromkeys(forms)))

    def __bool__(self) -> bool:
        return bool(self.after or self.before or self.under)

    def accepts(self, path: str, taken: str) -> bool:
        """Return whether a file passes the filter."""
        here = not self.under or any(
            path.startswith(needle) if os.path.isabs(folder) else needle in path
            for folder, needle in zip(self.under, self.needles, strict=True)
        )
        return here and self.after <= taken and (not self.before or taken < self.before)

    @property
    def needles(self) -> tuple[str, ...]:
        """The folders as substrings of paths: absolute at the beginning, others between two separators anywhere."""
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
        path: absolute path of the file.
        every: ticks between sampled frames.
        ticks: time of the last sampled frame; None before the first.
        kept: time in seconds of the last frame in the index; None if there is none.
        damage: see :attr:`saywhere.video.Damage.facts`.
    """

    path: str
    stamp: Stamp
    every: int
    ticks: int | None = None
    kept: float | None = None
    damage: tuple[Any, ...] = ()

    @property
    def state(self) -> str:
        """JSON of all attributes except path and stamp."""
        return json.dumps({"every": self.every, "ticks": self.ticks, "kept": self.kept, "damage": self.damage})


def moment_name(video: str, time: float) -> str:
    """Return the name of a video frame in an index; its time in seconds is rounded to milliseconds."""
    return f"{video}{MARK}{round(1000 * time):010}"


def split_moment(name: str) -> tuple[str, float | None]:
    """Return the path of an entry and its time in seconds; None for an image."""
    path, _, time = name.partition(MARK)
    return path, int(time) / 1000 if time else None


class Found(NamedTuple):
    """An image found by a search.

    Attributes:
        similarity: similarity to the query.
        vectors: embeddings of the image; its name is its path.
        time: time of a video frame in seconds; None for an image.
        entry: key for :meth:`saywhere.search.store.Store.locate`.
        lead: number of standard deviations of the ranking score (similarity plus noun classifier) above the mean of all
            searched images.
        among: number of searched images.
    """

    similarity: float
    vectors: ImageVectors
    time: float | None
    entry: str = ""
    lead: float = 0.0
    among: int = 0


class Located(NamedTuple):
    """Location of an entry, see :class:`Found`, and the ``stamp`` of the file when it was embedded."""

    path: str
    time: float | None
    stamp: Stamp

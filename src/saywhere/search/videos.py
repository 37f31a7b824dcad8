"""Videos in an index: looked at every so often, and what shows something new kept as an entry with its moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np

from saywhere.errors import UserError
from saywhere.images import LoadedImage, open_image, read_image
from saywhere.models.aligner import ImageVectors
from saywhere.search.stores import ImageStore, Stamp, Video, moment_name
from saywhere.search.vectors import VECTOR

if TYPE_CHECKING:
    from saywhere.video.reading import VideoReader

SAME = 0.93
"""A look is kept if its :func:`likeness` with the last one that was kept is less (docs/search.md)."""
MISSING = "a video needs av, which is not installed: pip install 'saywhere[video]'"


class Ended(NamedTuple):
    """What became of a video: why nothing of it can be read, or what of it could not be; empty if all went well."""

    error: str = ""
    damage: str = ""


class _Look(NamedTuple):
    ticks: int
    time: float
    image: LoadedImage


@dataclass(frozen=True)
class VideoIndexing:
    """Look through videos, and keep what shows something new.

    Attributes:
        store: of the index.
        embed: returns the vectors of images.
        long_side: pixels that frames need on their long side.
        batch: looks at a time; after each batch the index is committed.
    """

    store: ImageStore
    embed: Callable[[list[LoadedImage]], Sequence[ImageVectors]]
    long_side: int
    batch: int

    def add(self, video: Video, name: str, stamp: Callable[[], Stamp]) -> Ended:
        """Look through a video from where ``video`` says on; one that is begun anew replaces what is in the index.

        Args:
            video: as far as an earlier run has come.
            name: for messages.
            stamp: returns what the file is now, with the hash of its content; called at the end.
        """
        try:
            from saywhere.video.reading import Damage, VideoError, VideoReader
        except ModuleNotFoundError:
            return Ended(MISSING)
        try:
            with VideoReader(video.path, name, start=video.ticks or 0) as reader:
                if video.ticks is None:
                    self.store.remove([video.path])
                reader.damage = Damage(video.damage[0], [*video.damage[1]])
                video = self._look_through(reader, video)
                if video.ticks is None:
                    return Ended("not one frame could be read")
                self.store.put((), replace(video, stamp=stamp()))
                return Ended(damage=str(reader.damage) if reader.damage.count else "")
        except VideoError as error:
            return Ended(str(error).removeprefix(f"{name}: "))

    def _look_through(self, reader: VideoReader, video: Video) -> Video:
        kept = None if video.kept is None else self.store.load(moment_name(video.path, video.kept))
        last = None if kept is None else kept.vectors
        for looks in _looks(reader, video, self.long_side, self.batch):
            rows: list[tuple[str, Stamp, ImageVectors]] = []
            for look, seen in zip(looks, self.embed([look.image for look in looks]), strict=True):
                if last is None or likeness(seen.vectors, last) < SAME:
                    rows.append((moment_name(video.path, look.time), Stamp(0, 0), seen))
                    last = seen.vectors.astype(VECTOR).astype(np.float32)  # as the index has them
                    video = replace(video, kept=look.time)
            damage = reader.damage.count, reader.damage.spans
            video = replace(video, ticks=looks[-1].ticks, damage=damage)
            self.store.put(rows, video)
        return replace(video, damage=(reader.damage.count, reader.damage.spans))


def _looks(reader: VideoReader, video: Video, long_side: int, batch: int) -> Iterator[list[_Look]]:
    """Batches of frames: the first at or after each multiple of the time between two looks."""
    due = 0 if video.ticks is None else (video.ticks // video.every + 1) * video.every
    looks: list[_Look] = []
    for frame in reader:
        if frame.ticks < due:
            continue
        due = (frame.ticks // video.every + 1) * video.every
        looks.append(_Look(frame.ticks, frame.time, frame.image(long_side, reader.name)))
        if len(looks) == batch:
            yield looks
            looks = []
    if looks:
        yield looks


def likeness(vectors: np.ndarray, others: np.ndarray) -> float:
    """Return how much of a look another one has: the mean of its regions' cosines with the most similar ones.

    Args:
        vectors: ``(R, D)`` of the look.
        others: ``(S, D)`` of the other one.
    """
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(others, axis=1)
    return float((vectors @ others.T / np.maximum(lengths, 1e-9)).max(axis=1).mean())


def open_found(path: str, time: float | None, long_side: int, file: BinaryIO | None = None) -> LoadedImage:
    """Open an image, or the frame of a video at a moment.

    Args:
        path: of the file.
        time: seconds, to the millisecond; None for an image.
        long_side: pixels that are needed.
        file: opened, as a server has it: it is read instead of what the path may mean by now, and refused if it is
            a large JPEG 2000, which would hold up everybody else.

    Raises:
        UserError: it cannot be read, or not any more.
    """
    if time is None:
        return (
            open_image(path, long_side) if file is None else read_image(file.read(), path, long_side, refuse_slow=True)
        )
    try:
        from saywhere.video.reading import VideoReader
        from saywhere.video.times import to_ticks
    except ModuleNotFoundError:
        raise UserError(f"{path}: {MISSING}") from None
    opened = None if file is None else Path(f"/dev/fd/{file.fileno()}")
    place = opened if opened and opened.exists() else path  # Windows has none
    with VideoReader(place, path, start=max(0, to_ticks(time - 0.0005))) as reader:
        frame = next(iter(reader), None)
        if frame is None:
            raise UserError(f"{path}: has no frame at {time} seconds any more")
        return frame.image(long_side, path)

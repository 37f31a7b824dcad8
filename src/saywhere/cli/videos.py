"""Videos and cameras for ``describe``: what is followed, where it goes, and what is shown of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.loading import DeferredModel
from saywhere.cli.progress import TOO_LONG, printable, progress
from saywhere.errors import UserError
from saywhere.files import fits

if TYPE_CHECKING:
    from saywhere.inference import Source
    from saywhere.video.following import Follower, Recording
    from saywhere.video.reading import VideoReader
    from saywhere.video.results import Places, TracksFile

THRESHOLD = 0.2
"""Least score of the regions that are followed, unless the user says otherwise."""


@dataclass(frozen=True)
class Following:
    """How regions are followed.

    Attributes:
        model: that looks at frames.
        every: time from one look to the next, as the user gave it; None for the default.
        top, threshold: of the regions of a look; ``THRESHOLD`` if None.
        settings: further options that results depend on.
    """

    model: DeferredModel
    every: str | None
    top: int | None
    threshold: float | None
    settings: dict[str, Any]

    def __post_init__(self) -> None:
        if self.every is not None:
            _ = self.ticks  # a wrong time is an error before anything is done

    @property
    def ticks(self) -> int:
        """Ticks from one look to the next."""
        from saywhere.video.times import EVERY, parse_duration, to_ticks

        return to_ticks(EVERY if self.every is None else parse_duration(self.every))

    @property
    def least(self) -> float:
        """The least score."""
        return THRESHOLD if self.threshold is None else self.threshold


class Videos:
    """The videos of a command, and where their results go.

    Args:
        following: how regions are followed.
        out: folder of annotated videos, captions and tracks, or None.
        lines: file of the results of images, or of the tracks of one video; or None.
        options: of the command that only images have, with their values.
    """

    def __init__(self, following: Following, out: Path | None, lines: Path | None, options: Mapping[str, Any]) -> None:
        self._following, self._out, self._lines = following, out, lines
        self._of_images = next((option for option, value in options.items() if value), None)
        self._found: list[tuple[Source, Places | None]] = []

    def take(self, paths: Sequence[str]) -> list[Source]:
        """Find what ``paths`` mean; keeps the videos and returns the images.

        Raises:
            UserError: there is nothing, or no place for the results of all of it.
        """
        from saywhere.inference import find_images
        from saywhere.inference.sources import SUFFIXES as IMAGES
        from saywhere.video import SUFFIXES

        if not paths:
            raise UserError("missing argument 'PATH...'; see saywhere describe --help")
        wanted = IMAGES if self._following.every is None else IMAGES | SUFFIXES
        left_out = [self._out] if self._out else []
        try:
            found = find_images(paths, left_out, wanted)
        except UserError as error:
            raise _explained(error, paths, left_out) from error
        videos = [source for source in found if source.path.suffix.lower() in SUFFIXES]
        images = [source for source in found if source.path.suffix.lower() not in SUFFIXES]
        if videos and self._of_images:
            raise UserError(f"{self._of_images} is for images, and {videos[0].name} is a video")
        if self._lines and (len(videos) > 1 or (images and videos and not self._out)):
            raise UserError(f"--json {self._lines}: holds the tracks of one video alone; give --out DIR for several")
        lines = None if images else self._lines
        self._found = [(source, self._place(source.relative, lines)) for source in videos]
        self._check()
        return images

    def _place(self, relative: Path, lines: Path | None) -> Places | None:
        from saywhere.video.results import Places

        if self._out is None:
            return None if lines is None else Places(lines)
        places = Places.below(self._out, relative)
        return places if lines is None else replace(places, tracks=lines)

    def _check(self) -> None:
        taken: set[Path] = set()
        for source, places in self._found:
            if places is not None:
                if places.tracks in taken:
                    raise UserError(f"{places.tracks}: would be written for two videos; give them two folders")
                taken.add(places.tracks)
                places.check(source.path)

    def describe(self) -> bool:
        """Follow the regions of the videos, one after the other; whether some could not be read, or not all of them."""
        if not self._found:
            return False  # without asking for the extra
        from saywhere.video.reading import VideoError, VideoReader

        notes: list[str] = []
        for source, places in self._found:
            name = printable(source.name)
            try:
                with VideoReader(source.path, source.name) as reader:
                    if not fits(_follow, reader, places, self._following):
                        notes.append(f"skipped: {name}: {TOO_LONG}")
                    elif reader.damage.count:
                        notes.append(f"{name}: {reader.damage}")
            except VideoError as error:
                notes.append(f"skipped: {name}: {printable(str(error).removeprefix(f'{source.name}: '))}")
        for note in notes:
            typer.echo(note, err=True)
        return bool(notes)

    def film(self, camera: str, paths: Sequence[str]) -> None:
        """Follow what a camera sees, until Ctrl-C, which ends the recording in good order.

        Raises:
            UserError: there is no such camera, there is a recording already, or there are other things to describe.
        """
        from saywhere.video.reading import open_camera

        beside = paths[0] if paths else self._of_images
        if beside:
            raise UserError(f"--camera {camera} describes what the camera sees, and not {beside} beside it")
        places = self._place(Path(f"camera-{Path(camera).name}"), self._lines)
        if places is not None:
            if places.tracks.exists() or places.unfinished.exists():
                raise UserError(f"{places.tracks}: is an earlier recording; give another place")
            places.check(None)
        with open_camera(camera) as reader, _ctrl_c() as stopped:
            typer.echo(f"{reader.name}: Ctrl-C ends the recording", err=True)
            _follow(reader, places, self._following, stopped)
            if reader.damage.count:
                typer.echo(f"{reader.name}: {reader.damage}", err=True)


def _explained(error: UserError, paths: Sequence[str], left_out: list[Path]) -> UserError:
    """Why nothing was found: where that is for want of images, there may be videos."""
    from saywhere.inference import find_images
    from saywhere.inference.sources import SUFFIXES as IMAGES
    from saywhere.video import SUFFIXES

    try:
        found = find_images(paths, left_out, IMAGES | SUFFIXES)
    except UserError:
        return error
    video = next(source.name for source in found if source.path.suffix.lower() in SUFFIXES)
    return UserError(f"{video}: give --every TIME, such as --every 0.5s, to describe videos in a folder")


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that Ctrl-C sets, the first time; the second time it interrupts."""
    event = threading.Event()

    def stop(*_: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)


def _follow(
    reader: VideoReader, places: Places | None, following: Following, stopped: threading.Event | None = None
) -> None:
    from saywhere.video.results import TracksFile

    if places is None:
        _show(reader, following, stopped)
        return
    with TracksFile(places, reader.name, _settings(reader, following)) as file:
        if file.done:
            typer.echo(f"{printable(reader.name)}: already in {places.tracks}")
        else:
            _record(reader, file, following, stopped)


def _settings(reader: VideoReader, following: Following) -> dict[str, Any]:
    status = Path(reader.path).stat()
    own = {"--every": following.ticks, "--top": following.top, "--threshold": following.least}
    return {**own, **following.settings, "content of the video": [status.st_size, status.st_mtime_ns]}


def _show(reader: VideoReader, following: Following, stopped: threading.Event | None) -> None:
    """Print the tracks as they end."""
    from saywhere.video.following import Follower
    from saywhere.video.reading import VideoError
    from saywhere.video.times import clock
    from saywhere.video.watching import Watcher

    def show(rows: list[dict[str, Any]]) -> None:
        for row in rows:
            if "track" in row:
                typer.echo(f"{clock(row['start'])}  {clock(row['end'])}  {row['score']:.2f}  {row['phrase']}")

    watch = Watcher(following.model(), following.top, following.least)
    follower = Follower(reader, watch, following.ticks, show, stop=(stopped or threading.Event()).is_set)
    _run(follower, reader, following, resumes=False)
    if not follower.looks:
        raise VideoError(f"{reader.name}: not one frame could be read")
    follower.finish()
    _summarise(follower, reader, [])


def _record(reader: VideoReader, file: TracksFile, following: Following, stopped: threading.Event | None) -> None:
    from saywhere.video.following import Recording
    from saywhere.video.watching import Watcher

    watch = Watcher(following.model(), following.top, following.least)
    recording = Recording(reader, watch, following.ticks, file, (stopped or threading.Event()).is_set)
    try:
        _run(recording, reader, following, resumes=stopped is None)
        recording.finish()
    except BaseException:
        recording.abandon()
        raise
    places = file.places
    _summarise(recording.follower, reader, [p for p in (places.drawing, places.captions, places.tracks) if p])


def _run(run: Follower | Recording, reader: VideoReader, following: Following, resumes: bool) -> None:
    """Go through a video beside a progress bar."""
    from saywhere.video.following import Follower, looks_in
    from saywhere.video.times import clock, to_seconds

    follower = run if isinstance(run, Follower) else run.follower
    total = looks_in(reader.duration, following.ticks)
    with progress(f"describing {printable(Path(reader.name).name)}", total, follower.looks) as advance:
        try:
            for _ in run.run():
                advance()
        except KeyboardInterrupt:
            far = f"{clock(to_seconds(follower.ticks))} of {clock(reader.duration or 0)}"
            again = "; the same command goes on from here" if resumes else ""
            raise KeyboardInterrupt(f"interrupted after {far} of {printable(reader.name)}{again}") from None


def _summarise(follower: Follower, reader: VideoReader, written: Sequence[Path]) -> None:
    counts = {"track": follower.tracks, "scene": follower.scenes, "look": follower.looks}
    tracks, scenes, looks = (f"{count} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    typer.echo(f"{printable(reader.name)}: {tracks} in {scenes}, {looks}")
    if written:
        typer.echo(f"written: {', '.join(map(str, written))}")

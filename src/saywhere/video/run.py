"""A run over videos: which ones, where their results go, and what is printed."""

from __future__ import annotations

import contextlib
import json as json_format
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhere.errors import UserError
from saywhere.files import TOO_LONG, fits, printable
from saywhere.inference.run import TOP, Summary
from saywhere.inference.sources import VIDEO_SUFFIXES, Source, find_images, list_paths, optional_path, results_path
from saywhere.loading import DeferredModel
from saywhere.options import dataclass, require_ints, require_probabilities
from saywhere.report import Tell, counted, progress, silent

if TYPE_CHECKING:  # reading videos needs an extra, which images must not depend on
    from saywhere.models.model import Model
    from saywhere.video.reading import VideoReader
    from saywhere.video.results import Places
    from saywhere.video.tracking import Recording

THRESHOLD = 0.2
"""Default minimum score of tracked regions."""


def follow(
    videos: str | Path | Sequence[str | Path],
    model: str | Path | Model | DeferredModel | None = None,
    *,
    every: str | float | None = None,
    top: int | None = TOP,
    threshold: float | None = None,
    json: str | Path | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    each: Callable[[Mapping[str, Any]], object] | None = None,
    tell: Tell = silent,
) -> Summary:
    """Track the regions of videos, like ``saywhere describe``; calling it again resumes a stopped run.

    Args:
        videos: files, folders or patterns, see :func:`saywhere.inference.find_images`.
        model: name or folder of a model, or the model itself; None: the bundled one.
        every: interval between looks (frames that the model sees), such as ``"0.5s"``, or in seconds.
        top: maximum number of regions per look; 0 or None: all.
        threshold: minimum score of a region; None: ``THRESHOLD``.
        json: file for the tracks and scenes of a single video, as JSON lines (see docs/video.md).
        out: folder for the annotated videos, their captions and their tracks.
        progress: whether to show a progress bar on a terminal.
        each: called with the row of each track and scene when it ends, with the video's name as ``video``; only if
            neither ``json`` nor ``out`` is given.
        tell: called with the lines that the command prints; by default nothing is printed.

    Raises:
        UserError: wrong arguments, no videos, or files that were begun with other options.

    Example:
        >>> rows = []
        >>> print(saywhere.follow("clip.mp4", each=rows.append))
        1 followed
        >>> phrases = [(row["start"], row["end"], row["phrase"]) for row in rows if "track" in row]
    """
    require_ints(0, top=top)
    require_probabilities(threshold=threshold)
    paths = list_paths(videos=videos)
    json, out = results_path(json), optional_path(out=out)
    model = model if isinstance(model, DeferredModel) else DeferredModel(model, part="densecap")
    work = Videos(model, every, top or None, threshold, json, out, bar=progress, each=each, tell=tell)
    work.add(find_images(paths, [out] if out else [], VIDEO_SUFFIXES))
    return work.follow()


@dataclass
class Videos:
    """Videos and cameras to track regions in; for other attributes see :func:`follow`.

    Attributes:
        of_images: a given option that is only for images, or None.
        bar: whether to show a progress bar.
        pass_on_all: whether to call ``each`` also if rows are written to a file, when the video is done.
    """

    model: DeferredModel
    every: str | float | None = None
    top: int | None = TOP
    threshold: float | None = None
    json: Path | None = None
    out: Path | None = None
    of_images: str | None = None
    bar: bool = True
    each: Callable[[Mapping[str, Any]], object] | None = None
    tell: Tell = silent
    pass_on_all: bool = False

    def __post_init__(self) -> None:
        self._found: list[tuple[Source, Places | None]] = []
        self.threshold = THRESHOLD if self.threshold is None else self.threshold
        if self.every is not None:
            _ = self.ticks  # raises early if the time is invalid

    @property
    def ticks(self) -> int:
        """Interval between looks, in ticks."""
        from saywhere.video import EVERY, check_duration, parse_duration, to_ticks

        every = EVERY if self.every is None else self.every
        return to_ticks(parse_duration(every) if isinstance(every, str) else check_duration(every, f"every {every}"))

    def add(self, videos: Sequence[Source], beside: bool = False) -> None:
        """Add videos of :func:`saywhere.inference.find_images`.

        ``beside`` says that there are also images, whose results use the JSON file. Raises ``UserError`` if there is no
        place for the results of all videos.
        """
        if videos and self.of_images:
            raise UserError(f"{self.of_images} is for images; {videos[0].name} is a video")
        if self.json and beside and videos and not self.out:
            tracks = f"the tracks of {videos[0].name}" if len(videos) == 1 else f"the tracks of {len(videos)} videos"
            raise UserError(f"--json {self.json}: takes the lines of the images; for {tracks} give --out DIR as well")
        if self.json and not beside and len(videos) > 1:
            raise UserError(f"--json {self.json}: can hold the tracks of only one video; give --out DIR instead")
        lines = None if beside else self.json
        self._found += [(source, self._place(source.relative, lines)) for source in videos]
        taken: set[Path] = set()
        for source, places in self._found:
            if places is not None:
                if places.tracks in taken:
                    raise UserError(f"{places.tracks}: would be written for two videos; put them into two folders")
                taken.add(places.tracks)
                places.check(source.path)

    def _place(self, relative: Path, lines: Path | None) -> Places | None:
        from saywhere.video.results import Places

        if self.out is None:
            return None if lines is None else Places(lines)
        places = Places.below(self.out, relative)
        return places if lines is None else replace(places, tracks=lines)

    def follow(self) -> Summary:
        """Track the regions of the videos, one video after the other."""
        summary = Summary(len(self._found), verb="followed")
        if not self._found:
            return summary  # before the extra is imported
        from saywhere.video.reading import VideoError, VideoReader
        from saywhere.video.results import ChangedVideoError

        notes: list[str] = []
        for source, places in self._found:
            name, skipped = printable(source.name), None
            try:
                with VideoReader(source.path, source.name) as reader:
                    if not fits(self._follow, reader, places, summary):
                        skipped = TOO_LONG
                    elif reader.damage:
                        summary.damaged[source.name] = str(reader.damage)
                        notes.append(f"{name}: {reader.damage}")
            except (VideoError, ChangedVideoError) as error:
                skipped = str(error).removeprefix(f"{source.name}: ")
            if skipped is not None:
                summary.skipped[source.name] = skipped
                notes.append(f"skipped: {name}: {printable(skipped)}")
        for note in notes:
            self.tell(note, err=True)
        return summary

    def film(self, camera: str, paths: Sequence[str]) -> None:
        """Track what a camera sees, until Ctrl-C, which finishes the recording cleanly.

        Raises ``UserError`` if there is no such camera, if there already is a recording, or if other inputs are given.
        """
        from saywhere.video.reading import open_camera

        beside = paths[0] if paths else self.of_images
        if beside:
            raise UserError(f"--camera {camera} cannot be combined with {beside}; leave out one of them")
        places = self._place(Path(f"camera-{Path(camera).name}"), self.json)
        if places is not None:
            if places.tracks.exists() or places.unfinished.exists():
                raise UserError(f"{places.tracks}: is an earlier recording; give another place")
            places.check(None)
        with open_camera(camera) as reader, _ctrl_c() as stopped:
            self.tell(f"{reader.name}: Ctrl-C ends the recording", err=True)
            self._follow(reader, places, Summary(), stopped)
            if reader.damage:
                self.tell(f"{reader.name}: {reader.damage}", err=True)

    def _follow(
        self, reader: VideoReader, places: Places | None, summary: Summary, stopped: threading.Event | None = None
    ) -> None:
        """Track one video; its tracks go to files or, without places, are passed on as they end."""
        from saywhere.video import Damage
        from saywhere.video.results import TracksFile
        from saywhere.video.tracking import Recording, Watcher

        with contextlib.ExitStack() as stack:
            path = None if stopped is not None else Path(reader.path)
            file = places and stack.enter_context(TracksFile(places, reader.name, self._settings(reader), path))
            if places and file and file.done:
                self.tell(f"{printable(reader.name)}: already in {places.tracks}")
                self._pass_on_from(places)
                summary.already += 1
                reader.damage = Damage(*file.damage or ())
                return
            watch, stop = Watcher(self.model(), self.top, self.threshold), (stopped or threading.Event()).is_set
            recording = Recording(reader, watch, self.ticks, file or partial(self._pass_on, reader.name), stop)
            try:
                self._run(recording, reader, resumes=places is not None and stopped is None)
                recording.finish()
            except BaseException:
                recording.abandon()
                raise
        counts = {"track": recording.tracks, "scene": recording.scenes, "look": recording.looks}
        tracks, scenes, looks = (counted(count, name) for name, count in counts.items())
        self.tell(f"{printable(reader.name)}: {tracks} in {scenes}, {looks}")
        if written := [path for path in (places.drawing, places.captions, places.tracks) if path] if places else []:
            self.tell(f"written: {', '.join(map(str, written))}")
        if places:
            self._pass_on_from(places)
        summary.done += 1
        summary.written += written

    def _settings(self, reader: VideoReader) -> dict[str, Any]:
        from saywhere.video.results import CONTENT

        status = Path(reader.path).stat()
        own = {"--every": self.ticks, "--top": self.top, "--threshold": self.threshold}
        return {**own, **self.model.facts, CONTENT: [status.st_size, status.st_mtime_ns]}

    def _pass_on(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        if self.each is not None:
            for row in rows:
                self.each({"video": name, **row})

    def _pass_on_from(self, places: Places) -> None:
        if self.pass_on_all:
            with open(places.tracks, "rb") as lines:
                for line in lines:
                    self._pass_on("", [json_format.loads(line)])

    def _run(self, recording: Recording, reader: VideoReader, resumes: bool) -> None:
        """Process a video with a progress bar."""
        from saywhere.video import clock, to_seconds, to_ticks

        total = 1 if reader.duration is None else max(1, -(-to_ticks(reader.duration) // self.ticks))
        title = f"describing {printable(Path(reader.name).name)}"
        with progress(title, total, recording.looks, self.bar) as advance:
            try:
                for _ in recording.run():
                    advance()
            except KeyboardInterrupt:
                far = f"{clock(to_seconds(recording.ticks))} of {clock(reader.duration or 0)}"
                again = "; run it again to continue" if resumes else ""
                raise KeyboardInterrupt(f"interrupted after {far} of {printable(reader.name)}{again}") from None


@contextlib.contextmanager
def _ctrl_c() -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C sets; the second one interrupts."""
    event = threading.Event()

    def stop(*_: object) -> None:
        event.set()
        signal.signal(signal.SIGINT, before)

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield event
    finally:
        signal.signal(signal.SIGINT, before)

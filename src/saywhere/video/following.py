"""Follow the regions of one video, and write their tracks and the drawn video."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saywhere.video.reading import Damage, Frame, VideoError, VideoReader
from saywhere.video.results import TracksFile, write_captions
from saywhere.video.times import TICKS
from saywhere.video.tracking import Tracker, Watcher
from saywhere.video.writing import DrawnVideo, Mark

if TYPE_CHECKING:
    pass

LOOKS_A_PART = 20
"""Looks from one state on the disk to the next: what is done again after a kill."""


class Follower:
    """Follow the regions of one video.

    Memory does not grow with its length: what has ended is passed on at once.

    Args:
        reader: of the video.
        watch: called with the frames that are looked at.
        every: ticks from one look to the next: the first frame at or after each multiple of them is looked at.
        keep: called with the rows of what has ended.
        drawing: the annotated video, or None.
        state: of an earlier run, from :meth:`state`; the reader begins at its ``ticks``.
        stop: asked before each frame whether to stop there, as if it were the last one.

    Attributes:
        looks, tracks, scenes: how many there were.
        ticks: of the last look.
    """

    def __init__(
        self,
        reader: VideoReader,
        watch: Watcher,
        every: int,
        keep: Callable[[list[dict[str, Any]]], object],
        drawing: DrawnVideo | None = None,
        state: Mapping[str, Any] | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reader, self._watch, self._every, self._keep, self._drawing = reader, watch, every, keep, drawing
        self._stop = stop
        self._tracker = Tracker()
        self.looks = self.tracks = self.ticks = 0
        self._due = 0
        self._end = 0
        if state is not None:
            self._tracker = Tracker.from_dict(state["tracker"])
            self.looks, self.tracks, self.ticks = state["looks"], state["tracks"], state["ticks"]
            self._due = self.ticks // every * every + every
            reader.damage = Damage(state["damage"]["count"], state["damage"]["spans"])
            if drawing is not None:
                drawing.look(self.ticks, self._marks())

    @property
    def scenes(self) -> int:
        """How many scenes there were."""
        return self._tracker.scene

    def state(self) -> dict[str, Any]:
        """Return what is needed to go on from the last look."""
        damage = {"count": self._reader.damage.count, "spans": self._reader.damage.spans}
        numbers = {"looks": self.looks, "tracks": self.tracks, "ticks": self.ticks, "damage": damage}
        parts = None if self._drawing is None else self._drawing.parts
        return {**numbers, "parts": parts, "tracker": self._tracker.to_dict()}

    def run(self) -> Iterator[int]:
        """Go through the video; yields the number of looks after each."""
        for frame in self._reader:
            if self._stop():
                return
            if frame.ticks >= self._due:
                self._look(frame)
                yield self.looks
            if self._drawing is not None:
                self._drawing.add(frame)
            self._end = frame.ticks + (frame.duration or TICKS // 25)

    def _look(self, frame: Frame) -> None:
        seen = self._watch(frame.image(self._watch.long_side, self._reader.name))
        self._pass_on(self._tracker.update(frame.ticks, seen))
        self.ticks = frame.ticks
        self._due = frame.ticks // self._every * self._every + self._every
        self.looks += 1
        if self._drawing is not None:
            self._drawing.look(frame.ticks, self._marks())

    def finish(self) -> None:
        """End the tracks that go on, and the last part of the annotated video."""
        self._pass_on(self._tracker.finish(max(self._end, self.ticks)))
        if self._drawing is not None:
            self._drawing.end_part()

    def _pass_on(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.tracks += sum("track" in row for row in rows)
            self._keep(rows)

    def _marks(self) -> list[Mark]:
        return [Mark(t.number, tuple(t.box.tolist()), t.phrase) for t in self._tracker.visible()]


class Recording:
    """One video followed from where an earlier run was stopped, and finished, with its files if it has some.

    Args:
        reader: of the video, beginning at its first frame.
        watch: see :class:`Follower`.
        every: see :class:`Follower`.
        file: of the tracks, with the state of an earlier run; or what is called with their rows, as of a follower.
        stop: see :class:`Follower`.
    """

    def __init__(
        self,
        reader: VideoReader,
        watch: Watcher,
        every: int,
        file: TracksFile | Callable[[list[dict[str, Any]]], object],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._file, keep = (file, file.append) if isinstance(file, TracksFile) else (None, file)
        self._name, self._drawing = reader.name, None
        state = None if self._file is None else self._file.state
        if self._file is not None and self._file.places.drawing is not None:
            parts = 0 if state is None else state["parts"]
            self._drawing = DrawnVideo(self._file.places.unfinished, parts)
        reader.start = 0 if state is None else state["ticks"]
        self.follower = Follower(reader, watch, every, keep, self._drawing, state, stop)

    def run(self) -> Iterator[int]:
        """Go through the video, and keep the state now and then; yields the number of looks after each."""
        for looks in self.follower.run():
            if looks % LOOKS_A_PART == 0 and self._file is not None:
                if self._drawing is not None:
                    self._drawing.end_part()
                self._file.keep(self.follower.state())
            yield looks

    def abandon(self) -> None:
        """Drop the part of the annotated video that is being written; the state on the disk is before it."""
        if self._drawing is not None:
            self._drawing.abandon()

    def finish(self) -> None:
        """Write what is left: the last tracks, the annotated video and the captions.

        Raises:
            VideoError: there was no frame to look at; no file is left.
        """
        if not self.follower.looks:
            self.abandon()
            if self._file is not None:
                self._file.discard()
            raise VideoError(f"{self._name}: not one frame could be read")
        self.follower.finish()
        if self._file is None:
            return
        places = self._file.places
        if self._drawing is not None and places.drawing is not None:
            self._drawing.join(places.drawing)
        if places.captions is not None:
            write_captions(places.captions, places.tracks)
        self._file.finish()

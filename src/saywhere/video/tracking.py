"""Regions followed from look to look by overlap and looks, until they are gone or the scene changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.images import LoadedImage
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.regions import Regions
from saywhere.video import TICKS, to_seconds
from saywhere.video.reading import Damage, Frame, VideoError, VideoReader
from saywhere.video.results import TracksFile, write_captions
from saywhere.video.writing import DrawnVideo, Mark

CELLS = 3
"""The scene is compared in so many cells across and down."""


@dataclass(frozen=True, eq=False)
class Look:
    """What was seen in one frame.

    Attributes:
        regions: with scores, captions and features ``(N, D)``.
        scene: ``(CELLS * CELLS, E)``, the trunk's map in the cells of a grid, as vectors of regions.
    """

    regions: Regions
    scene: np.ndarray


class Watcher:
    """Look at frames with a model, each encoded once; ``UserError`` if it describes no regions.

    Args:
        model: with the part ``densecap``. If it has an aligner, scenes are compared by its region vectors, which tell
            a cut from a moving camera better than the dense captioner's embeddings do.
        top, threshold: of the regions, as :meth:`saywhere.Model.describe` takes them.
    """

    def __init__(self, model: Model, top: int | None = None, threshold: float | None = None) -> None:
        self._detector = model.require("densecap", "describe videos")
        self._model, self._top, self._threshold = model, top, threshold
        self.long_side = model.long_side

    def __call__(self, image: LoadedImage) -> Look:
        """Return what the model sees in ``image``."""
        seen = self._model.encode(image)
        regions = self._model.describe(seen, top=self._top, threshold=self._threshold)
        return Look(regions, self._scene(seen))

    def _scene(self, seen: Encoding) -> np.ndarray:
        steps = np.arange(CELLS, dtype=np.float32) / CELLS
        corners = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        cells = np.concatenate((corners, corners + np.float32(1 / CELLS)), axis=1)
        if self._model.aligner is not None:
            boxes = cells * np.array([seen.width, seen.height] * 2, np.float32)
            return self._model.embed(seen, boxes).vectors[1:]  # without the whole image
        boxes = cells * np.array([*seen.input_size] * 2, np.float32)
        return self._detector.region_head([seen.maps], [boxes])[0].embeddings


LEAST_IOU, LEAST_COSINE = 0.1, 0.6
"""A region may be the same only from this overlap with where it is expected and this cosine of the features on ..."""
LEAST_SUM = 1.0
"""... and from this sum of both on."""
PATIENCE = 2
"""A track that was not seen in so many looks in a row has ended when it was first missed."""
SAME_SCENE = 0.72
"""Least mean cosine of the cells of two looks at one scene: a moving camera gives 0.88 and more, a cut 0.6 and less."""
MOST_BOXES = 256
"""Most boxes that are kept of a track; of more, every other one is dropped, so that memory is bounded."""
MOST_PHRASES = 32
"""Most phrases of a track that are counted; of more, those with the fewest votes are dropped."""


@dataclass
class Track:
    """A region over time.

    Attributes:
        number: of the track, from 1.
        scene: number of the scene that it is in, from 1.
        start: tick of the look at which it was first seen.
        votes: for each phrase the sum of its scores.
        looks: at how many it was seen, and ``total``, the sum of the scores.
        ticks, boxes: when it was where; every look, or every second, fourth, ... (``stride``).
        box, velocity: at the last look, and pixels a tick.
        seen: tick of the last look that saw it.
        missed: looks since then, the first of them at tick ``end``.
        vector: ``(D,)``, a running mean of its features.
    """

    number: int
    scene: int
    start: int
    seen: int
    box: np.ndarray
    vector: np.ndarray
    votes: dict[str, float] = field(default_factory=dict[str, float])
    looks: int = 0
    total: float = 0.0
    ticks: list[int] = field(default_factory=list[int])
    boxes: list[list[float]] = field(default_factory=list[list[float]])
    stride: int = 1
    velocity: np.ndarray = field(default_factory=lambda: np.zeros(4, np.float32))
    missed: int = 0
    end: int = 0

    @property
    def phrase(self) -> str:
        """The phrase with the most votes."""
        return max(self.votes, key=lambda phrase: self.votes[phrase])

    @property
    def score(self) -> float:
        """The mean score."""
        return self.total / self.looks

    def expected(self, ticks: int) -> np.ndarray:
        """Return where it should be at a tick, if it goes on as it did."""
        return self.box + self.velocity * np.float32(ticks - self.seen)

    def see(self, ticks: int, box: np.ndarray, vector: np.ndarray, phrase: str, score: float) -> None:
        """Add a look."""
        if ticks > self.seen:
            self.velocity = (0.5 * (self.velocity + (box - self.box) / (ticks - self.seen))).astype(np.float32)
        self.vector = (0.5 * (self.vector + vector)).astype(np.float32)
        self.box, self.seen, self.missed = box, ticks, 0
        if self.looks % self.stride == 0:
            self.ticks.append(ticks)
            self.boxes.append([round(value, 1) for value in box.tolist()])
            if len(self.boxes) > MOST_BOXES:
                self.ticks, self.boxes, self.stride = self.ticks[::2], self.boxes[::2], 2 * self.stride
        self.looks += 1
        self.total += score
        self.votes[phrase] = self.votes.get(phrase, 0.0) + score
        if len(self.votes) > MOST_PHRASES:
            others = [p for p in self.votes if p != phrase]
            del self.votes[min(others, key=lambda p: self.votes[p])]

    def miss(self, ticks: int) -> None:
        """Note a look that did not see it."""
        if not self.missed:
            self.end = ticks
        self.missed += 1

    def row(self) -> dict[str, Any]:
        """Return the JSON form; times in seconds."""
        return {
            "track": self.number,
            "scene": self.scene,
            "start": to_seconds(self.start),
            "end": to_seconds(self.end),
            "phrase": self.phrase,
            "score": round(self.score, 4),
            "looks": self.looks,
            "times": [to_seconds(ticks) for ticks in self.ticks],
            "boxes": self.boxes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for :meth:`from_dict`."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in self.__dict__.items()}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Track:
        """Return the track that :meth:`to_dict` gave, to the last bit."""
        arrays = {name: np.array(row[name], np.float32) for name in ("box", "vector", "velocity")}
        return cls(**{**row, **arrays})


@dataclass
class Tracker:
    """Follow regions; what has ended is handed out and forgotten.

    Attributes:
        tracks: those that go on.
        number: of the last track, and ``scene`` of this scene.
        begun: tick at which this scene began, and ``looks`` at it.
        before: the last look's scene.
    """

    tracks: list[Track] = field(default_factory=list[Track])
    number: int = 0
    scene: int = 0
    begun: int = 0
    looks: int = 0
    before: np.ndarray | None = None

    def update(self, ticks: int, look: Look) -> list[dict[str, Any]]:
        """Add a look; return the rows of what has ended: tracks, and after them their scene if it is over."""
        ended: list[dict[str, Any]] = []
        if self.before is None or _cosines(self.before, look.scene).diagonal().mean() < SAME_SCENE:
            ended = self.finish(ticks)
            self.scene, self.begun, self.looks = self.scene + 1, ticks, 0
        self.before = look.scene
        self.looks += 1
        self._follow(ticks, look)
        lost = [track for track in self.tracks if track.missed >= PATIENCE]
        self.tracks = [track for track in self.tracks if track.missed < PATIENCE]
        return ended + [track.row() for track in lost if track.looks > 1]

    def _follow(self, ticks: int, look: Look) -> None:
        regions = look.regions
        captions, scores, features = regions.captions, regions.scores, regions.features
        assert captions is not None and scores is not None and features is not None
        pairs = self._pairs(ticks, regions.boxes, features)
        missed = set(range(len(self.tracks))) - pairs.keys()
        new = set(range(len(regions))) - set(pairs.values())
        for row, column in pairs.items():
            seen = regions.boxes[column], features[column], captions[column], float(scores[column])
            self.tracks[row].see(ticks, *seen)
        for row in missed:
            self.tracks[row].miss(ticks)
        for column in sorted(new):
            self.number += 1
            box, vector = regions.boxes[column], features[column]
            track = Track(self.number, self.scene, ticks, ticks, box, vector)
            track.see(ticks, box, vector, captions[column], float(scores[column]))
            self.tracks.append(track)

    def _pairs(self, ticks: int, boxes: np.ndarray, features: np.ndarray) -> dict[int, int]:
        """The region of each track that has one: the pair that fits best first, each track and region once."""
        if not self.tracks or not len(boxes):
            return {}
        expected = np.stack([track.expected(ticks) for track in self.tracks])
        overlaps = np.maximum(
            geometry.iou(expected, boxes), geometry.iou(np.stack([track.box for track in self.tracks]), boxes)
        )
        cosines = _cosines(np.stack([track.vector for track in self.tracks]), features)
        fit = np.where((overlaps >= LEAST_IOU) & (cosines >= LEAST_COSINE), overlaps + cosines, 0)
        pairs: dict[int, int] = {}
        taken: set[int] = set()
        for place in np.argsort(-fit, axis=None, kind="stable").tolist():
            row, column = divmod(place, len(boxes))
            if fit[row, column] < LEAST_SUM:
                break
            if row not in pairs and column not in taken:
                pairs[row] = column
                taken.add(column)
        return pairs

    def finish(self, ticks: int) -> list[dict[str, Any]]:
        """End all tracks and the scene at a tick; return their rows, without tracks that one of several looks saw."""
        if not self.scene or not self.looks:
            return []
        for track in self.tracks:
            track.miss(ticks)
        rows = [track.row() for track in self.tracks if track.looks > 1 or self.looks == 1]
        self.tracks, self.looks = [], 0
        return [*rows, {"scene": self.scene, "start": to_seconds(self.begun), "end": to_seconds(ticks)}]

    def visible(self) -> list[Track]:
        """Return the tracks that the last look saw, the first seen first."""
        return [track for track in self.tracks if not track.missed]

    def to_dict(self) -> dict[str, Any]:
        """Return everything, for :meth:`from_dict`."""
        before = None if self.before is None else self.before.tolist()
        return {**self.__dict__, "before": before, "tracks": [track.to_dict() for track in self.tracks]}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Tracker:
        """Return the tracker that :meth:`to_dict` gave, to the last bit."""
        before = None if row["before"] is None else np.array(row["before"], np.float32)
        return cls(**{**row, "before": before, "tracks": [Track.from_dict(track) for track in row["tracks"]]})


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Cosines ``(N, M)`` of the rows of both."""
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return a @ b.T / np.maximum(lengths, 1e-9)


LOOKS_A_PART = 20
"""Looks from one state on the disk to the next: what is done again after a kill."""


class Recording:
    """One video followed from where an earlier run was stopped, and finished, with its files if it has some.

    Memory does not grow with its length: what has ended is passed on at once.

    Args:
        reader: of the video, beginning at its first frame.
        watch: called with the frames that are looked at.
        every: ticks from one look to the next: the first frame at or after each multiple of them is looked at.
        file: of the tracks, with the state of an earlier run; or what is called with the rows of what has ended.
        stop: asked before each frame whether to stop there, as if it were the last one.

    Attributes:
        looks, tracks: how many there were.
        ticks: of the last look.
    """

    def __init__(
        self,
        reader: VideoReader,
        watch: Watcher,
        every: int,
        file: TracksFile | Callable[[list[dict[str, Any]]], object],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._reader, self._watch, self._every, self._stop = reader, watch, every, stop
        self._file, self._keep = (file, file.append) if isinstance(file, TracksFile) else (None, file)
        self._tracker, self._drawing = Tracker(), None
        self.looks = self.tracks = self.ticks = 0
        self._due = self._end = 0
        state = None if self._file is None else self._file.state
        if self._file is not None and self._file.places.drawing is not None:
            parts = 0 if state is None else state["parts"]
            self._drawing = DrawnVideo(self._file.places.unfinished, parts)
        if state is not None:
            self._tracker = Tracker.from_dict(state["tracker"])
            self.looks, self.tracks, self.ticks = state["looks"], state["tracks"], state["ticks"]
            self._due = self.ticks // every * every + every
            reader.damage = Damage(state["damage"]["count"], state["damage"]["spans"])
            if self._drawing is not None:
                self._drawing.look(self.ticks, self._marks())
        reader.start = self.ticks

    @property
    def scenes(self) -> int:
        """How many scenes there were."""
        return self._tracker.scene

    def _state(self) -> dict[str, Any]:
        """What is needed to go on from the last look."""
        damage = {"count": self._reader.damage.count, "spans": self._reader.damage.spans}
        numbers = {"looks": self.looks, "tracks": self.tracks, "ticks": self.ticks, "damage": damage}
        parts = None if self._drawing is None else self._drawing.parts
        return {**numbers, "parts": parts, "tracker": self._tracker.to_dict()}

    def run(self) -> Iterator[int]:
        """Go through the video, and keep the state now and then; yields the number of looks after each."""
        for frame in self._reader:
            if self._stop():
                return
            if frame.ticks >= self._due:
                self._look(frame)
                if self.looks % LOOKS_A_PART == 0 and self._file is not None:
                    if self._drawing is not None:
                        self._drawing.end_part()
                    self._file.keep(self._state())
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

    def _pass_on(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.tracks += sum("track" in row for row in rows)
            self._keep(rows)

    def _marks(self) -> list[Mark]:
        return [Mark(t.number, tuple(t.box.tolist()), t.phrase) for t in self._tracker.visible()]

    def abandon(self) -> None:
        """Drop the part of the annotated video that is being written; the state on the disk is before it."""
        if self._drawing is not None:
            self._drawing.abandon()

    def finish(self) -> None:
        """Write the last tracks, the annotated video and the captions; ``VideoError``, and no file, without a frame."""
        if not self.looks:
            self.abandon()
            if self._file is not None:
                self._file.discard()
            raise VideoError(f"{self._reader.name}: not one frame could be read")
        self._pass_on(self._tracker.finish(max(self._end, self.ticks)))
        if self._drawing is not None:
            self._drawing.end_part()
        if self._file is None:
            return
        places = self._file.places
        if self._drawing is not None and places.drawing is not None:
            self._drawing.join(places.drawing)
        if places.captions is not None:
            write_captions(places.captions, places.tracks)
        self._file.finish()

"""Tracking of regions from look to look by overlap and appearance, until they disappear or the scene changes.

A look is a frame that the model sees; the frames between two looks are only drawn on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.drawing import UNSURE
from saywhere.images import LoadedImage
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.regions import Regions
from saywhere.video import TICKS, Damage, to_seconds
from saywhere.video.reading import Frame, VideoError, VideoReader
from saywhere.video.results import TracksFile, write_captions
from saywhere.video.writing import DrawnVideo, Mark

CELLS = 3
"""Number of grid cells, across and down, in which scenes are compared."""


@dataclass(frozen=True, eq=False)
class Look:
    """The model's view of one frame.

    Attributes:
        regions: the regions, with scores, captions and features ``(N, D)``.
        scene: ``(CELLS * CELLS, E)``, region vectors of the cells of a grid.
    """

    regions: Regions
    scene: np.ndarray


class Watcher:
    """Look at frames with a model, encoding each once; raises ``UserError`` if the model describes no regions.

    Args:
        model: a model with the part ``densecap``. Scenes are compared by the aligner's region vectors, if it has one:
            they tell a cut from a moving camera better than the dense captioner's embeddings.
        top, threshold: arguments of :meth:`saywhere.Model.describe`.
    """

    def __init__(self, model: Model, top: int | None = None, threshold: float | None = None) -> None:
        self._detector = model.require("densecap", "describe videos")
        self._model, self._top, self._threshold = model, top, threshold
        self.long_side = model.long_side

    def __call__(self, image: LoadedImage) -> Look:
        """Return the look at ``image``."""
        seen = self._model.encode(image)
        regions = self._model.describe(seen, top=self._top, threshold=self._threshold)
        return Look(regions, self._scene(seen))

    def _scene(self, seen: Encoding) -> np.ndarray:
        steps = np.arange(CELLS, dtype=np.float32) / CELLS
        corners = np.stack(np.meshgrid(steps, steps), axis=-1).reshape(-1, 2)
        cells = np.concatenate((corners, corners + np.float32(1 / CELLS)), axis=1)
        if self._model.aligner is not None:
            boxes = cells * np.array([seen.width, seen.height] * 2, np.float32)
            return self._model.embed(seen, boxes).vectors[1:]  # the first one is the whole image
        boxes = cells * np.array([*seen.input_size] * 2, np.float32)
        return self._detector.region_head([seen.maps], [boxes])[0].embeddings


LEAST_IOU, LEAST_COSINE = 0.1, 0.6
"""Minimum IoU with a track's expected or last box, and minimum cosine of the features, for a region to continue it."""
LEAST_FIRST = 0.6
"""The same for the cosine with the track's first features: what has turned into something else is another track."""
LEAST_SUM = 1.0
"""Minimum sum of that IoU and cosine."""
PATIENCE = 2
"""Number of consecutive looks without a track after which it has ended, at the first of them."""
SAME_SCENE = 0.72
"""Minimum mean cosine of the cells of two looks at one scene: a moving camera gives 0.88 or more, a cut 0.6 or less."""
MOST_BOXES = 256
"""Maximum number of boxes kept for a track; beyond it every other box is dropped, to bound memory."""
MOST_PHRASES = 32
"""Maximum number of phrases with votes in a track; beyond it the phrase with the fewest votes is dropped."""


@dataclass
class Track:
    """A region over time.

    Attributes:
        number: number of the track, from 1.
        scene: number of its scene, from 1.
        start: tick of the first look that saw it.
        votes: sum of the scores of each phrase, times the probabilities of its words.
        words: for each phrase these probabilities, as their sum and number; empty if the model gives none.
        looks: number of looks that saw it; ``total`` is the sum of its scores.
        ticks, boxes: times and boxes, of every look, or every second, fourth, ... (``stride``).
        box, velocity: box at the last look that saw it, and its change in pixels per tick.
        seen: tick of the last look that saw it.
        missed: number of looks since then, the first of them at tick ``end``.
        vector: ``(D,)``, running mean of its features.
        first: ``(D,)``, features at the first look that saw it.
    """

    number: int
    scene: int
    start: int
    seen: int
    box: np.ndarray
    vector: np.ndarray
    first: np.ndarray
    votes: dict[str, float] = field(default_factory=dict[str, float])
    words: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])
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

    @property
    def caption_score(self) -> float | None:
        """The mean probability that the words of the phrase are right; None if the model gives none."""
        total, count = self.words.get(self.phrase, (0.0, 0))
        return total / count if count else None

    def expected(self, ticks: int) -> np.ndarray:
        """Return the box expected at a tick, by constant velocity."""
        return self.box + self.velocity * np.float32(ticks - self.seen)

    def see(
        self, ticks: int, box: np.ndarray, vector: np.ndarray, phrase: str, score: float, sure: float | None = None
    ) -> None:
        """Add a look that saw the track; ``sure`` is the probability that the words of the phrase are right."""
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
        self.votes[phrase] = self.votes.get(phrase, 0.0) + score * (1.0 if sure is None else sure)
        if sure is not None:
            total, count = self.words.get(phrase, (0.0, 0))
            self.words[phrase] = total + sure, count + 1
        if len(self.votes) > MOST_PHRASES:
            least = min((p for p in self.votes if p != phrase), key=lambda p: self.votes[p])
            del self.votes[least]
            self.words.pop(least, None)

    def miss(self, ticks: int) -> None:
        """Add a look that did not see the track."""
        if not self.missed:
            self.end = ticks
        self.missed += 1

    def row(self) -> dict[str, Any]:
        """Return the JSON form, with times in seconds."""
        sure = {} if self.caption_score is None else {"caption_score": round(self.caption_score, 4)}
        return {
            "track": self.number,
            "scene": self.scene,
            "start": to_seconds(self.start),
            "end": to_seconds(self.end),
            "phrase": self.phrase,
            "score": round(self.score, 4),
            **sure,
            "looks": self.looks,
            "times": [to_seconds(ticks) for ticks in self.ticks],
            "boxes": self.boxes,
        }

    def to_dict(self) -> dict[str, Any]:
        """Return the full state, for :meth:`from_dict`."""
        return {name: v.tolist() if isinstance(v, np.ndarray) else v for name, v in self.__dict__.items()}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Track:
        """Return the exact track of :meth:`to_dict`."""
        arrays = {name: np.array(row[name], np.float32) for name in ("box", "vector", "first", "velocity")}
        return cls(**{**row, **arrays})


@dataclass
class Tracker:
    """Track regions; ended tracks and scenes are returned and forgotten.

    Attributes:
        tracks: the tracks that have not ended.
        number: number of the last track.
        scene: number of the current scene.
        begun: tick at which the current scene began.
        looks: number of looks at the current scene.
        before: ``Look.scene`` of the last look.
    """

    tracks: list[Track] = field(default_factory=list[Track])
    number: int = 0
    scene: int = 0
    begun: int = 0
    looks: int = 0
    before: np.ndarray | None = None

    def update(self, ticks: int, look: Look) -> list[dict[str, Any]]:
        """Add a look; return the rows of ended tracks, followed by that of their scene if it is over."""
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
        sure = [None] * len(regions) if regions.caption_scores is None else regions.caption_scores.tolist()
        pairs = self._pairs(ticks, regions.boxes, features)
        missed = set(range(len(self.tracks))) - pairs.keys()
        new = set(range(len(regions))) - set(pairs.values())
        for row, column in pairs.items():
            seen = regions.boxes[column], features[column], captions[column], float(scores[column])
            self.tracks[row].see(ticks, *seen, sure[column])
        for row in missed:
            self.tracks[row].miss(ticks)
        for column in sorted(new):
            self.number += 1
            box, vector = regions.boxes[column], features[column]
            track = Track(self.number, self.scene, ticks, ticks, box, vector, vector)
            track.see(ticks, box, vector, captions[column], float(scores[column]), sure[column])
            self.tracks.append(track)

    def _pairs(self, ticks: int, boxes: np.ndarray, features: np.ndarray) -> dict[int, int]:
        """Return the region of each continued track: greedy matching, best pair first, each track and region once."""
        if not self.tracks or not len(boxes):
            return {}
        expected = np.stack([track.expected(ticks) for track in self.tracks])
        overlaps = np.maximum(
            geometry.iou(expected, boxes), geometry.iou(np.stack([track.box for track in self.tracks]), boxes)
        )
        cosines = _cosines(np.stack([track.vector for track in self.tracks]), features)
        same = _cosines(np.stack([track.first for track in self.tracks]), features) >= LEAST_FIRST
        fit = np.where((overlaps >= LEAST_IOU) & (cosines >= LEAST_COSINE) & same, overlaps + cosines, 0)
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
        """End all tracks and the scene at a tick; return their rows, without tracks seen only once in several looks."""
        if not self.scene or not self.looks:
            return []
        for track in self.tracks:
            track.miss(ticks)
        rows = [track.row() for track in self.tracks if track.looks > 1 or self.looks == 1]
        self.tracks, self.looks = [], 0
        return [*rows, {"scene": self.scene, "start": to_seconds(self.begun), "end": to_seconds(ticks)}]

    def visible(self) -> list[Track]:
        """Return the tracks that the last look saw, in the order in which they were first seen."""
        return [track for track in self.tracks if not track.missed]

    def to_dict(self) -> dict[str, Any]:
        """Return the full state, for :meth:`from_dict`."""
        before = None if self.before is None else self.before.tolist()
        return {**self.__dict__, "before": before, "tracks": [track.to_dict() for track in self.tracks]}

    @classmethod
    def from_dict(cls, row: dict[str, Any]) -> Tracker:
        """Return the exact tracker of :meth:`to_dict`."""
        before = None if row["before"] is None else np.array(row["before"], np.float32)
        return cls(**{**row, "before": before, "tracks": [Track.from_dict(track) for track in row["tracks"]]})


def _cosines(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cosines ``(N, M)`` between the rows of both arrays."""
    lengths = np.linalg.norm(a, axis=1)[:, None] * np.linalg.norm(b, axis=1)[None]
    return a @ b.T / np.maximum(lengths, 1e-9)


LOOKS_A_PART = 20
"""Number of looks between two saved states; after a kill, at most so many are repeated."""


class Recording:
    """The tracking of one video, resumed where an earlier run stopped, with its files, if any.

    Memory does not grow with the video's length: ended tracks are passed on at once.

    Args:
        reader: reader of the video, at its first frame.
        watch: called with each frame to look at.
        every: interval between looks in ticks: the first frame at or after each multiple is looked at.
        file: file for the tracks, with the state of an earlier run; or a function called with the rows that ended.
        stop: called before each frame; if it returns True, the video ends there.

    Attributes:
        looks, tracks: number of looks and tracks so far.
        ticks: tick of the last look.
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
            known = state["damage"]  # earlier versions wrote the attributes with their names
            reader.damage = Damage(*(known.values() if isinstance(known, dict) else known))
            if self._drawing is not None:
                self._drawing.look(self.ticks, self._marks())
        reader.start = self.ticks

    @property
    def scenes(self) -> int:
        """Number of scenes so far."""
        return self._tracker.scene

    def _state(self) -> dict[str, Any]:
        """Return the state to resume from after the last look."""
        numbers = {"looks": self.looks, "tracks": self.tracks, "ticks": self.ticks, "damage": self._reader.damage.facts}
        parts = None if self._drawing is None else self._drawing.parts
        return {**numbers, "parts": parts, "tracker": self._tracker.to_dict()}

    def run(self) -> Iterator[int]:
        """Process the video, saving the state every ``LOOKS_A_PART`` looks; yield the number of looks after each."""
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
        return [
            Mark(t.number, tuple(t.box.tolist()), t.phrase, t.caption_score is not None and t.caption_score < UNSURE)
            for t in self._tracker.visible()
        ]

    def abandon(self) -> None:
        """Discard the unfinished part of the annotated video; the saved state does not include it."""
        if self._drawing is not None:
            self._drawing.abandon()

    def finish(self) -> None:
        """Write the last tracks, the annotated video and the captions; raise ``VideoError`` if there was no frame."""
        if not self.looks:
            self.abandon()
            if self._file is not None:
                self._file.discard()
            raise VideoError(f"{self._reader.name}: no frame could be read")
        self._pass_on(self._tracker.finish(max(self._end, self.ticks)))
        if self._drawing is not None:
            self._drawing.end_part()
        if self._file is None:
            return
        places = self._file.places
        if self._drawing is not None and places.drawing is not None:
            self._drawing.join(places.drawing, max(self._end, self.ticks))
        if places.captions is not None:
            write_captions(places.captions, places.tracks)
        self._file.finish(self._reader.damage.facts if self._reader.damage else None)

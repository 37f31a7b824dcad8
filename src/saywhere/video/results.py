"""The tracks of a video and the state to resume from, in files that survive a kill; and WebVTT captions."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from saywhere import boxes as geometry
from saywhere.drawing import UNSURE
from saywhere.errors import UserError
from saywhere.files import beside, content_hash, require_there, sync, write_atomically, write_text
from saywhere.inference.results import AppendedFile, forget_settings, note_settings, read_settings
from saywhere.models.nouns import noun_tree, related
from saywhere.options import dataclass
from saywhere.text import tokenize
from saywhere.video import clock

LINES = 3
"""Maximum number of phrases in a caption, those of the tracks with the best scores."""
SAME_THING = 0.6
"""Mean share of the smaller box inside the other from which only the better of two phrases with one noun is shown."""


@dataclass(frozen=True)
class Places:
    """The files of one video: JSON lines and, if requested, WebVTT captions and the annotated video."""

    tracks: Path
    captions: Path | None = None
    drawing: Path | None = None

    @classmethod
    def below(cls, folder: Path, relative: Path) -> Places:
        """Return the files in ``folder`` for the video at the path ``relative`` in the input folder."""
        stem = relative.name[:-4] if relative.suffix.lower() == ".mp4" else relative.name
        place = folder / relative.parent
        return cls(place / f"{stem}.tracks.jsonl", place / f"{stem}.vtt", place / f"{stem}.mp4")

    @property
    def unfinished(self) -> Path:
        """The folder with the state for resuming, which is removed when the video is done."""
        return beside(self.tracks, ".{}.unfinished")

    def missing(self) -> Path | None:
        """Return the first missing file of drawing and captions, or None."""
        return next((path for path in (self.drawing, self.captions) if path and not path.exists()), None)

    def check(self, video: Path | None) -> None:
        """Create the folder; raise ``UserError`` if that fails, or the video itself would be overwritten."""
        try:
            self.tracks.parent.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{self.tracks.parent}: cannot be made a folder ({error.strerror})") from error
        if video is not None and self.drawing is not None and self.drawing.resolve() == video.resolve():
            raise UserError(f"{self.drawing}: is the video itself and would be overwritten; give another --out")


CONTENT = "content of the video"
"""Name of the setting for the video itself."""
DAMAGE, HASH = "damage", "hash"
"""Names under which the damage of a finished video and the hash of its bytes are noted beside the settings."""


class ChangedVideoError(UserError):
    """The video is not the one whose tracks are in the file."""


class TracksFile(AppendedFile):
    """JSON lines of ended tracks and scenes, written as soon as they end, with the state to resume from.

    Args:
        places: the files of the video.
        video: name of the video, in each line.
        settings: settings that the results depend on; a file is not continued with different ones.
        path: the video itself, whose bytes count if a finished one has another time; None for a camera.

    Attributes:
        done: whether an earlier run has finished.
        damage: the damage of the video that a finished run has found, as noted by :meth:`finish`, or None.
        state: state of an unfinished earlier run, or None.

    Raises:
        ChangedVideoError: the video has changed since its tracks were written.
        UserError: the file has other content, another run is writing it, or it was begun with other settings.
    """

    def __init__(self, places: Places, video: str, settings: Mapping[str, Any], path: Path | None = None) -> None:
        self.places, self._video, self._settings, self._path = places, video, dict(settings), path
        super().__init__(places.tracks, "wait for it")

    def _resume(self) -> None:
        path, size = self.places.tracks, os.fstat(self._file).st_size
        self._check_owner()
        self.state: dict[str, Any] | None = None
        try:
            stored = json.loads((self.places.unfinished / "state.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            stored = None
        except (OSError, ValueError) as error:
            raise UserError(f"{self.places.unfinished}: is damaged; remove it and {path} to start over") from error
        self.done, self.damage = stored is None and size > 0, None
        if self.done:
            known = read_settings(path) or {}
            self.damage = known.get(DAMAGE)
            self._compare(known, f"; give another place, or remove {path} to start over")
            if missing := self.places.missing():
                raise UserError(f"{path}: is finished, but {missing} is not there; remove {path} to make both anew")
        elif stored is not None:
            way_out = f"; remove {path} and {self.places.unfinished} to start over"
            self._compare(stored["settings"], way_out)
            if stored["size"] > size:
                raise UserError(f"{path}: was begun and has been changed since{way_out}")
            os.ftruncate(self._file, stored["size"])
            self.state = stored["state"]
        else:
            shutil.rmtree(self.places.unfinished, ignore_errors=True)
            note_settings(path, self._settings)
            self.keep(None)

    def _compare(self, known: Mapping[str, Any], way_out: str) -> None:
        """Refuse a file made with other settings or from another video; settings that are not known are ignored."""
        changed = [name for name in known if name in self._settings and known[name] != self._settings[name]]
        if changed == [CONTENT] and known.get(HASH) and known[HASH] == self._hash():
            return
        if changed == [CONTENT]:
            what = f"is not the video whose tracks are in {self.places.tracks}"
            raise ChangedVideoError(f"{self._video}: {what}{way_out}")
        if changed:
            raise UserError(f"{self.places.tracks}: was made with another {' and '.join(changed)}{way_out}")

    def _hash(self) -> str | None:
        with contextlib.suppress(OSError):  # the video may be gone by now
            if self._path is not None:
                with open(self._path, "rb") as video:
                    return content_hash(video).hex()
        return None

    def _check_owner(self) -> None:
        """Refuse a file that holds anything but this video's lines."""
        with open(self.places.tracks, "rb") as lines:
            first = lines.readline()
        beginning = json.dumps({"video": self._video})[:-1].encode()
        if first and first[: len(beginning)] != beginning[: len(first)]:
            raise UserError(f"{self.places.tracks}: does not have the tracks of {self._video}; give another file")

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append all rows, or none if the disk is full."""
        self._write("".join(json.dumps({"video": self._video, **row}) + "\n" for row in rows).encode())

    def keep(self, state: Mapping[str, Any] | None) -> None:
        """Save the state that belongs to the current content of the file, after syncing that to disk."""
        sync(self._file)
        size = os.fstat(self._file).st_size
        stored = {"settings": self._settings, "size": size, "state": state}
        write_text(self.places.unfinished / "state.json", json.dumps(stored))

    def finish(self, damage: object = None) -> None:
        """Mark the video as done: remove the state for resuming; ``damage`` is noted, for runs that skip the video."""
        require_there(self._file, self.places.tracks)
        sync(self._file)
        note_settings(self.places.tracks, {**self._settings, DAMAGE: damage, HASH: self._hash()})
        self._forget_state()

    def _forget_state(self) -> None:
        (self.places.unfinished / "state.json").unlink(missing_ok=True)
        shutil.rmtree(self.places.unfinished, ignore_errors=True)

    def discard(self) -> None:
        """Remove the file and the state for resuming."""
        self.places.tracks.unlink(missing_ok=True)
        forget_settings(self.places.tracks)
        self._forget_state()


class Cue(NamedTuple):
    """A caption: phrases, shown from ``start`` to ``end``, in seconds."""

    start: float
    end: float
    phrases: tuple[str, ...]


class Span(NamedTuple):
    """A track's phrase and its end in seconds; ``places`` are pairs of a time and the box then."""

    end: float
    score: float
    phrase: str
    places: tuple[tuple[float, tuple[float, ...]], ...] = ()

    def repeats(self, other: Span) -> bool:
        """Return whether both name the same thing: their nouns are the same or related, and their boxes overlap."""
        words, tree = [tokenize(phrase) for phrase in (self.phrase, other.phrase)], noun_tree()
        first, second = (tree.head(each) for each in words)
        if first.noun is None and second.noun is None:
            alike = words[0][first.start : first.stop][-1:] == words[1][second.start : second.stop][-1:] != []
        else:
            alike = first.noun is not None and second.noun is not None and related(first.noun, second.noun)
        if not alike:
            return False
        boxes, others = dict(self.places), dict(other.places)
        if not (times := sorted(boxes.keys() & others.keys())):
            return False
        one, two = (np.array([each[time] for time in times]) for each in (boxes, others))
        common = np.concatenate((np.maximum(one[:, :2], two[:, :2]), np.minimum(one[:, 2:], two[:, 2:])), axis=1)
        smaller = np.minimum(geometry.area(one), geometry.area(two))
        return bool((geometry.area(common) / np.maximum(smaller, 1e-6)).mean() >= SAME_THING)


def write_captions(path: Path, tracks: Path) -> None:
    """Write WebVTT captions for the tracks in the file ``tracks`` whose words are probably right, atomically."""

    def write(stream: IO[bytes]) -> None:
        stream.write(b"WEBVTT\n")
        for cue in cues(_in_order(tracks)):
            lines = "\n".join(escape(" ".join(phrase.split())) for phrase in cue.phrases)
            stream.write(f"\n{clock(cue.start)} --> {clock(cue.end)}\n{lines}\n".encode())

    write_atomically(path, write)


def _in_order(tracks: Path) -> Iterator[tuple[float, Span]]:
    """Yield start and span of each track, ordered by start; only the tracks' offsets in the file are in memory."""
    places: list[tuple[float, int]] = []
    with open(tracks, "rb") as file:
        place = 0
        for line in file:
            row = json.loads(line)
            if "track" in row and row.get("caption_score", 1.0) >= UNSURE:
                places.append((row["start"], place))
            place += len(line)
        for start, place in sorted(places):
            file.seek(place)
            row = json.loads(file.readline())
            boxes = tuple((time, tuple(box)) for time, box in zip(row["times"], row["boxes"], strict=True))
            yield start, Span(row["end"], row["score"], row["phrase"], boxes)


def cues(spans: Iterable[tuple[float, Span]]) -> Iterator[Cue]:
    """Yield captions for pairs of a start and a span, ordered by start.

    A caption ends where its phrases change. At most ``LINES`` phrases are shown, the best, each thing once.
    """
    active: list[Span] = []
    shown: Cue | None = None
    upcoming = iter(spans)
    following = next(upcoming, None)
    while active or following is not None:
        ends = active[0].end if active else float("inf")
        starts = following[0] if following is not None else float("inf")
        now = min(ends, starts)
        while active and active[0].end <= now:
            heapq.heappop(active)
        while following is not None and following[0] <= now:
            if following[1].end > now:
                heapq.heappush(active, following[1])
            following = next(upcoming, None)
        best: list[Span] = []
        for span in sorted(active, key=lambda span: (-span.score, span.phrase)):
            if len(best) < LINES and not any(span.phrase == one.phrase or span.repeats(one) for one in best):
                best.append(span)
        phrases = tuple(span.phrase for span in best)
        if shown is None or phrases != shown.phrases:
            if shown is not None and shown.phrases:
                yield shown._replace(end=now)
            shown = Cue(now, now, phrases)

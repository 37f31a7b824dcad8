"""WebVTT captions of a video, from its file of tracks."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, NamedTuple

from saywhere.files import write_atomically
from saywhere.video.times import clock

LINES = 3
"""Phrases that are shown at a time: those of the tracks with the best scores."""


class Cue(NamedTuple):
    """Phrases from one time to another, in seconds."""

    start: float
    end: float
    phrases: tuple[str, ...]


class _Span(NamedTuple):
    end: float
    score: float
    phrase: str


def write_captions(path: Path, tracks: Path) -> None:
    """Write the captions of the tracks in the file ``tracks``; the file is whole or not there."""

    def write(stream: IO[bytes]) -> None:
        stream.write(b"WEBVTT\n")
        for cue in cues(_in_order(tracks)):
            lines = "\n".join(_escape(phrase) for phrase in cue.phrases)
            stream.write(f"\n{clock(cue.start)} --> {clock(cue.end)}\n{lines}\n".encode())

    write_atomically(path, write)


def _escape(phrase: str) -> str:
    return " ".join(phrase.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _in_order(tracks: Path) -> Iterator[tuple[float, _Span]]:
    """Starts and spans of tracks by their starts; of all tracks only the places in the file are held."""
    places: list[tuple[float, int]] = []
    with open(tracks, "rb") as file:
        place = 0
        for line in file:
            row = json.loads(line)
            if "track" in row:
                places.append((row["start"], place))
            place += len(line)
        for start, place in sorted(places):
            file.seek(place)
            row = json.loads(file.readline())
            yield start, _Span(row["end"], row["score"], row["phrase"])


def cues(spans: Iterable[tuple[float, tuple[float, float, str]]]) -> Iterator[Cue]:
    """Yield captions for spans ``(end, score, phrase)`` with their starts, ordered by start.

    A caption ends where its phrases change. Of more than ``LINES`` phrases the best are shown, each once.
    """
    active: list[_Span] = []
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
            if following[1][0] > now:
                heapq.heappush(active, _Span(*following[1]))
            following = next(upcoming, None)
        best = sorted(active, key=lambda span: (-span.score, span.phrase))
        phrases = tuple(dict.fromkeys(span.phrase for span in best))[:LINES]
        if shown is None or phrases != shown.phrases:
            if shown is not None and shown.phrases:
                yield shown._replace(end=now)
            shown = Cue(now, now, phrases)

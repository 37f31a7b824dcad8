"""The annotated video: tracks drawn on frames, written in parts that survive a kill, and joined at the end."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import av
import numpy as np
from PIL import Image, ImageDraw

from saywhere.drawing import COLOURS, Style, draw_label, fit_label, place_labels
from saywhere.files import atomic_path, part_of, put_in_place
from saywhere.video import TICKS
from saywhere.video.reading import Frame, fit

LONG_SIDE = 1280
"""Maximum long side of an annotated video, in pixels."""
WAITING = 32
"""Maximum number of frames kept until the next look, to interpolate boxes; with more frames, boxes stand still."""
BASE = Fraction(1, TICKS)


class Mark(NamedTuple):
    """A track at one time: its number, its box, its phrase, and whether that is probably wrong."""

    track: int
    box: tuple[float, float, float, float]
    phrase: str
    unsure: bool = False


def between(before: Sequence[Mark], after: Sequence[Mark], share: float) -> list[Mark]:
    """Interpolate boxes from ``before`` (``share`` 0) to ``after`` (1); tracks that ``after`` lacks stand still."""
    later = {mark.track: mark.box for mark in after}
    moved: list[Mark] = []
    for mark in before:
        ends = np.array([mark.box, later.get(mark.track, mark.box)])
        box = ends[0] + share * (ends[1] - ends[0])
        moved.append(mark._replace(box=tuple(box.tolist())))
    return moved


def draw_marks(
    image: Image.Image, marks: Sequence[Mark], size: tuple[int, int], before: Mapping[int, int] | None = None
) -> dict[int, int]:
    """Draw boxes on an RGB frame, later ones on top, with their phrases where they hide the least, pale if unsure.

    Args:
        image: the frame to draw on.
        marks: the tracks, with boxes in pixels of an image of the given ``size``.
        size: width and height.
        before: the result for the previous frame; phrases stay in place unless they would hide others.

    Returns:
        the number of the place chosen for the phrase of each track.
    """
    style = Style.of(*image.size, len(marks))
    draw = ImageDraw.Draw(image)
    factors = np.array([image.width / size[0], image.height / size[1]] * 2)
    boxes = [(np.array(mark.box) * factors).round().astype(int).tolist() for mark in marks]
    colours = [COLOURS[mark.track % len(COLOURS)] for mark in marks]
    for (x1, y1, x2, y2), colour in zip(boxes, colours, strict=True):
        draw.rectangle((x1, y1, max(x1, x2 - 1), max(y1, y2 - 1)), outline=colour, width=max(2, style.line))
    labels = [fit_label(mark.phrase, box, image.size, style) for mark, box in zip(marks, boxes, strict=True)]
    kept = [(before or {}).get(mark.track) for mark in marks]
    places = place_labels(labels, np.array(boxes, np.float64).reshape(-1, 4), image.size, style, kept)
    for mark, label, place, colour in zip(marks, labels, places, colours, strict=True):
        if label is not None and place is not None:
            draw_label(draw, label, place.rectangle, colour, style, mark.unsure)
    return {mark.track: place.number for mark, place in zip(marks, places, strict=True) if place is not None}


class DrawnVideo:
    """Draw tracks on frames, and write these to numbered parts in a folder, after any existing ones."""

    def __init__(self, folder: Path, parts: int = 0) -> None:
        self._folder, self.parts = folder, parts
        self._waiting: list[tuple[int, Image.Image, tuple[int, int]]] = []
        self._marks: list[Mark] = []
        self._since, self._still = 0, False
        self._places: dict[int, int] = {}
        self._part: _Part | None = None

    def add(self, frame: Frame) -> None:
        """Add a frame."""
        if len(self._waiting) == WAITING:
            self._write(self._marks, None)
            self._still = True
        self._waiting.append((frame.ticks, frame.pixels(fit(frame.size, LONG_SIDE, 2)), frame.size))

    def look(self, ticks: int, marks: list[Mark]) -> None:
        """Draw the waiting frames, with boxes interpolated towards ``marks`` at ``ticks``; new frames start there."""
        self._write(marks, None if self._still else ticks)
        self._marks, self._since, self._still = marks, ticks, False

    def _write(self, marks: list[Mark], ticks: int | None) -> None:
        for when, image, size in self._waiting:
            share = 0.0 if ticks is None else (when - self._since) / max(1, ticks - self._since)
            self._places = draw_marks(image, between(self._marks, marks, share), size, self._places)
            if self._part is None:
                self._part = _Part(self._folder / f"{self.parts:05}.nut", image.size)
            self._part.write(when, image)
        self._waiting.clear()

    def end_part(self) -> None:
        """Finish the current part; afterwards it is complete on disk."""
        self._write(self._marks, None)
        if self._part is not None:
            self._part.finish()
            self._part, self._places = None, {}  # so that a run resumed here draws the same
            self.parts += 1

    def abandon(self) -> None:
        """Discard the current part."""
        if self._part is not None:
            self._part.drop()
            self._part = None

    def join(self, path: Path, end: int) -> None:
        """Write all parts as one MP4 file, atomically, whose last frame is shown until ``end``; none without frames."""
        if not self.parts:
            return
        with atomic_path(path) as whole, _named(path):
            self._join(whole, end)

    def _join(self, path: Path, end: int) -> None:
        with av.open(_url(path), "w", "mp4", options={"movflags": "faststart"}) as file:
            stream: Any = None
            for number in range(self.parts):
                with av.open(_url(self._folder / f"{number:05}.nut"), format="nut") as part:
                    if stream is None:
                        stream = file.add_stream_from_template(part.streams.video[0])
                        stream.time_base = BASE
                    for packet in part.demux(part.streams.video[0]):
                        if packet.dts is not None:
                            packet.stream, packet.duration = stream, end - packet.dts  # only the last one's counts
                            file.mux(packet)


def _url(path: Path) -> str:
    """Return a file as a URL for FFmpeg, which would take a name such as ``10:22.mp4`` for a protocol."""
    return f"file:{os.path.abspath(path)}"


@contextlib.contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let disk errors, such as a full disk, name ``path``: PyAV's own errors cannot be given a file name."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


class _Part:
    """A part of the video in its own file, which gets its name when it is complete.

    Each part is encoded separately, so that a part written again after a kill is the same to the last byte.
    """

    def __init__(self, path: Path, size: tuple[int, int]) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path, self._unfinished = path, part_of(path)
        with _named(self._path):
            self._file = av.open(_url(self._unfinished), "w", "nut")
            codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
            self._stream: Any = self._file.add_stream(codec, rate=30, options=_OPTIONS.get(codec, {}))
            self._stream.width, self._stream.height = size
            self._stream.pix_fmt = "yuv420p"
            self._stream.time_base = self._stream.codec_context.time_base = BASE
            self._stream.codec_context.max_b_frames = 0

    def write(self, ticks: int, image: Image.Image) -> None:
        """Encode a frame."""
        frame = av.VideoFrame.from_image(image)
        frame.pts, frame.time_base = ticks, BASE
        with _named(self._path):
            self._file.mux(self._stream.encode(frame))

    def finish(self) -> None:
        """Flush the encoder, and give the file its name."""
        with _named(self._path):
            self._file.mux(self._stream.encode())
            self._file.close()
            put_in_place(self._unfinished, self._path)

    def drop(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):  # a full disk cannot take the last bytes either
            self._file.close()
        self._unfinished.unlink(missing_ok=True)


_OPTIONS = {"libx264": {"preset": "veryfast", "crf": "23"}, "mpeg4": {"qscale": "4"}}

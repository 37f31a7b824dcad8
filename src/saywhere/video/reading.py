"""Frames of a video file or a camera, one after another: upright, with their times, past damaged places."""

from __future__ import annotations

import itertools
import os
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import av
from av.error import FFmpegError
from av.stream import Disposition
from PIL import Image

from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.report import counted
from saywhere.video import TICKS, to_seconds

_UPRIGHT = {
    (False, -1, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, -1, -1): Image.Transpose.ROTATE_180,
    (False, 1, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (True, 1, 1): Image.Transpose.TRANSPOSE,
    (True, -1, 1): Image.Transpose.ROTATE_270,
    (True, -1, -1): Image.Transpose.TRANSVERSE,
    (True, 1, -1): Image.Transpose.ROTATE_90,
}
"""What shows a frame upright: whether its sides change places, and the directions in which x and y then grow."""
_LYING = (Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90)

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")
"""What MP4 and QuickTime files begin with."""
FAILURES = 20
"""A file that cannot be read so many times in a row is given up."""
MARGIN = 2.0
"""Seconds before the wanted place that a file is entered at."""


class VideoError(UserError):
    """A video that cannot be read; the message is one line that names it."""


@dataclass
class Damage:
    """Places of a video that could not be read: how many packets or frames, and when; at most ``LIMIT`` spans."""

    LIMIT = 8
    count: int = 0
    spans: list[list[float]] = field(default_factory=list[list[float]])

    def note(self, time: float) -> None:
        """Add a place at ``time`` seconds; places less than a second apart are one span."""
        self.count += 1
        if self.spans and (time - self.spans[-1][1] < 1 or len(self.spans) == self.LIMIT):
            self.spans[-1][1] = max(time, self.spans[-1][1])
        else:
            self.spans.append([time, time])

    def __str__(self) -> str:
        spans = ", ".join(f"{a:.1f}" if b - a < 0.05 else f"{a:.1f} to {b:.1f}" for a, b in self.spans)
        return f"damaged: {counted(self.count, 'frame')} could not be read (second {spans})"


@dataclass(frozen=True, eq=False)
class Frame:
    """A decoded frame.

    Attributes:
        ticks: when it is shown, from the start of the video.
        duration: ticks for which it is shown, as far as the file says; 0 if it does not.
        size: width and height as a viewer shows them, in pixels.
    """

    ticks: int
    duration: int
    size: tuple[int, int]
    _decoded: Any
    _turn: Image.Transpose | None

    @property
    def time(self) -> float:
        """Seconds from the start of the video."""
        return to_seconds(self.ticks)

    def pixels(self, size: tuple[int, int]) -> Image.Image:
        """Return the upright RGB image in this width and height."""
        stored = size[::-1] if self._turn in _LYING else size
        kind = "AREA" if stored[0] < self._decoded.width else "BILINEAR"  # the mean is slow where nothing is averaged
        image = self._decoded.to_image(width=stored[0], height=stored[1], interpolation=kind)
        return image if self._turn is None else image.transpose(self._turn)

    def image(self, long_side: int, name: str) -> LoadedImage:
        """Return the image for a model that needs ``long_side`` pixels."""
        return LoadedImage(self.pixels(fit(self.size, long_side)), *self.size, name=name)


def fit(size: tuple[int, int], long_side: int, multiple: int = 1) -> tuple[int, int]:
    """Return width and height with at most ``long_side`` pixels on the long side, both multiples of ``multiple``."""
    factor = min(1.0, long_side / max(size))
    width, height = (max(multiple, round(side * factor / multiple) * multiple) for side in size)
    return width, height


class VideoReader:
    """Yield the frames of a video file in the order in which they are shown.

    Rotation, mirroring and pixels that are not square are applied. Of several videos in a file the one that FFmpeg
    finds best is read; the picture of a cover is none. Frames without a time, or not later than the one before, are
    given the next time or left out. What cannot be decoded is noted in :attr:`damage`, and reading goes on;
    so is the place where a file was cut off.

    Args:
        path: the file, whatever it is called: nothing but this file is read; or the device of a camera.
        name: for messages.
        format: of the input, where it cannot be found out: that of cameras.
        start: yield the frames from this tick on.

    Attributes:
        damage: what could not be read so far.
        duration: seconds, or None if the file does not say.

    Raises:
        VideoError: it cannot be read.
    """

    def __init__(self, path: str | Path, name: str, *, format: str | None = None, start: int = 0) -> None:
        self.path, self.name, self.format, self.start = str(path), name, format, start
        self.damage = Damage()
        self._size: tuple[int, int] | None = None
        self._last = 0
        self._noted: list[int] = []
        self._open()
        duration = self._container.duration
        self.duration = None if duration is None or format is not None else duration / av.time_base

    def _open(self) -> None:
        self._file = None
        try:
            if self.format is None:  # by its name FFmpeg would take 10:22.mp4 for a protocol, and http:a.mp4 for a site
                self._file = _open_regular(self.path)
            source, options = self._file or self.path, {} if self._file is None else {"protocol_whitelist": "none"}
            self._container = av.open(source, "r", format=self.format, options=options, metadata_errors="replace")
        except (FFmpegError, OSError, ValueError) as error:
            self._close_file()
            raise VideoError(f"{self.name}: {_reason(error, self._file is not None)}") from error
        stream = _video(self._container)
        if stream is None:
            covered = " but a picture of a cover" if self._container.streams.video else ""
            self.close()
            raise VideoError(f"{self.name}: no video in this file{covered}")
        self._stream = stream
        self._stream.thread_type = "SLICE"  # threads of whole frames tell of damage late, by as many frames
        begin = self._container.start_time
        live = self.format is not None
        self._zero = None if live else Fraction(begin or 0, av.time_base)

    def close(self) -> None:
        """Close the file."""
        self._container.close()
        self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> VideoReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Frame]:
        if self.start:
            frames = self._frames()
            first = next(frames, None) if self._enter() else None
            if first is not None and first.ticks <= self.start:
                yield from self._from_start(first, frames)
                return
            self.close()
            self._open()  # it was entered too late, or left in disorder: read it from its beginning
        frames = self._frames()
        if (first := next(frames, None)) is not None:
            yield from self._from_start(first, frames)

    def _from_start(self, first: Frame, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in itertools.chain((first,), frames):
            if frame.ticks >= self.start:
                self._settle(frame.ticks)
                yield frame
        if self._file is not None and _is_cut(self._file):
            self._noted.append(self._last + 1)
        self._settle(None)

    def _enter(self) -> bool:
        """Go to a key frame a little before the start; whether the file could be entered there."""
        seconds = float(self._zero or 0) + self.start / TICKS - MARGIN
        try:
            self._container.seek(int(seconds * av.time_base), backward=True)
        except (FFmpegError, OSError):
            return False
        return True

    def _settle(self, ticks: int | None) -> None:
        """Take over what was noted up to a tick, or all of it; an earlier run has what lies before the start.

        A decoder is ahead of the frames that it gives, so that its errors are known too early.
        """
        ripe = [when for when in self._noted if ticks is None or when <= ticks]
        self._noted = [when for when in self._noted if when not in ripe]
        for when in ripe:
            if when > self.start or not self.start:
                self.damage.note(max(0.0, to_seconds(when)))

    def _frames(self) -> Iterator[Frame]:
        self._last, self._noted = 0, []
        last, step = -1, TICKS // 25
        stamps = _Stamps(odd=self._container.format.name == "avi")
        for decoded in self._decoded():
            ticks = self._ticks(stamps.of(decoded), decoded.time_base)
            ticks = last + step if ticks is None else ticks
            if decoded.is_corrupt:
                self._noted.append(ticks)
            elif ticks <= last - TICKS:  # two files one after the other, of which the second begins at zero again
                self._noted.append(last + 1)
            elif ticks > last:
                step = ticks - last if last >= 0 else step
                self._last = last = ticks
                yield self._frame(decoded, ticks)

    def _ticks(self, pts: int | None, base: Fraction | None) -> int | None:
        """The time of a frame on our clock; a camera's clock begins with its first frame."""
        if pts is None or base is None:
            return None
        time = pts * base
        if self._zero is None:
            self._zero = time
        return round((time - self._zero) * TICKS)

    def _decoded(self) -> Iterator[Any]:
        """The decoder's frames; after an error it goes on with the next packet."""
        failures = 0
        packets = self._container.demux(self._stream)
        while failures < FAILURES:
            try:
                packet = next(packets, None)
            except (FFmpegError, OSError):
                failures += 1
                self._noted.append(self._last + 1)
                packets = self._container.demux(self._stream)
                continue
            if packet is None:
                return
            try:
                frames = packet.decode()
            except FFmpegError:
                ticks = self._ticks(packet.pts, packet.time_base)
                self._noted.append(self._last + 1 if ticks is None else ticks)
                continue
            failures = 0
            yield from frames

    def _frame(self, decoded: Any, ticks: int) -> Frame:
        turn = _turn(decoded)
        if self._size is None:
            ratio = self._stream.sample_aspect_ratio or 1
            width, height = max(1, round(decoded.width * ratio)), int(decoded.height)
            self._size = (height, width) if turn in _LYING else (width, height)
        length = decoded.duration * decoded.time_base if decoded.duration and decoded.time_base else 0
        return Frame(ticks, round(length * TICKS), self._size, decoded, turn)


@dataclass
class _Stamps:
    """Time stamps of frames: those for showing them or, where these go back more often, those for decoding them.

    FFmpeg guesses in the same way.

    Attributes:
        odd: how much more often the former went back; above zero from the beginning in AVI files, which have only the
            latter, so that with B-frames the former are out of order.
    """

    odd: int = 0
    shown: int | None = None
    decoded: int | None = None

    def of(self, frame: Any) -> int | None:
        """Return the time stamp of the next frame; None if it has none, or a wrong one."""
        pts, dts = frame.pts, frame.dts
        if pts is not None:
            self.odd += self.shown is not None and pts <= self.shown
            self.shown = pts
        if dts is not None:
            self.odd -= self.decoded is not None and dts <= self.decoded
            self.decoded = dts
        return dts if pts is None or self.odd > 0 else pts


def _open_regular(path: str) -> BinaryIO:
    """Open a file; a pipe would wait for ever to be written to."""
    if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
        raise ValueError("not a regular file")
    return open(path, "rb")


def _is_cut(file: BinaryIO) -> bool:
    """Whether an MP4, Matroska or AVI file is shorter than its headers say."""
    size, end = os.fstat(file.fileno()).st_size, 0

    def at(place: int, count: int) -> bytes:
        file.seek(place)
        return file.read(count)

    start = at(0, 16)
    if start[:4] == b"RIFF":
        return 8 + int.from_bytes(start[4:8], "little") > size
    if start[:4] == b"\x1a\x45\xdf\xa3":  # EBML: its header, then the segment that has all else
        for mark in (start[:4], b"\x18\x53\x80\x67"):
            if at(end, 4) != mark:
                return end >= size
            first = at(end + 4, 1)[:1] or b"\x01"
            width = 9 - first[0].bit_length()
            length = int.from_bytes(at(end + 4, width)) & ((1 << 7 * width) - 1)
            if length == (1 << 7 * width) - 1:  # a live recording does not know its length
                return False
            end += 4 + width + length
        return end > size
    while start[4:8] in _BOXES and end < size:
        head = at(end, 16)
        length = int.from_bytes(head[:4])
        length = int.from_bytes(head[8:16]) if length == 1 else length or size - end
        if length < 8:
            return False
        end += length
    return end > size


def _video(container: Any) -> Any:
    """The video stream that FFmpeg takes for the best one, or None; a picture of a cover is none."""
    best = container.streams.best("video")
    if best is None or not _is_cover(best):
        return best
    videos = [stream for stream in container.streams.video if not _is_cover(stream)]
    return max(videos, key=lambda stream: (Disposition.default in stream.disposition, stream.width), default=None)


def _is_cover(stream: Any) -> bool:
    return Disposition.attached_pic in stream.disposition


def _turn(decoded: Any) -> Image.Transpose | None:
    """What shows a decoded frame upright, by the matrix that its file has for that; None if it has a slanted one."""
    matrix = decoded.side_data.get("DISPLAYMATRIX")
    if matrix is None:
        return None
    a, b, _, c, d = struct.unpack("5i", bytes(matrix)[:20])  # a point (x, y) is shown at (a x + c y, b x + d y)
    lies = abs(b) + abs(c) > abs(a) + abs(d)
    to_x, to_y, slant = (c, b, (a, d)) if lies else (a, d, (b, c))
    if max(map(abs, slant)) >= 0.01 * min(abs(to_x), abs(to_y)):
        return None
    return _UPRIGHT.get((lies, 1 if to_x > 0 else -1, 1 if to_y > 0 else -1))


def open_camera(device: str) -> VideoReader:
    """Open a camera by its number, as in ``/dev/video0``, or the path of its device; ``VideoError`` if there is none.

    A file takes the place of a camera that plays it, for trying out.
    """
    path = f"/dev/video{device}" if device.isdecimal() else device
    name = f"camera {device}"
    if os.path.isfile(path):
        return VideoReader(path, name)
    if not sys.platform.startswith("linux"):
        raise VideoError(f"{name}: cameras are read through Video4Linux, which only Linux has")
    if not os.path.exists(path):
        raise VideoError(f"{name}: there is no {path}")
    return VideoReader(path, name, format="video4linux2")


def _reason(error: Exception, opened: bool) -> str:
    known = {FileNotFoundError: "no such file", PermissionError: "no permission to read it"}
    known[IsADirectoryError] = "is a folder"
    found = None if opened else next((text for kind, text in known.items() if isinstance(error, kind)), None)
    return found or f"not a video that can be read ({getattr(error, 'strerror', None) or error})"

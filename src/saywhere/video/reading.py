"""Reading the frames of a video file or a camera: upright, with their times, continuing after damaged places."""

from __future__ import annotations

import itertools
import os
import re
import stat
import struct
import sys
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, BinaryIO

import av
from av.error import FFmpegError
from av.stream import Disposition
from PIL import Image

from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.options import dataclass
from saywhere.video import TICKS, Damage, to_seconds, to_ticks

_UPRIGHT = {
    (False, -1, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (False, -1, -1): Image.Transpose.ROTATE_180,
    (False, 1, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (True, 1, 1): Image.Transpose.TRANSPOSE,
    (True, -1, 1): Image.Transpose.ROTATE_270,
    (True, -1, -1): Image.Transpose.TRANSVERSE,
    (True, 1, -1): Image.Transpose.ROTATE_90,
}
"""The transposition that turns a frame upright, by whether its axes are swapped and the directions of x and y then."""
_TURNED = {-90: Image.Transpose.ROTATE_270, 90: Image.Transpose.ROTATE_90}
_TURNED |= {-180: Image.Transpose.ROTATE_180, 180: Image.Transpose.ROTATE_180}
"""The same by the degrees to which PyAV reduces a display matrix."""
_LYING = (Image.Transpose.TRANSPOSE, Image.Transpose.ROTATE_270, Image.Transpose.TRANSVERSE, Image.Transpose.ROTATE_90)

_BOXES = (b"ftyp", b"moov", b"mdat", b"free", b"skip", b"wide", b"pnot", b"styp")
"""Boxes that MP4 and QuickTime files begin with."""
FAILURES = 20
"""Number of consecutive read errors after which a file is given up."""
MARGIN = 2.0
"""Seconds before the wanted time to which reading seeks."""


class VideoError(UserError):
    """A video cannot be read; the message is one line that names it."""


@dataclass(frozen=True, eq=False)
class Frame:
    """A decoded frame.

    Attributes:
        ticks: time at which it is shown, from the start of the video.
        duration: time for which it is shown, in ticks; 0 if the file does not say.
        size: displayed width and height, in pixels.
    """

    ticks: int
    duration: int
    size: tuple[int, int]
    _decoded: Any
    _turn: Image.Transpose | None

    @property
    def time(self) -> float:
        """Time from the start of the video, in seconds."""
        return to_seconds(self.ticks)

    def pixels(self, size: tuple[int, int]) -> Image.Image:
        """Return the upright RGB image, resized to this width and height."""
        stored = size[::-1] if self._turn in _LYING else size
        kind = "AREA" if stored[0] < self._decoded.width else "BILINEAR"  # AREA is slow without downscaling
        image = self._decoded.to_image(width=stored[0], height=stored[1], interpolation=kind)
        return image if self._turn is None else image.transpose(self._turn)

    def image(self, long_side: int, name: str) -> LoadedImage:
        """Return the image for a model with inputs of ``long_side`` pixels."""
        return LoadedImage(self.pixels(fit(self.size, long_side)), *self.size, name=name)


def fit(size: tuple[int, int], long_side: int, multiple: int = 1) -> tuple[int, int]:
    """Return width and height scaled down to at most ``long_side`` pixels, both multiples of ``multiple``."""
    factor = min(1.0, long_side / max(size))
    width, height = (max(multiple, round(side * factor / multiple) * multiple) for side in size)
    return width, height


class VideoReader:
    """Iterate over the frames of a video file in display order.

    Rotation, mirroring and non-square pixels are applied. If a file has several videos, FFmpeg's best stream is read;
    cover pictures do not count. A frame without a time gets the next one; a frame not later than the one before is left
    out. What cannot be decoded is noted in :attr:`damage`, and reading continues; a truncated end is noted, too.

    Args:
        path: the file, of any name (no other file is read), or the device of a camera.
        name: name for messages.
        format: FFmpeg's input format, for cameras; None: detected.
        start: first tick to yield frames from.

    Attributes:
        damage: the places that could not be read so far.
        duration: duration in seconds, or None if the file does not say.

    Raises:
        VideoError: the file cannot be read.
    """

    def __init__(self, path: str | Path, name: str, *, format: str | None = None, start: int = 0) -> None:
        self.path, self.name, self.format, self.start = str(path), name, format, start
        self.damage = Damage()
        self._size: tuple[int, int] | None = None
        self._last = self._end = 0
        self._gave_up = False
        self._noted: list[int] = []
        self._open()
        duration = self._container.duration
        self.duration = None if duration is None or format is not None else duration / av.time_base

    def _open(self) -> None:
        self._file = None
        try:
            if self.format is None:  # FFmpeg would take the name 10:22.mp4 for a protocol, and http:a.mp4 for a site
                self._file = _open_regular(self.path)
            source, options = self._file or self.path, {} if self._file is None else {"protocol_whitelist": "none"}
            self._container = av.open(source, "r", format=self.format, options=options, metadata_errors="replace")
        except (FFmpegError, OSError, ValueError) as error:
            self._close_file()
            raise VideoError(f"{self.name}: {_reason(error, self._file is not None)}") from error
        stream = _video(self._container)
        if stream is None:
            covered = " but a cover picture" if self._container.streams.video else ""
            self.close()
            raise VideoError(f"{self.name}: no video in this file{covered}")
        self._stream = stream
        self._stream.thread_type = "SLICE"  # frame threads would report damage several frames late
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
            self._open()  # seeking failed or went too far: read from the beginning
        frames = self._frames()
        if (first := next(frames, None)) is not None:
            yield from self._from_start(first, frames)

    def sampled(self, every: int, after: int | None = None) -> Iterator[Frame]:
        """Yield the first frame at or after each multiple of ``every`` ticks; resume behind a frame at ``after``."""
        due = 0 if after is None else (after // every + 1) * every
        for frame in self:
            if frame.ticks >= due:
                due = (frame.ticks // every + 1) * every
                yield frame

    def _from_start(self, first: Frame, frames: Iterator[Frame]) -> Iterator[Frame]:
        for frame in itertools.chain((first,), frames):
            if frame.ticks >= self.start:
                self._settle(frame.ticks)
                yield frame
        self._note_end()

    def _note_end(self) -> None:
        """Note a missing end, to which errors behind the last frame belong."""
        cut = self._gave_up or (self._file is not None and _is_cut(self._file))
        if cut or (self._file is not None and _ends_in_zeros(self._file)):
            length = None if self._file is None else _length(self._container, self._stream, self._file)
            if length is not None and to_ticks(length) - self._end <= TICKS // 20:
                length = None
            if cut or length is not None:
                self.damage.end = to_seconds(self._end), length
                self._noted = [when for when in self._noted if when <= self._last]
        self._settle(None)

    def _enter(self) -> bool:
        """Seek to a key frame a little before the start; return whether that worked."""
        seconds = float(self._zero or 0) + self.start / TICKS - MARGIN
        try:
            self._container.seek(int(seconds * av.time_base), backward=True)
        except (FFmpegError, OSError):
            return False
        return True

    def _settle(self, ticks: int | None) -> None:
        """Move noted errors up to a tick (None: all) to :attr:`damage`; an earlier run has those before the start.

        Decoders run ahead of the frames that they return, so that errors are noted too early.
        """
        ripe = [when for when in self._noted if ticks is None or when <= ticks]
        self._noted = [when for when in self._noted if when not in ripe]
        for when in ripe:
            if when > self.start or not self.start:
                self.damage.note(max(0.0, to_seconds(when)))

    def _frames(self) -> Iterator[Frame]:
        self._last, self._end, self._gave_up, self._noted = 0, 0, False, []
        last, step = -1, TICKS // 25
        stamps = _Stamps(odd=self._container.format.name == "avi")
        for decoded in self._decoded():
            ticks = self._ticks(stamps.of(decoded), decoded.time_base)
            ticks = last + step if ticks is None else ticks
            if decoded.is_corrupt:
                self._noted.append(ticks)
            elif ticks <= last - TICKS:  # concatenated files, of which the second starts at zero again
                self._noted.append(last + 1)
            elif ticks > last:
                step = ticks - last if last >= 0 else step
                self._last = last = ticks
                frame = self._frame(decoded, ticks)
                self._end = ticks + (frame.duration or step)
                yield frame

    def _ticks(self, pts: int | None, base: Fraction | None) -> int | None:
        """Return a frame's time in ticks from the start; for a camera, from its first frame."""
        if pts is None or base is None:
            return None
        time = pts * base
        if self._zero is None:
            self._zero = time
        return round((time - self._zero) * TICKS)

    def _decoded(self) -> Iterator[Any]:
        """Yield decoded frames; after an error, continue with the next packet."""
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
        self._gave_up = True

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
    """Time stamps of frames: presentation times or, if these go backwards more often, decoding times.

    FFmpeg uses the same heuristic.

    Attributes:
        odd: how much more often presentation times went backwards. It starts above zero for AVI files, which have only
            decoding times: with B-frames, their presentation times are out of order.
        shown: last presentation time.
        decoded: last decoding time.
    """

    odd: int = 0
    shown: int | None = None
    decoded: int | None = None

    def of(self, frame: Any) -> int | None:
        """Return the time stamp of the next frame, or None if it has none."""
        pts, dts = frame.pts, frame.dts
        if pts is not None:
            self.odd += self.shown is not None and pts <= self.shown
            self.shown = pts
        if dts is not None:
            self.odd -= self.decoded is not None and dts <= self.decoded
            self.decoded = dts
        return dts if pts is None or self.odd > 0 else pts


def _open_regular(path: str) -> BinaryIO:
    """Open a regular file; opening a pipe would block forever."""
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
        length = int.from_bytes(start[4:8], "little")
        return 8 + length > size and length != 0xFFFFFFFF  # which a program writes that cannot go back to the header
    if start[:4] == b"\x1a\x45\xdf\xa3":  # EBML: a header, then one segment with everything else
        for mark in (start[:4], b"\x18\x53\x80\x67"):
            if at(end, 4) != mark:
                return end >= size
            first = at(end + 4, 1)[:1] or b"\x01"
            width = 9 - first[0].bit_length()
            length = int.from_bytes(at(end + 4, width)) & ((1 << 7 * width) - 1)
            if length == (1 << 7 * width) - 1:  # unknown length, of a live recording
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


def _ends_in_zeros(file: BinaryIO) -> bool:
    """Whether the last 4 kB are zeros, as in a file that is not yet copied; some programs pad whole files with them."""
    file.seek(max(0, os.fstat(file.fileno()).st_size - 4096))
    return not any(file.read())


def _length(container: Any, stream: Any, file: BinaryIO) -> float | None:
    """Return the time from the start to the end of the video by the headers, in seconds, or None if they do not say."""
    begin = Fraction(container.start_time or 0, av.time_base)
    if "matroska" in container.format.name:  # its times are those of the ends
        own = re.fullmatch(r"(\d+):(\d+):([\d.]+)", stream.metadata.get("DURATION", ""))  # not that of longer sound
        if own is None and not container.duration:
            return None
        end = (
            sum(Fraction(own[n]) * 60 ** (3 - n) for n in (1, 2, 3))
            if own
            else Fraction(container.duration, av.time_base)
        )
        return round(float(end - begin), 3)
    late = (stream.start_time or 0) * stream.time_base - begin
    if container.format.name == "avi" and stream.frames and stream.average_rate:  # its duration is that of what is left
        return round(float(late + stream.frames / stream.average_rate), 3)
    if "mp4" in container.format.name and stream.duration and not _is_fragmented(file):
        return round(float(late + stream.duration * stream.time_base), 3)
    return None


def _is_fragmented(file: BinaryIO) -> bool:
    """Whether an MP4 file has fragments, which its header does not count."""
    size, place = os.fstat(file.fileno()).st_size, 0
    while place < size:
        file.seek(place)
        head = file.read(16)
        length = int.from_bytes(head[:4])
        length = int.from_bytes(head[8:16]) if length == 1 else length or size
        if head[4:8] == b"moof" or length < 8:
            return True
        place += length
    return False


def _video(container: Any) -> Any:
    """Return FFmpeg's best video stream that is not a cover picture, or None."""
    best = container.streams.best("video")
    if best is None or not _is_cover(best):
        return best
    videos = [stream for stream in container.streams.video if not _is_cover(stream)]
    return max(videos, key=lambda stream: (Disposition.default in stream.disposition, stream.width), default=None)


def _is_cover(stream: Any) -> bool:
    return Disposition.attached_pic in stream.disposition


def _turn(decoded: Any) -> Image.Transpose | None:
    """Return the transposition that turns a frame upright, from the file's display matrix; None if it is slanted."""
    try:
        matrix = decoded.side_data.get("DISPLAYMATRIX")
    except ValueError:  # PyAV gives none of it if the frame has a kind that PyAV does not know, such as a camera's EXIF
        return _TURNED.get(decoded.rotation)
    if matrix is None:
        return None
    a, b, _, c, d = struct.unpack("5i", bytes(matrix)[:20])  # a point (x, y) is shown at (a x + c y, b x + d y)
    lies = abs(b) + abs(c) > abs(a) + abs(d)
    to_x, to_y, slant = (c, b, (a, d)) if lies else (a, d, (b, c))
    if max(map(abs, slant)) >= 0.01 * min(abs(to_x), abs(to_y)):
        return None
    return _UPRIGHT.get((lies, 1 if to_x > 0 else -1, 1 if to_y > 0 else -1))


def open_camera(device: str) -> VideoReader:
    """Open a camera by its number (0 is ``/dev/video0``) or the path of its device.

    A video file works in place of a camera, for trying out. Raises ``VideoError`` if there is no such camera.
    """
    path = f"/dev/video{device}" if device.isdecimal() else device
    name = f"camera {device}"
    if os.path.isfile(path):
        return VideoReader(path, name)
    if not sys.platform.startswith("linux"):
        raise VideoError(f"{name}: cameras are read through Video4Linux, which only Linux has")
    if not os.path.exists(path):
        raise VideoError(f"{name}: there is no {path}; give the number of a camera, or the path of its device")
    return VideoReader(path, name, format="video4linux2")


def _reason(error: Exception, opened: bool) -> str:
    known = {FileNotFoundError: "no such file", PermissionError: "no permission to read it"}
    known[IsADirectoryError] = "is a folder"
    found = None if opened else next((text for kind, text in known.items() if isinstance(error, kind)), None)
    return found or f"not a video that can be read ({getattr(error, 'strerror', None) or error})"

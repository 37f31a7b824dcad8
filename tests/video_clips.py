"""Videos for the tests, made on the spot, and a model that finds coloured squares in them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import av
import numpy as np
from PIL import Image

from saywhere.images import LoadedImage
from saywhere.models.aligner import ImageVectors
from saywhere.regions import Regions

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 50, 220)}
SIZE = (192, 128)


def plate(grey: int, squares: dict[str, tuple[float, float]], size: tuple[int, int] = SIZE) -> Image.Image:
    """A grey image with squares of 40 pixels in the colours, their top left corners as given."""
    image = Image.new("RGB", size, (grey,) * 3)
    for colour, (x, y) in squares.items():
        image.paste(COLOURS[colour], (round(x), round(y), round(x) + 40, round(y) + 40))
    return image


class Timed(NamedTuple):
    """A frame and the second at which it is shown."""

    time: float
    image: Image.Image


def moving(seconds: float, rate: int = 10, start: float = 0.0, grey: int = 230) -> Iterator[Timed]:
    """A red square that goes to the right, 20 pixels a second and around, and a blue one that stands still."""
    for number in range(round(seconds * rate)):
        time = number / rate
        yield Timed(start + time, plate(grey, {"red": (10 + 20 * time % 80, 10), "blue": (140, 80)}))


def write_clip(
    path: Path,
    frames: Iterable[Timed],
    *,
    rotation: int = 0,
    every_key: int = 5,
    aspect: Fraction | None = None,
    faststart: bool = False,
    end: float | None = None,
) -> Path:
    """Write a video with frames at their times, the last shown until ``end``; of ``every_key`` frames one is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"movflags": "faststart"} if faststart else {}) as file:
        stream: Any = None
        for time, image in frames:
            if stream is None:
                options = {"g": str(every_key), "crf": "10", "preset": "ultrafast", "threads": "1"}
                stream = file.add_stream("libx264", rate=10, options=options)
                stream.width, stream.height, stream.pix_fmt = *image.size, "yuv420p"
                stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
                if aspect is not None:
                    stream.codec_context.sample_aspect_ratio = aspect
                if rotation:
                    stream.set_display_rotation(rotation)
            frame = av.VideoFrame.from_image(image)
            frame.pts, frame.time_base = round(time * 1000), Fraction(1, 1000)
            file.mux(stream.encode(frame))
        for packet in stream.encode():
            if end is not None:
                packet.duration = round(1000 * end) - packet.pts  # only that of the last one counts
            file.mux(packet)
    return path


def cut(path: Path, share: float = 0.6) -> Path:
    """Leave only the first ``share`` of a file."""
    path.write_bytes(path.read_bytes()[: round(path.stat().st_size * share)])
    return path


def damage(path: Path, first: float, last: float) -> Path:
    """Overwrite a part of the pictures of an MP4 file, from one share of them to another."""
    data = bytearray(path.read_bytes())
    place = 0
    while data[place + 4 : place + 8] != b"mdat":
        place += struct.unpack(">I", data[place : place + 4])[0]
    length = struct.unpack(">I", data[place : place + 4])[0] - 8
    begin, end = (place + 8 + round(share * length) for share in (first, last))
    data[begin:end] = b"\xff" * (end - begin)
    path.write_bytes(data)
    return path


TURNS: dict[str, tuple[tuple[int, int, int, int], Image.Transpose | None]] = {
    "as stored": ((1, 0, 0, 1), None),
    "mirrored": ((-1, 0, 0, 1), Image.Transpose.FLIP_LEFT_RIGHT),
    "upside down": ((-1, 0, 0, -1), Image.Transpose.ROTATE_180),
    "flipped": ((1, 0, 0, -1), Image.Transpose.FLIP_TOP_BOTTOM),
    "transposed": ((0, 1, 1, 0), Image.Transpose.TRANSPOSE),
    "turned right": ((0, 1, -1, 0), Image.Transpose.ROTATE_90),
    "transverse": ((0, -1, -1, 0), Image.Transpose.TRANSVERSE),
    "turned left": ((0, -1, 1, 0), Image.Transpose.ROTATE_270),
}
"""The eight ways to show a frame: the matrix ``(a, b, c, d)`` that shows (x, y) at (a x + c y, b x + d y), y downwards,
and how an image is to be stored for it."""


def set_matrix(path: Path, matrix: tuple[float, float, float, float]) -> Path:
    """Write the display matrix of an MP4 file's video, in its header as ISO/IEC 14496-12 has it."""
    data = bytearray(path.read_bytes())
    place = data.index(b"tkhd") + 44
    a, b, c, d = (round(value * 65536) for value in matrix)
    data[place : place + 20] = struct.pack(">5i", a, b, 0, c, d)
    path.write_bytes(data)
    return path


def add_cover(path: Path, jpeg: bytes) -> Path:
    """Add a picture of a cover to an MP4 file, as its first stream."""

    def box(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", 8 + len(content)) + kind + content

    handler = box(b"hdlr", bytes(8) + b"mdirappl" + bytes(9))
    items = box(b"ilst", box(b"covr", box(b"data", struct.pack(">II", 13, 0) + jpeg)))
    udta = box(b"udta", box(b"meta", bytes(4) + handler + items))
    data = path.read_bytes()
    moov, trak = data.index(b"moov"), data.index(b"trak") - 4
    assert data.index(b"mdat") < moov, "or places in it would have to be moved"
    size = struct.pack(">I", struct.unpack(">I", data[moov - 4 : moov])[0] + len(udta))
    path.write_bytes(data[: moov - 4] + size + data[moov:trak] + udta + data[trak:])
    return path


class Vectors(NamedTuple):
    """What the fake model embeds: vectors ``(R, D)``, the whole image first."""

    vectors: np.ndarray


class SquareModel:
    """Finds the squares of :func:`plate` by their colours; ``before`` is called with the number of each look."""

    long_side = 96

    def __init__(self) -> None:
        self.aligner = self
        self.looks = 0
        self.before = lambda number: None

    def require(self, part: str, what: str) -> SquareModel:
        return self

    def interrupt(self, look: int) -> None:
        """Let Ctrl-C be pressed at a look."""

        def stop(number: int) -> None:
            if number == look:
                raise KeyboardInterrupt

        self.before = stop

    def encode(self, image: LoadedImage) -> LoadedImage:
        self.looks += 1
        self.before(self.looks)
        assert max(image.pixels.size) <= self.long_side
        return image

    def describe(self, seen: Any, boxes: None = None, *, top: int | None = None, threshold: float | None = None) -> Any:
        return [self.find(image) for image in seen] if isinstance(seen, list) else self.find(seen)

    def find(self, seen: LoadedImage) -> Regions:
        """Return the squares in an image."""
        pixels = np.asarray(seen.pixels).astype(int)
        scale = seen.width / pixels.shape[1]
        boxes, phrases, features = [], [], []
        for number, (name, colour) in enumerate(COLOURS.items()):
            rows, columns = np.nonzero(np.abs(pixels - colour).max(axis=2) < 60)
            if len(rows):
                box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) * scale
                boxes.append(np.minimum(box, [seen.width, seen.height] * 2))
                phrases.append(f"a {name} square")
                features.append(np.eye(len(COLOURS))[number])
        size = seen.width, seen.height
        if not boxes:
            return Regions(*size, np.zeros((0, 4)), [], (), np.zeros((0, 3)))
        return Regions(*size, np.array(boxes), np.linspace(0.9, 0.5, len(boxes)), tuple(phrases), np.array(features))

    def embed(self, seen: LoadedImage, boxes: np.ndarray) -> Vectors:
        shown = seen.pixels.resize((3, 3), Image.Resampling.NEAREST)
        cells = np.asarray(shown, np.float32).reshape(9, 3) - 128
        return Vectors(np.concatenate((cells[:1], cells)))


class SquareEmbedder:
    """Embeds the squares of :func:`plate`, each colour with a direction of its own, and the brightness as the whole."""

    name, long_side, nouns = "squares", 96, None

    def __init__(self) -> None:
        self.config = SimpleNamespace(embed_dim=5, score="max")
        self.engine = SimpleNamespace(vectors_digest=lambda: "squares")
        self.finder = SquareModel()

    def require(self, part: str, what: str) -> SquareEmbedder:
        return self

    @property
    def looks(self) -> int:
        """How many frames and images were embedded."""
        return self.finder.looks

    def embed(self, images: list[LoadedImage], regions: int | None = None) -> list[ImageVectors]:
        """Return the whole image, whose vector turns with its brightness, and the squares."""
        return [self.one(image) for image in images]

    def one(self, image: LoadedImage) -> ImageVectors:
        """Embed an image."""
        found = self.finder.find(self.finder.encode(image))
        angle = np.asarray(image.pixels)[-1, -1].mean() / 255 * np.pi / 2
        whole = np.array([[np.cos(angle), np.sin(angle), 0, 0, 0]], np.float32)
        squares = np.pad(found.features, ((0, 0), (2, 0))).astype(np.float32)
        boxes = np.concatenate((np.array([[0, 0, image.width, image.height]]), found.boxes)).astype(np.float32)
        vectors = np.concatenate((whole, squares))
        return ImageVectors(image.width, image.height, boxes, vectors, image.name, np.zeros(len(boxes), np.float32))

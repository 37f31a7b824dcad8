"""Encodings, which are images after one pass of the network, and questions about one image or many."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from io import IOBase
from itertools import chain, cycle, islice, repeat
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image

from saywhere import boxes as geometry
from saywhere.boxes import BoxCoder, propose
from saywhere.configs.parts import ProposalConfig
from saywhere.engines.engine import Maps, Trunk
from saywhere.errors import UserError
from saywhere.images import LoadedImage
from saywhere.options import require_ints
from saywhere.regions import check_boxes
from saywhere.report import counted
from saywhere.report import progress as show_progress

NOT_PICKLED = "a model cannot be pickled, nor an encoding, which its model reads: call saywhere.load in each process"
STEP = 2
"""An encoding keeps every second pixel of the network input, horizontally and vertically."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """Feature maps of one image, reusable for several questions.

    Attributes:
        maps: feature maps in the engine's format.
        width, height: image size as a viewer shows it, in pixels.
        input_width, input_height: size of the network input.
        image: image name.
        trunk: the network that made the maps; no other can read them.
        pixels: ``(h, w, 3)`` uint8, every second pixel of the network input (:data:`STEP`).

    Example:
        >>> model = saywhere.load()
        >>> model.encode("photo.jpg")
        Encoding('photo.jpg', 512 x 512)
    """

    maps: Maps
    width: int
    height: int
    input_width: int
    input_height: int
    image: str
    trunk: Trunk
    pixels: np.ndarray

    def __reduce__(self) -> NoReturn:
        raise UserError(NOT_PICKLED)

    def __repr__(self) -> str:
        return f"Encoding({self.image!r}, {self.width} x {self.height})"

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network input."""
        return self.input_width, self.input_height

    @property
    def scale(self) -> tuple[float, float]:
        """Image pixels per pixel of the network input, horizontally and vertically."""
        return self.width / self.input_width, self.height / self.input_height

    def check(self, boxes: ArrayLike) -> np.ndarray:
        """Return a user's boxes as an array in pixels of the image; errors as :func:`saywhere.regions.check_boxes`."""
        return check_boxes(boxes, self.width, self.height, self.image)

    def to_input(self, boxes: np.ndarray) -> np.ndarray:
        """Convert boxes from pixels of the image to pixels of the network input."""
        return geometry.scale(boxes, self.input_width / self.width, self.input_height / self.height)

    def to_image(self, boxes: np.ndarray) -> np.ndarray:
        """Convert boxes from pixels of the network input to pixels of the image, and clip them to it."""
        return geometry.clip(geometry.scale(boxes, *self.scale), self.width, self.height)


def propose_boxes(
    encoding: Encoding, settings: ProposalConfig, coder: BoxCoder, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best proposals of an image and their logits, at most ``limit`` (default: ``post_nms_top_n``).

    Returns:
        boxes ``(B, 4)`` ``x1 y1 x2 y2`` in pixels of the network input, and logits ``(B,)``, best first.
    """
    limit = settings.post_nms_top_n if limit is None else limit
    rpn = encoding.trunk.propose(encoding.maps)
    boxes, logits = propose(coder, rpn, encoding.input_size, settings.nms_iou, settings.pre_nms_top_n, limit)
    return coder.to_xyxy(boxes), logits


Result = TypeVar("Result")

NO_IMAGES = (dict, bytes, bytearray, memoryview, range, IOBase)
"""Types that Python iterates over, but not over images."""
AT_ONCE = 16
"""Number of images of a list in memory at a time."""


def is_one(images: Any) -> bool:
    """Return whether ``images`` is one image: a path, PIL image, array, opened image or encoding."""
    return isinstance(images, str | Path | Image.Image | np.ndarray | LoadedImage | Encoding)


def no_image(given: object) -> UserError:
    """Return the error for something that is no image."""
    opened = isinstance(given, IOBase | bytes | bytearray | memoryview)
    way_out = "; PIL.Image.open makes an image of an open file, or of io.BytesIO(data)" if opened else ""
    return UserError(f"an image must be a path, PIL image or array, not {type(given).__name__}{way_out}")


def answer(
    ask: Callable[..., Sequence[Result]],
    see: Callable[[Sequence[Any]], Sequence[Any]],
    images: Any,
    *columns: Any,
    batch: int | None = None,
    progress: bool = False,
) -> Any:
    """Ask a question about one image, or about many in batches.

    Args:
        ask: called with the batch that ``see`` returns and its part of each column; returns one result per image.
        see: opens or encodes a batch of images.
        images: one image; a list or tuple of images; or any other iterable, which is read lazily.
        columns: further values per image, such as boxes or texts: one value for one image, a list (or an array with one
            more dimension) for a list, an iterable for an iterable; a text, or an ``itertools.repeat``, for all. None:
            no values.
        batch: batch size. Default: :data:`AT_ONCE`.
        progress: show a progress bar on a terminal for many images.

    Returns:
        the result for one image, a list for a list, a generator for any other iterable. Where an image fails, the
        generator yields the results of all before it, and then raises the error.

    Raises:
        UserError: ``images`` is none of these; a column has one value for several images, or a different length. An
            array or PIL image that ``see`` refuses is named by its place.
    """
    require_ints(1, batch=batch)
    if is_one(images):
        return ask(see([images]), *(None if column is None else [column] for column in columns))[0]
    tensor = getattr(images, "ndim", 1) in (2, 3)  # a column of a table has 1, and many images as an array have 4
    if isinstance(images, NO_IMAGES) or not isinstance(images, Iterable) or tensor:
        raise no_image(images)
    several = len(images) if isinstance(images, list | tuple) else None
    columns = tuple(_for_each(column, several) if isinstance(column, str) else column for column in columns)
    for column in columns:
        if column is not None and _is_one_value(column):
            raise UserError(f"one value ({type(column).__name__}) for several images: give one for each image")
    if several is None:
        return _stream(ask, see, images, columns, batch or AT_ONCE, progress)
    values = [None if column is None else list(column) for column in columns]
    for column in values:
        if column is not None and len(column) != several:
            raise UserError(f"{len(column)} values for {several} images: give one for each image")
    return list(_stream(ask, see, images, values, batch or AT_ONCE, progress, several))


def _for_each(text: str, count: int | None) -> Iterable[str]:
    return repeat(text) if count is None else [text] * count


def _is_one_value(column: Any) -> bool:
    """Return whether a column can only be the value of one image: a text, or a boxes array ``(N, 4)``."""
    if isinstance(column, np.ndarray):
        return column.ndim < 3
    return is_one(column) or isinstance(column, dict | bytes) or not isinstance(column, Iterable)


def _stream(
    ask: Callable[..., Sequence[Result]],
    see: Callable[[Sequence[Any]], Sequence[Any]],
    images: Iterable[Any],
    columns: Sequence[Iterable[Any] | None],
    batch: int,
    shown: bool,
    total: int | None = None,
) -> Generator[Result, None, None]:
    failed = list[Exception]()
    left, done = _until_error(images, failed), 0
    rest = [None if column is None else iter(column) for column in columns]
    with show_progress("images", total, shown=shown) as advance:
        while some := list(islice(left, batch)):
            parts = [None if column is None else list(islice(column, len(some))) for column in rest]
            for part in parts:
                if part is not None and len(part) != len(some):
                    raise UserError(f"{len(part)} values for the last {len(some)} images: give one for each image")
            for result in _results(ask, see, some, parts, done, lazily=total is None):
                advance()
                yield result
            done += len(some)
    if failed:
        raise failed[0]
    for column in rest:
        if column is not None and not isinstance(column, repeat | cycle) and next(column, rest) is not rest:
            raise UserError(f"more values than {counted(done, 'image')}: give one for each image")


def _until_error(images: Iterable[Any], failed: list[Exception]) -> Iterator[Any]:
    """Yield images up to an error of their own iterator, which is put into a list."""
    try:
        yield from islice(images, None)  # which, unlike ``images``, cannot be closed: the rest stays to be read
    except Exception as error:
        failed.append(error)


def _results(
    ask: Callable[..., Sequence[Result]],
    see: Callable[[Sequence[Any]], Sequence[Any]],
    some: Sequence[Any],
    parts: Sequence[Sequence[Any] | None],
    done: int,
    lazily: bool,
) -> Iterator[Result]:
    """Yield the results of a batch after ``done`` images; ``lazily`` also those before the image that fails."""
    try:
        seen = see(some)
    except UserError as error:
        place = error.place
        if place is not None and not isinstance(some[place], str | PathLike):
            error.args = (f"images[{done + place}]: {error}",)
        if place and lazily:
            yield from _results(ask, see, some[:place], _rows(parts, 0, place), done, lazily)
        raise
    try:
        found: Iterable[Result] = ask(seen, *parts)
    except UserError:
        if not lazily:
            raise
        each = (ask(seen[i : i + 1], *_rows(parts, i, i + 1)) for i in range(len(seen)))
        found = chain.from_iterable(each)
    yield from found


def _rows(parts: Sequence[Sequence[Any] | None], start: int, stop: int) -> list[Sequence[Any] | None]:
    return [None if part is None else part[start:stop] for part in parts]

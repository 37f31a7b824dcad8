"""An image after one pass of the network, to be asked several times; and questions about one image or many."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from io import IOBase
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

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
from saywhere.report import progress as show_progress

STEP = 2
"""Of the network's pixels an encoding keeps every second, across and down."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """Feature maps of one image, to be asked several questions.

    Attributes:
        maps: as the engine keeps them.
        width, height: of the image as a viewer shows it, in pixels.
        input_width, input_height: of the network's input.
        image: name of the image.
        trunk: the network that made the maps; no other can read them.
        pixels: ``(h, w, 3)`` uint8, every second of the network's input (:data:`STEP`).

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

    def __repr__(self) -> str:
        return f"Encoding({self.image!r}, {self.width} x {self.height})"

    @property
    def input_size(self) -> tuple[int, int]:
        """Width and height of the network's input."""
        return self.input_width, self.input_height

    @property
    def scale(self) -> tuple[float, float]:
        """Pixels of the image in one of the network's input, across and down."""
        return self.width / self.input_width, self.height / self.input_height

    def check(self, boxes: ArrayLike) -> np.ndarray:
        """Return a user's boxes in pixels of the image; raises as :func:`saywhere.regions.check_boxes`."""
        return check_boxes(boxes, self.width, self.height, self.image)

    def to_input(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes of the image in pixels of the network's input."""
        return geometry.scale(boxes, self.input_width / self.width, self.input_height / self.height)

    def to_image(self, boxes: np.ndarray) -> np.ndarray:
        """Return boxes of the network's input in pixels of the image, clipped to it."""
        return geometry.clip(geometry.scale(boxes, *self.scale), self.width, self.height)


def propose_boxes(
    encoding: Encoding, settings: ProposalConfig, coder: BoxCoder, limit: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best proposals of an image, at most ``limit``, or ``settings.post_nms_top_n``, and their logits.

    Returns:
        boxes ``(B, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input, and logits ``(B,)``, best first.
    """
    limit = settings.post_nms_top_n if limit is None else limit
    rpn = encoding.trunk.propose(encoding.maps)
    boxes, logits = propose(coder, rpn, encoding.input_size, settings.nms_iou, settings.pre_nms_top_n, limit)
    return coder.to_xyxy(boxes), logits


Result = TypeVar("Result")

AT_ONCE = 16
"""Images of a list that are in memory together."""


def is_one(images: Any) -> bool:
    """Return whether ``images`` is one image: a path, PIL image, array, opened image or encoding."""
    return isinstance(images, str | Path | Image.Image | np.ndarray | LoadedImage | Encoding)


def answer(
    ask: Callable[..., Sequence[Result]],
    see: Callable[[Sequence[Any]], Sequence[Any]],
    images: Any,
    *columns: Any,
    batch: int | None = None,
    progress: bool = False,
) -> Any:
    """Ask one question of one image, or of many, a few at a time.

    Args:
        ask: called with what ``see`` returns of some images, and with their part of each column; gives a result each.
        see: opens or encodes some images.
        images: one image, a list or tuple of them, or any other iterable, which is read as it is needed.
        columns: what is given for each image (such as boxes or texts): one value for one image, a list (or an array
            with a dimension more) for a list, an iterable for an iterable; or None.
        batch: images at a time; :data:`AT_ONCE` if None.
        progress: show a bar on a terminal while many images are worked on.

    Returns:
        the result; a list of them for a list; a generator for any other iterable.

    Raises:
        UserError: ``images`` is none of these, a column is one value for several images, or it has another length.
    """
    require_ints(1, batch=batch)
    if is_one(images):
        return ask(see([images]), *(None if column is None else [column] for column in columns))[0]
    if isinstance(images, dict | bytes | IOBase) or not isinstance(images, Iterable):
        raise UserError(f"an image must be a path, PIL image or array, not {type(images).__name__}")
    for column in columns:
        if column is not None and _is_one_value(column):
            raise UserError(f"one value ({type(column).__name__}) for several images: give one for each image")
    if not isinstance(images, list | tuple):
        return _stream(ask, see, images, columns, batch or AT_ONCE, progress)
    values = [None if column is None else list(column) for column in columns]
    for column in values:
        if column is not None and len(column) != len(images):
            raise UserError(f"{len(column)} values for {len(images)} images: give one for each image")
    return list(_stream(ask, see, images, values, batch or AT_ONCE, progress, len(images)))


def _is_one_value(column: Any) -> bool:
    """Whether a column cannot be what is given for several images: a text, or the boxes ``(N, 4)`` of one image."""
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
    left = iter(images)
    rest = [None if column is None else iter(column) for column in columns]
    with show_progress("images", total, shown=shown) as advance:
        while some := list(islice(left, batch)):
            parts = [None if column is None else list(islice(column, len(some))) for column in rest]
            for part in parts:
                if part is not None and len(part) != len(some):
                    raise UserError(f"{len(part)} values for the last {len(some)} images: give one for each image")
            for result in ask(see(some), *parts):
                advance()
                yield result

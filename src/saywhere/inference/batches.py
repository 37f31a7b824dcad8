"""Images through a model in batches, read ahead in another thread, never too many at a time."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from saywhere.errors import UserError
from saywhere.images import LoadedImage, open_image
from saywhere.inference.sources import Source
from saywhere.regions import check_boxes

T = TypeVar("T")

HELD = 1 << 30
"""Bytes of decoded images from which on no more are read ahead, and what was read is worked on, however few it is."""

Ask = Callable[[list[LoadedImage], list[np.ndarray] | None], Sequence[T]]
"""Returns the answer for each image; the boxes are given for all images or for none."""


@dataclass(frozen=True)
class ImageResult(Generic[T]):
    """What became of one image: its result, or the error.

    ``image`` is what the model saw; its pixels are dropped with this object.
    """

    source: Source
    result: T | None = None
    image: LoadedImage | None = None
    error: str | None = None


@dataclass(frozen=True)
class _Read:
    source: Source
    image: LoadedImage | None = None
    boxes: np.ndarray | None = None
    error: str | None = None


def run_images(
    ask: Ask[T],
    sources: Sequence[Source],
    boxes: Mapping[str, ArrayLike] | None = None,
    *,
    batch: int = 8,
    long_side: int | None = None,
    workers: int = 1,
) -> Iterator[ImageResult[T]]:
    """Yield what ``ask`` answers for ``sources``, in their order; one that cannot be read gives its error and no more.

    Each image is decoded once, and the next batch is read while the model works: at most ``(1 + workers) * batch``
    decoded images are held at any time, and at most ``HELD`` bytes of them and one image more.

    Args:
        ask: called with ``batch`` images at a time, for the first time when one could be read.
        sources: images from :func:`find_images`.
        boxes: by name of the image, passed to ``ask``; each source has an entry. A bad box is an error of its image.
        batch: images a call.
        long_side: pixels that are needed; larger images are decoded to about this size.
        workers: calls of ``ask`` at the same time, from as many threads.
    """
    line: queue.Queue[_Read | BaseException | Literal["full"] | None] = queue.Queue()
    room = _Room((1 + workers) * batch, lambda: line.put("full"))
    arguments = (sources, boxes, long_side, room, line)
    reader = threading.Thread(target=_read_ahead, args=arguments, daemon=True, name="saywhere-reader")
    reader.start()
    pool = ThreadPoolExecutor(workers, "saywhere-worker")
    running: deque[Future[list[ImageResult[T]]]] = deque()
    try:
        waiting: list[_Read] = []
        before: int | None = None
        while True:
            item = line.get()
            if isinstance(item, BaseException):
                raise item
            ended, pressed = item is None, item is None or item == "full"
            if isinstance(item, _Read):
                waiting.append(item)
            del item  # or the last image would be held while the next ones are waited for
            if waiting and (pressed or sum(read.image is not None for read in waiting) == batch):
                running.append(pool.submit(_ask_batch, ask, waiting, boxes is not None))
                waiting = []
            while running and (pressed or len(running) == workers):
                done = running.popleft().result()
                while done:
                    held = _bytes_of(done[0].image)
                    yield done.pop(0)
                    if before is not None:  # the caller's loop lets go of an image only when it has the next one
                        room.leave(before)
                    before = held
            if ended:
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        room.close()


class _Room:
    """Room for decoded images: so many of them, and about ``HELD`` bytes.

    Args:
        places: how many.
        press: called if the bytes are too many: what is held must be worked on, or nothing would ever leave.
    """

    def __init__(self, places: int, press: Callable[[], object]) -> None:
        self._places, self._press = places, press
        self._count = self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def wait(self) -> bool:
        """Wait until one more may enter; False if the room is closed."""
        with self._changed:
            if self._bytes > HELD:
                self._press()
            self._changed.wait_for(lambda: self._closed or self._is_free())
            return not self._closed

    def _is_free(self) -> bool:  # the last one that was handed out is held until the caller asks for the next one
        return self._count < self._places and (self._bytes <= HELD or self._count <= 1)

    def enter(self, size: int) -> None:
        """Count an image of so many bytes."""
        with self._changed:
            self._count, self._bytes = self._count + 1, self._bytes + size

    def leave(self, size: int) -> None:
        """Count it no more."""
        with self._changed:
            self._count, self._bytes = self._count - 1, self._bytes - size
            self._changed.notify_all()

    def close(self) -> None:
        """Let nobody in any more, nor wait."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _bytes_of(image: LoadedImage | None) -> int | None:
    """What Pillow holds of an RGB image; None if there is none."""
    return None if image is None else 4 * image.pixels.width * image.pixels.height


def _read_ahead(
    sources: Sequence[Source],
    boxes: Mapping[str, ArrayLike] | None,
    long_side: int | None,
    room: _Room,
    line: queue.Queue[_Read | BaseException | Literal["full"] | None],
) -> None:
    try:
        for source in sources:
            if not room.wait():
                return
            read = _read(source, None if boxes is None else boxes[source.name], long_side)
            if (size := _bytes_of(read.image)) is not None:
                room.enter(size)
            line.put(read)
            del read
        line.put(None)
    except BaseException as error:  # passed to the caller, who would wait for ever
        line.put(error)


def _read(source: Source, boxes: ArrayLike | None, long_side: int | None) -> _Read:
    try:
        image = open_image(source.path, long_side)
        cut = None if boxes is None else check_boxes(boxes, image.width, image.height, str(source.path))
        return _Read(source, image, cut)
    except UserError as error:
        return _Read(source, error=str(error).removeprefix(f"{source.path}: "))


def _ask_batch(ask: Ask[Any], reads: Sequence[_Read], given: bool) -> list[ImageResult[Any]]:
    """What became of each, in order; ``ask`` is called once for all that could be read."""
    good = [read for read in reads if read.image is not None]
    images = [read.image for read in good if read.image is not None]
    boxes = [read.boxes for read in good if read.boxes is not None] if given else None
    answers = iter(ask(images, boxes) if images else ())
    return [
        ImageResult(read.source, None if read.image is None else next(answers), read.image, read.error)
        for read in reads
    ]

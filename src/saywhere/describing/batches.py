"""Pictures through a model in batches, read ahead in another thread, never too many at a time."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from saywhere.describing.sources import Box, Source
from saywhere.images import ImageError, Picture, open_picture

if TYPE_CHECKING:
    from torch import Tensor

    from saywhere.regions import Regions


class Describer(Protocol):
    """What is asked of a model: its ``describe`` for a list of pictures."""

    def describe(
        self,
        images: list[Picture],
        boxes: list[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]:
        """One :class:`Regions` for each picture; of the given boxes, if there are any."""
        ...


@dataclass(frozen=True)
class Described:
    """What became of one picture: its regions, or the reason why there are none.

    ``picture`` is what the model saw; its pixels are dropped with this object.
    """

    source: Source
    regions: Regions | None = None
    picture: Picture | None = None
    error: str | None = None


ENOUGH = 512
"""Pixels on the long side to which a picture is decoded just to see whether it can be."""


@dataclass(frozen=True)
class _Read:
    source: Source
    picture: Picture | None = None
    boxes: list[Box] | None = None
    error: str | None = None


def describe_pictures(
    model: Describer,
    sources: Sequence[Source],
    boxes: Mapping[str, Sequence[Box]] | None = None,
    *,
    top: int | None = None,
    threshold: float | None = None,
    batch: int = 8,
    long_side: int | None = None,
) -> Iterator[Described]:
    """Describe ``sources`` in their order, ``batch`` at a time; one that cannot be read gives its error and no more.

    The next batch is read while the model works: at most ``2 * batch`` decoded pictures are held at any time.

    Args:
        model: anything with the method ``describe`` of :class:`Describer`.
        sources: pictures from :func:`find_pictures`.
        boxes: by name of the picture: only these are described. Each source has an entry.
        top, threshold: passed to the model.
        batch: pictures a call of the model.
        long_side: pixels that the model needs; larger pictures are decoded to about this size.
    """
    slots = threading.Semaphore(2 * batch)
    stop = threading.Event()
    line: queue.Queue[_Read | BaseException | None] = queue.Queue()
    arguments = (sources, boxes, long_side, slots, stop, line)
    reader = threading.Thread(target=_read_ahead, args=arguments, daemon=True, name="saywhere-reader")
    reader.start()
    try:
        waiting: list[_Read] = []
        before = False
        while True:
            item = line.get()
            if isinstance(item, BaseException):
                raise item
            ended = item is None
            if item is not None:
                waiting.append(item)
            del item  # or the last picture would be held while the next ones are waited for
            if waiting and (ended or sum(read.picture is not None for read in waiting) == batch):
                done = _describe_batch(model, waiting, boxes is not None, top, threshold)
                waiting.clear()
                while done:
                    held = done[0].picture is not None
                    yield done.pop(0)
                    if before:  # the caller's loop lets go of a picture only when it has the next one
                        slots.release()
                    before = held
            if ended:
                return
    finally:
        stop.set()
        slots.release()  # a reader that waits for a slot sees that it is to stop


def unreadable_at_start(
    sources: Sequence[Source], boxes: Mapping[str, Sequence[Box]] | None = None
) -> Iterator[Described]:
    """The errors of the pictures before the first one that can be read; this needs no model.

    ``sources`` and ``boxes`` are those of :func:`describe_pictures`, which can go on after what was given here.
    """
    for source in sources:
        read = _read(source, None if boxes is None else boxes[source.name], ENOUGH)
        if read.error is None:
            return
        yield Described(source, error=read.error)


def _read_ahead(
    sources: Sequence[Source],
    boxes: Mapping[str, Sequence[Box]] | None,
    long_side: int | None,
    slots: threading.Semaphore,
    stop: threading.Event,
    line: queue.Queue[_Read | BaseException | None],
) -> None:
    try:
        for source in sources:
            slots.acquire()
            if stop.is_set():
                return
            read = _read(source, None if boxes is None else boxes[source.name], long_side)
            if read.picture is None:
                slots.release()
            line.put(read)
            del read
        line.put(None)
    except BaseException as error:  # told to the caller, who would wait for ever
        line.put(error)


def _read(source: Source, boxes: Sequence[Box] | None, long_side: int | None) -> _Read:
    try:
        picture = open_picture(source.path, long_side)
        return _Read(source, picture, None if boxes is None else _inside(boxes, picture))
    except ImageError as error:
        return _Read(source, error=str(error).removeprefix(f"{source.path}: "))


def _inside(boxes: Sequence[Box], picture: Picture) -> list[Box]:
    """The boxes; those up to a pixel outside, as rounding leaves them, are cut to the picture."""
    width, height = picture.width, picture.height
    cut = []
    for x1, y1, x2, y2 in boxes:
        if x1 < -1 or y1 < -1 or x2 > width + 1 or y2 > height + 1 or x1 >= width or y1 >= height or x2 <= 0 or y2 <= 0:
            raise ImageError(f"the box {[x1, y1, x2, y2]} is not inside the {width} x {height} picture")
        cut.append((max(x1, 0.0), max(y1, 0.0), min(x2, width), min(y2, height)))
    return cut


def _describe_batch(
    model: Describer, reads: Sequence[_Read], given: bool, top: int | None, threshold: float | None
) -> list[Described]:
    """What became of each, in order; the model is asked once for all that could be read."""
    pictures = [read.picture for read in reads if read.picture is not None]
    options: dict[str, Any] = {"top": top, "threshold": threshold}
    if given:
        import torch

        chosen = [read.boxes or [] for read in reads if read.picture is not None]
        options["boxes"] = [torch.tensor(rows, dtype=torch.float32).reshape(-1, 4) for rows in chosen]
    answers = iter(model.describe(pictures, **options) if pictures else [])
    return [
        Described(read.source, None if read.picture is None else next(answers), read.picture, read.error)
        for read in reads
    ]

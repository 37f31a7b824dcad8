"""A run over many images: reads ahead, runs the model in batches and saves each answer at once.

An interrupted run can be continued.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from saywhere.errors import UserError, explain_oom
from saywhere.files import beside
from saywhere.images import LoadedImage, open_image
from saywhere.inference.results import (
    ImageResult,
    Outputs,
    ResultsFile,
    compare_settings,
    ensure_same_settings,
    read_names,
)
from saywhere.inference.sources import Source, find_images, list_paths, optional_path, read_boxes, results_path
from saywhere.loading import DeferredModel
from saywhere.options import dataclass, require_ints, require_probabilities, require_texts
from saywhere.regions import SHOWN, Regions, check_boxes
from saywhere.report import Report, Tell, counted, progress, silent

if TYPE_CHECKING:
    from saywhere.formats.classes import Classes
    from saywhere.inference.claims import Claim
    from saywhere.inference.shards import Shard
    from saywhere.models.model import Model

T = TypeVar("T")

HELD = 1 << 30
"""Bytes of decoded images above which reading ahead pauses, and incomplete batches are processed."""

Ask = Callable[[list[LoadedImage], list[np.ndarray] | None], Sequence[T]]
"""Function that returns one answer per image; boxes are given for all images or for none."""


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
    """Yield the answers of ``ask`` for ``sources`` in order; an image that cannot be read yields only its error.

    Each image is decoded once, and the next batch is read while the model runs. At any time at most ``(1 + workers) *
    batch`` decoded images are in memory, and at most ``HELD`` bytes of them plus one image.

    Args:
        ask: called with up to ``batch`` images at a time, for the first time when one has been read.
        sources: images from :func:`find_images`.
        boxes: boxes for ``ask`` by image name, with an entry for each source. Invalid boxes are an error of the image.
        long_side: pixels needed on the long side; larger images are decoded at about this size.
        workers: number of threads that call ``ask`` concurrently.
    """
    require_ints(1, batch=batch)
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
            del item  # otherwise it keeps the last image in memory while waiting for the next
            if waiting and (pressed or sum(read.image is not None for read in waiting) == batch):
                running.append(pool.submit(_ask_batch, ask, waiting, boxes is not None))
                waiting = []
            while running and (pressed or len(running) == workers):
                done = running.popleft().result()
                while done:
                    held = _bytes_of(done[0].image)
                    yield done.pop(0)
                    if before is not None:  # the caller's loop frees an image only when it gets the next one
                        room.leave(before)
                    before = held
            if ended:
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        room.close()


class _Room:
    """Limit on the number of decoded images in memory, and on their size, about ``HELD`` bytes.

    ``press`` is called when the size limit is exceeded: waiting images must then be processed to be freed.
    """

    def __init__(self, places: int, press: Callable[[], object]) -> None:
        self._places, self._press = places, press
        self._count = self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def wait(self) -> bool:
        """Wait until another image may enter; False if the room is closed."""
        with self._changed:
            if self._bytes > HELD:
                self._press()
            self._changed.wait_for(  # the caller holds the last yielded image until it asks for the next one
                lambda: self._closed or (self._count < self._places and (self._bytes <= HELD or self._count <= 1))
            )
            return not self._closed

    def enter(self, size: int) -> None:
        """Add an image of this size in bytes."""
        with self._changed:
            self._count, self._bytes = self._count + 1, self._bytes + size

    def leave(self, size: int) -> None:
        """Remove an image of this size."""
        with self._changed:
            self._count, self._bytes = self._count - 1, self._bytes - size
            self._changed.notify_all()

    def close(self) -> None:
        """Refuse further images, and end all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _bytes_of(image: LoadedImage | None) -> int | None:
    """Return Pillow's memory for an RGB image in bytes; None without an image."""
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
    except BaseException as error:  # passed on to the caller, who would otherwise wait forever
        line.put(error)


def _read(source: Source, boxes: ArrayLike | None, long_side: int | None) -> _Read:
    try:
        image = open_image(source.path, long_side)
        cut = None if boxes is None else check_boxes(boxes, image.width, image.height, str(source.path))
        return _Read(source, image, cut)
    except UserError as error:
        return _Read(source, error=str(error).removeprefix(f"{source.path}: "))


def _ask_batch(ask: Ask[Any], reads: Sequence[_Read], given: bool) -> list[ImageResult[Any]]:
    """Return the outcome for each image in order; ``ask`` is called once with all that could be read."""
    good = [read for read in reads if read.image is not None]
    images = [read.image for read in good if read.image is not None]
    boxes = [read.boxes for read in good if read.boxes is not None] if given else None
    answers = iter(ask(images, boxes) if images else ())
    return [
        ImageResult(read.source, None if read.image is None else next(answers), read.image, read.error)
        for read in reads
    ]


TOP = 10
"""Default number of regions per image (docs/describe.md#which-regions)."""


@dataclass
class Summary:
    """Outcome of a run over images or videos.

    Attributes:
        count: number of images, without those missing in the boxes file.
        done, already: number of images answered by this run, and by an earlier one.
        regions: number of regions found by this run; None if answers are not regions.
        empty: number of images of this run without a region above the threshold.
        without_boxes: number of images missing in the boxes file.
        skipped: images without an answer, with reasons.
        damaged: videos that were only partly readable, with details.
        written: files and folders with results.
        verb: past participle of the task, such as ``described``.
        lines: results file, or None.
    """

    count: int = 0
    done: int = 0
    already: int = 0
    regions: int | None = None
    empty: int = 0
    without_boxes: int = 0
    skipped: dict[str, str] = field(default_factory=dict[str, str])
    damaged: dict[str, str] = field(default_factory=dict[str, str])
    written: list[Path] = field(default_factory=list[Path])
    verb: str = "described"
    lines: Path | None = None

    def __str__(self) -> str:
        parts = [f"{self.done} {self.verb}" + ("" if self.regions is None else f", {counted(self.regions, 'region')}")]
        parts += [f"{self.already} already {f'in {self.lines}' if self.lines else 'done'}"] if self.already else []
        parts += [f"{self.without_boxes} without boxes left out"] if self.without_boxes else []
        parts += [f"{len(self.skipped)} skipped"] if self.skipped else []
        return "; ".join(parts)


Each = Callable[[ImageResult[T], Summary], object]
"""Called with each new answer after it is saved, and with the run's state so far."""


@dataclass(frozen=True)
class Run(Generic[T]):
    """Run a model on the images that have no answer yet, and make missing drawings.

    Attributes:
        ask, boxes: see :func:`run_images`.
        model: model that ``ask`` uses; not loaded if all images have answers.
        verbs: present and past participle of the task: ``("describing", "described")``.
        claim: claim to the shard of these images; losing it ends the run.
    """

    ask: Ask[T]
    model: DeferredModel
    outputs: Outputs
    boxes: Mapping[str, ArrayLike] | None = None
    batch: int = 8
    each: Each[T] | None = None
    verbs: tuple[str, str] = ("describing", "described")
    claim: Claim | None = None
    bar: bool = True

    def __call__(self, sources: Sequence[Source]) -> Summary:
        """Process the images; ``UserError`` if the model cannot be used. Ctrl-C reports the progress."""
        outputs = self.outputs
        todo = [source for source in sources if not outputs.is_described(source)]
        undrawn = [source for source in sources if outputs.lacks_image(source)]
        summary = Summary(len(sources), already=len(sources) - len(todo), verb=self.verbs[1])
        summary.lines = None if outputs.lines is None else outputs.lines.path

        def keep(one: ImageResult[T]) -> str | None:
            new = not outputs.is_described(one.source)
            why = outputs.keep(one)
            if new and why is None:
                summary.done += 1
                if isinstance(one.result, Regions):
                    summary.regions = (summary.regions or 0) + len(one.result)
                if self.each is not None:
                    self.each(one, summary)
            return why

        results: Iterable[ImageResult[Any]] = itertools.chain(outputs.read_back(undrawn), self._fresh(todo))
        if self.claim is not None:
            results = self.claim.check(results)
        done, resumes = summary.already - len(undrawn), outputs.lines is not None
        with explain_oom(self.batch):
            summary.skipped = keep_each(results, keep, len(sources), done, self.verbs[0], resumes, self.bar)
        return summary

    def _fresh(self, todo: Sequence[Source]) -> Iterator[ImageResult[T]]:
        if todo:  # otherwise the model is not needed
            self.model.begin()
            long_side = max(self.outputs.long_side, self.model.long_side)
            workers = self.model.workers
            yield from run_images(self.ask, todo, self.boxes, batch=self.batch, long_side=long_side, workers=workers)


def describe(
    images: str | Path | Sequence[str | Path | Source],
    model: str | Path | Model | DeferredModel | None = None,
    *,
    json: str | Path | None = None,
    out: str | Path | None = None,
    boxes: str | Path | None = None,
    top: int | None = TOP,
    threshold: float | None = None,
    batch: int = 8,
    output_format: str = "saywhere",
    classes: Classes | Sequence[str] | None = None,
    copy_images: bool = False,
    embed: bool = False,
    shards: int | None = None,
    progress: bool = False,
    each: Each[Regions] | None = None,
    tell: Tell = silent,
) -> Summary:
    """Describe images, as the command ``saywhere describe`` does; calling it again continues an interrupted run.

    Args:
        images: files, folders, glob patterns, archives or lists, see :func:`saywhere.inference.find_images`.
        model: model, its name or its folder. Default: the bundled one.
        json: JSON lines file for the results; images that it already has are not described again.
        out: folder for drawn images, or for files of ``output_format``; without it ``xmp`` goes beside the images.
        boxes: file of boxes to describe, see :func:`saywhere.inference.read_boxes`: all of them and no others.
        top: maximum number of regions per image; 0 or None: all.
        threshold: minimum probability that a region's box and caption are right. Default: that of
            :meth:`saywhere.Regions.at_least`; 0 for ``coco-results``, whose evaluator ranks regions of any score.
        batch: batch size.
        output_format: one of :data:`saywhere.formats.registry.FORMATS`.
        classes: keep only regions whose phrase has one of these classes (``["person", "dog"]``, or ``"person,dog"``);
            also the classes of ``output_format``.
        copy_images: also write the images, for the format yolo.
        embed: write ``xmp`` into JPEG, PNG and WebP files by ExifTool, and beside all others.
        shards: divide the images into this many shards, which other processes work on too. None: no shards.
        progress: show a progress bar on a terminal.
        each: called with each new result and the summary so far.
        tell: called with the lines that the command prints. Default: print nothing.

    Raises:
        UserError: arguments are invalid, there are no images, or the results were begun with other options.

    Example:
        >>> print(saywhere.describe("photos", json="regions.jsonl", out="drawn", progress=True))
        3 described, 5 regions
    """
    require_ints(0, top=top)
    require_ints(1, batch=batch, shards=shards)
    require_probabilities(threshold=threshold)
    paths = list_paths(images=images)
    json, out, boxes = results_path(json), optional_path(out=out), optional_path(boxes=boxes)
    found = [path for path in paths if isinstance(path, Source)]
    if others := [path for path in paths if not isinstance(path, Source)]:
        found += find_images(others, [out] if out else [])
    model = model if isinstance(model, DeferredModel) else DeferredModel(model, part="densecap")
    _check_places(output_format, json, out, shards, copy_images, embed)
    if classes is not None:
        from saywhere.formats.classes import Classes

        if not isinstance(classes, Classes):
            require_texts(classes=classes)
            classes = Classes.parse(classes if isinstance(classes, str) else ",".join(classes))
    if boxes is not None and classes is not None:
        raise UserError(f"{boxes}: all of its boxes are described, so --classes and --map cannot choose among them")
    given = None if boxes is None else read_boxes(boxes, found)
    sources = found if given is None else [source for source in found if source.name in given]
    Outputs(None, out).check(sources if output_format == "saywhere" else [])
    most = None if given is not None else top or None
    least = 0.0 if given is not None or output_format == "coco-results" else None
    work = _Description(
        model, given, most, least if threshold is None else threshold, batch, progress, each, tell, boxes, classes,
        len(found) - len(sources),
    )  # fmt: skip
    if shards is not None and json is not None:
        return work.share(sources, shards, json, out)
    if output_format != "saywhere" and out is not None:
        return work.convert(sources, output_format, json or out / "regions.jsonl", out, copy_images)
    return work.keep(sources, json, out, output_format, embed)


def _require_sayable(classes: Classes, words: Container[str]) -> None:
    """Refuse class names that no phrase of a model with these words can contain."""
    from difflib import get_close_matches

    from saywhere.models.nouns import noun_tree

    if unknown := classes.unknown(words):
        near = get_close_matches(unknown[0], {name for name, _ in noun_tree().names()}, n=1, cutoff=0.8)
        raise UserError(
            f"class {unknown[0]!r}: the model has no such word, and the table of nouns no such noun, so that no region "
            f"can have it; {f'did you mean {near[0]}?' if near else 'name another class'}"
        )


def _check_places(
    output_format: str, json: Path | None, out: Path | None, shards: int | None, copy_images: bool, embed: bool
) -> None:
    if output_format not in ("saywhere", "xmp", "xmp-names") and out is None:
        raise UserError(f"--output-format {output_format} needs --out DIR, the folder of what is written")
    if embed:
        from saywhere.formats.xmp import check_embed

        check_embed(output_format, out)
    if shards is not None and (json is None or output_format != "saywhere"):
        raise UserError("--shards needs --json FILE, where all shards come together, and no --output-format")
    if copy_images and output_format != "yolo":
        raise UserError("--copy-images is for --output-format yolo, whose programs look for the images beside labels")


@dataclass(frozen=True)
class _Description:
    """The task for each image and its messages; for the fields see :func:`describe`."""

    model: DeferredModel
    given: Mapping[str, ArrayLike] | None
    top: int | None
    threshold: float | None
    batch: int
    bar: bool
    each: Each[Regions] | None
    tell: Tell
    boxes: Path | None
    classes: Classes | None
    without_boxes: int

    @property
    def least(self) -> float:
        """Minimum probability of box and words; 0: none."""
        return SHOWN if self.threshold is None else self.threshold

    @property
    def facts(self) -> dict[str, Any]:
        """Settings that determine the results."""
        boxes = None if self.boxes is None else str(self.boxes)
        classes = None if self.classes is None else list(self.classes.names)
        options = {"boxes": boxes, "top": self.top, "threshold": self.least or None, "classes": classes}
        return {**self.model.facts, **options}

    def keep(self, sources: Sequence[Source], json: Path | None, out: Path | None, format: str, embed: bool) -> Summary:
        """Describe images and save lines, drawings, or files of a format beside the images."""
        beside, report = (None, None) if format == "saywhere" else _beside(format, embed)
        with contextlib.ExitStack() as stack:
            lines = stack.enter_context(ResultsFile(json)) if json else None
            if json is not None:
                ensure_same_settings(json, self.facts)
            outputs = Outputs(lines, out, beside=beside)
            undrawn = any(map(outputs.lacks_image, sources))
            earlier = [source for source in sources if beside and outputs.is_described(source)]
            lost = {one.name: beside(one, outputs.answer(one), False) for one in earlier} if beside else {}
            summary = self._run(sources, outputs)
            summary.skipped.update({name: why for name, why in lost.items() if why})
        for line in report.lines() if report is not None else ():
            self.tell(line, err=True)
        written = [path for path in (json, out) if path and (summary.done or (path == out and undrawn))]
        more = "XMP in the images or beside them" if embed else "sidecars beside the images"
        return self._report(summary, written, more if beside and len(summary.skipped) < len(sources) else None)

    def convert(
        self, sources: Sequence[Source], output_format: str, json: Path, out: Path, copy_images: bool
    ) -> Summary:
        """Describe images, and write all results in another program's format into the folder ``out``."""
        from saywhere.formats.classes import NOUNS
        from saywhere.formats.registry import FORMATS

        report, new = Report(), FORMATS[output_format]
        place = out / new.name
        new.require_new(place)
        new.require_names(source.name for source in sources)
        if json.absolute() == place.absolute() or place.absolute() in json.absolute().parents:
            raise UserError(f"--json {json}: is where the result is written; name another file")
        with ResultsFile(json) as lines:
            ensure_same_settings(json, self.facts)
            outputs = Outputs(lines)
            summary = self._run(sources, outputs)
            kept = (outputs.answer(source) for source in sources if outputs.is_described(source))
            summary.skipped.update(new.write_whole(place, kept, report, copy_images, self.classes or NOUNS))
        for line in report.lines():
            self.tell(line, err=True)
        return self._report(summary, [json, *new.files(place)])

    def share(self, sources: Sequence[Source], count: int, json: Path, out: Path | None) -> Summary:
        """Describe shards together with other processes; the last process merges them into ``json``."""
        from saywhere.inference.shards import Shards, work_on

        compare_settings(json, self.facts)
        shards = Shards(beside(json, "{}.shards"), count, sources, self.facts)
        earlier, summary = read_names(json), Summary(len(sources), regions=0)

        def describe_one(shard: Shard) -> tuple[int, dict[str, str]]:
            todo = [source for source in shard.sources if source.name not in earlier]
            with ResultsFile(shard.part) as lines:
                done = self._run(todo, Outputs(lines, out), shard.claim)
            summary.empty += done.empty
            return len(shard.sources) - len(todo), done.skipped

        summary.skipped = work_on(shards, describe_one, "described", self.tell)
        self._tell_lacking(summary)
        for results in shards.merging(self.tell):
            numbers = range(shards.count)
            summary.skipped = {name: why for number in numbers for name, why in shards.skipped(number).items()}
            with ResultsFile(json) as lines:
                ensure_same_settings(json, self.facts)
                merged = sum(lines.merge(result) for result in results)
            summary.already = sum(source.name in earlier for source in sources)
            before = f"; {summary.already} already in {json}" if summary.already else ""
            counts = f"{merged} described{before}; {len(summary.skipped)} skipped"
            summary.done, summary.written = merged, [path for path in (json, out) if path]
            self.tell(f"all {shards.count} shards are done: {counts}; written: {', '.join(map(str, summary.written))}")
        return summary

    def _run(self, sources: Sequence[Source], outputs: Outputs, claim: Claim | None = None) -> Summary:
        empty: set[str] = set()

        def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Regions]:
            model = self.model()
            if self.classes is not None and model.densecap is not None:
                _require_sayable(self.classes, model.densecap.vocabulary)
            least = self.least
            top = None if least or self.classes is not None else self.top
            found = model.describe(images, given, top=top, threshold=least or None)
            if least:
                found = [each.at_least(self.threshold) for each in found]
                empty.update(image.name for image, each in zip(images, found, strict=True) if not len(each))
            if self.classes is not None:
                found = [self.classes.keep(each) for each in found]
            if top is None:
                found = [each[: self.top] for each in found]
            return found

        run = Run(ask, self.model, outputs, self.given, self.batch, self.each, claim=claim, bar=self.bar)
        summary = run(sources)
        summary.regions, summary.empty = summary.regions or 0, len(empty)
        summary.without_boxes = self.without_boxes
        return summary

    def _report(self, summary: Summary, written: list[Path], more: str | None = None) -> Summary:
        summary.written = written
        if summary.count > 1 or summary.already or summary.without_boxes:
            self.tell(str(summary))
        self._tell_lacking(summary)
        if told := [*map(str, written), *filter(None, [more])]:
            self.tell(f"written: {', '.join(told)}")
        return summary

    def _tell_lacking(self, summary: Summary) -> None:
        for line in () if self.classes is None else self.classes.notes():
            self.tell(line, err=True)
        if summary.empty:
            images = f"{counted(summary.empty, 'image')} {'has' if summary.empty == 1 else 'have'}"
            self.tell(
                f"{images} no region that is right with a probability of {self.least:g}; --threshold 0 keeps all",
                err=True,
            )


def _beside(format: str, embed: bool) -> tuple[Callable[..., str | None], Report]:
    """Return a function that writes an image's regions beside it, and the report of replaced characters.

    The function's third argument says whether they are of this run, and so of the image as it is now.
    """
    from saywhere.formats.registry import FORMATS

    chosen, report = FORMATS[format], Report()

    def write(source: Source, regions: Regions, fresh: bool = True) -> str | None:
        named = replace(regions, image=source.name)
        return next(iter(chosen.write_beside([named], report, embed, fresh=fresh).values()), None)

    return write, report


def keep_each(
    results: Iterable[ImageResult[T]],
    keep: Callable[[ImageResult[T]], str | None],
    total: int,
    completed: int = 0,
    what: str = "describing",
    resumes: bool = True,
    bar: bool = True,
) -> dict[str, str]:
    """Pass each result to ``keep``, with a progress bar; return the skipped images with reasons.

    Args:
        results: results of :func:`saywhere.inference.run_images`.
        keep: called with the images that have a result; returns why it could not be saved, or None.
        total, completed: number of images, and how many of them an earlier run has done.
        resumes: whether the same command continues after a ``KeyboardInterrupt``.
    """
    skipped: dict[str, str] = {}
    count = completed
    with progress(what, total, completed, bar) as advance:
        try:
            for one in results:
                why = (one.error or "cannot be read") if one.result is None else keep(one)
                if why:
                    skipped[one.source.name] = why
                else:
                    count += 1
                advance()
        except KeyboardInterrupt:
            again = "; run it again to continue" if resumes else ""
            raise KeyboardInterrupt(f"interrupted after {count} of {counted(total, 'image')}{again}") from None
    return skipped

"""What evaluation tasks share: reading data and images, resuming, and the facts in reports."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from saywhere import data as datasets
from saywhere import reproductions
from saywhere.data import PhraseOptions, Report, Sample, Samples
from saywhere.data.flickr import MarkedImage, count_phrases, digest_of_marked, read_entities
from saywhere.data.sample import digest_of
from saywhere.errors import UserError
from saywhere.evaluation.report import TASKS
from saywhere.files import read_record, write_atomically, write_text
from saywhere.images import LoadedImage
from saywhere.inference import Source, run_images
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model
from saywhere.options import dataclass
from saywhere.report import counted, silent
from saywhere.search.indexing import embed_for_index, index_digest


def peak_memory() -> dict[str, int]:
    """Return the peak memory in megabytes: ``peak_memory_mb``, and ``peak_gpu_memory_mb`` if torch used a GPU.

    The former is unknown on Windows.
    """
    known: dict[str, int] = {}
    try:
        resource: Any = importlib.import_module("resource")
    except ImportError:
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
        known["peak_memory_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        known["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 1e6)
    return known


SETTINGS = "settings.json"
REPORT = "report.json"


def ensure_same_task(folder: Path, task: str) -> None:
    """Refuse a file, or a folder with the report or stopped run of another task, which would be lost."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: is a file, and no folder for results")
    for path in (folder / REPORT, folder / SETTINGS):
        if (other := read_record(path).get("task", task)) != task:
            raise UserError(f"{path}: is of the task {other}, not {task}; give another --out, or remove it")


def ensure_same_run(folder: Path, wanted: Mapping[str, object], made: str, task: str | None = None) -> None:
    """Prepare ``folder`` for a run with the settings ``wanted``, new or resumed.

    The run is new if ``made``, its results file or folder, is missing or empty. ``UserError`` if there are results with
    other settings. ``task`` is recorded for :func:`ensure_same_task`.
    """
    results, path = folder / made, folder / SETTINGS
    if any(results.iterdir()) if results.is_dir() else results.exists() and results.stat().st_size:
        known = read_record(path)
        if changed := [key for key, value in wanted.items() if known.get(key) != value]:
            what = f"with another {' and another '.join(changed)}" if known else "by an unknown program"
            raise UserError(f"{results}: was made {what}; remove it, or give another --out")
    write_text(path, json.dumps({**({"task": task} if task else {}), **wanted}, indent=2) + "\n")


T = TypeVar("T")

Progress = Callable[[str, int, int], object]
"""Called with a description of the work, the number of completed steps, and the total."""

DEV = "dev"
"""The default split."""


@dataclass(eq=False)
class Session:
    """One evaluation: the places of its data and results, and its notes and problems.

    Attributes:
        data: folder of the data set, or its file.
        out: folder of the results, in which a stopped run is resumed.
        format: of the data set; None detects it from the files.
        split: of the data set; None for ``dev``. Its full name after reading.
        limit: maximum number of images, the first ones.
        batch: images per call of the model.
        model: name of the model, for the report; None if there is none.
        options: changed options of the model, for the report.
        progress: called after each step.
        command: command that repeats the run, for the report.
        task: one of :data:`saywhere.evaluation.report.TASKS`; if given, results of another task in ``out`` are refused.
        skipped: unreadable images with the reasons; filled by :meth:`each`.
        notes: further messages to the user, one line each.
        report: problems in reading the data set.
    """

    data: Path
    out: Path = Path("evaluation")
    format: str | None = None
    split: str | None = None
    limit: int | None = None
    batch: int = 8
    model: str | None = None
    options: Sequence[str] = ()
    progress: Progress = silent
    command: str = ""
    task: str | None = None
    skipped: dict[str, str] = field(default_factory=dict, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    report: Report = field(default_factory=Report, init=False)
    _digest: str = field(default="", init=False)
    _started: float = field(default_factory=time.monotonic, init=False)

    def __post_init__(self) -> None:
        if self.task is not None:
            ensure_same_task(self.out, self.task)

    @property
    def folder(self) -> Path:
        """The folder that image names are relative to."""
        return self.data if self.data.is_dir() else self.data.parent

    @property
    def complete(self) -> bool:
        """Whether no image was skipped and nothing in the data set is missing or broken."""
        return not self.skipped and self.report.ok

    def read(self, options: PhraseOptions | None = None) -> Samples:
        """Read the split, at most ``limit`` images; raises as :func:`saywhere.data.read`."""
        samples = datasets.read(self.data, self.format, self.split or DEV, options)
        self._take(samples.report, samples.split)
        self._digest = _digest_of(digest_of(samples), samples)
        return samples[: self.limit]

    def read_beside(self, data: Path) -> Samples:
        """Read the split ``train`` of another data set; its problems are added to those of this one."""
        samples = datasets.read(data, None, "train")
        self.notes += [] if samples.report.ok else [f"{data}: {line}" for line in samples.report.lines()]
        for kind, names in samples.report.problems.items():
            self.report.problems.setdefault(kind, []).extend(names)
        return samples

    def read_entities(self) -> list[MarkedImage]:
        """Read the split's sentences with marked phrases (Flickr30k Entities), for at most ``limit`` images.

        Raises:
            UserError: it is not such a data set, or no phrase has a box.
        """
        report, split = Report(), self.split or DEV
        found = read_entities(self.data, split, report)
        images = found[: self.limit]
        self._take(report, split)
        self._digest = _digest_of(digest_of_marked(found), found)
        if not count_phrases(images):
            raise UserError(f"{self.data}: the split {split} has no phrase with a box")
        return images

    def _take(self, report: Report, split: str) -> None:
        self.report, self.split = report, split
        self.notes += [] if report.ok else [f"{self.data}: {line}" for line in report.lines()]

    def sources(self, samples: Samples) -> list[Source]:
        """Return the distinct images of a data set, named relative to its folder; ``UserError`` if there are none."""
        names = {image_name(sample.image, self.folder): sample.image for sample in samples}
        if not (sources := [Source(path, name, Path(name)) for name, path in names.items()]):
            raise UserError(f"{self.data}: the split {samples.split} has no image that can be read")
        return sources

    def texts(self, samples: Iterable[Sample]) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
        """Return the sentences of a data set by image name, and the phrases of the images' boxes."""
        sentences: dict[str, list[str]] = {}
        phrases: dict[str, list[str]] = {}
        for sample in samples:
            name = image_name(sample.image, self.folder)
            sentences.setdefault(name, []).extend(sample.sentences)
            phrases.setdefault(name, []).extend(text for texts in sample.phrases for text in texts)
        return sentences, phrases

    def resume(self, settings: Mapping[str, object], made: str) -> None:
        """Prepare ``out`` for a run with these settings; see :func:`saywhere.evaluation.session.ensure_same_run`.

        ``data`` among the settings becomes the digest of the annotations and image files that were read.
        """
        ensure_same_run(self.out, {**settings, "data": self._digest}, made, self.task)

    def each(
        self,
        ask: Callable[[list[LoadedImage], list[np.ndarray] | None], Sequence[T]],
        sources: Sequence[Source],
        done: Container[str],
        keep: Callable[[str, T], object],
        boxes: Mapping[str, ArrayLike] | None = None,
        long_side: int | None = None,
    ) -> list[Source]:
        """Query the images that are not done yet, ``batch`` at a time, and keep each answer.

        Args:
            ask, boxes, long_side: see :func:`saywhere.inference.run_images`.
            done: names of images done by an earlier run.
            keep: called with the name of an image and its answer.

        Returns:
            The images that have an answer; the others are in :attr:`skipped`.

        Raises:
            UserError: no image is readable.
            KeyboardInterrupt: with a line about how far it came.
        """
        todo = [source for source in sources if source.name not in done]
        with self.steps("looking", len(sources), len(sources) - len(todo)) as advance:
            for one in run_images(ask, todo, boxes, batch=self.batch, long_side=long_side):
                if one.result is None:
                    self.skipped[one.source.name] = one.error or "cannot be read"
                else:
                    keep(one.source.name, one.result)
                advance()
        if not (seen := [source for source in sources if source.name not in self.skipped]):
            name, reason = next(iter(self.skipped.items()))
            printable = name.encode("utf-8", "replace").decode()
            raise UserError(f"of {counted(len(sources), 'image')} none could be read; {printable}: {reason}")
        return seen

    @contextlib.contextmanager
    def steps(self, what: str, total: int, done: int = 0) -> Iterator[Callable[[], None]]:
        """Report progress; yields the function to call after each step. ``KeyboardInterrupt`` tells how far it came."""
        count = done
        self.progress(what, count, total)

        def advance() -> None:
            nonlocal count
            count += 1
            self.progress(what, count, total)

        try:
            yield advance
        except KeyboardInterrupt:
            so_far = f"interrupted after {count} of {counted(total, 'image')}"
            raise KeyboardInterrupt(f"{so_far}; run it again to continue") from None

    def known(self, data: str, **facts: Any) -> dict[str, Any]:
        """Return the circumstances of a report's figures: data, model, ``facts``, skipped images, time and memory."""
        known: dict[str, Any] = {"data": data, "split": self.split, "model": self.model, **facts}
        known |= {"skipped": self.skipped} | ({"set": list(self.options)} if self.options else {})
        known |= {"data_problems": {kind: len(found) for kind, found in self.report.problems.items()}}
        known |= {"seconds": round(time.monotonic() - self._started, 3), **peak_memory()}
        return known | {"command": self.command}


def fingerprint(path: Path) -> str:
    """Return a hash of a file's size, beginning and end; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            digest = hashlib.blake2b(file.read(ENDS), digest_size=8)
            digest.update(str(size := file.seek(0, os.SEEK_END)).encode())
            file.seek(max(0, size - ENDS))
            digest.update(file.read())
    except OSError:
        return ""
    return digest.hexdigest()


ENDS = 1 << 12
"""Bytes of the beginning and of the end of a file by which it is known."""


def _digest_of(annotations: str, images: Iterable[Sample | MarkedImage]) -> str:
    """Return a hash of a data set's annotations, given by theirs, and image files."""
    files = "".join(fingerprint(one.image) for one in images)
    return hashlib.blake2b(f"{annotations}{files}".encode(), digest_size=8).hexdigest()


def image_name(path: Path, folder: Path) -> str:
    """Return the path of an image relative to a folder; the full path if it is elsewhere."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else str(path)


def evaluate(
    model: Model | str | Path,
    data: str | Path,
    task: str = "dense",
    *,
    out: str | Path | None = None,
    format: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    batch: int = 8,
    progress: Progress = silent,
    **options: Any,
) -> Any:
    """Measure the quality of a model's answers and write a report to ``out``, as ``saywhere evaluate`` does.

    Args:
        model: a model, or the name or folder of one.
        data: folder of the data set, or its file.
        task: one of :data:`saywhere.evaluation.report.TASKS`, or ``retrieval`` of the DenseCap paper.
        out: folder of the report; None for ``evaluation/TASK``.
        format, split, limit, batch, progress: see :class:`Session`.
        options: options of the task, named as those of the command: see ``run`` in its module.

    Returns:
        The task's result, such as :class:`saywhere.evaluation.dense.DenseCaptioningResult`.

    Raises:
        UserError: no such task, model or data, or the model lacks the part that the task needs.

    Example:
        >>> result = saywhere.evaluate("flickr-coco", "my-images", split="train", out="report")
        >>> 0 <= result.map <= 1
        True
    """
    others = reproductions.values("task")
    if task not in (*TASKS, *others):
        raise UserError(f"no task {task!r}; there are {', '.join([*TASKS, *others])}")
    loaded = model
    if isinstance(loaded, str | Path):
        from saywhere.loading import load

        loaded = load(loaded)
    name = str(model) if loaded is not model else loaded.name
    folder = Path("evaluation", task) if out is None else Path(out)
    session = Session(Path(data), folder, format, split, limit, batch, model=name, progress=progress, task=task)
    session.command = f"saywhere.evaluate({name!r}, {str(data)!r}, {task!r})"
    if task in others:
        return reproductions.find(f"task={task}")(loaded, session, **options)
    run: Callable[..., Any] = importlib.import_module(f"saywhere.evaluation.{TASKS[task].module}").run
    return run(loaded, session, **options)


REGIONS = "regions"
"""Folder of a run with one file per image."""


class ArrayStore:
    """Store of named arrays per image, one file each below ``folder``, written whole or not at all.

    Of ``sources``, an image file of other content counts as another image.
    """

    def __init__(self, folder: Path, sources: Sequence[Source] = ()) -> None:
        self.folder = folder
        self._files = {source.name: fingerprint(source.path) for source in sources}

    def _path(self, name: str) -> Path:
        name = f"{name} {self._files.get(name)}"
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return self.folder / f"{digest}.safetensors"

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def write(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Store the arrays of the image ``name``."""
        parts = {key: np.ascontiguousarray(value) for key, value in arrays.items()}
        write_atomically(self._path(name), lambda stream: stream.write(save(parts)))

    def read(self, name: str) -> dict[str, np.ndarray]:
        """Return the arrays of a stored image; ``UserError`` if its file is damaged."""
        path = self._path(name)
        try:
            return load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: is damaged; remove it and run the same command again") from error


class VectorStore(ArrayStore):
    """Store of the vectors of images' regions."""

    def save(self, name: str, vectors: ImageVectors) -> None:
        """Store the vectors of the image ``name``."""
        parts = {"boxes": vectors.boxes, "vectors": vectors.vectors, "logits": vectors.logits}
        arrays = {key: np.asarray(value, np.float32) for key, value in parts.items()}
        arrays |= {} if vectors.nouns is None else {"nouns": vectors.nouns.astype(np.int32)}
        arrays |= {} if vectors.colours is None else {"colours": vectors.colours}
        size = np.array([vectors.width, vectors.height])
        self.write(name, {"size": size, "hubness": np.asarray(vectors.hubness, np.float32), **arrays})

    def load(self, name: str) -> ImageVectors:
        """Return the vectors of a stored image; raises as :meth:`read`."""
        parts = self.read(name)
        width, height = parts["size"].tolist()
        nouns = parts["nouns"].astype(np.uint16) if "nouns" in parts else None
        boxes, vectors, logits = (parts[key] for key in ("boxes", "vectors", "logits"))
        hubness, colours = parts["hubness"].item(), parts.get("colours")
        return ImageVectors(width, height, boxes, vectors, name, logits, hubness, nouns, colours)


def embed_images(
    model: Model, session: Session, sources: Sequence[Source], facts: Mapping[str, object], nouns: bool = False
) -> list[ImageVectors]:
    """Return the vectors of all readable images, reusing those of an earlier run.

    ``facts`` are what the images depend on, such as the data set. ``nouns`` adds noun predictions and colours, as in an
    index.
    ``UserError`` if no image is readable, or ``out`` has the vectors of another run.
    """
    digest = index_digest(model) if nouns else model.engine.vectors_digest()
    ensure_same_run(session.out, {"model": digest, **facts}, REGIONS, session.task)
    store = VectorStore(session.out / REGIONS, sources)

    def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[ImageVectors]:
        return embed_for_index(model, images) if nouns else model.embed(images)

    seen = session.each(ask, sources, store, store.save, long_side=model.long_side)
    return [store.load(source.name) for source in seen]

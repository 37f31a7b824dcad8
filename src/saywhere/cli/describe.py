"""``saywhere describe``: what is where in images."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.loading import DeferredModel, Runtime, explain_oom
from saywhere.cli.options import Batch, Device, Engine, Images, Model, Precision, Set, Threads
from saywhere.cli.progress import keep_each, printable, skip_notes
from saywhere.cli.table import print_table

if TYPE_CHECKING:
    import numpy as np

    from saywhere.images import LoadedImage
    from saywhere.inference import ImageResult, Outputs, Source
    from saywhere.regions import Regions

TOP = 10
"""Regions an image, unless the user says otherwise."""


class Format(StrEnum):
    """What is written: saywhere's JSON lines, or the original DenseCap program's ``results.json``."""

    saywhere = "saywhere"
    densecap = "densecap"


def describe(
    paths: Images,
    out: Path | None = typer.Option(None, metavar="DIR", help="Write the images with boxes and captions drawn here."),
    json: Path | None = typer.Option(
        None, metavar="FILE", help="Append results as JSON lines; images already in FILE are not described again."
    ),
    top: int | None = typer.Option(
        None, min=0, metavar="K", show_default=str(TOP), help="At most K regions an image, the best (0: all)."
    ),
    threshold: float | None = typer.Option(
        None, min=0, max=1, metavar="P", help="Only regions with at least this score."
    ),
    boxes: Path | None = typer.Option(None, metavar="FILE", help="Describe just these boxes (JSON; see the manual)."),
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    threads: Threads = None,
    precision: Precision = None,
    batch: Batch = 8,
    change: Set = None,
    format: Format = typer.Option(Format.saywhere, help="densecap: the original program's results.json, in --out."),
) -> None:
    """Say what is where in images: boxes with scores and captions.

    Exit code 0 if all went well, 1 if images were skipped because they cannot be read, 2 if the command is wrong.
    """
    from saywhere import DEFAULT_MODEL
    from saywhere.errors import UserError
    from saywhere.formats.densecap import LONG_SIDE, write_results
    from saywhere.inference import Outputs, ResultsFile, find_images, out_path, read_boxes

    if format is Format.densecap:
        if out is None:
            raise UserError("--format densecap needs --out DIR, for results.json and the resized images beside it")
        json = json or out / "regions.jsonl"
    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("--boxes describes every box in the file: --top and --threshold cannot choose among them")
    most = None if boxes is not None else (TOP if top is None else top) or None
    found = find_images(paths, [out] if out else [])
    given = None if boxes is None else read_boxes(boxes, found)
    sources = found if given is None else [source for source in found if source.name in given]
    Outputs(None, out).check(sources)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(json)) if json else None
        outputs = Outputs(lines, out, bare=LONG_SIDE if format is Format.densecap else None)
        run = _Run(
            outputs,
            DeferredModel(model, Runtime(device, engine, threads, precision), change, "densecap"),
            len(found) - len(sources),
        )
        run.describe(sources, given, most, threshold, batch)
        if format is Format.densecap and out is not None:
            options = {"model": model or DEFAULT_MODEL, "image_size": LONG_SIDE, "top": most, "threshold": threshold}
            kept = [source for source in sources if outputs.is_described(source)]
            named = ((out_path(Path(), source).as_posix(), outputs.regions(source)) for source in kept)
            write_results(out / "results.json", named, options)
    run.report()


class _Run:
    """What is shown of a run while it goes on and at its end."""

    def __init__(self, outputs: Outputs, model: DeferredModel, left_out: int) -> None:
        self.outputs, self.model, self.left_out = outputs, model, left_out
        self.described = self.regions = self.already = self.count = 0
        self.skipped: dict[str, str] = {}

    def describe(
        self,
        sources: list[Source],
        boxes: dict[str, Any] | None,
        top: int | None,
        threshold: float | None,
        batch: int,
    ) -> None:
        """Describe what is not yet in the file, and write the images that are missing in the folder."""
        from saywhere.inference import run_images

        todo = [source for source in sources if not self.outputs.is_described(source)]
        images = [source for source in sources if self.outputs.lacks_image(source)]
        self.count, self.already = len(sources), len(sources) - len(todo)

        def fresh() -> Iterator[ImageResult[Regions]]:
            if todo:  # or the model would be looked for
                long_side = max(self.model.long_side, self.outputs.long_side)
                workers = self.model.workers
                yield from run_images(ask, todo, boxes, batch=batch, long_side=long_side, workers=workers)

        def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Regions]:
            return self.model().describe(images, given, top=top, threshold=threshold)

        results = itertools.chain(self.outputs.read_back(images), fresh())
        resumes = self.outputs.lines is not None
        with explain_oom(batch):
            self.skipped = keep_each(results, self._keep, self.count, self.already - len(images), resumes=resumes)

    def _keep(self, one: ImageResult[Regions]) -> None:
        new = not self.outputs.is_described(one.source)
        self.outputs.keep(one)
        if new and one.result is not None:
            self.described += 1
            self.regions += len(one.result)
            if self.count == 1 or (self.outputs.lines is None and self.outputs.folder is None):
                _print_table(one.result, "" if self.count == 1 else printable(one.source.name))

    def report(self) -> None:
        """Print the summary and the names of what was skipped, which gives exit code 1."""
        lines, out = self.outputs.lines, self.outputs.folder
        parts = [f"{self.described} described, {self.regions} regions"]
        parts += [f"{self.already} already in {lines.path}"] if lines and self.already else []
        parts += [f"{self.left_out} without boxes left out"] if self.left_out else []
        parts += [f"{len(self.skipped)} skipped"] if self.skipped else []
        if self.count > 1 or self.already or self.left_out:
            typer.echo("; ".join(parts))
        if self.described and (lines or out):
            typer.echo(f"written: {', '.join(str(path) for path in (lines and lines.path, out) if path)}")
        for note in skip_notes(self.skipped):
            typer.echo(note, err=True)
        if self.skipped:
            raise typer.Exit(1)


def _print_table(regions: Regions, title: str) -> None:
    if title:
        typer.echo(title)
    rows = [
        ("" if score is None else f"{score:.2f}", " ".join(f"{value:.0f}" for value in box), caption or "")
        for box, score, caption in regions
    ]
    print_table(("score", "box", "caption"), rows or [("", "", "no regions found")])

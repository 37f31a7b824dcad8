"""``saywhere describe``: what is where in images."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from saywhere.cli.loading import DeferredModel, Runtime, explain_oom
from saywhere.cli.options import (
    PATHS,
    Batch,
    Device,
    Engine,
    Model,
    OutputFormat,
    Precision,
    ResultFormat,
    RetryFailed,
    Set,
    ShardCount,
    ShardNumber,
    Threads,
    check_file,
)
from saywhere.cli.progress import TOO_LONG, keep_each, printable, report_skipped
from saywhere.cli.sharding import Sharding, work_on
from saywhere.cli.table import print_table

if TYPE_CHECKING:
    import numpy as np

    from saywhere.images import LoadedImage
    from saywhere.inference import ImageResult, Outputs, Source
    from saywhere.inference.claims import Claim
    from saywhere.inference.shards import Shard
    from saywhere.regions import Regions

TOP = 10
"""Regions an image, unless the user says otherwise."""


def describe(
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help=PATHS)] = None,
    out: Path | None = typer.Option(None, metavar="DIR", help="Write the images with boxes and captions drawn here."),
    json: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Append results as JSON lines; images already in FILE are not described again.",
        callback=check_file,
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
    output_format: OutputFormat = ResultFormat.saywhere,
    shards: ShardCount = None,
    shard: ShardNumber = None,
    retry_failed: RetryFailed = False,
    every: str | None = typer.Option(
        None, metavar="TIME", show_default="0.5s", help="Look at videos every TIME; also at those in folders."
    ),
    camera: str | None = typer.Option(None, metavar="N", help="Describe what a camera sees, until Ctrl-C."),
) -> None:
    """Say what is where in images and videos: boxes with scores and captions.

    Exit code 0 if all went well, 1 if images were skipped because they cannot be read, 2 if the command is wrong.
    """
    from saywhere.cli.videos import Following, Videos
    from saywhere.errors import UserError

    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("--boxes describes every box in the file: --top and --threshold cannot choose among them")
    most = None if boxes is not None else (TOP if top is None else top) or None
    runtime = Runtime(device, engine, threads, precision)
    deferred = DeferredModel(model, runtime, change, "densecap", ("densecap", "classes"))
    facts = deferred.facts
    sharding = Sharding.of(shards, shard, retry_failed, paths or [])
    options = {"--boxes": boxes, "--shards": sharding, "--output-format": output_format is not ResultFormat.saywhere}
    videos = Videos(Following(deferred, every, most, threshold, facts), out, json, options)
    if camera is not None:
        videos.film(camera, paths or [])
        return
    images, failed = videos.take(paths or []), 0
    if images:
        wanted = _Wanted(out, json, boxes, most, threshold, batch, output_format, sharding, facts)
        try:
            _describe_images(images, wanted, deferred)
        except typer.Exit as end:  # some were skipped, which does not cost the videos
            failed = end.exit_code
    if videos.describe() or failed:
        raise typer.Exit(failed or 1)


class _Wanted(NamedTuple):
    """What the command line says of images."""

    out: Path | None
    json: Path | None
    boxes: Path | None
    top: int | None
    threshold: float | None
    batch: int
    format: ResultFormat
    sharding: Sharding | None
    facts: dict[str, Any]


def _describe_images(found: list[Source], wanted: _Wanted, model: DeferredModel) -> None:
    from saywhere.errors import UserError
    from saywhere.inference import Outputs, ResultsFile, ensure_same_settings, read_boxes

    out, json, top, threshold = wanted.out, wanted.json, wanted.top, wanted.threshold
    other = None if wanted.format is ResultFormat.saywhere else wanted.format
    if other is not None and out is None:
        raise UserError(f"--output-format {other.value} needs --out DIR, the folder of what is written")
    if wanted.sharding is not None and (json is None or other is not None):
        raise UserError("--shards needs --json FILE, where all shards come together, and no --output-format")
    given = None if wanted.boxes is None else read_boxes(wanted.boxes, found)
    sources = found if given is None else [source for source in found if source.name in given]
    drawn = other in (None, ResultFormat.densecap)
    Outputs(None, out).check(sources if drawn else [])
    boxes = None if wanted.boxes is None else str(wanted.boxes)
    facts = {**wanted.facts, "boxes": boxes, "top": top, "threshold": threshold or None}
    task = _Task(model, given, top, threshold, wanted.batch, len(found) - len(sources), facts)
    if wanted.sharding is not None and json is not None:
        _describe_shards(sources, task, wanted.sharding, json, out)
        return
    if other is not None and out is not None:
        _describe_for(other, sources, task, json or out / "regions.jsonl", out)
        return
    with contextlib.ExitStack() as stack:
        run = _Run(Outputs(stack.enter_context(ResultsFile(json)) if json else None, out), task)
        if json is not None:
            ensure_same_settings(json, facts)
        run.describe(sources)
    run.report()


class _Task(NamedTuple):
    """What is asked of each image."""

    model: DeferredModel
    boxes: dict[str, Any] | None
    top: int | None
    threshold: float | None
    batch: int
    left_out: int
    facts: dict[str, Any]


def _describe_for(format: ResultFormat, sources: list[Source], task: _Task, json: Path, out: Path) -> None:
    """Describe images, and write the results of all of them for another program into the folder ``out``."""
    from saywhere.errors import UserError
    from saywhere.formats.densecap import LONG_SIDE, write_results
    from saywhere.formats.registry import FORMATS
    from saywhere.inference import Outputs, ResultsFile, ensure_same_settings, out_path
    from saywhere.report import Report

    new, original, report = FORMATS[format.value], format is ResultFormat.densecap, Report()
    place = out / new.name
    if not original:
        new.require_new(place)
    if json.absolute() == place.absolute() or place.absolute() in json.absolute().parents:
        raise UserError(f"--json {json}: is where the result is written; name another file")
    with ResultsFile(json) as lines:
        ensure_same_settings(json, task.facts)
        outputs = Outputs(lines, out, LONG_SIDE) if original else Outputs(lines)
        run = _Run(outputs, task)
        run.describe(sources)
        kept = [source for source in sources if outputs.is_described(source)]
        if original:  # whose viewer needs the images beside it, under these names
            options = {"model": task.model.name, "image_size": LONG_SIDE, "top": task.top, "threshold": task.threshold}
            named = ((out_path(Path(), source).as_posix(), outputs.regions(source)) for source in kept)
            write_results(place, named, options)
        else:
            left_out = new.write_whole(place, (outputs.regions(source) for source in kept), report)
            run.skipped.update(dict.fromkeys(left_out, TOO_LONG))
    for line in report.lines():
        typer.echo(line, err=True)
    run.report(place)


def _describe_shards(sources: list[Source], task: _Task, sharding: Sharding, json: Path, out: Path | None) -> None:
    """Describe shards beside other processes, and merge them into ``json`` if this is the last one."""
    from saywhere.files import beside
    from saywhere.inference import Outputs, ResultsFile, compare_settings, ensure_same_settings
    from saywhere.inference.results import read_names
    from saywhere.inference.shards import Shards

    compare_settings(json, task.facts)
    shards = Shards(beside(json, "{}.shards"), sharding.shards, sources, task.facts)
    earlier = read_names(json)

    def describe_one(shard: Shard) -> dict[str, str]:
        with ResultsFile(shard.part) as lines:
            run = _Run(Outputs(lines, out), task, shard.claim)
            run.describe([source for source in shard.sources if source.name not in earlier])
        return run.skipped

    skipped = work_on(shards, sharding, describe_one, "described")
    for results in shards.merging():
        skipped = {name: reason for number in range(shards.count) for name, reason in shards.skipped(number).items()}
        with ResultsFile(json) as lines:
            ensure_same_settings(json, task.facts)
            merged = sum(lines.merge(result) for result in results)
        typer.echo(f"all {shards.count} shards are done: {merged} described; {len(skipped)} skipped; written: {json}")
    report_skipped(skipped)


class _Run:
    """What is shown of a run while it goes on and at its end."""

    def __init__(self, outputs: Outputs, task: _Task, claim: Claim | None = None) -> None:
        self.outputs, self.task, self.claim = outputs, task, claim
        self.described = self.regions = self.already = self.count = 0
        self.skipped: dict[str, str] = {}

    def describe(self, sources: list[Source]) -> None:
        """Describe what is not yet in the file, and write the images that are missing in the folder."""
        from saywhere.inference import run_images

        task = self.task
        todo = [source for source in sources if not self.outputs.is_described(source)]
        images = [source for source in sources if self.outputs.lacks_image(source)]
        self.count, self.already = len(sources), len(sources) - len(todo)

        def fresh() -> Iterator[ImageResult[Regions]]:
            if todo:  # or the model would be looked for
                long_side = max(task.model.long_side, self.outputs.long_side)
                workers = task.model.workers
                yield from run_images(ask, todo, task.boxes, batch=task.batch, long_side=long_side, workers=workers)

        def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Regions]:
            return task.model().describe(images, given, top=task.top, threshold=task.threshold)

        results = itertools.chain(self.outputs.read_back(images), fresh())
        if self.claim is not None:
            results = self.claim.check(results)
        resumes = self.outputs.lines is not None
        with explain_oom(task.batch):
            self.skipped = keep_each(results, self._keep, self.count, self.already - len(images), resumes=resumes)

    def _keep(self, one: ImageResult[Regions]) -> None:
        new = not self.outputs.is_described(one.source)
        self.outputs.keep(one)
        if new and one.result is not None:
            self.described += 1
            self.regions += len(one.result)
            if self.claim is None and (self.count == 1 or (self.outputs.lines is None and self.outputs.folder is None)):
                _print_table(one.result, "" if self.count == 1 else printable(one.source.name))

    def report(self, results: Path | None = None) -> None:
        """Print the summary, where ``results`` for another program are, and what was skipped: then exit code 1."""
        lines, out = self.outputs.lines, self.outputs.folder
        parts = [f"{self.described} described, {self.regions} regions"]
        parts += [f"{self.already} already in {lines.path}"] if lines and self.already else []
        parts += [f"{self.task.left_out} without boxes left out"] if self.task.left_out else []
        parts += [f"{len(self.skipped)} skipped"] if self.skipped else []
        if self.count > 1 or self.already or self.task.left_out:
            typer.echo("; ".join(parts))
        written = [str(path) for path in (lines and lines.path, out, results) if path]
        if written and (self.described or results):
            typer.echo(f"written: {', '.join(written)}")
        report_skipped(self.skipped)


def _print_table(regions: Regions, title: str) -> None:
    if title:
        typer.echo(title)
    rows = [
        ("" if score is None else f"{score:.2f}", " ".join(f"{value:.0f}" for value in box), caption or "")
        for box, score, caption in regions
    ]
    print_table(("score", "box", "caption"), rows or [("", "", "no regions found")])

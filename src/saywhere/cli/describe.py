"""``saywhere describe``: what is where in images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli.options import (
    PATHS,
    Batch,
    ClassMap,
    ClassNames,
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
    check_folder,
)
from saywhere.cli.printing import print_table, skip_notes
from saywhere.files import printable
from saywhere.loading import DeferredModel, Runtime

if TYPE_CHECKING:
    from saywhere.inference import ImageResult
    from saywhere.inference.run import Summary
    from saywhere.regions import Regions
    from saywhere.video.run import Videos


def describe(
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help=PATHS)] = None,
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Write the images with boxes and captions drawn here.", callback=check_folder
    ),
    json: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Append results as JSON lines; images already in FILE are not described again.",
        callback=check_file,
    ),
    top: int | None = typer.Option(
        None, min=0, metavar="K", show_default="10", help="At most K regions an image, the best (0: all)."
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
    names: ClassNames = None,
    named: ClassMap = None,
    shards: ShardCount = None,
    shard: ShardNumber = None,
    retry_failed: RetryFailed = False,
    every: str | None = typer.Option(
        None, metavar="TIME", show_default="0.5s", help="Look at videos every TIME; also at those in folders."
    ),
    camera: str | None = typer.Option(None, metavar="N", help="Describe what a camera sees, until Ctrl-C."),
) -> None:
    """Describe what is where in images and videos: boxes with scores and captions.

    Exit code 0 if all went well, 1 if images were skipped because they cannot be read, 2 if the command is wrong.
    """
    from saywhere.errors import UserError
    from saywhere.inference.run import TOP
    from saywhere.inference.shards import Sharding
    from saywhere.video.run import Videos

    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("--boxes describes every box in the file: --top and --threshold cannot choose among them")
    most = None if boxes is not None else (TOP if top is None else top) or None
    runtime = Runtime(device, engine, threads, precision)
    deferred = DeferredModel(model, runtime, change, "densecap", ("densecap", "nouns"))
    sharding = Sharding.of(shards, shard, retry_failed, paths or [])
    classes = None
    if names is not None or named is not None:
        from saywhere.formats.classes import Classes

        classes = Classes.parse(names, named)
    options = {"top": most, "threshold": threshold, "batch": batch, "boxes": boxes, "sharding": sharding}
    options["classes"] = classes
    of_images = (
        (boxes, "--boxes"),
        (sharding, "--shards"),
        (classes, "--classes"),
        (output_format != ResultFormat.saywhere, "--output-format"),
    )
    option = next((name for value, name in of_images if value), None)
    videos = Videos(deferred, every, most, threshold, json, out, option, each=_print_track, tell=typer.echo)
    if camera is not None:
        videos.film(camera, paths or [])
    elif not paths:
        raise UserError("missing argument 'PATH...'; see saywhere describe --help")
    else:
        _describe(videos, paths, {**options, "output_format": output_format.value})


def _describe(videos: Videos, paths: list[str], options: Mapping[str, Any]) -> None:
    from saywhere.inference import run

    def show(one: ImageResult[Regions], so_far: Summary) -> None:
        alone, kept = so_far.count == 1, videos.json is not None or videos.out is not None
        if one.result is not None and options["sharding"] is None and (alone or not kept):
            _print_regions(one.result, "" if alone else printable(one.source.name))

    skipped: dict[str, str] = {}
    if images := videos.take(paths):
        skipped = run.describe(
            images, videos.model, json=videos.json, out=videos.out, **options,
            progress=True, each=show, tell=typer.echo,
        ).skipped  # fmt: skip
    for note in skip_notes(skipped):
        typer.echo(note, err=True)
    followed = videos.follow()
    if skipped or followed.skipped or followed.damaged:
        raise typer.Exit(1)


def _print_regions(regions: Regions, title: str) -> None:
    if title:
        typer.echo(title)
    rows = [
        ("" if score is None else f"{score:.2f}", " ".join(f"{value:.0f}" for value in box), caption or "")
        for box, score, caption in regions
    ]
    print_table(("score", "box", "caption"), rows or [("", "", "no regions found")])


def _print_track(row: Mapping[str, Any]) -> None:
    from saywhere.video.times import clock

    if "track" in row:
        typer.echo(f"{clock(row['start'])}  {clock(row['end'])}  {row['score']:.2f}  {row['phrase']}")

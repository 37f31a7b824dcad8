"""``saywhere describe``: what is where in images."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli import options
from saywhere.cli.printing import note_every, print_table, skip_notes
from saywhere.errors import UserError
from saywhere.files import printable

if TYPE_CHECKING:
    from saywhere.inference import ImageResult, Source
    from saywhere.inference.run import Summary
    from saywhere.loading import DeferredModel
    from saywhere.regions import Regions
    from saywhere.video.run import Videos


Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", min=0, max=1, metavar="P",
        help="Minimum probability that a region's box and words are both right (videos: its box); 0: all regions.",
        show_default="0.25; 0.2 for videos",
    ),
]  # fmt: skip


def describe(
    paths: Annotated[list[str] | None, typer.Argument(metavar="PATH...", help=options.PATHS)] = None,
    out: options.Drawings = None,
    json: options.Json = None,
    top: int | None = typer.Option(
        None, min=0, metavar="K", show_default="10", help="Maximum number of regions per image, best first (0: all)."
    ),
    threshold: Threshold = None,
    boxes: Path | None = typer.Option(
        None,
        metavar="FILE",
        help="Describe the boxes in this JSON file instead: [[x1, y1, x2, y2], ...], or lines of --json.",
    ),
    batch: options.Batch = 8,
    chosen: options.Chosen = options.Chosen(),
    output_format: options.OutputFormat = options.ResultFormat.saywhere,
    names: options.ClassNames = None,
    named: options.ClassMap = None,
    copy_images: options.CopyImages = False,
    embed: options.Embed = False,
    shards: options.ShardCount = None,
    every: str | None = typer.Option(
        None,
        metavar="TIME",
        show_default="0.5s",
        help="Interval between the frames of a video that are described; with it, videos in folders are included.",
    ),
    camera: str | None = typer.Option(
        None, metavar="N", help="Describe what the camera with this number sees, until Ctrl-C."
    ),
) -> None:
    """Describe what is where in images and videos: boxes with scores and phrases.

    Exit code: 0 success; 1 images skipped because they cannot be read; 2 error.
    """
    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("--boxes describes every box in the file: --top and --threshold cannot choose among them")
    deferred = chosen.deferred("densecap", ("densecap", "nouns", "aligner.last"), paths)
    from saywhere.inference import find_media, note_videos
    from saywhere.inference.run import TOP

    most = None if boxes is not None else (TOP if top is None else top) or None
    classes = None
    if shards is not None:
        from saywhere.inference.shards import require_listed

        require_listed(paths or [])
    if names is not None or named is not None:
        from saywhere.formats.classes import Classes

        classes = Classes.parse(names, named)
    choices = {"top": most, "threshold": threshold, "batch": batch, "boxes": boxes, "shards": shards}
    choices["classes"] = classes
    of_images = (
        (boxes, "--boxes"),
        (shards, "--shards"),
        (names, "--classes"),
        (named, "--map"),
        (output_format != options.ResultFormat.saywhere, "--output-format"),
    )
    option = next((name for value, name in of_images if value), None)
    if not paths and camera is None:
        raise UserError("missing argument 'PATH...'; see saywhere describe --help")
    images, films = find_media(paths or [], [out] if out else [], every is not None) if camera is None else ([], [])
    printed = json == options.STDOUT
    tell = partial(typer.echo, err=True) if printed else typer.echo
    shown = (lambda row: typer.echo(json_format.dumps(row))) if printed else _print_track
    places = {"json": None if printed else json, "out": out, "tell": tell}
    videos = None
    if films or camera is not None or every is not None:
        from saywhere.video.run import Videos

        videos = Videos(deferred, every, most, threshold, of_images=option, each=shown, pass_on_all=printed, **places)
        videos.add(films, beside=bool(images))
        if camera is not None:
            return videos.film(camera, paths or [])
        if not films:
            typer.echo(note_every(len(images)), err=True)
    more = {"output_format": output_format.value, "copy_images": copy_images, "embed": embed}
    left = None if every is not None or camera is not None else note_videos(paths or [], [out] if out else [])
    _describe(images, videos, deferred, choices | more | places, printed, left)


def _describe(
    images: list[Source], videos: Videos | None, model: DeferredModel, choices: Mapping[str, Any], printed: bool,
    left: str | None,
) -> None:  # fmt: skip
    from saywhere.inference import run
    from saywhere.inference.results import json_line

    def show(one: ImageResult[Regions], so_far: Summary) -> None:
        alone, kept = so_far.count == 1, choices["json"] is not None or choices["out"] is not None
        if one.result is not None and printed:
            typer.echo(json_line(one.result.to_dict(), one.source.name), nl=False)
        elif one.result is not None and choices["shards"] is None and (alone or not kept):
            _print_regions(one.result, "" if alone else printable(one.source.name))

    skipped: dict[str, str] = {}
    if images:
        skipped = run.describe(images, model, **choices, progress=True, each=show).skipped
    for note in [left] * (left is not None) + skip_notes(skipped):
        typer.echo(note, err=True)
    followed = videos and videos.follow()
    if skipped or (followed and (followed.skipped or followed.damaged)):
        raise typer.Exit(1)


def _print_regions(regions: Regions, title: str) -> None:
    from saywhere.text import two_digits

    if title:
        typer.echo(title)
    header, rows = ["score", "box", "caption"], list[list[str]]()
    for region in regions:
        place = " ".join(f"{value:.0f}" for value in region.box)
        rows.append(["" if region.score is None else two_digits(region.score), place, region.caption or ""])
        if region.caption_score is not None:
            rows[-1].insert(2, two_digits(region.caption_score))
    if regions.caption_scores is not None:
        header.insert(2, "words")
    print_table(header, rows or [[*[""] * (len(header) - 1), "no regions found"]])


def _print_track(row: Mapping[str, Any]) -> None:
    from saywhere.text import two_digits
    from saywhere.video import clock

    if "track" in row:
        typer.echo(f"{clock(row['start'])}  {clock(row['end'])}  {two_digits(row['score'])}  {row['phrase']}")

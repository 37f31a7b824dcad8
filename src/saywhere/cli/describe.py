"""``saywhere describe``: what is where in images."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli import options
from saywhere.cli.printing import each_result, note_every, print_table, skip_notes
from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.regions import Regions


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
        help="Describe the boxes in this JSON file instead: a list of lists x1, y1, x2, y2, or lines of --json.",
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
    from saywhere.inference import find_media, note_videos, run

    most = None if boxes is not None else (run.TOP if top is None else top) or None
    classes = None
    if shards is not None:
        from saywhere.inference.shards import require_listed

        require_listed(paths or [])
    if names is not None or named is not None:
        from saywhere.formats.classes import Classes

        classes = Classes.parse(names, named)
    of_images = {"--boxes": boxes, "--shards": shards, "--classes": names, "--map": named}
    of_images["--output-format"] = output_format if output_format != options.ResultFormat.saywhere else None
    option = next((name for name, value in of_images.items() if value), None)
    if not paths and camera is None:
        raise UserError("missing argument 'PATH...'; see saywhere describe --help")
    images, films = find_media(paths or [], [out] if out else [], every is not None) if camera is None else ([], [])
    printed = json == options.STDOUT
    tell, file = (partial(typer.echo, err=True), None) if printed else (typer.echo, json)
    videos = None
    if films or camera is not None or every is not None:
        from saywhere.video.run import Videos

        shown = (lambda row: typer.echo(json_format.dumps(row))) if printed else _print_track
        videos = Videos(
            deferred, every, most, threshold, json=file, out=out, of_images=option, each=shown, tell=tell,
            pass_on_all=printed,
        )  # fmt: skip
        videos.add(films, beside=bool(images))
        if camera is not None:
            return videos.film(camera, paths or [])
        if not films:
            typer.echo(note_every(len(images)), err=True)
    skipped: dict[str, str] = {}
    if images:
        show = each_result(printed, file is not None or out is not None, _print_regions) if shards is None else None
        skipped = run.describe(
            images, deferred, json=file, out=out, boxes=boxes, top=most, threshold=threshold, batch=batch,
            output_format=output_format.value, classes=classes, copy_images=copy_images, embed=embed, shards=shards,
            progress=True, each=show, tell=tell,
        ).skipped  # fmt: skip
    left = None if every is not None else note_videos(paths or [], [out] if out else [])
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

"""``saywhere caption``: a sentence for each image, and sentences for what a video shows over time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli import options
from saywhere.cli.printing import each_result, note_every, report_skipped
from saywhere.errors import UserError
from saywhere.files import DRAWN_SUFFIXES, printable
from saywhere.loading import DeferredModel

if TYPE_CHECKING:
    from saywhere import Caption
    from saywhere.images import LoadedImage
    from saywhere.inference import Source

EVERY = "2s"
"""Default interval between sentences about a video."""
AHEAD = ("captioner", "densecap", "nouns", "aligner.last")
"""Parts that the first caption needs; those other than the captioner rerank its hypotheses."""


def caption(
    paths: options.Images,
    beam_size: options.BeamSize = None,
    least_probability: options.LeastProbability = None,
    json: options.Json = None,
    limit: options.Limit = None,
    batch: options.Batch = 8,
    chosen: options.Chosen = options.Chosen(),
    output_format: options.SentenceFormat = None,
    embed: options.Embed = False,
    every: str | None = typer.Option(
        None, metavar="TIME", show_default=EVERY, help="Caption a video every TIME; repeated sentences are left out."
    ),
    show_attention: Path | None = typer.Option(
        None, metavar="FILE", help="Draw where the model looks for each word of one image's sentence (.jpg or .png)."
    ),
) -> None:
    """Caption each image with a sentence, and each video with a new sentence whenever what it shows changes.

    Exit code: 0 success; 1 images skipped because they cannot be read; 2 error.
    """
    deferred = chosen.deferred("captioner", AHEAD, paths)
    asked: dict[str, Any] = {"beam_size": beam_size, "least_probability": least_probability}
    from saywhere.inference import Outputs, ResultsFile, ensure_same_settings, find_images, note_videos
    from saywhere.inference.run import Run

    write = _writer(output_format is not None, embed)
    found = find_images(paths)[:limit]
    videos = [source for source in found if source.is_video]
    sources = [source for source in found if not source.is_video]
    printed, file = json == options.STDOUT, None if json == options.STDOUT else json
    _check_videos(videos, file, write is not None)
    if show_attention is not None:
        if output_format is not None:
            raise UserError(f"--show-attention {show_attention}: cannot be combined with --output-format; run twice")
        _check_drawing(show_attention, sources, json)
        _draw_attention(sources[0], show_attention, deferred, asked)
        return

    def ask(images: list[LoadedImage], _: object) -> list[Caption]:
        return deferred().caption(images, attention=False, **asked)

    def say(caption: Caption, title: str) -> None:
        typer.echo(f"{title}: {caption}" if title else str(caption))

    lacking = _caption_videos(videos, deferred, asked, every, printed, len(sources))
    if not sources:
        report_skipped(lacking)
        return
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(file, "caption")) if file else None
        if file is not None:
            ensure_same_settings(file, {**deferred.facts, **asked})
        outputs = Outputs(lines, beside=write)
        earlier = {s: lines[s.name]["caption"] for s in sources if outputs.is_described(s)} if lines else {}
        lost = {s.name: write(s, told) for s, told in earlier.items()} if write else {}
        show = each_result(printed, file is not None, say)
        summary = Run(ask, deferred, outputs, None, batch, show, ("captioning", "captioned"))(sources)
    summary.skipped.update({name: why for name, why in lost.items() if why} | lacking)
    if summary.count > 1 or summary.already:
        typer.echo(str(summary), err=True)
    written = [str(file)] if file and summary.done else []
    if output_format and len(summary.skipped) < summary.count:
        written.append("XMP in the images or beside them" if embed else "sidecars beside the images")
    for line in filter(None, (written and f"written: {', '.join(written)}", note_videos(paths))):
        typer.echo(line, err=True)
    report_skipped(summary.skipped)


def _check_videos(videos: list[Source], file: Path | None, written: bool) -> None:
    """Raise ``UserError`` if sentences of videos would go into a file."""
    if videos and (option := f"--json {file}" if file else "--output-format" if written else None):
        more = " (--json - prints lines of JSON)" if file else ""
        told = f"{videos[0].name} is a video, whose sentences are only printed{more}"
        raise UserError(f"{option}: is for images; {told}")


def _caption_videos(
    videos: list[Source], deferred: DeferredModel, asked: Mapping[str, Any], every: str | None, lines: bool, images: int
) -> dict[str, str]:
    """Print a sentence for each change in each video; return unreadable and damaged videos and why, by name."""
    skipped: dict[str, str] = {}
    if not videos:
        if every is not None:
            typer.echo(note_every(images), err=True)
        return skipped
    from saywhere.video import moment, parse_duration, to_ticks
    from saywhere.video.reading import VideoError, VideoReader

    step = to_ticks(parse_duration(every or EVERY))
    for source in videos:
        last = None
        try:
            with VideoReader(source.path, source.name) as reader:
                for frame in reader.sampled(step):
                    image = frame.image(deferred.long_side, source.name)
                    said = deferred().caption(image, attention=False, **asked).sentence
                    if said != last and lines:
                        typer.echo(dumps({"video": source.name, "time": frame.time, "caption": said}))
                    elif said != last:
                        typer.echo(f"{printable(source.name)} at {moment(frame.time)}: {said}")
                    last = said
                if reader.damage:
                    skipped[source.name] = f"{reader.damage}; the rest is captioned"
        except VideoError as error:
            skipped[source.name] = str(error).removeprefix(f"{source.name}: ")
    return skipped


def _writer(wanted: bool, embed: bool) -> Callable[[Source, object], str | None] | None:
    """Return a function that writes a sentence into its image or sidecar, and returns why it could not, or None."""
    if not wanted and not embed:
        return None
    from saywhere.formats import xmp

    if embed:
        xmp.check_embed("xmp" if wanted else None)

    def write(source: Source, sentence: object) -> str | None:
        return xmp.refused(xmp.write_sentence, xmp.place_of(source.path, embed), source.path, str(sentence))

    return write


def _check_drawing(out: Path, sources: list[Source], json: Path | None) -> None:
    if len(sources) != 1:
        raise UserError(f"--show-attention {out}: give one image, not {len(sources)}")
    if json is not None:
        raise UserError(f"--show-attention {out}: cannot be combined with --json {json}; run the command twice")
    if out.resolve() == sources[0].path.resolve():
        raise UserError(f"--show-attention {out}: is the image itself and would be overwritten; give another file")
    if out.suffix.lower() not in DRAWN_SUFFIXES:
        raise UserError(f"--show-attention {out}: the name of a drawing must end in .jpg or .png")


def _draw_attention(source: Source, out: Path, deferred: DeferredModel, asked: Mapping[str, Any]) -> None:
    """Print the image's sentence, and draw for each word the regions that the model attends to."""
    from saywhere.drawing import PANEL, draw_attention
    from saywhere.images import open_image, save_image

    image = open_image(source.path, max(deferred.long_side, PANEL))
    seen = deferred().caption(image, **asked)
    if seen.attention is None or seen.outlines is None:
        raise UserError(f"--show-attention {out}: {deferred().name} attends to no regions; give another --model")
    size = (seen.width, seen.height)
    save_image(out, draw_attention(image.pixels, seen.words, seen.attention, seen.outlines, size))
    typer.echo(seen.sentence)
    typer.echo(f"written: {out}", err=True)

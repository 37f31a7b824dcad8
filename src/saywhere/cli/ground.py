"""``saywhere ground``: which part of a picture each phrase of a sentence is about."""

from __future__ import annotations

import json as json_format
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from saywhere.models.alignment import Alignment
    from saywhere.models.densecap import DenseCap
    from saywhere.regions import Regions


def ground(
    image: Path = typer.Argument(..., metavar="IMAGE", help="A picture."),
    sentence: str = typer.Argument(
        ...,
        metavar="SENTENCE",
        help="A sentence about it; for a densecap model phrases separated by commas.",
    ),
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write the picture with each phrase and its box in one colour here (.jpg or .png)."
    ),
    steps: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Write here how it comes about: areas, words, three values of --beta, snippets.",
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    beta: float | None = typer.Option(
        None, min=0, metavar="B", help="How much neighbouring words want the same box (0: word by word)."
    ),
    areas: int | None = typer.Option(
        None, min=1, metavar="N", help="Boxes to choose among; an aligner's beside the whole picture."
    ),
    model: str = typer.Option(
        "aligner-flickr8k", metavar="NAME|DIR", help="Name or folder of an aligner or a densecap model."
    ),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
) -> None:
    """Cut a sentence into phrases, and say which box of the picture each is about.

    A densecap model takes phrases instead, separated by commas, and has neither --beta nor --steps.
    """
    from saywhere.cli.describe import load_model
    from saywhere.errors import UserError
    from saywhere.images import open_picture
    from saywhere.models.aligner import Aligner
    from saywhere.models.densecap import DenseCap

    if out is not None and out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        raise UserError(f"--out {out}: the drawing is written as .jpg or .png")
    picture = open_picture(image)
    loaded = load_model(model, device, [])
    if isinstance(loaded, Aligner):
        found = _aligned(loaded.align(image, sentence, beta=beta, limit=areas))
    elif not isinstance(loaded, DenseCap):
        raise UserError(f"--model {model}: places no phrases; an aligner or a densecap model is needed")
    elif steps is not None or beta is not None:
        raise UserError(f"--steps and --beta are for an aligner, which {model} is not")
    else:
        found = _searched(loaded, image, sentence, areas)
    _print(found, json)
    if out is not None:
        _draw(picture.pixels, found.regions, out)
        typer.echo(f"written: {out}", err=json)
    if steps is not None and found.alignment is not None:
        _draw_steps(picture.pixels, found.alignment, steps)
        typer.echo(f"written: {steps}", err=json)


@dataclass(frozen=True, eq=False)
class _Found:
    """Phrases with boxes: regions with captions, scores to print, the JSON form, and the alignment if there is one."""

    regions: Regions
    scores: Sequence[str]
    row: dict[str, Any]
    alignment: Alignment | None = None


def _aligned(alignment: Alignment) -> _Found:
    scores = [f"{phrase.score:.2f}" for phrase in alignment.phrases]
    return _Found(alignment.regions(), scores, alignment.to_dict(), alignment)


def _searched(model: DenseCap, image: Path, sentence: str, areas: int | None) -> _Found:
    """The best region of each phrase; words that the model does not know are told."""
    from saywhere.errors import UserError
    from saywhere.models.phrase_scores import score_regions

    regions = model.describe(str(image), top=areas)
    if not len(regions):
        raise UserError(f"{image}: the model finds no region in it")
    phrases = [part.strip() for part in sentence.split(",")]
    scores = score_regions(model.speaker, model.vocabulary, regions, phrases)
    if unknown := dict.fromkeys(word for words in scores.unknown for word in words):
        typer.echo(f"words that the model does not know: {', '.join(unknown)}", err=True)
    best = scores.best()
    values = [] if best.scores is None else best.scores.tolist()
    triples = zip(best.captions or (), best.boxes.tolist(), values, strict=True)
    rows = [
        {"words": words, "box": [round(v, 2) for v in box], "score": float(f"{value:.5g}")}
        for words, box, value in triples
    ]
    row = {"image": best.image, "width": best.width, "height": best.height, "sentence": sentence, "phrases": rows}
    return _Found(best, [f"{value:.2g}" for value in values], row)


def _print(found: _Found, json: bool) -> None:
    if json:
        typer.echo(json_format.dumps(found.row, ensure_ascii=False))
        return
    from rich.console import Console

    Console(highlight=False).print(_table(found))


def _draw_steps(pixels: Any, alignment: Alignment, folder: Path) -> None:
    """The areas with their numbers, the words on areas one by one, with ``--beta`` and as one; and the snippets."""
    from saywhere.drawing import draw_regions
    from saywhere.files import write_text
    from saywhere.regions import Regions

    folder.mkdir(parents=True, exist_ok=True)
    numbers = tuple(str(i) for i in range(len(alignment.boxes)))
    areas = Regions(alignment.width, alignment.height, alignment.boxes, captions=numbers)
    _save(draw_regions(pixels, areas), folder / "areas.jpg")
    _draw(pixels, alignment.with_beta(0.0).regions(), folder / "words.jpg")
    _draw(pixels, alignment.regions(), folder / "phrases.jpg")
    whole = alignment.with_beta(float(alignment.products.abs().sum()) + 1)
    _draw(pixels, whole.regions(), folder / "sentence.jpg")
    lines = [f"{' '.join(f'{v:.0f}' for v in box)}\t{words}\n" for box, words in alignment.snippets()]
    write_text(folder / "snippets.txt", "".join(lines))


def _draw(pixels: Any, regions: Regions, out: Path) -> None:
    from saywhere.drawing import draw_sentence

    _save(draw_sentence(pixels, regions), out)


def _save(drawn: Any, out: Path) -> None:
    from saywhere.files import write_atomically

    kind = "PNG" if out.suffix.lower() == ".png" else "JPEG"
    write_atomically(out, lambda stream: drawn.save(stream, kind, quality=92))


def _table(found: _Found) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from saywhere.drawing import COLOURS

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("box", justify="right", no_wrap=True)
    table.add_column("phrase", overflow="fold")
    boxes = [tuple(corners) for corners in found.regions.boxes.tolist()]
    different = list(dict.fromkeys(boxes))
    for score, corners, words in zip(found.scores, boxes, found.regions.captions or (), strict=True):
        red, green, blue = COLOURS[different.index(corners) % len(COLOURS)]
        place = " ".join(f"{value:.0f}" for value in corners)
        table.add_row(score, place, Text(words, style=f"rgb({red},{green},{blue})"))
    return table

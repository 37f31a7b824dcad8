"""``saywhere ground``: which part of a picture each phrase of a sentence is about."""

from __future__ import annotations

import json as json_format
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from saywhere.models.alignment import Alignment


def ground(
    image: Path = typer.Argument(..., metavar="IMAGE", help="A picture."),
    sentence: str = typer.Argument(..., metavar="SENTENCE", help="A sentence about it, in quotes."),
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
    areas: int | None = typer.Option(None, min=1, metavar="N", help="Boxes to choose among, beside the whole picture."),
    model: str = typer.Option("aligner-flickr8k", metavar="NAME|DIR", help="An aligner's name or folder."),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
) -> None:
    """Cut a sentence into phrases, and say which box of the picture each is about."""
    from saywhere.cli.evaluate.rank import load_aligner
    from saywhere.errors import UserError
    from saywhere.images import open_picture

    if out is not None and out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        raise UserError(f"--out {out}: the drawing is written as .jpg or .png")
    picture = open_picture(image)
    alignment: Alignment = load_aligner(model, device).align(image, sentence, beta=beta, limit=areas)
    if json:
        typer.echo(json_format.dumps(alignment.to_dict(), ensure_ascii=False))
    else:
        from rich.console import Console

        Console(highlight=False).print(_table(alignment))
    if out is not None:
        _draw(picture.pixels, alignment, out)
        typer.echo(f"written: {out}", err=json)
    if steps is not None:
        _draw_steps(picture.pixels, alignment, steps)
        typer.echo(f"written: {steps}", err=json)


def _draw_steps(pixels: Any, alignment: Alignment, folder: Path) -> None:
    """The areas with their numbers, the words on areas one by one, with ``--beta`` and as one; and the snippets."""
    from saywhere.drawing import draw_regions
    from saywhere.files import write_text
    from saywhere.regions import Regions

    folder.mkdir(parents=True, exist_ok=True)
    numbers = tuple(str(i) for i in range(len(alignment.boxes)))
    areas = Regions(alignment.width, alignment.height, alignment.boxes, captions=numbers)
    _save(draw_regions(pixels, areas), folder / "areas.jpg")
    _draw(pixels, alignment.with_beta(0.0), folder / "words.jpg")
    _draw(pixels, alignment, folder / "phrases.jpg")
    _draw(pixels, alignment.with_beta(float(alignment.products.abs().sum()) + 1), folder / "sentence.jpg")
    lines = [f"{' '.join(f'{v:.0f}' for v in box)}\t{words}\n" for box, words in alignment.snippets()]
    write_text(folder / "snippets.txt", "".join(lines))


def _draw(pixels: Any, alignment: Alignment, out: Path) -> None:
    from saywhere.drawing import draw_sentence

    _save(draw_sentence(pixels, alignment.regions()), out)


def _save(drawn: Any, out: Path) -> None:
    from saywhere.files import write_atomically

    kind = "PNG" if out.suffix.lower() == ".png" else "JPEG"
    write_atomically(out, lambda stream: drawn.save(stream, kind, quality=92))


def _table(alignment: Alignment) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from saywhere.drawing import COLOURS

    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("box", justify="right", no_wrap=True)
    table.add_column("phrase", overflow="fold")
    boxes = list(dict.fromkeys(phrase.box for phrase in alignment.phrases))
    for phrase in alignment.phrases:
        red, green, blue = COLOURS[boxes.index(phrase.box) % len(COLOURS)]
        corners = " ".join(f"{value:.0f}" for value in phrase.box)
        table.add_row(f"{phrase.score:.2f}", corners, Text(phrase.words, style=f"rgb({red},{green},{blue})"))
    return table

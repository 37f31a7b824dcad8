"""``saywhere ground``: which part of an image each phrase of a text is about."""

from __future__ import annotations

import json as json_format
import os
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from saywhere.cli.options import Beta, Device, Engine, Model, Precision, Regions, Set, Threads, check_drawing
from saywhere.cli.printing import note_words, print_table
from saywhere.loading import DeferredModel, Runtime

if TYPE_CHECKING:
    import saywhere
    from saywhere.images import LoadedImage
    from saywhere.models.encoding import Encoding
    from saywhere.models.placing import Placer


GREY = (128, 128, 128)


class Part(StrEnum):
    """The parts of a model that ground."""

    aligner = "aligner"
    densecap = "densecap"


PartName = Annotated[
    Part | None,
    typer.Option("--part", show_default="densecap if the model has it", help="The part of the model that says where."),
]
Threshold = Annotated[
    float | None,
    typer.Option(
        "--threshold", min=0, max=1, metavar="P", show_default="the model's, 0.5",
        help="A phrase is found if the probability that the image shows it is at least this.",
    ),
]  # fmt: skip


def ground(
    image: Path = typer.Argument(metavar="IMAGE", help="An image."),
    texts: list[str] = typer.Argument(
        metavar="TEXT...", help="One text is a sentence, which is cut into phrases; several are phrases."
    ),
    part: PartName = None,
    threshold: Threshold = None,
    out: Path | None = typer.Option(
        None, metavar="FILE", help="Write the image with each phrase and its box in one colour here (.jpg or .png)."
    ),
    save_steps: Path | None = typer.Option(
        None,
        metavar="DIR",
        help="Write here how a sentence is aligned: regions, words, three values of --beta, snippets.",
    ),
    json: bool = typer.Option(False, "--json", help="Print JSON instead of a table."),
    beta: Beta = None,
    regions: Regions = None,
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    threads: Threads = None,
    precision: Precision = None,
    change: Set = None,
) -> None:
    """Find the box of an image that each phrase of a text is about, or say that the image does not show it.

    --beta and --save-steps are for a sentence and the part aligner; --beta cuts the sentence where the box changes.
    """
    from saywhere.errors import UserError
    from saywhere.images import open_image

    if image.is_dir():
        raise UserError(f"{image}: is a folder; give one image (saywhere search finds words in many)")
    if out is not None:
        check_drawing("--out", out, image)
    sentence = len(texts) == 1 and part is not Part.densecap
    if not sentence and (save_steps is not None or beta is not None):
        raise UserError("--save-steps and --beta are for one sentence and the part aligner")
    runtime = Runtime(device, engine, threads, precision)
    ahead = ("densecap",) if part is Part.densecap else ("aligner", "densecap", "nouns")
    deferred = DeferredModel(model, runtime, change, Part.aligner if sentence else part, ahead)
    drawn = out is not None or save_steps is not None
    opened = open_image(image, None if drawn else deferred.long_side)
    loaded = deferred()
    seen = loaded.encode(opened)
    alignment = (
        None if save_steps is None and beta is None else loaded.align(seen, texts[0], beta=beta, regions=regions)
    )
    segments = alignment if beta is not None else None
    placer = loaded.placer(part.value if part is not None else "aligner" if segments is not None else None)
    found, least = _place(placer, seen, texts, regions, threshold) if segments is None else (segments.regions(), 0.0)
    note_words(placer.unknown(found.captions or ()), found.unused)
    row = _row(found, least) if segments is None else segments.to_dict()
    typer.echo(json_format.dumps(row, ensure_ascii=False)) if json else _print_table(found, least)
    if out is not None:
        _draw(opened, found[_there(found, least)], out)
        typer.echo(f"written: {out}", err=json)
    if save_steps is not None and alignment is not None:
        _draw_steps(opened, alignment, save_steps)
        typer.echo(f"written: {save_steps}", err=json)


def _place(
    placer: Placer, seen: Encoding, texts: Sequence[str], regions: int | None, threshold: float | None
) -> tuple[saywhere.Regions, float]:
    """Return the regions of all phrases, and the least score of those that are found."""
    asked = placer.read(texts[0]) if len(texts) == 1 else texts
    return placer.ground(seen, asked, None, regions, 0), placer.least(threshold)


def _there(found: saywhere.Regions, least: float) -> list[bool]:
    """Whether each phrase is found: its score is at least so much."""
    return [True] * len(found) if found.scores is None else (found.scores >= least).tolist()


def _row(found: saywhere.Regions, least: float) -> dict[str, Any]:
    """The JSON form: ``image, width, height``, and of each of ``phrases`` words, whether it is found, and where."""
    phrases: list[dict[str, Any]] = []
    for i, (region, there) in enumerate(zip(found, _there(found, least), strict=True)):
        phrase: dict[str, Any] = {"words": region.caption, "found": there}
        if there:
            phrase["box"] = [round(v, 2) for v in region.box]
        if region.score is not None:
            phrase["score"] = float(f"{region.score:.5g}")
        if there and found.similarities is not None:
            phrase["similarity"] = float(f"{found.similarities[i]:.5g}")
        phrases.append(phrase)
    row = {"image": found.image, "width": found.width, "height": found.height, "phrases": phrases}
    return row | ({"unused": list(found.unused)} if found.unused else {})


def _draw(image: LoadedImage, found: saywhere.Regions, out: Path) -> None:
    from saywhere.drawing import draw_sentence
    from saywhere.images import save_image

    save_image(out, draw_sentence(image.pixels, found.boxes, (found.width, found.height), found.captions or ()))


def _draw_steps(image: LoadedImage, alignment: saywhere.Alignment, folder: Path) -> None:
    """Write drawings of the regions, and of the words one by one, with ``--beta`` and as one phrase; and snippets."""
    from saywhere.drawing import draw_boxes
    from saywhere.files import write_text
    from saywhere.images import save_image

    folder.mkdir(parents=True, exist_ok=True)
    numbers = [str(i) for i in range(len(alignment.boxes))]
    drawn = draw_boxes(image.pixels, alignment.boxes, (alignment.width, alignment.height), numbers)
    save_image(folder / "regions.jpg", drawn)
    _draw(image, alignment.with_beta(0.0).regions(), folder / "words.jpg")
    _draw(image, alignment.regions(), folder / "phrases.jpg")
    whole = alignment.with_beta(float(abs(alignment.products).sum()) + 1)
    _draw(image, whole.regions(), folder / "sentence.jpg")
    lines = [f"{' '.join(f'{v:.0f}' for v in box)}\t{words}\n" for box, words in alignment.snippets()]
    write_text(folder / "snippets.txt", "".join(lines))


def _print_table(found: saywhere.Regions, least: float) -> None:
    there = _there(found, least)
    values = found.similarities if found.scores is None else found.scores
    shown = (
        [] if values is None else [f"{value:.2g}" if found.scores is not None else f"{value:.2f}" for value in values]
    )
    rows = [
        (value, " ".join(f"{v:.0f}" for v in box) if seen else "not found", words or "")
        for value, (box, _, words), seen in zip(shown, found, there, strict=True)
    ]
    colours = _colours(found, there) if sys.stdout.isatty() and "NO_COLOR" not in os.environ else None
    print_table(("similarity" if found.scores is None else "score", "box", "phrase"), rows, colours)


def _colours(found: saywhere.Regions, there: Sequence[bool]) -> list[tuple[int, int, int]]:
    """The colours in which the regions are drawn: one for each different box; grey for what is not found."""
    from saywhere.drawing import COLOURS

    boxes = [tuple(corners) if seen else None for corners, seen in zip(found.boxes.tolist(), there, strict=True)]
    different = list(dict.fromkeys(box for box in boxes if box is not None))
    return [GREY if box is None else COLOURS[different.index(box) % len(COLOURS)] for box in boxes]

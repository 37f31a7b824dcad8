"""``saywhere caption``: a sentence about each picture."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from saywhere.describing import ResultsFile, Source
    from saywhere.regions import Regions


def caption(
    paths: list[str] = typer.Argument(..., metavar="PATH...", help="Pictures, folders, or quoted patterns: 'a/*.jpg'."),
    beam: int | None = typer.Option(
        None, min=1, metavar="N", help="Sentences kept while searching for the likeliest (1: greedy); the model's own."
    ),
    json: Path | None = typer.Option(
        None, metavar="FILE", help="Append captions as JSON lines; pictures already in FILE are not captioned again."
    ),
    limit: int | None = typer.Option(None, min=1, metavar="N", help="Only the first N pictures."),
    model: list[str] = typer.Option(
        ["captioner-flickr8k"], metavar="NAME|DIR", help="A captioner's name or folder; of several the mean speaks."
    ),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
    batch: int = typer.Option(8, min=1, metavar="N", help="Pictures at a time."),
    change: list[str] = typer.Option([], "--set", metavar="OPTION=VALUE", help="Change the model, such as grid=4."),
    show_attention: Path | None = typer.Option(
        None, metavar="FILE", help="Draw where the model looks at each word of one picture's sentence (.jpg or .png)."
    ),
) -> None:
    """Say a sentence about each picture.

    Exit code 0 if all went well, 1 if pictures were skipped because they cannot be read, 2 if the command is wrong.
    """
    from saywhere.cli.evaluate.pictures import describe_each, printable, skip_notes
    from saywhere.describing import ResultsFile, find_pictures
    from saywhere.evaluation.caption_run import WholePictures

    sources = find_pictures(paths)[:limit]
    if show_attention is not None:
        _check_drawing(show_attention, len(sources), json, len(model))
        _show_attention(sources[0], show_attention, load_captioners(model, device, change=change), beam)
        return
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(json)) if json else None
        done = {source.name for source in sources if lines is not None and source.name in lines.done}
        described = 0

        def keep(name: str, regions: Regions) -> None:
            nonlocal described
            described += 1
            _keep(lines, name, regions)
            if lines is None or len(sources) == 1:
                said = (regions.captions or ("",))[0]
                typer.echo(said if len(sources) == 1 else f"{printable(name)}: {said}")

        skipped: dict[str, str] = {}
        if len(done) < len(sources):
            describer = WholePictures(load_captioners(model, device, change=change), beam)
            skipped = describe_each(describer, sources, done, keep, batch)
    if len(sources) > 1 or done:
        already = f"; {len(done)} already in {json}" if done else ""
        missed = f"; {len(skipped)} skipped" if skipped else ""
        typer.echo(f"{described} captioned{already}{missed}", err=True)
    for note in skip_notes(skipped):
        typer.echo(note, err=True)
    if skipped:
        raise typer.Exit(1)


def _check_drawing(out: Path, count: int, json: Path | None, models: int) -> None:
    from saywhere.errors import UserError

    if count != 1:
        raise UserError(f"--show-attention {out}: draws one picture, not {count}")
    if models != 1:
        raise UserError(f"--show-attention {out}: draws where one --model looks, not {models}")
    if json is not None:
        raise UserError(f"--show-attention {out}: draws, and writes no --json {json}; run the command twice")
    if out.suffix.lower() not in (".jpg", ".jpeg", ".png"):
        raise UserError(f"--show-attention {out}: the drawing is written as .jpg or .png")


def _show_attention(source: Source, out: Path, model: Any, beam: int | None) -> None:
    """Say the sentence of the one picture, and draw its words with their areas."""
    from saywhere.drawing import draw_attention
    from saywhere.files import write_atomically
    from saywhere.images import open_picture

    picture = open_picture(source.path)
    seen = model.caption(picture, beam=beam, attention=True)
    sheet = draw_attention(picture.pixels, seen.words, seen.weights, seen.areas, (seen.width, seen.height))
    kind = "PNG" if out.suffix.lower() == ".png" else "JPEG"
    write_atomically(out, lambda stream: sheet.save(stream, kind, quality=92))
    typer.echo(seen.sentence)
    typer.echo(f"written: {out}", err=True)


def _keep(lines: ResultsFile | None, name: str, regions: Regions) -> None:
    if lines is not None:
        lines.append(regions, name)


def load_captioners(
    names: Sequence[str],
    device: str | None,
    root: Path | None = None,
    format: str | None = None,
    change: Sequence[str] = (),
) -> Any:
    """As :func:`load_captioner`; of several names the captioners that speak together.

    Raises:
        UserError: also if one of several is no captioner of its own, or they have not one vocabulary.
    """
    if len(names) == 1:
        return load_captioner(names[0], device, root, format, change)
    from saywhere.errors import UserError
    from saywhere.models.caption_ensemble import CaptionEnsemble
    from saywhere.models.captioner import Captioner

    members = [load_captioner(name, device, root, format, change) for name in names]
    for name, member in zip(names, members, strict=True):
        if not isinstance(member, Captioner):
            raise UserError(f"--model {name}: does not speak together with others; give it alone")
    return CaptionEnsemble(members)


def load_captioner(
    name: str,
    device: str | None,
    root: Path | None = None,
    format: str | None = None,
    change: Sequence[str] = (),
) -> Any:
    """A model that says sentences about whole pictures.

    Args:
        name: a captioner's name or folder; after ``nearest:``, that of the one whose image network finds the most
            similar picture of the train split of ``root``, see :mod:`saywhere.evaluation.nearest`.
        device: where it works; a GPU if there is one.
        root, format: of the data set.
        change: options of the model as ``OPTION=VALUE``, such as ``grid=4`` for fewer areas than in training.

    Raises:
        UserError: there is no such model, it says no sentences, or there is no data set for neighbours.
    """
    import saywhere
    from saywhere.cli.describe import best_device
    from saywhere.errors import UserError
    from saywhere.evaluation.nearest import NEAREST, learn_neighbours
    from saywhere.options import assignments

    loaded = saywhere.load(name.removeprefix(NEAREST), device=device or best_device(), **assignments(change))
    if not hasattr(loaded, "caption"):
        raise UserError(f"--model {name}: says no sentences about whole pictures; a captioner is needed")
    if not name.startswith(NEAREST):
        return loaded
    if root is None:
        raise UserError(f"--model {name}: only saywhere evaluate caption has a data set with neighbours")
    from saywhere import data

    return learn_neighbours(loaded, data.read(root, format, "train"), Path("cache/features"))

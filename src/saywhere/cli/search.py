"""``saywhere search``: find images in an index by words or by an image, with the region of each phrase."""

from __future__ import annotations

import json as json_format
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.options import (
    STDOUT,
    Chosen,
    Collection,
    IndexFolder,
    Url,
    check_file,
    check_folder,
    find_place,
    read_texts,
)
from saywhere.cli.printing import note_words, print_table
from saywhere.errors import UserError
from saywhere.files import printable, write_text
from saywhere.report import counted

if TYPE_CHECKING:
    import saywhere


def search(
    texts: list[str] | None = typer.Argument(
        None,
        metavar="QUERY...",
        show_default=False,
        help="A sentence, or phrases joined by + and -: 'a dog + snow - people' (no people). Words without quotes are "
        "one query; several quoted texts are joined by +.",
    ),
    index: IndexFolder = None,
    url: Url = None,
    collection: Collection = None,
    image: Path | None = typer.Option(None, metavar="FILE", help="Find images similar to this one instead."),
    without: list[str] | None = typer.Option(
        None, metavar="TEXT", help="Leave out images that probably show this; may be repeated."
    ),
    after: str | None = typer.Option(None, metavar="DATE", help="Only images taken on this day (2024-05-01) or later."),
    before: str | None = typer.Option(None, metavar="DATE", help="Only images taken before this day."),
    under: list[Path] | None = typer.Option(
        None, metavar="FOLDER", help="Only images in this folder, given by name or path; may be repeated."
    ),
    top: int = typer.Option(10, min=1, metavar="K", help="Maximum number of images, best first."),
    json: Path | None = typer.Option(
        None,
        metavar="FILE",
        callback=check_file,
        help="Write one JSON line per image to FILE, in place of those of an earlier search; - prints them.",
    ),
    out: Path | None = typer.Option(
        None, metavar="DIR", help="Folder for the images with the phrases' boxes drawn.", callback=check_folder
    ),
    chosen: Chosen = Chosen(),
) -> None:
    """Search an index for images that match a text or resemble an image, and find the region of each phrase.

    Each hit has the probability that the image shows the whole query. A note says so if probably no image does.

    Exit code: 0 success, even if nothing is found; 1 an image that was found cannot be drawn; 2 error.
    """
    import saywhere
    from saywhere.inference.results import require_hits
    from saywhere.search import Query
    from saywhere.search.index import why_improbable

    if (not texts) == (image is None):
        raise UserError("give either a QUERY or --image FILE, not both")
    query = " + ".join(read_texts(texts, "for images like it give --image before it")) if texts else None
    place = find_place(index, url, collection)
    if json is not None and json.is_file() and json != STDOUT:
        require_hits(json)
    with saywhere.Index(place, chosen.model, load=chosen.load, threads=chosen.threads) as opened:
        hits = opened.search(query, image=image, top=top, without=without or (), after=after, before=before,
                             under=under or ())  # fmt: skip
        names = {} if out is None else _drawings(opened, hits, out)
        count = len(opened)
    if hits:
        best, first = hits[0], hits[0].regions
        asked = (*(first.captions or ()), *first.not_found)
        note_words(asked, best.unknown, first.judged_as, first.unused, best.without_noun)
    if not hits:
        unwanted = Query.parse(query).unwanted if query else ()
        given = {"-": unwanted, "--without": without, "--after": after, "--before": before, "--under": under}
        told = ", ".join(name for name, value in given.items() if value)
        reason = f"none of {counted(count, 'image')} passes {told}" if count else "the index is empty"
        typer.echo(f"nothing found: {reason}", err=json is not None)
    if json is None and hits:
        _print_hits(hits)
    elif json is not None:
        lines = "".join(json_format.dumps(hit.to_dict()) + "\n" for hit in hits)
        if json == STDOUT:
            typer.echo(lines, nl=False)
        else:
            write_text(json, lines)
            typer.echo(f"written: {json}")
    if hits and (count := hits[0].left_out):
        images = "1 image that fits as well, but probably shows" if count == 1 else (
            f"{count} images that fit as well, but probably show"
        )  # fmt: skip
        typer.echo(f"left out: {images} what is not wanted", err=True)
    if why := why_improbable(hits):
        typer.echo(f"probably not there: {why}", err=True)
    if out is not None:
        _draw(hits, names)
        typer.echo(f"written: {out}", err=json == STDOUT)
        if others := len({*out.glob("*")} - {*names.values()}):
            typer.echo(f"note: {out} also has {counted(others, 'file')} that this search did not write", err=True)


def _print_hits(hits: Sequence[saywhere.Hit]) -> None:
    from saywhere.text import two_digits

    head, rows = ["", "similarity", "image", "phrases"], []
    for number, hit in enumerate(hits, 1):
        rows.append([str(number), f"{hit.similarity:.2f}", _name(hit), "\n".join(_phrases(hit.regions))])
        if hit.probability is not None:
            rows[-1].insert(1, two_digits(hit.probability))
    if hits[0].probability is not None:
        head.insert(1, "probability")
    print_table(head, rows, left=["image"])


def _phrases(found: saywhere.Regions) -> list[str]:
    """Return a line for each phrase: its probability, if known, and its box; or that it is probably not there."""
    from saywhere.text import two_digits

    chances = ["" if region.score is None else f"{two_digits(region.score)} " for region in found]
    there = [f"{chance}{region.caption} [{_place(region.box)}]" for chance, region in zip(chances, found, strict=True)]
    return [*there, *(f"probably not there: {phrase}" for phrase in found.not_found)]


def _place(box: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in box)


def _name(hit: saywhere.Hit) -> str:
    from saywhere.video import moment

    return _short(hit.image) if hit.time is None else f"{_short(hit.image)} at {moment(hit.time)}"


def _short(path: str) -> str:
    """Return the path relative to the current folder, if it is inside, otherwise as it is."""
    here = Path.cwd()
    return printable(str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path)


def _drawings(index: saywhere.Index, hits: Sequence[saywhere.Hit], out: Path) -> dict[int, Path]:
    """Return the path of each hit's drawing, by rank; raise :class:`UserError` if one is an image of the index."""
    from saywhere.files import fit_name
    from saywhere.search.indexing import absolute

    if index.folder is not None and absolute(out) == absolute(index.folder):
        raise UserError(f"--out {out}: is the folder of the index; give another one")
    names: dict[int, Path] = {}
    for number, hit in enumerate(hits, 1):
        moment = "" if hit.time is None else f"-{hit.time}s"
        name = names[number] = out / fit_name(f"{number:03}-{Path(hit.image).stem}", f"{moment}.jpg")
        if absolute(name) in index.store or str(name.resolve()) in index.store:
            raise UserError(f"{name}: is an image of the index and would be overwritten; give another --out")
    return names


def _draw(hits: Sequence[saywhere.Hit], names: Mapping[int, Path]) -> None:
    from saywhere.drawing import draw_boxes
    from saywhere.images import DRAWN_SIDES, resized, save_image
    from saywhere.search.indexing import open_found

    missing: list[Any] = []
    for number, hit in enumerate(hits, 1):
        try:
            pixels = resized(open_found(hit.image, hit.time, DRAWN_SIDES[1]), *DRAWN_SIDES)
        except UserError as error:
            missing.append(error)
            continue
        found = hit.regions
        drawn = draw_boxes(pixels, found.boxes, (found.width, found.height), found.captions)
        save_image(names[number], drawn)
    for error in missing:
        typer.echo(f"not drawn: {printable(str(error))}", err=True)
    if missing:
        raise typer.Exit(1)

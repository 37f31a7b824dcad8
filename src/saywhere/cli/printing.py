"""Output that commands share: tables, notes on words and skipped images."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.files import printable

if TYPE_CHECKING:
    from saywhere.inference.run import Each

LEAST = 20
"""Minimum width of the last column in characters, however narrow the terminal is."""


def on_terminal() -> bool:
    """Return whether standard output is a terminal."""
    return sys.stdout.isatty()


def print_row(*cells: str, widths: Sequence[int]) -> None:
    """Print cells in columns, right-aligned after the first; separated by tabs if the output is no terminal."""
    if not on_terminal():
        typer.echo("\t".join(printable(cell) for cell in cells))
        return
    first, *others = cells
    padded = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
    typer.echo("  ".join([first.ljust(widths[0]), *padded]).rstrip())


def print_table(
    header: Sequence[str],
    rows: Sequence[Sequence[str]],
    colours: Sequence[tuple[int, int, int]] | None = None,
    left: Sequence[str] = (),
) -> None:
    """Print a table whose last column is text: wrapped on a terminal, otherwise separated by tabs and unwrapped.

    On a terminal the other columns are never wrapped, and right-aligned except those in ``left``.

    Args:
        rows: one text per column; the last may have several lines.
        colours: RGB colour (0 to 255) of the last column of each row.
    """
    if not on_terminal():
        for row in (header, *rows):
            typer.echo("\t".join(printable("; ".join(cell.splitlines())) for cell in row))
        return
    *names, last = header
    widths = [max(len(name), *(len(row[i]) for row in rows)) for i, name in enumerate(names)] if rows else []
    sides = ["<" if name in left else ">" for name in names]
    before = "".join(f" {{:{side}{width}}}  " for side, width in zip(sides, widths or map(len, names), strict=True))
    indent = len(before.format(*names))
    room = max(LEAST, shutil.get_terminal_size().columns - indent - 2)
    folded = [
        [line for part in row[-1].splitlines() for line in textwrap.wrap(printable(part), room)] or [""] for row in rows
    ]
    longest = max((len(line) for lines in folded for line in lines), default=0)
    typer.echo(f" {before.format(*names)}{last}")
    typer.echo(" " + "─" * (indent + max(len(last), longest)))
    for number, (row, lines) in enumerate(zip(rows, folded, strict=True)):
        start = before.format(*row[:-1])
        for line in lines:
            shown = line if colours is None else typer.style(line, fg=colours[number])
            typer.echo(f" {start}{shown}")
            start = " " * indent


def each_result(printed: bool, kept: bool, show: Callable[[Any, str], object]) -> Each[Any]:
    """Return a function that prints the result of an image: if ``printed``, as a JSON line, and otherwise by ``show``.

    ``show`` takes the result and a title, empty for a single image. Several results are not shown if files have them.
    """
    from saywhere.inference.results import json_line

    def each(one: Any, so_far: Any) -> None:
        if printed:
            typer.echo(json_line(one.result.to_dict(), one.source.name), nl=False)
        elif so_far.count == 1 or not kept:
            show(one.result, "" if so_far.count == 1 else printable(one.source.name))

    return each


def note_words(
    asked: Iterable[str], unknown: Mapping[str, str | None], judged_as: Sequence[str], unused: Sequence[str],
    without_noun: Sequence[str], none_known: bool = False,
) -> None:  # fmt: skip
    """Print notes on the phrases ``asked``: unknown words (or that all are), nouns that are judged as what they are a
    kind of, phrases without a noun or with several in a row, words that place no phrase.
    """
    from saywhere.models.layout import nouns_in_a_row
    from saywhere.models.lexicon import did_you_mean, knows_none

    if none_known:
        typer.echo(knows_none(unknown), err=True)
    elif unknown:
        typer.echo(f"words that the model does not know, or hardly: {did_you_mean(unknown)}", err=True)
    if judged_as:
        typer.echo(f"judged as their kind of thing: {', '.join(judged_as)}", err=True)
    if without_noun and not none_known:
        typer.echo(f"no thing is named, so compared as a whole: {', '.join(without_noun)}", err=True)
    for phrase in asked:
        if parts := nouns_in_a_row(phrase):
            typer.echo(f"{phrase!r} is read as one thing; for several write {', '.join(parts)!r}", err=True)
    if unused:
        typer.echo(f"words not used to place phrases: {', '.join(unused)}", err=True)


def note_every(images: int) -> str:
    """Return a note that ``--every`` has no effect on so many images, among which there is no video."""
    from saywhere.report import counted

    return f"note: --every is for videos, and there is none: {counted(images, 'image')}"


def skip_notes(skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each skipped image, and a single line for all that only lack an extra."""
    if not skipped:
        return []
    from saywhere.images import NEEDS_PHOTOS

    lacking = [printable(name) for name, reason in skipped.items() if reason == NEEDS_PHOTOS]
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    notes = [f"skipped: {lacking[0]}{more}: {NEEDS_PHOTOS}"] if lacking else []
    others = ((name, reason) for name, reason in skipped.items() if reason != NEEDS_PHOTOS)
    return notes + [f"skipped: {printable(name)}: {printable(reason)}" for name, reason in others]


def report_skipped(skipped: Mapping[str, str]) -> None:
    """Print the skipped images and, if there are any, exit with code 1."""
    for note in skip_notes(skipped):
        typer.echo(note, err=True)
    if skipped:
        raise typer.Exit(1)


def next_command(model: Path) -> str:
    """Return a command to try a new model with, by its parts."""
    from saywhere.models.bundle import Bundle

    parts = Bundle.read(model).configs
    if "densecap" in parts:
        return f"saywhere describe IMAGE --model {model}"
    return f"saywhere {'caption IMAGE' if 'captioner' in parts else 'ground IMAGE PHRASE'} --model {model}"

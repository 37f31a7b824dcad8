"""What commands print alike: tables, and the images that were skipped."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence

import typer

from saywhere.files import printable

LEAST = 20
"""Letters that the last column has at least, however narrow the terminal is."""


def on_terminal() -> bool:
    """Return whether results are shown to a person, and not piped."""
    return sys.stdout.isatty()


def print_row(*cells: str, widths: Sequence[int]) -> None:
    """Print cells in columns, those behind the first to the right; with tabs between them where nobody looks on."""
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
    """Print a table whose last column is text: folded on a terminal, else whole, with tabs between columns.

    On a terminal the other columns stand to the right, but those in ``left``, and are never folded.

    Args:
        rows: a text for each column; the last may have several lines.
        colours: of each row's last column, red, green and blue up to 255.
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


def note_words(
    unknown: Mapping[str, str | None], unused: Sequence[str], without_noun: Sequence[str], none_known: bool = False
) -> None:
    """Print which words of a text the model does not know, or that it knows none; and which it uses otherwise."""
    from saywhere.models.placing import did_you_mean, knows_none

    if none_known:
        typer.echo(knows_none(unknown), err=True)
    elif unknown:
        typer.echo(f"words that the model does not know: {did_you_mean(unknown)}", err=True)
    if without_noun and not none_known:
        typer.echo(f"no thing is named, so compared as a whole: {', '.join(without_noun)}", err=True)
    if unused:
        typer.echo(f"words not used to place phrases: {', '.join(unused)}", err=True)


def skip_notes(skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each image that was skipped, but one for all that only lack an extra."""
    if not skipped:
        return []
    from saywhere.images import NEEDS_PHOTOS

    lacking = [printable(name) for name, reason in skipped.items() if reason == NEEDS_PHOTOS]
    more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
    notes = [f"skipped: {lacking[0]}{more}: {NEEDS_PHOTOS}"] if lacking else []
    others = ((name, reason) for name, reason in skipped.items() if reason != NEEDS_PHOTOS)
    return notes + [f"skipped: {printable(name)}: {printable(reason)}" for name, reason in others]


def report_skipped(skipped: Mapping[str, str]) -> None:
    """Print the images that were skipped, which gives exit code 1."""
    for note in skip_notes(skipped):
        typer.echo(note, err=True)
    if skipped:
        raise typer.Exit(1)

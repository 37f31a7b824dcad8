"""``saywhere data check``: show the content of a data set and what is missing or broken in it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import DataFormat, Splits, check_folder
from saywhere.cli.printing import print_row
from saywhere.report import counted

if TYPE_CHECKING:
    from saywhere.data import Samples

app = typer.Typer(help="Inspect data sets.", no_args_is_help=True)


@app.callback()
def _data() -> None:
    pass


@app.command()
def check(
    root: Path = typer.Argument(metavar="DATA", help="Folder of the data set, or a .jsonl file."),
    format: DataFormat = None,
    split: Splits = None,
    out: Path = typer.Option(Path("data-check"), callback=check_folder, help="Folder for drawings of samples."),
    decode: bool = typer.Option(False, "--decode", help="Decode every image to find damaged ones (slow)."),
) -> None:
    """Print what a data set contains and what is missing or broken, and draw a few samples.

    Exit code: 0 success; 1 something is missing or broken; 2 the data set cannot be read at all.
    """
    from saywhere import data
    from saywhere.data import check as checks

    format = format or data.guess_format(root)
    names = split or data.splits(root, format) or ["train"]
    found = [data.read(root, format, name) for name in names]
    drawn: list[Path] = []
    for part in found:
        if decode:
            checks.decode(part)
        drawn += checks.draw(part, out)
    typer.echo(f"{root}: {format}, {counted(len(found), 'split')}")
    _print_figures({part.split: checks.summary(part) for part in found})
    _print_reports(found)
    if drawn:
        typer.echo(f"\n{counted(len(drawn), 'sample')} drawn in {out}:")
        for path in drawn:
            typer.echo(f"  {path}")
    if not all(part.report.ok for part in found):
        raise typer.Exit(1)


def _print_figures(figures: dict[str, dict[str, str]]) -> None:
    rows = list(next(iter(figures.values()), {}))
    columns = [[name, *(part[row] for row in rows)] for name, part in figures.items()]
    widths = [max(len(cell) for cell in column) for column in columns]
    label = max((len(row) for row in rows), default=0)
    for i, row in enumerate(["", *rows]):
        print_row(row, *(column[i] for column in columns), widths=[label, *widths])


def _print_reports(found: list[Samples]) -> None:
    for part in found:
        lines = part.report.lines()
        if part.report.ok:
            lines.append("nothing is missing or broken")
        typer.echo(f"\n{part.split}")
        for line in lines:
            typer.echo(f"  {line}")

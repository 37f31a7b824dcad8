"""What a command shows while it works through images, and of those that it had to skip."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypeVar

import typer

from saywhere.files import fits

if TYPE_CHECKING:
    from saywhere.inference import ImageResult

T = TypeVar("T")
TOO_LONG = "its name is too long for the file that would be written"


@contextlib.contextmanager
def progress(what: str, total: int, completed: int = 0) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal; yields the function that moves it by one."""
    if total == 1 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total, completed=completed)
        yield lambda: bar.advance(task)


def keep_each(
    results: Iterable[ImageResult[T]],
    keep: Callable[[ImageResult[T]], object],
    total: int,
    completed: int = 0,
    what: str = "describing",
    resumes: bool = True,
) -> dict[str, str]:
    """Pass each result to ``keep`` beside a progress bar.

    Args:
        results: from :func:`saywhere.inference.run_images`.
        keep: called with those that have a result.
        total, completed: images in all, and those that an earlier run has done.
        what: title of the bar.
        resumes: the same command, given again, goes on where this one was stopped; told after Ctrl-C.

    Returns:
        the names of the images that were skipped, with the reasons.

    Raises:
        KeyboardInterrupt: with the line that says how far it came.
    """
    skipped: dict[str, str] = {}
    count = completed
    with progress(what, total, completed) as advance:
        try:
            for one in results:
                if one.result is None:
                    skipped[one.source.name] = one.error or "cannot be read"
                elif not fits(keep, one):
                    skipped[one.source.name] = TOO_LONG
                else:
                    count += 1
                advance()
        except KeyboardInterrupt:
            again = "; the same command goes on from here" if resumes else ""
            raise KeyboardInterrupt(f"interrupted after {count} of {total} images{again}") from None
    return skipped


def skip_notes(skipped: Mapping[str, str]) -> list[str]:
    """Return a line for each image that was skipped."""
    return [f"skipped: {printable(name)}: {printable(reason)}" for name, reason in skipped.items()]


def report_skipped(skipped: Mapping[str, str]) -> None:
    """Print the images that were skipped, which gives exit code 1."""
    for note in skip_notes(skipped):
        typer.echo(note, err=True)
    if skipped:
        raise typer.Exit(1)


def printable(name: str) -> str:
    """Return a file name as text that can be printed on one line, also if it is not UTF-8 or has control characters."""
    text = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)

"""What is shown of a run while it goes on: a bar on a terminal, and lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

Tell = Callable[..., object]
"""Called with a line that a command prints, with ``err=True`` if it goes to the standard error, as ``typer.echo``."""


def silent(*_: object, **__: object) -> None:
    """Print nothing."""


@contextlib.contextmanager
def progress(what: str, total: int | None, completed: int = 0, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Show a bar on a terminal; yields the function that moves it by one. Nothing is shown for a total of 1."""
    if not shown or total == 1 or not sys.stderr.isatty():
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total, completed=completed)
        yield lambda: bar.advance(task)

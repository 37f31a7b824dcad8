"""What a task of ``saywhere evaluate`` shows while it runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress(what: str, total: int, completed: int = 0) -> Iterator[Callable[[], None]]:
    """A bar on a terminal; gives the function that moves it by one."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("", total=total, completed=completed)
        yield lambda: bar.advance(task)

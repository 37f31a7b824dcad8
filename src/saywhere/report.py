"""Messages for users: lines and a progress bar during a run, and a report of what is missing, broken or left out."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import field
from typing import TYPE_CHECKING

from saywhere.files import printable
from saywhere.options import dataclass

if TYPE_CHECKING:
    from rich.progress import Progress

LONGEST = 300
"""Maximum length of a name in a report in characters; a damaged file can contain very long ones."""
Tell = Callable[..., object]
"""Function that prints a line, to standard error with ``err=True``, such as ``typer.echo``."""


def counted(number: int, thing: str) -> str:
    """Return a count with its noun, which is given in the singular: ``1 image``, ``2,000 boxes``, ``0 queries``."""
    if number != 1:
        thing = f"{thing[:-1]}ies" if thing.endswith("y") else thing + ("es" if thing.endswith("x") else "s")
    return f"{number:,} {thing}"


def silent(*_: object, **__: object) -> None:
    """Print nothing."""


_left_out: ContextVar[dict[str, None] | None] = ContextVar("left_out", default=None)


@contextlib.contextmanager
def collect_left_out() -> Iterator[dict[str, None]]:
    """Yield the lines that :func:`leave_out` collects in this context; a nested context shares the outer one's."""
    if (outer := _left_out.get()) is not None:
        yield outer
        return
    token = _left_out.set(lines := {})
    try:
        yield lines
    finally:
        _left_out.reset(token)


def leave_out(line: str) -> None:
    """Print that a run leaves something out that belongs to it, such as a damaged image; equal lines only once.

    Commands collect these lines, and exit with code 1 if there are any.
    """
    line, known = printable(line), _left_out.get()
    if known is None or line not in known:
        print(line, file=sys.stderr)
    if known is not None:
        known[line] = None


@contextlib.contextmanager
def progress(what: str, total: int | None, completed: int = 0, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Show a progress bar on a terminal; yields the function that advances it. A total of 1 shows nothing."""
    if not shown or total == 1 or not sys.stderr.isatty():
        yield lambda: None
        return
    bar = start_bar(what, total, completed, transient=True)
    try:
        yield lambda: bar.advance(bar.task_ids[0])
    finally:
        bar.stop()


def start_bar(title: str, total: int | None, done: int, transient: bool = False) -> Progress:
    """Show a progress bar on standard error until it is stopped; its field ``note`` is shown at the end."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    texts = TextColumn("{task.description}", markup=False), TextColumn("{task.fields[note]}", markup=False)
    columns = (texts[0], BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), texts[1])
    bar = Progress(*columns, console=Console(stderr=True), transient=transient, refresh_per_second=2)
    bar.add_task(title, total=total, completed=done, note="")
    bar.start()
    return bar


@dataclass
class Report:
    """Collect what is missing, broken or left out in a data set, or in another program's results.

    Attributes:
        listed: number of images in the split.
        problems: names of what is missing or broken, by kind of problem.
        left_out: counts of what was left out or changed on purpose, by kind.
        notes: remarks on the data set as a whole.
        drafts: number of images whose regions are those that a program wrote, unchanged.
        classes: number of each class in a file that numbers them.
    """

    listed: int = 0
    problems: dict[str, list[str]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    drafts: int = 0
    classes: dict[str, int] = field(default_factory=dict, compare=False)

    @property
    def ok(self) -> bool:
        """Whether nothing is missing or broken."""
        return not self.problems

    def problem(self, kind: str, name: str) -> None:
        """Add something missing or broken by kind of problem and name; a long name is cut."""
        self.problems.setdefault(kind, []).append(name if len(name) <= LONGEST else f"{name[:LONGEST]}...")

    def leave_out(self, name: str) -> None:
        """Print the report by :func:`leave_out`, each line with ``name``, if something is missing or broken."""
        for line in () if self.ok else self.lines():
            leave_out(f"{name}: {line}")

    def lines(self, names: int = 5) -> list[str]:
        """Return the report as lines of text, with at most ``names`` names per kind of problem."""
        lines = [f"note: {note}" for note in self.notes]
        for kind, found in self.problems.items():
            more = f", and {len(found) - names} more" if len(found) > names else ""
            lines.append(f"{kind}: {len(found)} ({', '.join(found[:names])}{more})")
        lines += [f"left out or changed: {kind}: {n}" for kind, n in self.left_out.items()]
        return lines

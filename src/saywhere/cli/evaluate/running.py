"""What the tasks of ``saywhere evaluate`` share: the session of the command line, with bars, notes and exit code."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from saywhere.cli.printing import skip_notes
from saywhere.errors import explain_oom
from saywhere.progress import progress

if TYPE_CHECKING:
    from saywhere.evaluation.session import Progress, Session

Data = Annotated[Path, typer.Option("--data", metavar="ROOT", help="Folder of the data set, or a .jsonl file.")]
EntitiesData = Annotated[
    Path,
    typer.Option("--data", metavar="ROOT", help="Folder of Flickr8k or Flickr30k with Flickr30k Entities."),
]


@contextlib.contextmanager
def session(
    task: str,
    data: Path,
    out: Path,
    *,
    model: str | Sequence[str] | None = None,
    change: Sequence[str] | None = None,
    format: str | None = None,
    split: str | None = None,
    limit: int | None = None,
    batch: int = 8,
    written: str = "report.json",
) -> Iterator[Session]:
    """Yield the session of a command; at its end say what was written and left out, and exit with 1 if it is not whole.

    Args:
        task: one of :data:`saywhere.evaluation.session.TASKS`.
        data, out, format, split, limit, batch: of the session.
        model: name for the report, or several.
        change: options of the model, for the report.
        written: what is in ``out`` beside ``report.md``.
    """
    from saywhere.evaluation.session import Session

    name = model if isinstance(model, str) or model is None else ", ".join(model)
    command = shlex.join(["saywhere", *sys.argv[1:]])
    with explain_oom(batch), _bars() as bars:
        now = Session(data, out, format, split, limit, batch, name, change or (), bars, command, task)
        yield now
    for note in [*skip_notes(now.skipped), *now.notes]:
        typer.echo(note, err=True)
    typer.echo(f"written: {out / 'report.md'}, {written}")
    if not now.complete:
        raise typer.Exit(1)


@contextlib.contextmanager
def _bars() -> Iterator[Progress]:
    """Yield what shows progress: a bar for each thing that is being done, one after the other."""
    with contextlib.ExitStack() as stack:
        shown: dict[str, Callable[[], None]] = {}

        def show(what: str, done: int, total: int) -> None:
            if what in shown:
                shown[what]()
            else:
                stack.close()
                shown.clear()
                shown[what] = stack.enter_context(progress(what, total, done))

        yield show

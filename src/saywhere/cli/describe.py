"""``saywhere describe``: what is where in pictures."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from saywhere.describing import Described, Outputs, Source
    from saywhere.regions import Regions


TOP = 10
"""Regions a picture, unless the user says otherwise."""


class Format(StrEnum):
    """What is written: saywhere's JSON lines, or the original DenseCap program's ``results.json``."""

    saywhere = "saywhere"
    densecap = "densecap"


def describe(
    paths: list[str] = typer.Argument(..., metavar="PATH...", help="Pictures, folders, or quoted patterns: 'a/*.jpg'."),
    out: Path | None = typer.Option(None, metavar="DIR", help="Write the pictures with boxes and captions drawn here."),
    json: Path | None = typer.Option(
        None, metavar="FILE", help="Append results as JSON lines; pictures already in FILE are not described again."
    ),
    top: int | None = typer.Option(
        None, min=0, metavar="K", show_default=str(TOP), help="At most K regions a picture, the best (0: all)."
    ),
    threshold: float | None = typer.Option(
        None, min=0, max=1, metavar="P", help="Only regions with at least this score."
    ),
    boxes: Path | None = typer.Option(None, metavar="FILE", help="Describe just these boxes (JSON; see the manual)."),
    model: str = typer.Option("densecap-flickr8k", metavar="NAME|DIR", help="A model's name or folder."),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
    batch: int = typer.Option(8, min=1, metavar="N", help="Pictures at a time."),
    change: list[str] = typer.Option([], "--set", metavar="OPTION=VALUE", help="Change the model, such as beam=3."),
    format: Format = typer.Option(Format.saywhere, help="densecap: the original program's results.json, in --out."),
) -> None:
    """Say what is where in pictures: boxes with scores and captions.

    Exit code 0 if all went well, 1 if pictures were skipped because they cannot be read, 2 if the command is wrong.
    """
    from saywhere.describing import Outputs, ResultsFile, find_pictures, read_boxes
    from saywhere.errors import UserError

    if format is Format.densecap:
        if out is None:
            raise UserError("--format densecap needs --out DIR, for results.json and the resized pictures beside it")
        json = json or out / "regions.jsonl"
    if boxes is not None and (top is not None or threshold is not None):
        raise UserError("--boxes describes every box in the file: --top and --threshold cannot choose among them")
    most = None if boxes is not None else (TOP if top is None else top) or None
    found = find_pictures(paths, [out] if out else [])
    given = None if boxes is None else read_boxes(boxes, found)
    sources = found if given is None else [source for source in found if source.name in given]
    Outputs(None, out).check(sources)
    with contextlib.ExitStack() as stack:
        lines = stack.enter_context(ResultsFile(json)) if json else None
        outputs = Outputs(lines, out, drawn=format is Format.saywhere)
        todo = [source for source in sources if not outputs.is_described(source)]
        show = len(sources) == 1 or (json is None and out is None)
        run = _Run(outputs, len(sources), show)
        run.already = len(sources) - len(todo)
        run.left_out = len(found) - len(sources)
        with run.progress():
            for source in sources:
                if outputs.is_described(source) and not outputs.is_complete(source):
                    run.attempt(source, outputs.complete, source)
            for done in _describe(todo, given, (model, device, change), most, threshold, batch):
                run.take(done)
        if format is Format.densecap:
            options = {"model": model, "image_size": 720, "top": most, "threshold": threshold}
            outputs.write_original(sources, options)
    run.report(json, out)


def _describe(
    todo: list[Source],
    given: dict[str, Any] | None,
    model: tuple[str, str | None, list[str]],
    top: int | None,
    threshold: float | None,
    batch: int,
) -> Iterator[Described]:
    """Load the model (name, device, changes), if there is anything for it to do, and describe."""
    from saywhere.describing import describe_pictures, unreadable_at_start

    for done in unreadable_at_start(todo, given):
        todo = todo[1:]
        yield done
    if not todo:
        return
    loaded = load_model(*model)
    long_side = loaded.preprocess.long_side
    with little_memory(batch):
        yield from describe_pictures(
            loaded, todo, given, top=top, threshold=threshold, batch=batch, long_side=long_side
        )


@contextlib.contextmanager
def little_memory(batch: int) -> Iterator[None]:
    """Too little memory on a device is told with the way out, a smaller ``batch``."""
    from saywhere.errors import UserError

    try:
        yield
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":
            raise
        raise UserError(f"the device has too little memory for --batch {batch}; give a smaller one") from error


def load_model(name: str, device: str | None, changes: list[str]) -> Any:
    """The model with some options changed, on the device or on the best there is."""
    import saywhere
    from saywhere.options import assignments

    return saywhere.load(name, device or best_device(), **assignments(changes))


def best_device() -> str:
    """A GPU if there is one."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


class _Run:
    """What is shown of a run while it goes on and at its end."""

    def __init__(self, outputs: Outputs, count: int, show: bool) -> None:
        from rich.console import Console

        self.outputs, self.count, self.show = outputs, count, show
        self.described = self.regions = self.already = self.left_out = 0
        self.skipped: list[tuple[str, str]] = []
        self.console = Console(highlight=False)
        self.errors = Console(stderr=True, highlight=False, soft_wrap=True)
        self.bar: Any = None

    @contextlib.contextmanager
    def progress(self) -> Iterator[None]:
        """A progress bar for several pictures; Ctrl-C says how far it came."""
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("describing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        quiet = self.count == 1 or not self.errors.is_terminal
        try:
            with Progress(*columns, console=self.errors, disable=quiet, transient=True) as bar:
                task = bar.add_task("", total=self.count, completed=self.already)
                self.bar = lambda: bar.advance(task)
                yield
        except KeyboardInterrupt:
            again = "; the same command goes on from here" if self.outputs.lines is not None else ""
            typer.echo(f"interrupted after {self.already + self.described} of {self.count} pictures{again}", err=True)
            raise typer.Exit(130) from None

    def attempt(self, source: Source, action: Callable[[Any], None], argument: Any) -> bool:
        """Do it; a picture that cannot be read is counted, and False comes back."""
        from saywhere.images import ImageError

        try:
            action(argument)
            return True
        except ImageError as error:
            self.skipped.append((source.name, str(error).removeprefix(f"{source.path}: ")))
            return False

    def take(self, done: Described) -> None:
        """Keep and count what became of one picture."""
        if done.regions is None:
            self.skipped.append((done.source.name, done.error or "cannot be read"))
        elif self.attempt(done.source, self.outputs.keep, done):
            self.described += 1
            self.regions += len(done.regions)
            if self.show:
                self.console.print(_table(done.regions, "" if self.count == 1 else _printable(done.source.name)))
        self.bar()

    def report(self, json: Path | None, out: Path | None) -> None:
        """The summary, the names of what was skipped, and exit code 1 if there is any."""
        parts = [f"{self.described} described, {self.regions} regions"]
        parts += [f"{self.already} already in {json}"] if self.already else []
        parts += [f"{self.left_out} without boxes left out"] if self.left_out else []
        parts += [f"{len(self.skipped)} skipped"] if self.skipped else []
        if self.count > 1 or self.already or self.left_out:
            typer.echo("; ".join(parts))
        if self.described and (json or out):
            typer.echo(f"written: {', '.join(str(path) for path in (json, out) if path)}")
        if self.skipped:
            for name, reason in self.skipped:
                typer.echo(f"skipped: {_printable(name)}: {reason}", err=True)
            raise typer.Exit(1)


def _printable(name: str) -> str:
    """A file name that is not UTF-8 still prints."""
    return name.encode("utf-8", "replace").decode("utf-8")


def _table(regions: Regions, title: str) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, title=Text(title, style="bold") if title else None, title_justify="left")
    table.add_column("score", justify="right", no_wrap=True)
    table.add_column("box", justify="right", no_wrap=True)
    table.add_column("caption", overflow="fold")
    for region in regions:
        score = "" if region.score is None else f"{region.score:.2f}"
        table.add_row(score, " ".join(f"{value:.0f}" for value in region.box), Text(region.caption or ""))
    if len(regions) == 0:
        table.add_row("", "", Text("no regions found", style="italic"))
    return table

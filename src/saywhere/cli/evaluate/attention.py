"""``saywhere evaluate attention``: whether a captioner looks at what it speaks of."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import Change, Device, Limit, Out, Split
from saywhere.cli.evaluate.pictures import first_reason, skip_notes
from saywhere.cli.evaluate.progress import progress

if TYPE_CHECKING:
    from saywhere.data.entities import MarkedPicture


class Spread(StrEnum):
    """How an area's weight lies on the picture."""

    area = "area"
    pixel = "pixel"


def attention(
    model: str = typer.Option(..., metavar="NAME|DIR", help="Name or folder of a captioner that looks at areas."),
    data: Path = typer.Option(..., metavar="ROOT", help="Folder of Flickr8k or Flickr30k with Flickr30k Entities."),
    split: Split = None,
    generated: bool = typer.Option(True, help="Also measure sentences that the model says itself."),
    beam: int | None = typer.Option(None, min=1, metavar="N", help="Hypotheses in decoding; the model's if not given."),
    spread: Spread = typer.Option(
        Spread.area, help="A weight is spread on its area, or stands on each of its pixels, so that large areas win."
    ),
    change: Change = None,
    limit: Limit = None,
    out: Out = Path("evaluation"),
    device: Device = None,
) -> None:
    """Attention correctness on Flickr30k Entities: the share of the attention inside the boxes of what a word names.

    Beside it that of uniform attention over the same areas. Exit code 0 if all went well, 1 if pictures were skipped or
    the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.cli.caption import load_captioner
    from saywhere.data.entities import count_phrases, read_entities
    from saywhere.data.sample import Report
    from saywhere.errors import UserError
    from saywhere.evaluation import attention_run as run
    from saywhere.evaluation import resuming

    started = time.monotonic()
    report = Report()
    marked = read_entities(data, split or "dev", report)[:limit]
    if not count_phrases(marked):
        raise UserError(f"{data}: the split {split or 'dev'} has no phrase with a box")
    pictures = {p.image.relative_to(data).as_posix(): p for p in marked}
    loaded = load_captioner(model, device, change=change or [])
    if getattr(loaded.config, "speaker", None) != "attention":
        raise UserError(f"--model {model}: looks at no areas; a captioner with the speaker attention is needed")
    settings: dict[str, Any] = {"data": str(data), "split": split or "dev", "generated": generated, "beam": beam}
    settings["spread"] = spread.value
    resuming.take_up(out, {"model": resuming.model_digest(loaded), **settings}, run.LINES)

    def work(advance: Callable[[], None]) -> dict[str, str]:
        return run.measure_missing(loaded, pictures, out / run.LINES, generated, beam, spread.value, advance)

    skipped = _with_progress(work, pictures, lambda: run.read_rows(out / run.LINES))
    rows = run.read_rows(out / run.LINES)
    chosen = [rows[name] for name in pictures if name not in skipped]
    if not chosen:
        raise UserError(f"none of the {len(pictures)} pictures could be read; {first_reason(skipped)}")
    figures = run.total(chosen)
    del settings["generated"]  # it is the name of a figure
    known = {**settings, "data": data.name, "model": model, "skipped": skipped}
    known |= {"set": change} if change else {}
    known |= {"data_problems": {kind: len(found) for kind, found in report.problems.items()}}
    known |= {"seconds": round(time.monotonic() - started, 3), "command": shlex.join(["saywhere", *sys.argv[1:]])}
    run.write_attention_report(out, figures, known)
    for note in skip_notes(skipped) + ([] if report.ok else [f"{data}: {line}" for line in report.lines()]):
        typer.echo(note, err=True)
    _print(figures, run.SENTENCES if generated else run.SENTENCES[:1], out)
    if skipped or not report.ok:
        raise typer.Exit(1)


def _with_progress(
    work: Callable[[Callable[[], None]], dict[str, str]],
    pictures: dict[str, MarkedPicture],
    rows: Callable[[], dict[str, Any]],
) -> dict[str, str]:
    """What ``work`` returns; Ctrl-C tells how far it came, and that the same command goes on."""

    def count() -> int:
        return len(pictures.keys() & rows().keys())

    with progress("looking", len(pictures), count()) as advance:
        try:
            return work(advance)
        except KeyboardInterrupt:
            typer.echo(f"interrupted after {count()} of {len(pictures)} pictures; the same command goes on", err=True)
            raise typer.Exit(130) from None


def _print(figures: dict[str, Any], kinds: tuple[str, ...], out: Path) -> None:
    from saywhere.evaluation.attention_run import percent

    for kind in kinds:
        found, uniform, mentions = figures[kind], figures[f"uniform_{kind}"], figures[f"{kind}_mentions"]
        typer.echo(f"{kind}: {percent(found)} %, uniform attention {percent(uniform)} % ({mentions:,} mentions)")
    typer.echo(f"written: {out / 'report.md'}, report.json")

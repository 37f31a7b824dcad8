"""``saywhere evaluate ground``: phrases of sentences placed in pictures."""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import Areas, Batch, Change, Device, Limit, Out, Split
from saywhere.cli.evaluate.pictures import first_reason, skip_notes
from saywhere.cli.evaluate.rank import embed, load_aligner

if TYPE_CHECKING:
    from saywhere.evaluation.grounding import GroundingResult


def ground(
    model: str = typer.Option(..., metavar="NAME|DIR", help="An aligner's name or folder."),
    data: Path = typer.Option(..., metavar="ROOT", help="Folder of Flickr8k or Flickr30k with Flickr30k Entities."),
    split: Split = None,
    areas: Areas = None,
    change: Change = None,
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
) -> None:
    """Grounding of phrases on Flickr30k Entities: right where the IoU is at least 0.5; and the pointing game.

    Exit code 0 if all went well, 1 if pictures were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.data.entities import count_phrases, read_entities
    from saywhere.data.sample import Report
    from saywhere.describing import Source
    from saywhere.errors import UserError
    from saywhere.evaluation.embedding_run import load_vectors
    from saywhere.evaluation.grounding_report import write_grounding_report
    from saywhere.evaluation.grounding_run import BONUS, CONTROLS, bonus_control, control
    from saywhere.evaluation.grounding_run import ground as ground_all

    started = time.monotonic()
    report = Report()
    pictures = read_entities(data, split or "dev", report)[:limit]
    if not count_phrases(pictures):
        raise UserError(f"{data}: the split {split or 'dev'} has no phrase with a box")
    sources = [Source(p.image, p.image.relative_to(data).as_posix(), Path(p.image.name)) for p in pictures]
    loaded = load_aligner(model, device, change)
    store, skipped = embed(loaded, sources, out, batch, areas, {"data": str(data), "split": split or "dev"})
    seen = [p for p, source in zip(pictures, sources, strict=True) if source.name not in skipped]
    if not seen:
        raise UserError(f"none of the {len(sources)} pictures could be read; {first_reason(skipped)}")
    vectors = [load_vectors(store, source.name) for source in sources if source.name not in skipped]
    result = ground_all(loaded, seen, vectors)
    controls = {name: control(name, seen, vectors) for name in CONTROLS}
    controls[BONUS] = bonus_control(loaded, seen, vectors)
    known: dict[str, Any] = {"data": data.name, "split": split or "dev", "model": model, "images": len(seen)}
    known |= {"areas": areas, "skipped": skipped}
    known |= {"set": change} if change else {}
    known |= {"data_problems": {kind: len(found) for kind, found in report.problems.items()}}
    known |= {"seconds": round(time.monotonic() - started, 3), "command": shlex.join(["saywhere", *sys.argv[1:]])}
    write_grounding_report(out, result, controls, known)
    for note in skip_notes(skipped) + ([] if report.ok else [f"{data}: {line}" for line in report.lines()]):
        typer.echo(note, err=True)
    _print({"model": result, **controls}, out)
    if skipped or not report.ok:
        raise typer.Exit(1)


def _print(results: dict[str, GroundingResult], out: Path) -> None:
    for name, result in results.items():
        typer.echo(
            f"{name}: accuracy {result.accuracy:.3f}, pointing {result.pointing:.3f} ({result.phrases:,} phrases)"
        )
    typer.echo(f"written: {out / 'report.md'}, report.json")

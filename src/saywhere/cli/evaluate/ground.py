"""``saywhere evaluate ground``: phrases of sentences placed in pictures."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import Areas, Batch, Change, Device, Limit, Out, Split
from saywhere.cli.evaluate.pictures import describe_each, first_reason, skip_notes
from saywhere.cli.evaluate.rank import embed

if TYPE_CHECKING:
    from saywhere.describing import Source
    from saywhere.evaluation.grounding import GroundingResult
    from saywhere.evaluation.grounding_run import Seen


def ground(
    model: str = typer.Option(..., metavar="NAME|DIR", help="Name or folder of an aligner or a densecap model."),
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
    from saywhere.evaluation.grounding_report import write_grounding_report
    from saywhere.evaluation.grounding_run import CONTROLS, control
    from saywhere.evaluation.grounding_run import ground as ground_all

    started = time.monotonic()
    report = Report()
    pictures = read_entities(data, split or "dev", report)[:limit]
    if not count_phrases(pictures):
        raise UserError(f"{data}: the split {split or 'dev'} has no phrase with a box")
    sources = [Source(p.image, p.image.relative_to(data).as_posix(), Path(p.image.name)) for p in pictures]
    facts: dict[str, object] = {"data": str(data), "split": split or "dev"}
    found, skipped = _look(model, device, change, sources, out, batch, areas, facts)
    asked = [p for p, source in zip(pictures, sources, strict=True) if source.name not in skipped]
    if not asked:
        raise UserError(f"none of the {len(sources)} pictures could be read; {first_reason(skipped)}")
    result = ground_all(asked, found)
    controls = {name: control(name, asked, found) for name in CONTROLS}
    known: dict[str, Any] = {"data": data.name, "split": split or "dev", "model": model, "images": len(asked)}
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


def _look(
    name: str,
    device: str | None,
    change: list[str] | None,
    sources: Sequence[Source],
    out: Path,
    batch: int,
    areas: int | None,
    facts: dict[str, object],
) -> tuple[list[Seen], dict[str, str]]:
    """The pictures as the model sees them, those of an earlier run taken over; and those that cannot be read."""
    from saywhere.cli.describe import load_model
    from saywhere.errors import UserError
    from saywhere.evaluation import resuming, retrieval_run
    from saywhere.evaluation.embedding_run import load_vectors
    from saywhere.evaluation.grounding_run import AlignerView, DenseCapView
    from saywhere.models.aligner import Aligner
    from saywhere.models.densecap import DenseCap

    model = load_model(name, device, change or [])
    if isinstance(model, Aligner):
        store, skipped = embed(model, sources, out, batch, areas, facts)
        return [AlignerView(model, load_vectors(store, s.name)) for s in sources if s.name not in skipped], skipped
    if not isinstance(model, DenseCap):
        raise UserError(f"--model {name}: places no phrases; an aligner or a densecap model is needed")
    resuming.take_up(out, {"model": resuming.model_digest(model), **facts, "areas": areas}, retrieval_run.REGIONS)
    store = retrieval_run.RegionStore(out / retrieval_run.REGIONS)
    done = {source.name for source in sources if source.name in store}
    skipped = describe_each(model, sources, done, store.save, batch, top=areas)
    return [DenseCapView(model, store.load(s.name)) for s in sources if s.name not in skipped], skipped


def _print(results: dict[str, GroundingResult], out: Path) -> None:
    for name, result in results.items():
        typer.echo(
            f"{name}: accuracy {result.accuracy:.3f}, pointing {result.pointing:.3f} ({result.phrases:,} phrases)"
        )
    typer.echo(f"written: {out / 'report.md'}, report.json")

"""``saywhere evaluate phrases``: what is said of given boxes against what people said (Alignments, Table 3)."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from saywhere.cli.evaluate.options import Batch, Change, DataFormat, DataRoot, Device, Limit, ModelName, Out, Split
from saywhere.cli.evaluate.pictures import describe_each, first_reason, skip_notes


def phrases(
    model: ModelName = None,
    data: DataRoot = None,
    format: DataFormat = None,
    split: Split = None,
    merge: float = typer.Option(0.7, min=0.01, max=1, metavar="IOU", help="Boxes that overlap so much are one."),
    change: Change = None,
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
) -> None:
    """Captions of boxes that are given: BLEU, METEOR, ROUGE-L and CIDEr-D, against a data set.

    Exit code 0 if all went well, 1 if pictures were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere import data as data_sets
    from saywhere.errors import UserError
    from saywhere.evaluation import captioning, meteor

    if not (model and data):
        raise UserError("give --model and --data")
    options = data_sets.PhraseOptions(merge=merge)
    samples = data_sets.read(data, format, split or "dev", options)[:limit]
    with meteor.Meteor() as scorer:  # before the work: it says at once if Java is missing
        captions, references, skipped = _describe(model, change or [], data, samples, merge, out, batch, device)
        scores = captioning.score_captions(captions, references, scorer)
    known = {"data": samples.name, "split": samples.split, "model": model, "merge": merge, "boxes": len(captions)}
    known |= {"set": change} if change else {}
    _report(out, scores.metrics, known, skipped)
    for note in [*skip_notes(skipped), *samples.report.lines()]:
        typer.echo(note, err=True)
    figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
    typer.echo(f"{len(captions)} boxes: {figures}")
    typer.echo(f"written: {out / 'report.md'}, report.json")
    if skipped or not samples.report.ok:
        raise typer.Exit(1)


def _report(out: Path, metrics: Mapping[str, float], known: dict[str, Any], skipped: Mapping[str, str]) -> None:
    from saywhere.evaluation.task_report import facts, table, write_report

    command = shlex.join(["saywhere", *sys.argv[1:]])
    row = {"task": "phrases", "protocol": "coco", **known, **metrics, "skipped": skipped, "command": command}
    about = facts(known | {"pictures skipped": len(skipped), "command": f"`{command}`"})
    figures = table(list(metrics), [[f"{value:.4f}" for value in metrics.values()]])
    write_report(out, row, ["# Captions of given boxes", "", *figures, "", *about])


def _describe(
    model: str,
    change: list[str],
    root: Path,
    samples: Any,
    merge: float,
    out: Path,
    batch: int,
    device: str | None,
) -> tuple[dict[str, str], dict[str, tuple[str, ...]], dict[str, str]]:
    """What is said of each box and what is true of it, by the picture's name and the box's number; what was skipped."""
    from saywhere.cli.describe import load_model
    from saywhere.describing import ResultsFile
    from saywhere.errors import UserError
    from saywhere.evaluation import caption_run, dense_run, resuming

    loaded = load_model(model, device, change)
    if not hasattr(loaded, "describe"):
        raise UserError(f"--model {model}: does not describe boxes")
    sources = {source.path: source for source in dense_run.picture_sources(samples, root)}
    pairs = [(sources[sample.image], sample) for sample in samples if len(sample.boxes)]
    if not pairs:
        raise UserError(f"{root}: the split {samples.split} has no picture with a box and a phrase")
    boxes = {source.name: sample.boxes.tolist() for source, sample in pairs}
    wanted = {"model": resuming.model_digest(loaded), "data": samples.name, "split": samples.split, "merge": merge}
    resuming.take_up(out, wanted, caption_run.PREDICTIONS)
    with ResultsFile(out / caption_run.PREDICTIONS) as lines:
        chosen = [source for source, _ in pairs]

        def keep(name: str, regions: Any) -> None:
            lines.append(regions, name)

        skipped = describe_each(loaded, chosen, lines.done, keep, batch, boxes=boxes)
        if len(skipped) == len(chosen):
            raise UserError(f"none of the {len(chosen)} pictures could be read; {first_reason(skipped)}")
        said: dict[str, str] = {}
        true: dict[str, tuple[str, ...]] = {}
        for source, sample in pairs:
            if source.name not in skipped:
                for i, caption in enumerate(lines[source.name].captions or ()):
                    said[f"{source.name}#{i}"], true[f"{source.name}#{i}"] = caption, sample.phrases[i]
    return said, true, skipped

"""``saywhere evaluate dense``: boxes with captions against the truth."""

from __future__ import annotations

import shlex
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import (
    Batch,
    Change,
    DataFormat,
    DataRoot,
    Device,
    Limit,
    ModelName,
    Out,
    Protocol,
    Split,
    check_plots,
)
from saywhere.cli.evaluate.pictures import describe_each, first_reason, skip_notes
from saywhere.cli.evaluate.progress import progress

if TYPE_CHECKING:
    from saywhere.evaluation.dense_captioning import DenseCaptioningResult
    from saywhere.evaluation.region_lines import RegionLines


def dense(
    model: ModelName = None,
    data: DataRoot = None,
    format: DataFormat = None,
    split: Split = None,
    proposals: str | None = typer.Option(
        None,
        metavar="rpn|gt|FILE|METHOD",
        help="Describe the model's own boxes (rpn), the true ones, those in FILE, or those of a METHOD: "
        "selective-search, selective-search:quality, edge-boxes:MODEL.",
    ),
    predictions: Path | None = typer.Option(None, metavar="FILE", help="Score these regions instead (JSON lines)."),
    truth: Path | None = typer.Option(None, metavar="FILE", help="The truth for --predictions (JSON lines)."),
    protocol: Protocol = typer.Option(Protocol.clean, help="original: as the published DenseCap program counts."),
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
    change: Change = None,
) -> None:
    """Dense captioning: mean average precision of boxes with captions, against a data set.

    Give --model and --data, or --predictions and --truth. Exit code 0 if all went well, 1 if pictures were skipped or
    the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.errors import UserError

    check_plots()
    from saywhere.evaluation.meteor import Meteor

    started = time.monotonic()
    if model and data and not (predictions or truth):
        source = _Model(model, data, format, split or "dev", proposals or "rpn", limit, batch, device, change or [])
    elif predictions and truth and not (model or data or format or proposals or device or change):
        source = _Files(predictions, truth, split, protocol is Protocol.original, limit)
    else:
        raise UserError(
            "give --model and --data; or --predictions and --truth, without --model, --data, --format, --proposals, "
            "--device and --set"
        )
    with Meteor() as meteor:  # before the work: it says at once if Java is missing
        job = source.prepare(out)
        result = _score(job, protocol, meteor, out, time.monotonic() - started)
    _print(result, job, out)


@dataclass
class _Job:
    """Two files to compare, the pictures that count, and what to say of them."""

    predictions: RegionLines
    truth: RegionLines
    names: list[str]
    folders: list[Path]
    facts: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    whole: bool = True


@dataclass
class _Files:
    """Regions that a program has written before."""

    predictions: Path
    truth: Path
    split: str | None
    as_they_stand: bool
    limit: int | None

    def prepare(self, out: Path) -> _Job:
        """Both files, checked."""
        from saywhere.errors import UserError
        from saywhere.evaluation.region_lines import RegionLines

        ordered = not self.as_they_stand
        predictions = RegionLines(self.predictions, needs=("scores", "captions"), ordered=ordered)
        truth = RegionLines(self.truth, several=True, ordered=ordered)
        names = truth.names[: self.limit]
        missing = sum(name not in predictions for name in names)
        unknown = sum(name not in truth for name in predictions.names)
        if missing == len(names):
            raise UserError(
                f"{self.predictions}: has none of the {missing} pictures of {self.truth}; "
                f"it names {predictions.names[0]!r}, the truth {names[0]!r}"
            )
        facts = {"data": str(self.truth), "split": self.split, "model": None, "proposals": None}
        facts |= {"without_prediction": missing, "without_truth": unknown}
        notes = [f"{missing} pictures have no line in {self.predictions}: no region predicted"] if missing else []
        notes += [f"{unknown} pictures in {self.predictions} have no truth, and do not count"] if unknown else []
        return _Job(predictions, truth, names, [Path(), self.truth.parent], facts, notes)


@dataclass
class _Model:
    """A model that is to describe a data set, as far as it has not yet done so."""

    model: str
    root: Path
    format: str | None
    split: str
    proposals: str
    limit: int | None
    batch: int
    device: str | None
    change: list[str]

    def prepare(self, out: Path) -> _Job:
        """Describe what is not yet described."""
        from saywhere import data
        from saywhere.cli.describe import load_model
        from saywhere.errors import UserError
        from saywhere.evaluation import dense_run, resuming
        from saywhere.evaluation.region_lines import RegionLines

        samples = data.read(self.root, self.format, self.split)
        report, samples = samples.report, samples[: self.limit]
        sources = dense_run.picture_sources(samples, self.root)
        if not sources:
            raise UserError(f"{self.root}: the split {samples.split} has no picture that can be read")
        loaded = load_model(self.model, self.device, self.change)
        dense_run.write_truth(samples, self.root, out / dense_run.TRUTH)
        truth = RegionLines(out / dense_run.TRUTH, several=True)
        boxes = dense_run.find_proposals(self.proposals, truth, sources)
        resuming.take_up(out, dense_run.settings(loaded, samples, self.proposals), dense_run.PREDICTIONS)
        skipped = self._describe(loaded, sources, boxes, out / dense_run.PREDICTIONS)
        names = [source.name for source in sources if source.name not in skipped]
        if not names:
            raise UserError(f"none of the {len(sources)} pictures could be described; {first_reason(skipped)}")
        problems = {kind: len(found) for kind, found in report.problems.items()}
        facts = {"data": samples.name, "split": samples.split, "model": self.model, "proposals": self.proposals}
        facts |= {"skipped": skipped, "data_problems": problems}
        notes = skip_notes(skipped)
        notes += [] if report.ok else [f"{self.root}: {line}" for line in report.lines()]
        predictions = RegionLines(out / dense_run.PREDICTIONS, needs=("scores", "captions"))
        folder = self.root if self.root.is_dir() else self.root.parent
        return _Job(predictions, truth, names, [folder], facts, notes, whole=not skipped and report.ok)

    def _describe(self, model: Any, sources: list[Any], boxes: Any, path: Path) -> dict[str, str]:
        """Append the regions of each picture to the file; the pictures that could not be described, with reasons."""
        from saywhere.describing import ResultsFile

        with ResultsFile(path) as lines:
            done = {source.name for source in sources if source.name in lines.done}
            return describe_each(
                model, sources, done, lambda name, regions: lines.append(regions, name), self.batch, boxes=boxes
            )


def _score(job: _Job, protocol: Protocol, meteor: Any, out: Path, before: float) -> DenseCaptioningResult:
    """Score, and write the report; ``before``: the seconds that have passed."""
    from saywhere.evaluation import dense_run, examples
    from saywhere.evaluation.calibration import CalibrationMeter
    from saywhere.evaluation.report import Facts, write_dense_report

    started = time.monotonic()
    meter = CalibrationMeter()
    # One step more: the captions, which are scored together at the end.
    with progress("scoring", len(job.names) + 1) as advance:
        result, ranking = dense_run.score(
            job.predictions, job.truth, job.names, protocol.value, meteor.score, done=advance, calibration=meter
        )
    examples.write_examples(out, ranking, job.predictions, job.truth, job.folders, protocol.value)
    facts = Facts(
        meteor_version=meteor.version,
        predictions=str(job.predictions.path),
        seconds=round(before + time.monotonic() - started, 3),
        command=shlex.join(["saywhere", *sys.argv[1:]]),
        **job.facts,
    )
    write_dense_report(out, result, facts, meter.result())
    return result


def _print(result: DenseCaptioningResult, job: _Job, out: Path) -> None:
    for note in job.notes:
        typer.echo(note, err=True)
    language = 0.0 if result.language_meteor is None else result.language_meteor
    typer.echo(
        f"{result.images} pictures, protocol {result.protocol}: mAP {result.map:.4f}, "
        f"detection mAP {result.detection_map:.4f}, language METEOR {language:.4f}"
    )
    plots = [name for name in ("ap.png", "reliability.png") if (out / name).exists()]
    typer.echo(f"written: {out / 'report.md'}, report.json, {', '.join(plots)}, examples.html")
    if not job.whole:
        raise typer.Exit(1)

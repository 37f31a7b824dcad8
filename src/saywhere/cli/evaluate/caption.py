"""``saywhere evaluate caption``: sentences about whole pictures against those of people."""

from __future__ import annotations

import os
import shlex
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from saywhere.cli.evaluate.options import Batch, Change, DataFormat, DataRoot, Device, Limit, Out, Split
from saywhere.cli.evaluate.pictures import describe_each, first_reason, skip_notes


def caption(
    model: list[str] | None = typer.Option(
        None, metavar="NAME|DIR", help="A captioner's name or folder; of several the mean speaks."
    ),
    data: DataRoot = None,
    format: DataFormat = None,
    split: Split = None,
    beam: int | None = typer.Option(None, min=1, metavar="N", help="Hypotheses in decoding; the model's if not given."),
    predictions: Path | None = typer.Option(None, metavar="FILE", help="Score these captions instead (JSON lines)."),
    truth: Path | None = typer.Option(None, metavar="FILE", help="The truth for --predictions (JSON lines)."),
    change: Change = None,
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
) -> None:
    """Captions of whole pictures: BLEU, METEOR, ROUGE-L and CIDEr-D, against a data set.

    Give --model and --data, or --predictions and --truth. Exit code 0 if all went well, 1 if pictures were skipped or
    the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.errors import UserError
    from saywhere.evaluation import caption_run, captioning, meteor

    started = time.monotonic()
    if model and data and not (predictions or truth):
        source = _Model(model, data, format, split or "dev", beam, limit, batch, device, change or [])
    elif predictions and truth and not (model or data or format or beam or device or change):
        source = _Files(predictions, truth, split, limit)
    else:
        raise UserError(
            "give --model and --data; or --predictions and --truth, without --model, --data, --format, --beam, --set "
            "and --device"
        )
    with meteor.Meteor() as scorer:  # before the work: it says at once if Java is missing
        job = source.prepare(out)
        scores = captioning.score_captions(job.captions, job.references, scorer)
        job.known |= {"meteor_version": scorer.version}
    job.known |= {"seconds": round(time.monotonic() - started, 3)}
    job.known |= {"command": shlex.join(["saywhere", *sys.argv[1:]])}
    caption_run.write_caption_examples(out, scores, job.captions, job.references, job.folders)
    caption_run.write_caption_report(out, scores, job.known)
    for note in job.notes:
        typer.echo(note, err=True)
    figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
    typer.echo(f"{len(scores.cider)} pictures: {figures}")
    typer.echo(f"written: {out / 'report.md'}, report.json, examples.html")
    if not job.whole:
        raise typer.Exit(1)


@dataclass
class _Job:
    """Captions and references of the same pictures, and what to say of them."""

    captions: dict[str, str]
    references: dict[str, list[str]]
    folders: list[Path]
    known: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    whole: bool = True


@dataclass
class _Files:
    """Captions that a program has written before."""

    predictions: Path
    truth: Path
    split: str | None
    limit: int | None

    def prepare(self, out: Path) -> _Job:
        """Both files, checked and paired."""
        from saywhere.errors import UserError
        from saywhere.evaluation.caption_lines import read_captions, read_references

        said, true = read_captions(self.predictions), read_references(self.truth)
        names = [name for name, texts in true.items() if texts][: self.limit]
        if not names:
            raise UserError(f"{self.truth}: no picture has a caption")
        missing, unknown = sum(name not in said for name in names), sum(name not in true for name in said)
        if missing == len(names):
            raise UserError(
                f"{self.predictions}: has none of the {missing} pictures of {self.truth}; "
                f"it names {next(iter(said))!r}, the truth {names[0]!r}"
            )
        known = {"data": str(self.truth), "split": self.split, "model": None, "predictions": str(self.predictions)}
        known |= {"without_prediction": missing, "without_truth": unknown, "skipped": {}}
        notes = [f"{missing} pictures have no line in {self.predictions}: nothing said"] if missing else []
        notes += [f"{unknown} pictures in {self.predictions} have no truth, and do not count"] if unknown else []
        captions = {name: said.get(name, "") for name in names}
        return _Job(captions, {name: true[name] for name in names}, [Path(), self.truth.parent], known, notes)


@dataclass
class _Model:
    """A model that is to caption a data set, as far as it has not yet done so."""

    model: list[str]
    root: Path
    format: str | None
    split: str
    beam: int | None
    limit: int | None
    batch: int
    device: str | None
    change: list[str]

    def prepare(self, out: Path) -> _Job:
        """Caption what is not yet captioned."""
        from saywhere import data
        from saywhere.cli.caption import load_captioners
        from saywhere.errors import UserError
        from saywhere.evaluation import caption_run, dense_run, resuming
        from saywhere.evaluation.caption_lines import read_captions

        samples = data.read(self.root, self.format, self.split)
        report, samples = samples.report, samples[: self.limit]
        sources = {source.path: source for source in dense_run.picture_sources(samples, self.root)}
        references: dict[str, list[str]] = {}
        for sample in samples:
            if sample.sentences:
                references.setdefault(sources[sample.image].name, []).extend(sample.sentences)
        if not references:
            raise UserError(f"{self.root}: the split {samples.split} has no picture with a sentence about all of it")
        loaded = load_captioners(self.model, self.device, self.root, self.format, self.change)
        wanted = {"model": resuming.model_digest(loaded), "data": samples.name, "split": samples.split}
        resuming.take_up(out, wanted | {"beam": self.beam}, caption_run.PREDICTIONS)
        caption_run.write_references(references, out / caption_run.TRUTH)
        chosen = [source for source in sources.values() if source.name in references]
        describer = caption_run.WholePictures(loaded, self.beam)
        skipped = _describe(describer, chosen, out / caption_run.PREDICTIONS, self.batch)
        names = [source.name for source in chosen if source.name not in skipped]
        if not names:
            raise UserError(f"none of the {len(chosen)} pictures could be read; {first_reason(skipped)}")
        said = read_captions(out / caption_run.PREDICTIONS)
        known = {"data": samples.name, "split": samples.split, "model": ", ".join(self.model), "beam": self.beam}
        known |= {"set": self.change} if self.change else {}
        known |= {"predictions": str(out / caption_run.PREDICTIONS), "skipped": skipped}
        known |= {"without_sentence": len(sources) - len(chosen)}
        known |= {"data_problems": {kind: len(found) for kind, found in report.problems.items()}}
        notes = skip_notes(skipped) + ([] if report.ok else [f"{self.root}: {line}" for line in report.lines()])
        folder = self.root if self.root.is_dir() else self.root.parent
        captions = {name: said[os.path.normpath(name)] for name in names}
        whole = not skipped and report.ok
        return _Job(captions, {name: references[name] for name in names}, [folder], known, notes, whole)


def _describe(describer: Any, sources: list[Any], path: Path, batch: int) -> Mapping[str, str]:
    from saywhere.describing import ResultsFile

    with ResultsFile(path) as lines:
        done = {source.name for source in sources if source.name in lines.done}
        return describe_each(describer, sources, done, lambda name, regions: lines.append(regions, name), batch)

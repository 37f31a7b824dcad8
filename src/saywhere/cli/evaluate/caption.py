"""``saywhere evaluate caption``: sentences about whole images against those of people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.comparing import one_or_compare
from saywhere.cli.evaluate.running import session
from saywhere.errors import UserError
from saywhere.loading import Runtime, load_model

if TYPE_CHECKING:
    from saywhere.evaluation.captions import CaptionScores


def caption(
    models: options.ComparedModels = None,
    data: options.DataRoot = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    beam_size: options.BeamSize = None,
    predictions: Path | None = typer.Option(None, metavar="FILE", help="Score these captions instead (JSON lines)."),
    truth: Path | None = typer.Option(None, metavar="FILE", help="The truth for --predictions (JSON lines)."),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/caption"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Captions of whole images: BLEU, METEOR, ROUGE-L and CIDEr-D, against a data set.

    Give --data for a model with a captioner, or --predictions and --truth. Exit code 0 if
    all went well, 1 if images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.captions import run, score_files

    model = one_or_compare("caption", models, out)
    written = "report.json, examples.html"
    if data and not (predictions or truth):
        loaded = load_model(model, Runtime(device, engine, threads, precision), change, "captioner")
        about = {"format": format, "split": split, "limit": limit, "batch": batch, "written": written}
        with session("caption", data, out, model=model or DEFAULT_MODEL, change=change, **about) as now:
            print_scores(run(loaded, now, beam_size))
    elif predictions and truth and not (data or model or format or beam_size or device or engine or threads or change):
        with session("caption", truth, out, split=split, limit=limit, written=written) as now:
            print_scores(score_files(predictions, now))
    else:
        raise UserError(
            "give --data, for a model; or --predictions and --truth, without options of a model and of data"
        )


def print_scores(scores: CaptionScores) -> None:
    """Print the figures of all images."""
    figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
    typer.echo(f"{len(scores.cider)} images: {figures}")

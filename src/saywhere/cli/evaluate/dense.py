"""``saywhere evaluate dense``: boxes with captions against the truth."""

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
    from saywhere.evaluation.dense import DenseCaptioningResult


def dense(
    models: options.ComparedModels = None,
    data: options.DataRoot = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    proposals: str | None = typer.Option(
        None,
        metavar="rpn|gt|FILE|METHOD",
        help="Describe the model's own boxes (rpn), the true ones, those in FILE, or those of a METHOD: "
        "selective-search, selective-search:quality, edge-boxes:MODEL.",
    ),
    predictions: Path | None = typer.Option(None, metavar="FILE", help="Score these regions instead (JSON lines)."),
    truth: Path | None = typer.Option(None, metavar="FILE", help="The truth for --predictions (JSON lines)."),
    protocol: options.Protocol = typer.Option(
        options.Protocol.clean, help="original: as the published DenseCap program counts."
    ),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/dense"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Dense captioning: mean average precision of boxes with captions, against a data set.

    Give --data for a model with a dense captioner, or --predictions and --truth. Exit code 0 if all went well, 1 if
    images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.dense import run, score_files

    model = one_or_compare("dense", models, out)
    written = "report.json, ap.png, examples.html"
    if data and not (predictions or truth):
        loaded = load_model(model, Runtime(device, engine, threads, precision), change, "densecap")
        about = {"format": format, "split": split, "limit": limit, "batch": batch, "written": written}
        with session("dense", data, out, model=model or DEFAULT_MODEL, change=change, **about) as now:
            _print(run(loaded, now, proposals or "rpn", protocol.value))
    elif predictions and truth and not (data or model or format or proposals or device or engine or threads or change):
        with session("dense", truth, out, split=split, limit=limit, written=written) as now:
            _print(score_files(predictions, now, protocol.value))
    else:
        raise UserError(
            "give --data, for a model; or --predictions and --truth, without options of a model and of data"
        )


def _print(result: DenseCaptioningResult) -> None:
    language = 0.0 if result.language_meteor is None else result.language_meteor
    typer.echo(
        f"{result.images} images, protocol {result.protocol}: mAP {result.map:.4f}, "
        f"detection mAP {result.detection_map:.4f}, language METEOR {language:.4f}"
    )

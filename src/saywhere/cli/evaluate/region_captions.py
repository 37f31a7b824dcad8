"""``saywhere evaluate region-captions``: phrases of given boxes against those of people (Alignments, Table 3)."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.running import Data, session
from saywhere.loading import Runtime, load_model


def region_captions(
    data: Data,
    model: options.Model = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    merge: float = typer.Option(0.7, min=0.01, max=1, metavar="IOU", help="Boxes with at least this IoU are one."),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/region-captions"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Captions of boxes that are given: BLEU, METEOR, ROUGE-L and CIDEr-D, against a data set.

    Also words a phrase, how many phrases differ, and how often words for somebody's sex and for colours are right
    where the true phrases name them.

    Needs a model with a dense captioner, or with a captioner without attention. Exit code 0 if all went well, 1 if
    images were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.region_captions import run

    name, loaded = model or DEFAULT_MODEL, load_model(model, Runtime(device, engine, threads, precision), change)
    about = {"format": format, "split": split, "limit": limit, "batch": batch}
    with session("region-captions", data, out, model=name, change=change, **about) as now:
        scores = run(loaded, now, merge)
        figures = ", ".join(f"{name} {value:.4f}" for name, value in scores.metrics.items())
        typer.echo(f"{len(scores.cider)} boxes: {figures}")
        words = scores.words
        typer.echo(f"{words.words:.2f} words a phrase, {words.distinct} different ones ({words.distinct_true} true)")
        for what, boxes, said, right in (
            ("sex", words.sex_boxes, words.sex_said, words.sex_right),
            ("colour", words.colour_boxes, words.colour_said, words.colour_right),
        ):
            typer.echo(f"{what}: {boxes} boxes, said of {said or 0:.4f}, of these right {right or 0:.4f}")

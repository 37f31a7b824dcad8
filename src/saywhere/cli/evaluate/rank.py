"""``saywhere evaluate rank``: sentences found for images, and images for sentences."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.comparing import one_or_compare
from saywhere.cli.evaluate.running import Data, session
from saywhere.loading import Runtime, load_model


def rank(
    data: Data,
    models: options.ComparedModels = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    regions: options.Regions = None,
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/rank"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Ranking of sentences for each image and of images for each sentence (Alignments, section 4.1).

    Needs a model with an aligner. Exit code 0 if all went well, 1 if images were skipped or the data set is not whole,
    2 if the command is wrong.
    """
    from saywhere.evaluation.ranking import run

    model = one_or_compare("rank", models, out)
    name, loaded = (
        model or DEFAULT_MODEL,
        load_model(model, Runtime(device, engine, threads, precision), change, "aligner"),
    )
    about = {"format": format, "split": split, "limit": limit, "batch": batch}
    with session("rank", data, out, model=name, change=change, **about) as now:
        result = run(loaded, now, regions)
        for title, recall in (("annotation", result.image_to_text), ("search", result.text_to_image)):
            typer.echo(
                f"{title}: R@1 {recall.r1:.3f}, R@5 {recall.r5:.3f}, R@10 {recall.r10:.3f}, "
                f"median rank {recall.median_rank:g} ({recall.queries} queries)"
            )

"""``saywhere evaluate retrieval``: images found by phrases of their regions, and the phrases found in them."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.running import Data, session
from saywhere.cli.options import Seed
from saywhere.loading import Runtime, load_model


def retrieval(
    data: Data,
    model: options.Model = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    regions: int = typer.Option(20, min=1, metavar="N", help="At most so many regions of an image, the best."),
    queries: int = typer.Option(100, min=1, metavar="N", help="Queries of four phrases of one image."),
    seed: Seed = 0,
    protocol: options.Protocol = typer.Option(
        options.Protocol.clean, help="Mean over phrases: of log P (clean), of P (original)."
    ),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/retrieval"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
    precision: options.Precision = None,
) -> None:
    """Retrieval of images by four phrases of their regions, and of the regions (DenseCap, section 4.2).

    Needs a model with a dense captioner. Exit code 0 if all went well, 1 if images were skipped or the data set is not
    whole, 2 if the command is wrong.
    """
    from saywhere.evaluation.retrieval.run import run

    name, loaded = (
        model or DEFAULT_MODEL,
        load_model(model, Runtime(device, engine, threads, precision), change, "densecap"),
    )
    about = {"format": format, "split": split, "limit": limit, "batch": batch}
    written = "report.json, queries.json, examples.html"
    with session("retrieval", data, out, model=name, change=change, written=written, **about) as now:
        result = run(loaded, now, regions, queries, seed, protocol.value)
        typer.echo(
            f"{result.queries} queries to {result.images} images, protocol {result.protocol}: "
            f"R@1 {result.r1:.3f}, R@5 {result.r5:.3f}, R@10 {result.r10:.3f}, median rank {result.median_rank:g}; "
            f"IoU > 0.5 {result.iou_recall['0.5']:.3f}, median IoU {result.median_iou:.3f}"
        )

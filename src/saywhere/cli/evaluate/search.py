"""``saywhere evaluate search``: sentences and phrases looked for in an index."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli import options
from saywhere.cli.evaluate.running import Data, session
from saywhere.loading import Runtime, load_model


def search(
    data: Data,
    model: options.Model = None,
    format: options.DataFormat = None,
    split: options.Split = None,
    regions: options.Regions = None,
    components: int = typer.Option(64, min=1, metavar="P", help="Principal components of the codes."),
    queries: int = typer.Option(1000, min=1, metavar="N", help="Sentences by codes and phrases, at most so many each."),
    url: str | None = typer.Option(
        None, metavar="URL", help="Also compare with a Qdrant server, or with its client's own engine (:memory:)."
    ),
    change: options.Set = None,
    limit: options.Limit = None,
    out: options.Out = Path("evaluation/search"),
    batch: options.Batch = 8,
    device: options.Device = None,
    engine: options.Engine = None,
    threads: options.Threads = None,
) -> None:
    """Search in an index: sentences by whole vectors and by codes, phrases with their regions, and what is not there.

    Needs a model with an aligner. Exit code 0 if all went well, 1 if images were skipped or the data set is not whole,
    2 if the command is wrong.
    """
    from saywhere.evaluation.search import run

    name, loaded = model or DEFAULT_MODEL, load_model(model, Runtime(device, engine, threads), change, "aligner")
    about = {"format": format, "split": split, "limit": limit, "batch": batch}
    with session("search", data, out, model=name, change=change, **about) as now:
        result = run(loaded, now, regions, components, queries, url)
        found = result.recall
        typer.echo(
            f"R@1 {found.r1:.3f}, R@5 {found.r5:.3f}, R@10 {found.r10:.3f}, median rank {found.median_rank:g} "
            f"({found.queries} queries); by codes alone R@1 {result.code_recall.r1:.3f}, and they put "
            f"{result.overlap:.4f} of the ten best into their first tenth"
        )
        if (served := result.served) is not None:
            typer.echo(f"Qdrant: {served.overlap:.4f} of the ten best are found too ({served.queries} sentences)")
        if result.hit is not None:
            typer.echo(f"phrases: {result.hit:.3f} right in the first image ({result.phrases} phrases)")
        if (there := result.presence) is not None:
            typer.echo(
                f"is it there: AUC {there.auc:.3f} of hits, calibration error {there.calibration_error:.3f}; of whole "
                f"queries {there.anywhere_auc:.3f}, calibration error {there.anywhere_error:.3f}; of those about "
                f"images of the index {there.query_auc:.3f}, with all queries about other images as not there "
                f"{there.outside_auc:.3f} of at most {there.outside_limit:.3f}"
            )
            fits = "; ".join(f"{question}: {fit}" for question, fit in there.fits.items())
            typer.echo(f"weights of the probabilities, fitted here: {fits}")

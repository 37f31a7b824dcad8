"""``saywhere index``: images embedded for search, once."""

from __future__ import annotations

import typer

from saywhere.cli.loading import Runtime, explain_oom, load_model
from saywhere.cli.options import (
    Batch,
    Device,
    Engine,
    Images,
    IndexFolder,
    Model,
    Precision,
    Regions,
    Set,
    Threads,
)
from saywhere.cli.progress import keep_each, skip_notes

LARGE = 20_000
"""Images from which on codes are proposed."""


def index(
    paths: Images,
    folder: IndexFolder,
    repair: bool = typer.Option(False, "--repair", help="Look for damaged vectors first, and embed their images anew."),
    components: int | None = typer.Option(
        None,
        min=0,
        metavar="P",
        help="Code the vectors by P principal components: much faster searches of a large index (64 is good; 0: none).",
    ),
    regions: Regions = None,
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    threads: Threads = None,
    precision: Precision = None,
    batch: Batch = 8,
    change: Set = None,
) -> None:
    """Bring an index for search up to date: embed new and changed images, forget those that are gone.

    Each batch is kept as soon as it is done; after a kill the same command goes on. Exit code 0 if all went well, 1 if
    images were skipped because they cannot be read, 2 if the command is wrong.
    """
    import saywhere

    def load(name: str) -> saywhere.Model:
        return load_model(name, Runtime(device, engine, threads, precision), change, "aligner")

    with saywhere.Index(folder, model, load=load) as made, explain_oom(batch):
        run = made.begin(paths, regions=regions, components=components, repair=repair)
        done = run.changes.unchanged
        keep_each(run.results(batch), lambda _: None, done + len(run.todo), done, "indexing")
        count, coded = len(made), bool(made.store.snapshot().extent.components)
    typer.echo(str(run.changes))
    if count >= LARGE and not coded:
        typer.echo(
            f"note: a search of {count:,} images takes a tenth of the time with codes: --components 64", err=True
        )
    for note in skip_notes(run.changes.skipped):
        typer.echo(note, err=True)
    if run.changes.skipped:
        raise typer.Exit(1)

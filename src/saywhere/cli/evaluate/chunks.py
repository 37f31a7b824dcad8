"""``saywhere evaluate chunks``: sentences cut into phrases."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.evaluate.running import EntitiesData
from saywhere.cli.options import Split


def chunks(
    data: EntitiesData,
    split: Split = None,
    chunker: Path | None = typer.Option(
        None, metavar="FILE", show_default="the bundled one", help="Weights that a stage of the kind chunker wrote."
    ),
) -> None:
    """F1 of the phrases that sentences are cut into: right if people marked the same words. No image is needed."""
    from saywhere.evaluation.chunks import measure
    from saywhere.evaluation.session import DEV
    from saywhere.models.chunker import TRAINED, Chunker
    from saywhere.training.chunker import read_split

    scores = measure(Chunker.load(chunker or TRAINED), read_split(data, split or DEV))
    typer.echo(
        f"F1 {scores.f1:.3f}, precision {scores.precision:.3f}, recall {scores.recall:.3f}, "
        f"visible phrases alone F1 {scores.visible_f1:.3f} ({scores.phrases:,} phrases)"
    )
    typer.echo(f"{scores.milliseconds:.2f} ms of a processor a sentence ({scores.sentences:,} sentences)")

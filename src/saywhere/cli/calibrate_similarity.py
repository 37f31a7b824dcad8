"""``saywhere calibrate-similarity``: what an image has in common with all texts, and a text with all images."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device


def calibrate_similarity(
    model: Path = typer.Argument(help="Folder of a model with an aligner."),
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="The data that taught the aligner; may be repeated."
    ),
    format: DataFormat = None,
    split: str = typer.Option("train", help="Split of the data sets."),
    limit: int | None = typer.Option(None, min=1, metavar="N", help="At most N images of each, at even distances."),
    device: Device = None,
) -> None:
    """Fit the hubness of images and texts, which is then taken off their similarities.

    An image that has much in common with all texts comes first for texts about other images, and so do texts. A bank of
    these images and their sentences tells how much; what tells it later is stored beside the aligner's weights, which
    stay. Phrases are placed, and captions chosen, as before. Indexes of images are to be made anew.
    """
    from saywhere import data as datasets
    from saywhere.training import hubness
    from saywhere.training.dataset import evenly

    sets = [datasets.read(each, format, split) for each in data]
    source = "; ".join(f"{samples.name}, split {samples.split}" for samples in sets)
    chosen = [samples if limit is None else evenly(samples, limit) for samples in sets]
    for reason in hubness.calibrate(model, chosen, source, device):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"{model}: the hubness of images and texts is taken off similarities; from {source}")

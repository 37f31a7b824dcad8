"""``saywhere calibrate-similarity``: what an image has in common with all texts, and a text with all images."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device, LimitOfEach, TrainSplit


def calibrate_similarity(
    model: Path = typer.Argument(help="Folder of a model with an aligner."),
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="The data that taught the aligner; may be repeated."
    ),
    format: DataFormat = None,
    split: TrainSplit = "train",
    limit: LimitOfEach = None,
    device: Device = None,
) -> None:
    """Fit the hubness of images and texts, which is then taken off their similarities.

    An image that has much in common with all texts comes first for texts about other images, and so do texts. A bank of
    these images and their sentences tells how much; what tells it later is stored beside the aligner's weights, which
    stay. Phrases are placed, and captions chosen, as before. Indexes of images are to be made anew.
    """
    from saywhere.training import hubness
    from saywhere.training.dataset import read_sets

    sets, source = read_sets(data, format, split, limit)
    for reason in hubness.calibrate(model, sets, source, device):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"{model}: the hubness of images and texts is taken off similarities; from {source}")

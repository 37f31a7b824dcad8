"""``saywhere train-neighbours``: what people said of similar images, for captions."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device, LimitOfEach, Seed, TrainSplit


def train_neighbours(
    model: Path = typer.Argument(help="Folder of a model with a captioner of images."),
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="Images with sentences that taught the captioner; may be repeated."
    ),
    format: DataFormat = None,
    split: TrainSplit = "train",
    limit: LimitOfEach = None,
    seed: Seed = 0,
    device: Device = None,
) -> None:
    """Store a sentence of each image beside the captioner, and learn to find those of similar images.

    Captions are then guided by what the nearest sentences have in common. The captioner's own weights stay.
    """
    from saywhere.training import neighbours
    from saywhere.training.dataset import read_sets

    sets, source = read_sets(data, format, split, limit)
    for reason in neighbours.train(model, sets, source, device, seed):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"{model}: captions are guided by sentences of {source}")

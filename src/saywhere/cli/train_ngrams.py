"""``saywhere train-ngrams``: n-gram probabilities of an image, by which captions are reranked."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device, LimitOfEach, Seed, TrainSplit


def train_ngrams(
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
    """Learn how probable words and runs of words are in sentences of an image, and store it beside the captioner.

    Captions are then chosen by it among the hypotheses of the beam. The captioner's own weights stay.
    """
    from saywhere.training import ngrams
    from saywhere.training.dataset import read_sets

    sets, source = read_sets(data, format, split, limit)
    for reason in ngrams.train(model, sets, source, device, seed):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"{model}: captions are chosen by what was learnt from {source}")

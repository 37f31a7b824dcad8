"""``saywhere train-ngrams``: what people would say of an image, for captions."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device


def train_ngrams(
    model: Path = typer.Argument(help="Folder of a model with a captioner of images."),
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="Images with sentences that taught the captioner; may be repeated."
    ),
    format: DataFormat = None,
    split: str = typer.Option("train", help="Split of the data sets."),
    limit: int | None = typer.Option(None, min=1, metavar="N", help="At most N images of each, at even distances."),
    seed: int = typer.Option(0, min=0, max=2**63 - 1, metavar="N", help="Of the training."),
    device: Device = None,
) -> None:
    """Learn how probable words and runs of words are in sentences of an image, and store it beside the captioner.

    Captions are then chosen by it among the hypotheses of the beam. The captioner's own weights stay.
    """
    from saywhere import data as datasets
    from saywhere.training import ngrams
    from saywhere.training.dataset import evenly

    sets = [datasets.read(each, format, split) for each in data]
    source = "; ".join(f"{samples.name}, split {samples.split}" for samples in sets)
    chosen = [samples if limit is None else evenly(samples, limit) for samples in sets]
    for reason in ngrams.train(model, chosen, source, device, seed):
        typer.echo(f"left out: {reason}", err=True)
    typer.echo(f"{model}: captions are chosen by what was learnt from {source}")

"""``saywhere calibrate-nouns``: when the decoder is trusted with the noun of a phrase."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import Device


def calibrate_nouns(
    model: Path = typer.Argument(help="Folder of a model with a dense captioner and the part classes."),
    data: list[Path] = typer.Option(
        ..., "--data", metavar="ROOT|FILE", help="The data that taught the classes; may be repeated."
    ),
    split: str = typer.Option("train", help="Split of the data sets."),
    device: Device = None,
) -> None:
    """Fit how probable it is that the noun of the decoder's phrase is right, beside that of the classes.

    One image of ten is used: those that taught the classes nothing. The weights are stored in the model's
    configuration.
    """
    from saywhere import data as datasets
    from saywhere.training import noun_calibration

    samples = [sample for root in data for sample in datasets.read(root, split=split)]
    weights, threshold, count = noun_calibration.calibrate_nouns(model, samples, device)
    shown = ", ".join(f"{value:g}" for value in weights)
    typer.echo(f"{model}: noun_calibration {shown}, noun_threshold {threshold:g}, from {count:,} boxes")

"""``saywhere calibrate``: scores that are probabilities."""

from __future__ import annotations

from pathlib import Path

import typer


def calibrate(
    model: Path = typer.Argument(help="Folder of a dense captioner, such as runs/NAME/model."),
    data: Path = typer.Option(..., metavar="ROOT", help="Folder of the data set, or a .jsonl file."),
    format: str | None = typer.Option(
        None, help="flickr8k (also Flickr30k), visual-genome, coco or jsonl; guessed from the files if not given."
    ),
    split: str = typer.Option("train", help="Part of the data; not the one that scores are to be measured on."),
    limit: int = typer.Option(300, min=1, metavar="N", help="At most N pictures, taken at even distances."),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
) -> None:
    """Make scores the probability that a box has an IoU of 0.5 with a true one.

    The model describes the pictures; a logistic regression on the logit of each region and on how sure the model was of
    its words gives the score. It is stored in the model's configuration; weights stay as they are.
    """
    from saywhere import data as datasets
    from saywhere.cli.describe import best_device
    from saywhere.training import calibration
    from saywhere.training.dataset import evenly

    samples = datasets.read(data, format, split)
    source = f"{samples.name}, split {samples.split}"
    found = calibration.calibrate(model, evenly(samples, limit), source, device or best_device())
    typer.echo(f"{model}: calibration {', '.join(f'{value:g}' for value in found)}, from {source}")

"""``saywhere export``: one model of several training checkpoints."""

from __future__ import annotations

from pathlib import Path

import typer


def export(
    checkpoints: list[Path] = typer.Argument(
        metavar="CHECKPOINT...", help="Folders of trained models, such as runs/NAME/model, with different parts."
    ),
    out: Path = typer.Option(..., metavar="FOLDER", help="Folder of the new model."),
    int8: Path | None = typer.Option(
        None, metavar="ROOT", help="Data set whose training images calibrate a trunk for --precision int8."
    ),
) -> None:
    """Make one model of training checkpoints: their parts on one trunk, whose weights are stored once.

    Refused if the trunks of the checkpoints differ.
    """
    from saywhere.engines.export import export as export_model

    images = None if int8 is None else _training_images(int8)
    export_model(checkpoints, out, int8=images)
    typer.echo(f"written: {out}")
    typer.echo(f"next: saywhere describe IMAGE --model {out}")


def _training_images(root: Path) -> list[Path]:
    """Some training images of a data set, in an order that chance gives."""
    import random

    from saywhere import data
    from saywhere.engines.quantize import CHECKED, IMAGES

    paths = [sample.image for sample in data.read(root, split="train")]
    return random.Random(0).sample(paths, min(len(paths), CHECKED + IMAGES))

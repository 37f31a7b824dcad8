"""``saywhere calibrate``: scores that are probabilities."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Device


class Part(StrEnum):
    """The parts of a model that are calibrated."""

    aligner = "aligner"
    densecap = "densecap"


def calibrate(
    model: Path = typer.Argument(help="Folder of a model, such as runs/NAME/model, or hub:OWNER/NAME."),
    data: list[Path] = typer.Option(
        ..., metavar="ROOT", help="Folder of the data set, or a .jsonl file; may be repeated."
    ),
    part: Part = typer.Option(Part.densecap, help="Scores of regions (densecap), or of phrases that are looked for."),
    format: DataFormat = None,
    split: str = typer.Option("train", help="Part of the data; not the one that scores are to be measured on."),
    limit: int = typer.Option(300, min=1, metavar="N", help="At most N images of each, taken at even distances."),
    device: Device = None,
) -> None:
    """Make scores probabilities: of a region that its box is right, of a phrase that the image shows it.

    A region is right with an IoU of 0.5 with a true one; its score is a logistic regression on its logit and on how
    sure the model was of its words. A phrase's is one on how well it fits the image, and on the classes; with it the
    weight of the classes in placing phrases is chosen. For both, only the one image of ten counts that taught the
    classes nothing. All is stored in the model's configuration; weights stay.

    Of a model of transformers the score is a logistic regression on the logit of the model's own, stored in a file
    beside its folder's weights, or for hub:OWNER/NAME in this user's cache.
    """
    from saywhere import data as datasets
    from saywhere.adapters.sources import find_adapted
    from saywhere.training import calibration, presence
    from saywhere.training.dataset import evenly

    adapted = find_adapted(model.as_posix())
    sets = [datasets.read(each, format, split) for each in data]
    source = "; ".join(f"{samples.name}, split {samples.split}" for samples in sets)
    if adapted is not None:
        from saywhere.training import adapted_calibration

        chosen = [evenly(samples, limit) for samples in sets]
        fit = adapted_calibration.calibrate(adapted, model.as_posix(), part.value, chosen, source, device)
        typer.echo(f"{model}: calibration {fit.weight:g}, {fit.constant:g}, from {fit.source}")
        if fit.weight <= 0:
            typer.echo(f"{model}: on these images higher scores are no more often right; its order is turned", err=True)
    elif part is Part.densecap:
        chosen = [evenly(samples, limit) for samples in sets]
        found = calibration.calibrate(model, [sample for each in chosen for sample in each], source, device)
        typer.echo(f"{model}: calibration {', '.join(f'{value:g}' for value in found)}, from {source}")
    else:
        chosen = [evenly(presence.held_out(model, samples), limit) for samples in sets]
        config = presence.calibrate(model, chosen, source, device)
        typer.echo(
            f"{model}: presence {config.presence}, of rare nouns {config.rare_presence}; weight of the classes "
            f"{config.kind_weight:g}, of rare nouns {config.rare_kind_weight:g}, where the aligner places phrases "
            f"{config.similarity_kind_weight:g}; from {source}"
        )

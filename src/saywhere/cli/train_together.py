"""``saywhere train-together``: train all parts of a model and the end of its backbone."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere import DEFAULT_MODEL
from saywhere.cli.options import Device, Seed, Set


def train_together(
    sentences: list[Path] = typer.Option(
        ..., metavar="ROOT|FILE", help="A data set with sentences, for the aligner and the captioner; may be repeated."
    ),
    boxes: list[Path] = typer.Option(
        ...,
        metavar="ROOT|FILE",
        help="A data set with boxes and phrases, for the dense captioner: the rest of an image is background; may be "
        "repeated.",
    ),
    names: list[Path] = typer.Option(
        ..., metavar="ROOT|FILE", help="A data set whose boxes teach what things are called; may be repeated."
    ),
    out: Path = typer.Option(..., metavar="FOLDER", help="Folder of the run; an interrupted run in it is resumed."),
    model: str = typer.Option(DEFAULT_MODEL, help="A model with all four parts, to go on from."),
    split: str = typer.Option("train", help="Split of the data sets."),
    epochs: int = typer.Option(4, min=1, metavar="N", help="Passes over the images with sentences or boxes."),
    batch: int = typer.Option(128, min=2, metavar="N", help="Images a step."),
    validation: str | None = typer.Option(
        None,
        metavar="SPLIT",
        help="Split of the first data sets that chooses the epoch.",
        show_default="the last epoch",
    ),
    share: float = typer.Option(
        0.5, metavar="SHARE", help="Of the new weights in what is kept; the rest are those of --model."
    ),
    cache: Path = typer.Option(
        Path("cache/front"), metavar="FOLDER", help="Folder of the maps that are computed once."
    ),
    seed: Seed = 0,
    precision: str = typer.Option("32", help="32, or bf16 on a processor with such instructions.", metavar="P"),
    device: Device = None,
    change: Set = None,
) -> None:
    """Train all parts of a model together with the last stages of its backbone.

    An interrupted run goes on with the same command after its last whole epoch. The new model has no classes:
    saywhere train-classes and saywhere export add them.
    """
    from saywhere.options import assignments
    from saywhere.training.together.run import Options, Sources, train_together

    options = Options(
        split=split,
        epochs=epochs,
        batch=batch,
        validation=validation,
        share=share,
        cache=cache,
        seed=seed,
        device=device or "cpu",
        precision=precision,
    )
    sources = Sources(tuple(sentences), tuple(boxes), tuple(names))
    folder = train_together(model, sources, out, options, assignments(change or ()))
    typer.echo(f"written: {folder}")
    typer.echo(f"next: saywhere export {folder} --out FOLDER, then saywhere train-classes --model FOLDER")

"""``saywhere finetune``: fine-tune a model on your own images."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Model, Seed, check_folder


def finetune(
    data: Path = typer.Argument(
        metavar="DATA", help="Images with boxes and phrases or class names: a folder or file, as for data check."
    ),
    out: Path | None = typer.Option(
        None,
        metavar="DIR",
        callback=check_folder,
        help="Folder for the new model.",
        show_default="runs/NAME, after the data",
    ),
    model: Model = None,
    format: DataFormat = None,
    split: str = typer.Option("train", metavar="NAME", help="Split to train on."),
    validation: str | None = typer.Option(
        None, metavar="NAME", help="Split to measure on.", show_default="dev or val, otherwise a fifth of the images"
    ),
    epochs: int | None = typer.Option(
        None, min=1, metavar="N", help="Maximum number of epochs.", show_default="by the number of images"
    ),
    seed: Seed = 0,
    restart: bool = typer.Option(False, "--restart", help="Start over instead of resuming the run in the folder."),
) -> None:
    """Fine-tune a model on your own images, so that it learns your words for what is in their boxes.

    The new model has all parts of the one it started from. Both are measured on held-out images: if the new weights
    are not better, or forget what you did not annotate, the new folder has the old weights. The same command resumes an
    interrupted run.

    Exit code: 0 success; 1 some of the data is missing or broken; 2 error.
    """
    from saywhere import DEFAULT_MODEL
    from saywhere.training import require_training

    require_training()
    from saywhere.stages.finetune import finetune as run

    done = run(
        data, out, model=model or DEFAULT_MODEL, format=format, split=split, validation=validation, epochs=epochs,
        seed=seed, restart=restart, tell=typer.echo,
    )  # fmt: skip
    for line in done.lines():
        typer.echo(line)
    if not done.share:
        typer.echo(f"warning: {done.model} has the weights that it started from: {done.reason}", err=True)
    elif done.found[1] < done.found[0]:
        way_out = "use more images, or describe with a lower --threshold"
        typer.echo(f"warning: fewer of the held-out boxes are found than before: {way_out}", err=True)
    typer.echo(f"{done.model}: the model; next: saywhere describe IMAGE --model {done.model}")
    for problem in done.problems:
        typer.echo(problem, err=True)
    if done.problems:
        raise typer.Exit(1)

"""``saywhere finetune``: teach a model one's own images."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import DataFormat, Model, Seed, check_folder


def finetune(
    data: Path = typer.Argument(
        metavar="DATA", help="Images with boxes and phrases, or names of classes: a folder or file as for data check."
    ),
    out: Path | None = typer.Option(
        None,
        metavar="DIR",
        callback=check_folder,
        help="Folder of the new model.",
        show_default="runs/NAME, as of the data",
    ),
    model: Model = None,
    format: DataFormat = None,
    split: str = typer.Option("train", metavar="NAME", help="Split to learn from."),
    validation: str | None = typer.Option(
        None, metavar="NAME", help="Split to measure on.", show_default="dev or val, else a fifth of the images"
    ),
    epochs: int | None = typer.Option(
        None, min=1, metavar="N", help="Passes over the images, at most.", show_default="as suits their number"
    ),
    seed: Seed = 0,
    restart: bool = typer.Option(False, "--restart", help="Start over instead of going on with the run in the folder."),
) -> None:
    """Teach a model your own images: the words for what is in their boxes, beside what it knows.

    The new model has all parts of the one it started from. Both are measured on images that are held out; if the new
    one is not better, or forgets what you did not annotate, its folder has the old weights. An interrupted run goes on
    when the command is given again.
    Exit code 0 if all went well, 1 if something of the data is missing or broken, 2 if the command is wrong.
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
        reason = "no weights are better on the held-out images and keep the phrases of the rest"
        typer.echo(f"warning: {reason}: {done.model} has those that it started from", err=True)
    typer.echo(f"{done.model}: the model; next: saywhere describe IMAGE --model {done.model}")
    for problem in done.problems:
        typer.echo(problem, err=True)
    if done.problems:
        raise typer.Exit(1)

"""``saywhere train``: train a model from a recipe."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.cli.options import check_folder
from saywhere.cli.printing import next_command, print_row
from saywhere.errors import UserError
from saywhere.training import require_training


def train(
    recipe: Path | None = typer.Argument(
        None, metavar="RECIPE", help="A YAML file, or the name of a recipe that comes with saywhere (see --list)."
    ),
    changes: list[str] | None = typer.Argument(
        None,
        metavar="[KEY=VALUE]...",
        help="Changes to the recipe, such as data.root=DIR training.epochs=2; in a recipe with stages, "
        "data.flickr8k=DIR stages.aligner.training.epochs=2.",
    ),
    out: Path | None = typer.Option(
        None,
        metavar="DIR",
        callback=check_folder,
        help="Folder of the run; the model is in model/.",
        show_default="runs/NAME, with the recipe's name",
    ),
    without: list[str] | None = typer.Option(
        None, metavar="STAGE", help="Leave out a stage of the recipe; may be repeated."
    ),
    restart: bool = typer.Option(False, "--restart", help="Start over instead of resuming the run in the folder."),
    show: bool = typer.Option(False, "--list", help="List the recipes that come with saywhere."),
) -> None:
    """Train from a recipe: one network, or all stages from the data to a model folder with a model card.

    Everything is checked before training begins. The same command resumes an interrupted run. In a recipe with stages,
    finished stages are skipped. A stage whose options or data have changed runs again, and so does what depends on it.

    Exit code: 0 success; 1 some of the data is missing, broken or cannot be read; 2 error.
    """
    require_training()
    from saywhere.report import collect_left_out
    from saywhere.training import recipe as recipes

    if show:
        for name, path in recipes.shipped().items():
            print_row(name, recipes.about(path), widths=(30, 0))
        return
    if recipe is None:
        raise UserError("missing argument 'RECIPE'; saywhere train --list lists those that come with saywhere")
    tree = recipes.read(recipe, changes or [])
    with collect_left_out() as left_out:
        if "stages" in tree:
            _train_stages(recipe, tree, out, restart, without or [])
        elif without:
            raise UserError(f"--without {without[0]}: {recipe} has no stages")
        else:
            _train_one(recipe, tree, out, restart)
    if left_out:
        raise typer.Exit(1)


def _train_stages(recipe: Path, tree: dict[str, object], out: Path | None, restart: bool, without: list[str]) -> None:
    from saywhere.stages import run as stages

    chosen = stages.load(recipe, tree, without)
    model = stages.train(chosen, out or Path("runs") / chosen.name, restart, without, typer.echo, str(recipe))
    if model is not None:
        typer.echo(f"{model}: the model; next: {next_command(model)}")


def _train_one(recipe: Path, tree: dict[str, object], out: Path | None, restart: bool) -> None:
    from saywhere import options
    from saywhere.training.recipe import Recipe
    from saywhere.training.run import train as run

    chosen = options.from_dict(Recipe, tree, source=str(recipe))
    folder = out or Path("runs") / chosen.name
    result = run(chosen, folder, restart)
    if result.interrupted:
        last = folder / "last.ckpt"
        more = f"; the state is in {last}; run it again to continue" if last.exists() else ""
        raise KeyboardInterrupt(f"stopped{more}")
    values = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    typer.echo(f"{result.model}: weights after epoch {result.epoch}{': ' if values else ''}{values}")

"""``saywhere train``: a model from a recipe."""

from __future__ import annotations

from pathlib import Path

import typer

from saywhere.training import require_training


def train(
    recipe: Path = typer.Argument(help="A recipe, such as recipes/densecap-flickr8k.yaml."),
    changes: list[str] | None = typer.Argument(
        None, metavar="[KEY=VALUE]...", help="Changes to the recipe, such as data.root=DIR training.epochs=2."
    ),
    out: Path | None = typer.Option(None, help="Folder of the run; runs/NAME by default, NAME as in the recipe."),
    restart: bool = typer.Option(False, "--restart", help="Start over instead of resuming the run in the folder."),
) -> None:
    """Train a model; an interrupted run is resumed by the same command."""
    require_training()
    from saywhere.training import recipe as recipes
    from saywhere.training.run import first_process
    from saywhere.training.run import train as run

    chosen = recipes.load(recipe, changes or [])
    folder = out or Path("runs") / chosen.name
    result = run(chosen, folder, restart)
    if result.interrupted:
        last = folder / "last.ckpt"
        more = f"; the state is in {last}. The same command resumes it." if last.exists() else ""
        raise KeyboardInterrupt(f"stopped{more}")
    if not first_process():
        return
    values = ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items())
    typer.echo(f"{result.model}: weights after epoch {result.epoch}{': ' if values else ''}{values}")

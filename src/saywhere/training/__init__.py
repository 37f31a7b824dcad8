"""Training runs: recipes, the training loop, and resuming."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from saywhere.errors import UserError

if TYPE_CHECKING:
    from saywhere.training.run import Result


def train(recipe: str | Path, out: str | Path | None = None, *, restart: bool = False, **overrides: Any) -> Result:
    """Train a model by a recipe, as ``saywhere train`` does; the same call resumes an interrupted run.

    Args:
        recipe: a YAML file, or the name of a recipe that comes with saywhere, such as ``densecap-flickr8k``.
        out: folder of the run, with the model in ``model/``; None for ``runs/NAME``, NAME as in the recipe.
        restart: start over instead of resuming the run in ``out``.
        overrides: replace values of the recipe: a mapping for a section, such as ``training={"epochs": 2}``, or a
            dotted name, such as ``**{"training.epochs": 2}``.

    Returns:
        The model folder, its metrics, and whether the run was interrupted.

    Raises:
        UserError: training is not installed, or the recipe or its data has a wrong key, value or file.

    Example:
        >>> result = saywhere.train("recipe.yaml", out="run", training={"epochs": 1})
        >>> result.model.name
        'model'
    """
    require_training()
    from saywhere.options import flatten
    from saywhere.training import recipe as recipes
    from saywhere.training.run import train as run

    changes = [f"{key}={json.dumps(value, default=str)}" for key, value in flatten(overrides).items()]
    chosen = recipes.load(recipe, changes)  # JSON is YAML
    return run(chosen, Path("runs") / chosen.name if out is None else out, restart)


def require_training() -> None:
    """Raise ``UserError`` if a package that training needs is not installed."""
    for module in ("torch", "timm", "matplotlib"):
        if importlib.util.find_spec(module) is None:
            raise UserError(
                f"training needs {module}, which is not installed: pip install 'saywhere[train]' (6.3 GB; "
                "without a GPU first: pip install torch torchvision --index-url https://download.pytorch.org/whl/cpu)"
            )

"""``saywhere models``: the models that come with the package."""

from __future__ import annotations

import typer


def models() -> None:
    """List the models that come with the package."""
    from saywhere.models import checkpoint

    for name, description in checkpoint.models():
        typer.echo(f"{name}  {description}")

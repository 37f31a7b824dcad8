"""``saywhere models``: the models that come with the package."""

from __future__ import annotations

import typer


def models() -> None:
    """List the models that come with the package: name and description."""
    import saywhere

    found = saywhere.list_models()
    if not found:
        typer.echo("no model comes with this copy of saywhere; give --model a checkpoint folder")
    width = max((len(name) for name in found), default=0)
    for name, description in found.items():
        typer.echo(f"{name:{width}}  {description}".rstrip())

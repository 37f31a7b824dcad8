"""``saywhere models``: the models that come with the package, and those of other people that were calibrated."""

from __future__ import annotations

import typer

from saywhere.cli.printing import print_row


def models() -> None:
    """List the models that come with the package, by name and description, and those of the hub that you calibrated."""
    import saywhere
    from saywhere.adapters.adapter import calibrated_models

    found = saywhere.list_models()
    if not found:
        typer.echo("no model comes with this copy of saywhere; give --model a checkpoint folder")
    found |= calibrated_models()
    width = max((len(name) for name in found), default=0)
    for name, description in found.items():
        print_row(name, description, widths=(width, 0))

"""``saywhere models``: the models that come with the package, those of other people that were calibrated, devices."""

from __future__ import annotations

import typer

from saywhere.cli.printing import print_row


def models(
    devices: bool = typer.Option(False, "--devices", help="List the devices of the engine onnx instead."),
) -> None:
    """List the models that come with the package, by name and description, and those of the hub that you calibrated."""
    if devices:
        from saywhere.engines.onnx import DEVICES, missing

        for device, provider in DEVICES.items():
            print_row(device, missing(device) or f"{provider.name}, installed", widths=(max(map(len, DEVICES)), 0))
        return
    import saywhere
    from saywhere.adapters.adapter import calibrated_models

    found = saywhere.list_models()
    if not found:
        typer.echo("no model comes with this copy of saywhere; give --model a checkpoint folder")
    found |= calibrated_models()
    width = max((len(name) for name in found), default=0)
    for name, description in found.items():
        print_row(name, description, widths=(width, 0))

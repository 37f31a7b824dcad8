"""``saywhere models``: the bundled models, calibrated models from the hub, and devices."""

from __future__ import annotations

import typer

from saywhere.cli.printing import print_row


def models(
    devices: bool = typer.Option(False, "--devices", help="List the devices of the engine onnx instead."),
) -> None:
    """List the models that come with saywhere and the hub models that you calibrated, with descriptions."""
    if devices:
        from saywhere.engines.onnx import DEVICES, missing

        for device, provider in DEVICES.items():
            print_row(device, missing(device) or f"{provider.name}, installed", widths=(max(map(len, DEVICES)), 0))
        return
    import saywhere
    from saywhere.adapters.adapter import calibrated_models
    from saywhere.models.bundle import PACKAGES

    found = saywhere.list_models()
    lacking = [name for name in PACKAGES if name not in found]
    if not found:
        typer.echo("this copy of saywhere comes without a model; give --model the folder of one")
    found |= calibrated_models()
    width = max((len(name) for name in found), default=0)
    for name, description in found.items():
        print_row(name, description, widths=(width, 0))
    for name in lacking:
        typer.echo(f"not installed: {name}, which is better and slower; to build it see docs/models.md", err=True)

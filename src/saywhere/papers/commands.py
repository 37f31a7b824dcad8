"""``saywhere papers ...``: published checkpoints and tables. Each command parses, calls the library, prints."""

from __future__ import annotations

from pathlib import Path

import typer

app = typer.Typer(help="Reproduce published programs and tables.", no_args_is_help=True)


@app.callback()
def _papers() -> None:
    pass


@app.command()
def convert(
    checkpoint: Path = typer.Argument(help="A Torch7 file such as densecap-pretrained-vgg16.t7."),
    out: Path = typer.Argument(help="Folder of the converted model, for --model of the other commands."),
) -> None:
    """Convert a Torch7 checkpoint of the published DenseCap program; nothing in the file is executed."""
    from saywhere.papers.densecap2016.convert import convert_to_folder

    model = convert_to_folder(checkpoint, out)
    count = sum(parameter.numel() for parameter in model.parameters())
    typer.echo(f"{out}: {count:,} weights, {len(model.vocabulary.counts)} words")
    typer.echo(f"next: saywhere describe IMAGE --model {out}")

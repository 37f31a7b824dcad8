"""The options that the tasks of ``saywhere evaluate`` have in common."""

from __future__ import annotations

import importlib.util
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from saywhere.errors import UserError

ModelName = Annotated[str | None, typer.Option("--model", metavar="NAME|DIR", help="A model's name or folder.")]
DataRoot = Annotated[
    Path | None, typer.Option("--data", metavar="ROOT", help="Folder of the data set, or a .jsonl file.")
]
DataFormat = Annotated[
    str | None,
    typer.Option(
        "--format", help="flickr8k (also Flickr30k), visual-genome, coco or jsonl; guessed from the files if not given."
    ),
]
Split = Annotated[str | None, typer.Option("--split", help="Split of the data; dev if not given.")]
Limit = Annotated[int | None, typer.Option("--limit", min=1, metavar="N", help="Only the first N pictures.")]
Areas = Annotated[
    int | None,
    typer.Option(
        "--areas",
        min=1,
        metavar="N",
        help="Areas of a picture, an aligner's beside the whole.",
    ),
]
Out = Annotated[Path, typer.Option("--out", metavar="DIR", help="Folder of the report.")]
Batch = Annotated[int, typer.Option("--batch", min=1, metavar="N", help="Pictures at a time.")]
Device = Annotated[
    str | None, typer.Option("--device", metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one.")
]


Change = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="OPTION=VALUE", help="Change the model, such as beam=3; may be given several times."),
]


class Protocol(StrEnum):
    """The rules: the paper's definition, or as the original was evaluated."""

    clean = "clean"
    original = "original"


def check_plots() -> None:
    """``UserError`` if there is nothing to draw plots with."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UserError("evaluation needs matplotlib, which is not installed: pip install 'saywhere[evaluate]'")

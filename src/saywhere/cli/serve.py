"""``saywhere serve``: the questions over HTTP, and a page that asks them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import AllowedHost, Device, Engine, Host, Model, Precision, Set, Token
from saywhere.errors import UserError
from saywhere.loading import Runtime, load_model

if TYPE_CHECKING:
    from starlette.routing import Route

    from saywhere.serve.app import Service


def serve(
    host: Host = "127.0.0.1",
    port: int = typer.Option(8077, min=0, max=65535, metavar="PORT", help="Port to listen at; 0 takes a free one."),
    token: Token = None,
    allowed_host: AllowedHost = None,
    index: Path | None = typer.Option(None, metavar="DIR", help="Also search this index, made by saywhere index."),
    protocols: str | None = typer.Option(
        None, metavar="NAMES", help="Also answer as these servers do: ollama, openai, photoprism, with commas."
    ),
    workers: int | None = typer.Option(
        None, min=1, max=256, metavar="N", help="Images at the same time.", show_default="all processors there are"
    ),
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    precision: Precision = None,
    change: Set = None,
) -> None:
    """Answer questions about images over HTTP, and serve a page that asks them.

    Ends at Ctrl-C or SIGTERM, after the answers that are under way.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each image has a thread of its own
    from saywhere.engines.onnx import available_threads
    from saywhere.serve.limits import Limits
    from saywhere.serve.server import Access, launch

    launch(
        Access(host, port, token, allowed_host or ()),
        Limits(threads=workers or available_threads()),
        lambda: load_model(model, Runtime(device, engine, 1, precision), change),
        index,
        _protocols(protocols.split(",") if protocols else ()),
    )


def _protocols(names: Sequence[str]) -> list[Callable[[Service], Sequence[Route]]]:
    """The functions that return the routes of named protocols; their module is imported if there is one."""
    if not names:
        return []
    from saywhere.serve.captions import PROTOCOLS

    for name in names:
        if name not in PROTOCOLS:
            raise UserError(f"--protocols {name!r}: there are {', '.join(PROTOCOLS)}")
    kinds = [PROTOCOLS[name] for name in dict.fromkeys(names)]
    return [lambda service, kind=kind: kind(service).routes() for kind in kinds]

"""``saywhere serve``: the questions over HTTP, and a page that asks them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import Device, Engine, Model, Precision, Set
from saywhere.loading import Runtime, load_model

if TYPE_CHECKING:
    import saywhere
    from saywhere.search import Index


def serve(
    host: str = typer.Option("127.0.0.1", metavar="HOST", help="Address to listen at; 0.0.0.0 is all of them."),
    port: int = typer.Option(8077, min=0, max=65535, metavar="PORT", help="Port to listen at; 0 takes a free one."),
    token: str | None = typer.Option(
        None, metavar="T", envvar="SAYWHERE_TOKEN", show_envvar=True, help="Answer only requests that bring this token."
    ),
    allowed_host: list[str] | None = typer.Option(
        None,
        metavar="NAME",
        show_default="any with a token, else addresses of this machine",
        help="Answer requests to this name of the server; may be repeated, * is any name.",
    ),
    index: Path | None = typer.Option(None, metavar="DIR", help="Also search this index, made by saywhere index."),
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
    from PIL import Image

    from saywhere.engines.onnx import available_threads
    from saywhere.serve.app import create_app
    from saywhere.serve.gate import check_access
    from saywhere.serve.limits import Limits
    from saywhere.serve.server import bind, run

    check_access(token, allowed_host or ())
    limits = Limits(threads=workers or available_threads())
    listening = bind(host, port)
    loaded = load_model(model, Runtime(device, engine, 1, precision), change)
    loaded.encode(Image.new("RGB", (64, 64)))  # or the first image would wait for the network to be read
    found = None if index is None else _open_index(index, loaded, limits.threads)
    app = create_app(loaded, limits, token, allowed_host or (), found)
    address = f"[{host}]" if ":" in host else host
    place = f"http://{address}:{listening.getsockname()[1]}/"
    run(app, listening, limits, lambda: typer.echo(f"serving {loaded.name} at {place} (Ctrl-C ends)"))


def _open_index(folder: Path, model: saywhere.Model, threads: int) -> Index:
    """Open an index, which must exist and be made by the model."""
    from saywhere.search import Index

    index = Index(folder, model, threads=threads)
    len(index.store)
    assert index.model is model  # which compares their digests
    return index

"""``saywhere serve``: an HTTP API for a model's questions, and a web page that uses it."""

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
    from saywhere.serve.limits import Limits


def serve(
    host: Host = "127.0.0.1",
    port: int = typer.Option(8077, min=0, max=65535, metavar="PORT", help="Port to listen on; 0 takes a free one."),
    token: Token = None,
    allowed_host: AllowedHost = None,
    index: Path | None = typer.Option(None, metavar="DIR", help="Also search this index, made by saywhere index."),
    protocols: str | None = typer.Option(
        None, metavar="NAMES", help="Also speak these protocols, separated by commas: ollama, openai, photoprism."
    ),
    label_studio: str | None = typer.Option(
        None, metavar="URL", help="Be an ML backend of this Label Studio; LABEL_STUDIO_API_KEY has its token."
    ),
    label_studio_files: Path | None = typer.Option(
        None, metavar="DIR", help="Folder where Label Studio's files are mounted, to read its images there."
    ),
    workers: int | None = typer.Option(
        None,
        min=1,
        max=256,
        metavar="N",
        help="Images processed at the same time.",
        show_default="all available processors",
    ),
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    precision: Precision = None,
    change: Set = None,
) -> None:
    """Answer questions about images over HTTP, and serve a web page for them.

    Ctrl-C or SIGTERM stops the server after the requests in progress.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # each image has its own thread
    from saywhere.engines.onnx import available_threads
    from saywhere.serve.limits import Limits
    from saywhere.serve.server import Access, launch

    limits = Limits(threads=workers or available_threads())
    spoken = _protocols(protocols.split(",") if protocols else ())
    if label_studio is not None or label_studio_files is not None:
        spoken.append(_backend(label_studio, label_studio_files, limits))
    launch(
        Access(host, port, token, allowed_host or ()),
        limits,
        lambda: load_model(model, Runtime(device, engine, 1, precision), change),
        index,
        spoken,
    )


def _protocols(names: Sequence[str]) -> list[Callable[[Service], Sequence[Route]]]:
    """Return a function for each named protocol that makes its routes; import their module only if needed."""
    if not names:
        return []
    from saywhere.serve.captions import PROTOCOLS

    for name in names:
        if name not in PROTOCOLS:
            raise UserError(f"--protocols {name!r}: unknown; choose from {', '.join(PROTOCOLS)}")
    kinds = [PROTOCOLS[name] for name in dict.fromkeys(names)]
    return [lambda service, kind=kind: kind(service).routes() for kind in kinds]


def _backend(url: str | None, files: Path | None, limits: Limits) -> Callable[[Service], Sequence[Route]]:
    from saywhere.serve.folders import Folders
    from saywhere.serve.label_studio import Images, LabelStudio

    folder = None if files is None else Folders([files])
    images = Images(url, os.environ.get("LABEL_STUDIO_API_KEY"), folder, limits.body)
    return lambda service: LabelStudio(service, images).routes()

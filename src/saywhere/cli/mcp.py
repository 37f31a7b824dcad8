"""``saywhere mcp``: a model's questions as tools for language models, by the Model Context Protocol."""

from __future__ import annotations

import functools
from pathlib import Path

import typer

from saywhere.cli.options import AllowedHost, Chosen, Host, Token
from saywhere.errors import UserError


def mcp(
    ctx: typer.Context,
    folders: list[Path] = typer.Argument(metavar="FOLDER...", help="Folders whose images the tools may read."),
    index: Path | None = typer.Option(
        None, metavar="DIR", help="Search this index (made by saywhere index) instead of the folders."
    ),
    port: int | None = typer.Option(
        None, min=0, max=65535, metavar="PORT", show_default="standard input and output",
        help="Serve over HTTP on this port; 0 takes a free one.",
    ),
    host: Host = "127.0.0.1",
    token: Token = None,
    allowed_host: AllowedHost = None,
    chosen: Chosen = Chosen(),
) -> None:  # fmt: skip
    """Offer image tools to language models, by the Model Context Protocol.

    The tools describe, ground, caption, search and crop; they read only images in the given folders.
    """
    from saywhere.serve.folders import Folders
    from saywhere.serve.mcp import Protocol, routes, serve_pipe

    allowed = Folders(folders)
    if index is not None and not index.is_dir():
        raise UserError(f"--index {index}: no such folder; make it with saywhere index")
    if port is None:
        asked = ctx.get_parameter_source("token")
        typed = token is not None and asked is not None and asked.name == "COMMANDLINE"  # not from the environment
        if host != "127.0.0.1" or allowed_host or typed:
            raise UserError("--host, --token and --allowed-host are for HTTP: give --port as well")
        serve_pipe(Protocol(allowed, chosen.deferred(), index))
        return
    from saywhere.serve.limits import Limits
    from saywhere.serve.server import Access, launch

    launch(
        Access(host, port, token, allowed_host or ()),
        Limits(threads=chosen.threads or Limits.threads),
        chosen._replace(threads=1).deferred(),
        protocols=[functools.partial(routes, allowed, index)],
        path="mcp",
    )

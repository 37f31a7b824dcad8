"""The HTTP server: one process that closes idle connections, and finishes running requests before it stops."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, NamedTuple

import uvicorn
from starlette.applications import Starlette
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from saywhere.errors import UserError
from saywhere.models.model import Model
from saywhere.serve.app import Service, create_app
from saywhere.serve.gate import check_access
from saywhere.serve.limits import Limits

if TYPE_CHECKING:
    from saywhere.search import Index

DRAIN_SECONDS = 0.5
"""Time after SIGTERM in which open connections may still send a request, since one may be on its way."""


def bind(host: str, port: int) -> socket.socket:
    """Return a listening socket (port 0: any free port); raise ``UserError`` if the address is not available."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(
            f"--host {host} --port {port}: cannot listen there ({reason}); give another host or port"
        ) from None


class Access(NamedTuple):
    """The address of a server, and who may access it; see :func:`saywhere.serve.app.create_app`."""

    host: str
    port: int
    token: str | None = None
    names: Sequence[str] = ()


def launch(
    access: Access,
    limits: Limits,
    load: Callable[[], Model],
    index: Path | None = None,
    protocols: Sequence[Callable[[Service], Sequence[Route]]] = (),
    path: str = "",
) -> None:
    """Load a model and serve it until Ctrl-C; print the address, and a note if a network reaches it without a token.

    Args:
        access: address, token and host names, checked before the model is loaded.
        index: folder of an existing index to search, made by the same model.
        path: path that is printed after the address.

    Raises:
        UserError: the address is in use, or the model or the index cannot be used.
    """
    from PIL import Image

    check_access(access.token, access.names)
    listening = bind(access.host, access.port)
    if access.token is None and not ipaddress.ip_address(listening.getsockname()[0]).is_loopback:
        print("note: without --token, everyone who can reach this address may use the server", file=sys.stderr)
    model = load()
    model.encode(Image.new("RGB", (64, 64)))  # loads the network, so that the first image need not wait
    app = create_app(
        model, limits, access.token, access.names, index and _open_index(index, model, limits.threads), protocols
    )
    name = f"[{access.host}]" if ":" in access.host else access.host
    place = f"http://{name}:{listening.getsockname()[1]}/{path}"
    run(app, listening, limits, lambda: print(f"serving {model.name} at {place} (Ctrl-C ends)", flush=True))


def _open_index(folder: Path, model: Model, threads: int) -> Index:
    from saywhere.search import Index

    index = Index(folder, model, threads=threads)
    len(index.store)
    assert index.model is model  # the property compares their digests
    return index


def run(app: Starlette, listening: socket.socket, limits: Limits, started: Callable[[], None]) -> None:
    """Serve on a socket of :func:`bind` until SIGTERM or Ctrl-C; then finish running requests, and return.

    ``started`` is called when the server is ready.
    """

    class connection(_Connection):
        reading_seconds = limits.reading_seconds

    config = uvicorn.Config(
        app,
        http=connection,
        ws="none",
        log_level="error",
        access_log=False,  # paths contain the users' texts
        server_header=False,
        timeout_keep_alive=max(1, round(limits.idle_seconds)),
        timeout_graceful_shutdown=max(1, round(limits.stop_seconds)),
    )
    _Server(config, started).run(sockets=[listening])


class _Connection(H11Protocol):
    """A connection that is closed if no request arrives in time, also within its head.

    It is also closed if an answer is not read in time.
    """

    reading_seconds = 60.0
    _last: object = ()
    """The last request, if the connection was idle at the last check; None before the first request."""
    _draining = False
    _unread: tuple[object, float] | None = None
    """The request whose answer was unread at the last check, and since when."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Start to watch the connection."""
        super().connection_made(transport)
        self._watch()

    def _watch(self) -> None:
        self._unread = self._look_for_unread()
        if self._unread is not None and time.monotonic() - self._unread[1] >= self.reading_seconds:
            self.transport.abort()
            return
        if self.transport.is_closing():
            if self._unread is None:
                return
        elif self._idle and self.cycle is self._last:
            self.transport.close()  # after the written data has been sent
        self._last = self.cycle if self._idle else ()
        self.loop.call_later(self.config.timeout_keep_alive, self._watch)

    def _look_for_unread(self) -> tuple[object, float] | None:
        if not self.transport.get_write_buffer_size():
            return None
        if self._unread is not None and self._unread[0] is self.cycle:
            return self._unread
        return self.cycle, time.monotonic()

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def drain(self) -> None:
        """Close the connection after the current or next answer."""
        self._draining = True
        self._close_after_answer()

    def handle_events(self) -> None:
        """Start the requests that have arrived."""
        super().handle_events()
        if self._draining:
            self._close_after_answer()

    def _close_after_answer(self) -> None:
        if not self._idle and self.cycle.keep_alive:
            self.cycle.keep_alive = False
            self.headers.append((b"connection", b"close"))  # a request header, which the answer repeats

    def send_400_response(self, msg: str) -> None:
        """Respond to a malformed request with a JSON error, like all errors."""
        body = json.dumps({"error": f"this is not HTTP: {msg}"}).encode()
        head = f"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.close()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, started: Callable[[], None]) -> None:
        super().__init__(config)
        self._started = started

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop after the running requests; at a Ctrl-C while waiting for them, exit at once."""
        if self.should_exit and sig == signal.SIGINT:
            os._exit(130)
        super().handle_exit(sig, frame)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, answer running requests, and close the connections."""
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            if isinstance(connection, _Connection):
                connection.drain()
        await asyncio.sleep(DRAIN_SECONDS)
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Stop at SIGTERM and Ctrl-C without raising them again: they are the regular way to end."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        caught = (signal.SIGINT, signal.SIGTERM)
        before: dict[int, Any] = {number: signal.signal(number, self.handle_exit) for number in caught}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

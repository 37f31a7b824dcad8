"""Answers over HTTP from a thread of this process."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class Answers(BaseHTTPRequestHandler):
    """Gives a body with its length, and writes no log."""

    def log_message(self, format: str, *_: object) -> None:
        """Say nothing."""

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(b"" if self.command == "HEAD" else body)


class Files(Answers, SimpleHTTPRequestHandler):
    """Gives files."""


@contextmanager
def answering(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that answers by ``handler``."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def served(folder: Path) -> AbstractContextManager[str]:
    """The address of a folder's files, as any server of files gives them."""
    return answering(functools.partial(Files, directory=str(folder)))

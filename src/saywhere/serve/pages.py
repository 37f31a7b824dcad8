"""The files of the page, read once."""

from __future__ import annotations

import gzip
import hashlib
from functools import cached_property
from importlib import resources

from starlette.requests import Request
from starlette.responses import Response

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
HEADERS = {
    # The page loads nothing but its own files, and no other site shows it in a frame.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


class Page:
    """A file that never changes while the server runs."""

    def __init__(self, content: bytes, media_type: str) -> None:
        self.content, self.media_type = content, media_type

    @cached_property
    def tag(self) -> str:
        """The ETag."""
        return f'"{hashlib.blake2b(self.content, digest_size=8).hexdigest()}"'

    @cached_property
    def _compressed(self) -> bytes:
        return gzip.compress(self.content, mtime=0)

    def response(self, request: Request) -> Response:
        """Return the file, compressed if the client takes that, or 304 if the client has it."""
        headers = HEADERS | {"ETag": self.tag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(status_code=304, headers=headers)
        content = self.content
        if "gzip" in request.headers.get("accept-encoding", ""):
            content, headers = self._compressed, headers | {"Content-Encoding": "gzip"}
        return Response(content, headers=headers, media_type=self.media_type)


def read_pages() -> dict[str, Page]:
    """Return the files of the page by their paths; ``/`` is the page itself."""
    pages: dict[str, Page] = {}
    for file in resources.files("saywhere.serve").joinpath("page").iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in TYPES:
            path = "/" if file.name == "index.html" else f"/page/{file.name}"
            pages[path] = Page(file.read_bytes(), TYPES[suffix])
    return pages

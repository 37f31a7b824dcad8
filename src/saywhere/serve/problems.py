"""The answer to a request that cannot be served: a status and one line."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response


class Problem(Exception):
    """Refuse a request.

    Args:
        status: of HTTP.
        message: one line that names the value and the way out.
        headers: of the answer.
    """

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, " ".join(message.split()), headers

    def response(self) -> Response:
        """Return the answer: ``{"error": message}``."""
        return JSONResponse({"error": self.message}, self.status, self.headers)


def busy() -> Problem:
    """Return what a client is told when there is more to do than fits in the queue."""
    return Problem(429, "the server is busy: try again in a second", {"Retry-After": "1"})

"""The answer to a request that cannot be served: a status and one line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.responses import Response


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
        return Response(to_json({"error": self.message}), self.status, self.headers, "application/json")


def to_json(value: Any) -> bytes:
    """Return the JSON of a value in ASCII: names of files that are not UTF-8 are escaped, as in files of results."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")

"""What a server accepts of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """Hold the limits of a server.

    Attributes:
        body: bytes of a request.
        bodies: bytes of all requests that are in memory together.
        pixels: of an image, refused before it is decoded.
        threads: questions answered at the same time.
        queue: questions that wait for a thread.
        idle_seconds: a connection without a request is closed.
        upload_seconds: a body has arrived.
        answer_seconds: a question is answered, the time in the queue included.
        stop_seconds: running requests have an answer after SIGTERM.
        encodings: encoded images that are kept for further questions.
        encoding_seconds: after the last question about it an encoding is dropped.
    """

    body: int = 32 << 20
    bodies: int = 256 << 20
    pixels: int = 64_000_000
    threads: int = 2
    queue: int = 64
    idle_seconds: float = 10
    upload_seconds: float = 60
    answer_seconds: float = 60
    stop_seconds: float = 60
    encodings: int = 32
    encoding_seconds: float = 600

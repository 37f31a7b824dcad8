"""What a server accepts of a request, and shares out among all of them."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from saywhere.serve.problems import Problem


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body: bytes of a request.
        bodies: bytes of all requests that are in memory together.
        answers: bytes of all answers that their readers have not taken yet.
        pixels: of an image, refused before it is decoded.
        threads: questions answered at the same time.
        queue: questions that wait for a thread.
        idle_seconds: a connection without a request is closed.
        upload_seconds: a body has arrived.
        answer_seconds: a question is answered, the time in the queue included.
        reading_seconds: an answer is read by who asked, or the connection is closed.
        stop_seconds: running requests have an answer after SIGTERM.
        encodings: encoded images that are kept for further questions.
        encoding_seconds: after the last question about it an encoding is dropped.
    """

    body: int = 32 << 20
    bodies: int = 256 << 20
    answers: int = 256 << 20
    pixels: int = 64_000_000
    threads: int = 2
    queue: int = 64
    idle_seconds: float = 10
    upload_seconds: float = 60
    answer_seconds: float = 60
    reading_seconds: float = 60
    stop_seconds: float = 60
    encodings: int = 32
    encoding_seconds: float = 600


class Budget:
    """Share out bytes of memory, among threads.

    Args:
        size: bytes that there are.
    """

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take bytes at once.

        Raises:
            Problem: 429 if there are not so many left.
        """
        with self._lock:
            if self._taken + count > self._size:
                raise busy()
            self._taken += count

    def give_back(self, count: int) -> None:
        """Return bytes that were taken."""
        with self._lock:
            self._taken -= count


def busy() -> Problem:
    """Return what a client is told when there is more to do than the server has room for."""
    return Problem(429, "the server is busy: try again in a second", {"Retry-After": "1"})

"""Limits of a server: error responses, memory budgets, the queue and its workers, and the cache of encodings."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from saywhere.errors import UserError
from saywhere.options import dataclass, require_ints

if TYPE_CHECKING:
    from starlette.responses import Response

    from saywhere.models.encoding import Encoding


class Problem(Exception):
    """An error response: an HTTP status, and one line that names the value and the way out."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, " ".join(message.split()), headers

    def response(self) -> Response:
        """Return the response, ``{"error": message}``."""
        from starlette.responses import Response  # not needed without HTTP

        return Response(to_json({"error": self.message}), self.status, self.headers, "application/json")


def to_json(value: Any) -> bytes:
    """Return a value as ASCII JSON; bytes of file names that are not UTF-8 are escaped, as in results files."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body: maximum size of a request body, in bytes.
        bodies: maximum size of all request bodies in memory together, in bytes.
        answers: maximum size of all answers that clients have not read yet, in bytes.
        pixels: maximum number of pixels of an image; larger ones are refused before decoding.
        threads: number of questions answered at the same time.
        queue: maximum number of questions that wait for a thread.
        idle_seconds: time after which a connection without a request is closed.
        upload_seconds: time limit for the arrival of a body.
        answer_seconds: time limit for an answer, including the time in the queue.
        reading_seconds: time limit for the client to read an answer, before the connection is closed.
        stop_seconds: time limit for running requests after SIGTERM.
        encodings: maximum number of encoded images that are cached for further questions.
        encoding_seconds: time after the last question about an image until its encoding is dropped.

    Raises:
        UserError: a time is not a number from 0, or another limit not a whole number from 1 (queue and encodings: 0).
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

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_time, least = name.endswith("_seconds"), 0 if name in ("queue", "encodings") else 1
            if not is_time and value is not None:
                require_ints(least, **{name: value})
            elif isinstance(value, bool) or not (isinstance(value, int | float) and value >= 0):  # also refuses NaN
                raise UserError(f"{name} must be a number from 0, not {value!r}")


class Budget:
    """A number of bytes of memory that threads share."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Reserve bytes without waiting; raise ``Problem`` 429 if not enough are left."""
        with self._lock:
            if self._taken + count > self._size:
                raise busy()
            self._taken += count

    def give_back(self, count: int) -> None:
        """Release reserved bytes."""
        with self._lock:
            self._taken -= count


def busy() -> Problem:
    """Return the error for a client when the server is at its limits."""
    return Problem(429, "the server is busy: try again in a second", {"Retry-After": "1"})


T = TypeVar("T")


class Workers:
    """A pool of ``limits.threads`` threads that answer questions; ``limits.queue`` more may wait."""

    def __init__(self, limits: Limits) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, "saywhere")
        self._places = threading.BoundedSemaphore(limits.threads + limits.queue)
        self._seconds = limits.answer_seconds

    async def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in a thread and return its result; its exceptions are raised here.

        Raises ``Problem`` 429 if the queue is full, and 503 on timeout; work that has not begun by then is dropped.
        """
        if not self._places.acquire(blocking=False):
            raise busy()
        future: Future[T] = self._pool.submit(work)
        future.add_done_callback(lambda _: self._places.release())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._seconds)
        except TimeoutError:
            message = f"no answer within {self._seconds:g} seconds: try again later"
            raise Problem(503, message, {"Retry-After": "10"}) from None

    def close(self) -> None:
        """Wait for running work and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


class Encodings:
    """A thread-safe cache of the most recently used encodings, by the hash of the image's file."""

    def __init__(self, limits: Limits) -> None:
        self._size, self._seconds = limits.encodings, limits.encoding_seconds
        self._kept: OrderedDict[str, tuple[float, Future[Encoding]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            self._drop_old()
            return len(self._kept)

    def find(self, tag: str) -> Encoding | None:
        """Return the encoding of an image, or None if it is not cached."""
        with self._lock:
            self._drop_old()
            future = self._refresh(tag)
        return None if future is None else future.result()

    def make(self, tag: str, encode: Callable[[], Encoding]) -> Encoding:
        """Return the encoding of an image; among threads that request it at the same time, one calls ``encode``."""
        fresh: Future[Encoding] = Future()
        with self._lock:
            self._drop_old()
            future = self._refresh(tag)
            if future is None:
                self._kept[tag] = time.monotonic(), fresh
                while len(self._kept) > self._size:
                    self._kept.popitem(last=False)
        if future is not None:
            return future.result()
        try:
            fresh.set_result(encode())
        except BaseException as error:
            with self._lock:
                self._kept.pop(tag, None)
            fresh.set_exception(error)
        return fresh.result()

    def _refresh(self, tag: str) -> Future[Encoding] | None:
        if tag not in self._kept:
            return None
        future = self._kept.pop(tag)[1]
        self._kept[tag] = time.monotonic(), future
        return future

    def _drop_old(self) -> None:
        oldest = time.monotonic() - self._seconds
        while self._kept and next(iter(self._kept.values()))[0] < oldest:
            self._kept.popitem(last=False)

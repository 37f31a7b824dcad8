"""Limits of a server: problems as responses, memory, waiting questions, workers, and encodings that are kept."""

from __future__ import annotations

import asyncio
import hashlib
import json
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from starlette.responses import Response

    from saywhere.models.encoding import Encoding


class Problem(Exception):
    """Refuse a request, by a status of HTTP and one line that names the value and the way out."""

    def __init__(self, status: int, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, " ".join(message.split()), headers

    def response(self) -> Response:
        """Return the answer: ``{"error": message}``."""
        from starlette.responses import Response  # not needed where no HTTP is spoken

        return Response(to_json({"error": self.message}), self.status, self.headers, "application/json")


def to_json(value: Any) -> bytes:
    """Return the JSON of a value in ASCII: names of files that are not UTF-8 are escaped, as in files of results."""
    return json.dumps(value, separators=(",", ":")).encode("ascii")


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
    """Share out bytes of memory, among threads."""

    def __init__(self, size: int) -> None:
        self._size, self._taken = size, 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Take bytes at once; ``Problem`` 429 if there are not so many left."""
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


T = TypeVar("T")


class Workers:
    """Run questions on ``limits.threads`` threads; ``limits.queue`` more may wait."""

    def __init__(self, limits: Limits) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, "saywhere")
        self._places = threading.BoundedSemaphore(limits.threads + limits.queue)
        self._seconds = limits.answer_seconds

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; an error in it is raised here.

        ``Problem`` 429 if the queue is full, 503 if the answer takes too long; work that has not begun is dropped.
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
        """Wait for what runs and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)


def tag_of(data: bytes) -> str:
    """Return the tag of an image: a hash of its bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


class Encodings:
    """Keep the encodings that were asked about last, by the tags of their images; for several threads."""

    def __init__(self, limits: Limits) -> None:
        self._size, self._seconds = limits.encodings, limits.encoding_seconds
        self._kept: OrderedDict[str, tuple[float, Future[Encoding]]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        with self._lock:
            self._drop_old()
            return len(self._kept)

    def find(self, tag: str) -> Encoding | None:
        """Return the encoding of an image, or None if it is not kept."""
        with self._lock:
            self._drop_old()
            future = self._refresh(tag)
        return None if future is None else future.result()

    def make(self, tag: str, encode: Callable[[], Encoding]) -> Encoding:
        """Return the encoding of an image; of several threads that want it at the same time one calls ``encode``."""
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

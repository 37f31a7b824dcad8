"""The threads that answer questions, and the queue before them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from saywhere.serve.limits import Limits, busy
from saywhere.serve.problems import Problem

T = TypeVar("T")


class Workers:
    """Run questions on ``limits.threads`` threads; ``limits.queue`` more may wait."""

    def __init__(self, limits: Limits) -> None:
        self._pool = ThreadPoolExecutor(limits.threads, "saywhere")
        self._places = threading.BoundedSemaphore(limits.threads + limits.queue)
        self._seconds = limits.answer_seconds

    async def run(self, work: Callable[[], T]) -> T:
        """Return what ``work`` returns; an error in it is raised here.

        Raises:
            Problem: 429 if the queue is full, 503 if the answer takes too long; work that has not begun is dropped.
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

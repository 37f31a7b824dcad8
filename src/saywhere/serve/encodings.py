"""Encoded images, kept for a while: the network runs once for several questions about an image."""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future

from saywhere.models.encoding import Encoding
from saywhere.serve.limits import Limits


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
        future = self._use(tag)
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

    def _use(self, tag: str) -> Future[Encoding] | None:
        with self._lock:
            self._drop_old()
            return self._refresh(tag)

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

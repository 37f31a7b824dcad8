"""Search in an index: the images that fit a text, and small copies of them to show."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from saywhere import archives
from saywhere.search.index import why_improbable
from saywhere.search.phrases import LIKELY
from saywhere.search.stores import Located
from saywhere.search.videos import open_found
from saywhere.serve.limits import Problem

if TYPE_CHECKING:
    from saywhere.search import Index

SIDE = 640
"""Pixels on the long side of the copies."""
File = io.BufferedReader | io.BytesIO
HASHES = 10_000
"""Files whose hashes are known for the next time."""
OPENING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""A pipe in place of the file does not make anybody wait."""


class Gallery:
    """Search an index and show what was found.

    Args:
        index: that is searched.
    """

    def __init__(self, index: Index) -> None:
        self.index = index
        self._hashes: dict[tuple[int, ...], bytes] = {}

    def search(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON form of the hits for ``values["q"]``, and why they probably do not show it, if so."""
        options = {name: values[name] for name in ("without", "after", "before", "under") if name in values}
        hits = self.index.search(values["q"], top=values.get("top", 10), **options)
        rows = [{"entry": hit.entry, **hit.to_dict()} for hit in hits]
        return {"query": values["q"], "hits": rows, "probably_not_there": why_improbable(hits), "unlikely": LIKELY}

    def small_copy(self, entry: str) -> bytes:
        """Return an image of the index, or the frame at a moment of a video that it has, made small, as a JPEG.

        Raises:
            Problem: 404 if the index does not have it, or its file is not any more what was indexed.
            UserError: its file cannot be read.
        """
        found = self.index.store.locate(entry)
        if found is None:
            raise Problem(404, f"the index has no entry {entry[:100]} (any more): search again")
        with self._opened(found) as file:
            pixels = open_found(found.path, found.time, SIDE, file).pixels
            pixels.thumbnail((SIDE, SIDE))
        stream = io.BytesIO()
        pixels.save(stream, "JPEG", quality=85)
        return stream.getvalue()

    @contextlib.contextmanager
    def _opened(self, found: Located) -> Iterator[File]:
        """The file of an entry, or what an archive has of it, as it was when it was indexed."""
        gone = f"{found.path[:200]} is gone, or not any more what was indexed: run saywhere index again"
        try:
            member = archives.read_member(found.path)
            opened = _open_file(found.path) if member is None else io.BytesIO(member)
        except (OSError, ValueError):
            raise Problem(404, gone) from None
        with opened as file:
            if not self._is_as_indexed(file, found):
                raise Problem(404, gone)
            yield file

    def _is_as_indexed(self, file: File, found: Located) -> bool:
        """Whether an opened file is the indexed one, or has the same content.

        By a link in the place of the file, or of a folder above it, somebody else's file could be shown, of which size
        and time prove nothing.
        """
        if isinstance(file, io.BytesIO):
            return hashlib.blake2b(file.getbuffer(), digest_size=16).digest() == found.stamp.hash
        now = os.fstat(file.fileno())
        if now.st_size != found.stamp.size:
            return False
        try:
            straight = os.path.realpath(found.path) == found.path and os.path.samestat(now, os.lstat(found.path))
        except OSError:
            straight = False
        if straight and now.st_mtime_ns == found.stamp.time:
            return True
        return self._hash(file, now) == found.stamp.hash

    def _hash(self, file: io.BufferedReader, now: os.stat_result) -> bytes:
        known = now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns
        digest = self._hashes.get(known)
        if digest is None:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()
            file.seek(0)
            if len(self._hashes) >= HASHES:
                self._hashes.clear()
            self._hashes[known] = digest
        return digest


def _open_file(path: str) -> io.BufferedReader:
    file = os.open(path, OPENING)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError("not a regular file")
    return os.fdopen(file, "rb")

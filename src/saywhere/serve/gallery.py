"""Search in an index: the images that fit a text, and small copies of them to show."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from saywhere.search.stamps import MARK, moment_name
from saywhere.search.videos import open_found
from saywhere.serve.problems import Problem

if TYPE_CHECKING:
    from saywhere.search import Index

SIDE = 640
"""Pixels on the long side of the copies."""


def search(index: Index, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON form of the hits for ``values["q"]``."""
    hits = index.search(values["q"], top=values.get("top", 10))
    return {"query": values["q"], "hits": [hit.to_dict() for hit in hits]}


def small_copy(index: Index, path: str, time: float | None = None) -> bytes:
    """Return an image of the index, or the frame at a moment of a video that it has, made small, as a JPEG.

    Raises:
        Problem: 404 if the index does not have it: no other file is shown.
        UserError: its file cannot be read any more.
    """
    moment = "" if time is None else f" at {time} seconds"
    name = path if time is None else moment_name(path, time)
    if MARK in path or name not in index.store:
        raise Problem(404, f"the index has no image {path[:200]}{moment}")
    pixels = open_found(path, time, SIDE).pixels
    pixels.thumbnail((SIDE, SIDE))
    stream = io.BytesIO()
    pixels.save(stream, "JPEG", quality=85)
    return stream.getvalue()

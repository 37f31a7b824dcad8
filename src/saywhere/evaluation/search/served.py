"""Whether a collection in Qdrant finds what an index finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from saywhere.configs.aligner import Score
from saywhere.errors import UserError
from saywhere.evaluation.search.metric import DEPTH, ask, score_texts
from saywhere.models.aligner import TextVectors
from saywhere.search.qdrant import Qdrant, masked
from saywhere.search.scan import best
from saywhere.search.stamps import Stamp
from saywhere.search.vectors import Snapshot

COLLECTION = "saywhere-evaluation"
SERVED = 200
"""Sentences at most that are looked for in a collection."""
TOGETHER = 100
"""Images that are handed over together."""


@dataclass(frozen=True)
class ServedResult:
    """Agreement of a collection with an index.

    Attributes:
        url: of the server.
        overlap: mean share of the ten best images that the collection finds as well.
        queries: that were compared.
    """

    url: str
    overlap: float
    queries: int


def compare(url: str, snapshot: Snapshot, texts: Sequence[TextVectors], score: Score) -> ServedResult:
    """Put the images of an index into a collection, look for texts in both, and remove the collection.

    Args:
        url: of a server, see :class:`saywhere.search.Qdrant`.
        snapshot: of the index, whose images all count; it is searched by whole vectors.
        texts: to be looked for, at least one.
        score: of a text and an image.

    Raises:
        UserError: the server does not answer, or an earlier evaluation has left its collection behind.
    """
    place, count = Qdrant(url, COLLECTION), snapshot.extent.entries
    if place.exists():
        raise UserError(f"{place}: is left from another evaluation; remove this collection")
    with place.open({"size": str(snapshot.extent.size), "digest": "", "model": ""}) as store:
        try:
            for start in range(0, count, TOGETHER):
                some = range(start, min(start + TOGETHER, count))
                store.put([(f"/{entry}", Stamp(0, 0), snapshot.load(entry, "")) for entry in some])
            shares: list[float] = []
            for text, exact in zip(texts, score_texts(snapshot, texts, score), strict=True):
                wanted = {f"/{entry}" for entry in best(exact, DEPTH).tolist()}
                found = {each.vectors.image for each in store.nearest(ask([text], score), DEPTH)}
                shares.append(len(wanted & found) / len(wanted))
        finally:
            place.delete()
    return ServedResult(masked(url), float(np.mean(shares)), len(shares))

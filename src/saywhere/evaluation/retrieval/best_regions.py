"""For each image the best region of each phrase, on disk: all that ranking the images needs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from saywhere.engines.engine import Decoder
from saywhere.evaluation.region_store import RegionStore
from saywhere.evaluation.retrieval.metric import Query
from saywhere.files import write_text
from saywhere.models.phrase_scores import encode_phrases, phrase_log_probs
from saywhere.text import Vocabulary

TOGETHER = 128
"""Regions of several images that are scored at once, at least."""


@dataclass(frozen=True)
class Asked:
    """Hold queries and the images they are put to.

    Attributes:
        queries: what is asked.
        names: the images, in order.
    """

    queries: tuple[Query, ...]
    names: tuple[str, ...]

    @property
    def phrases(self) -> tuple[str, ...]:
        """The different phrases of all queries, in their order."""
        return tuple(dict.fromkeys(phrase for query in self.queries for phrase in query.phrases))

    def digest(self) -> str:
        """Return a hash that tells whether scores on disk belong to these queries and images."""
        text = json.dumps([[asdict(query) for query in self.queries], self.names])
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


class BestRegions:
    """Hold for each image and phrase the log-probability of the best region, and its index, in a file.

    Rows of the file are images: P float32 log-probabilities, then P float32 indices; -inf and -1 for an image without
    regions. The scores of other queries are dropped.
    """

    def __init__(self, folder: Path, asked: Asked) -> None:
        self.asked, self._width = asked, len(asked.phrases)
        self._path = folder / "scores.bin"
        note, digest = folder / "scores.txt", asked.digest()
        if not (note.is_file() and self._path.is_file() and note.read_text() == digest):
            self._path.unlink(missing_ok=True)
            self._path.touch()
            write_text(note, digest)
        whole = self._path.stat().st_size // self._row * self._row
        with open(self._path, "ab") as file:
            file.truncate(whole)

    @property
    def _row(self) -> int:
        return 2 * 4 * self._width

    @property
    def done(self) -> int:
        """So many images, the first ones, have their scores."""
        return self._path.stat().st_size // self._row

    def append(self, log_probs: Sequence[np.ndarray]) -> None:
        """Add the next images, of each the table ``(R, P)`` of its regions."""
        rows = [part for table in log_probs for part in _best(table)]
        with open(self._path, "ab") as file:
            file.write(np.stack(rows).astype("<f4").tobytes())

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities ``(N, P)`` and indices ``(N, P)`` of the best regions of all images."""
        table = np.fromfile(self._path, dtype="<f4").reshape(-1, 2, self._width)
        return table[:, 0], table[:, 1].astype(np.int64)


def _best(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(table):
        return np.full(table.shape[1], -np.inf), np.full(table.shape[1], -1.0)
    return table.max(axis=0), table.argmax(axis=0)


def score_images(
    decoder: Decoder,
    vocabulary: Vocabulary,
    store: RegionStore,
    best: BestRegions,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Score each phrase against the regions of each image that is not yet in ``best``; ``advance`` after each.

    A few images' regions are scored together, by :func:`saywhere.models.phrase_scores.phrase_log_probs`.
    """
    token_ids = encode_phrases(vocabulary, best.asked.phrases)
    waiting: list[np.ndarray] = []
    names = best.asked.names[best.done :]
    for number, name in enumerate(names, 1):
        features = store.load(name).features
        assert features is not None
        waiting.append(features)
        counts = [len(features) for features in waiting]
        if sum(counts) >= TOGETHER or number == len(names):
            table = phrase_log_probs(decoder, np.concatenate(waiting), token_ids)
            best.append(np.split(table, np.cumsum(counts)[:-1]))
            waiting.clear()
            for _ in counts:
                advance()


def answers(
    asked: Asked, best: BestRegions, store: RegionStore
) -> tuple[np.ndarray, np.ndarray, list[int], np.ndarray]:
    """Return what :func:`saywhere.evaluation.retrieval.metric.evaluate_retrieval` takes."""
    log_probs, rows = best.tables()
    column = {phrase: number for number, phrase in enumerate(asked.phrases)}
    place = {name: number for number, name in enumerate(asked.names)}
    columns = np.array([[column[phrase] for phrase in query.phrases] for query in asked.queries])
    sources = [place[query.image] for query in asked.queries]
    found = np.stack(
        [_boxes(store, query.image, rows[s, c]) for query, s, c in zip(asked.queries, sources, columns, strict=True)]
    )
    truths = np.array([query.boxes for query in asked.queries], np.float32)
    return log_probs.T[columns], found, sources, truths


def _boxes(store: RegionStore, name: str, rows: np.ndarray) -> np.ndarray:
    """Return the boxes ``(K, 4)`` of regions ``rows (K,)`` of an image; those of no region have no area."""
    return np.concatenate((store.load(name).boxes, np.zeros((1, 4), np.float32)))[rows]

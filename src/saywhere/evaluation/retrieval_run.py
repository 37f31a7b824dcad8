"""Retrieval with a model and a data set, of which no more is in memory than the regions of a few pictures.

On disk are the regions of each picture with their codes, and for each picture the best region of each phrase; a run
that was stopped goes on from there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from saywhere.errors import UserError
from saywhere.evaluation.retrieval import Query
from saywhere.files import write_atomically, write_text
from saywhere.language.scoring import phrase_log_probs
from saywhere.models.phrase_scores import encode_phrases
from saywhere.regions import Regions

if TYPE_CHECKING:
    from saywhere.language.decoding import Speaker
    from saywhere.text import Vocabulary

REGIONS = "regions"
"""The folder with a file of each picture's regions."""

TOGETHER = 128
"""Regions of several pictures that are scored at once, at least."""


class RegionStore:
    """Boxes, sizes and codes of many pictures' regions, a file each below ``folder``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def _path(self, name: str) -> Path:
        digest = hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=16).hexdigest()
        return self.folder / f"{digest}.safetensors"

    def save(self, name: str, regions: Regions) -> None:
        """Keep the regions of the picture ``name``, which have features; the file is whole or not there."""
        parts = {
            "size": torch.tensor([regions.width, regions.height]),
            "boxes": regions.boxes.contiguous(),
            "codes": torch.as_tensor(regions.features, dtype=torch.float32).contiguous(),
        }
        if regions.scores is not None:
            parts["scores"] = regions.scores.contiguous()
        write_atomically(self._path(name), lambda stream: stream.write(save(parts)))

    def __contains__(self, name: str) -> bool:
        return self._path(name).is_file()

    def load(self, name: str) -> Regions:
        """The regions of a picture that is there, without captions."""
        path = self._path(name)
        try:
            parts = load_file(path)
        except SafetensorError as error:
            raise UserError(f"{path}: is damaged; remove it and run the same command again") from error
        width, height = parts["size"].tolist()
        return Regions(width, height, parts["boxes"], parts.get("scores"), features=parts["codes"], image=name)


@dataclass(frozen=True)
class Asked:
    """Queries and the pictures they are put to.

    Attributes:
        queries: what is asked.
        names: the pictures, in order.
        phrases: the different phrases of all queries.
    """

    queries: tuple[Query, ...]
    names: tuple[str, ...]

    @property
    def phrases(self) -> tuple[str, ...]:
        """The different phrases of all queries, in their order."""
        return tuple(dict.fromkeys(phrase for query in self.queries for phrase in query.phrases))

    def digest(self) -> str:
        """Tells whether scores on disk belong to these queries and pictures."""
        text = json.dumps([[asdict(query) for query in self.queries], self.names])
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


class BestRegions:
    """For each picture and phrase the log-probability of the best region, and its number, in a file on disk.

    Rows of the file are pictures: P float32 log-probabilities, then P float32 numbers; -inf and -1 for a picture
    without regions.
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
        """So many pictures, the first ones, have their scores."""
        return self._path.stat().st_size // self._row

    def append(self, log_probs: Sequence[Tensor]) -> None:
        """Add the next pictures, of each the table ``(R, P)`` of its regions."""
        rows = [part for table in log_probs for part in _best(table)]
        with open(self._path, "ab") as file:
            file.write(torch.stack(rows).numpy().astype("<f4").tobytes())

    def tables(self) -> tuple[Tensor, Tensor]:
        """Log-probabilities ``(N, P)`` and numbers ``(N, P)`` of the best regions of all pictures."""
        table: NDArray[np.float32] = np.fromfile(self._path, dtype="<f4").reshape(-1, 2, self._width)
        return torch.from_numpy(table[:, 0].copy()), torch.from_numpy(table[:, 1].astype(np.int64))


def _best(table: Tensor) -> tuple[Tensor, Tensor]:
    if not len(table):
        return torch.full((table.shape[1],), -torch.inf), torch.full((table.shape[1],), -1.0)
    best = table.float().max(dim=0)
    return best.values.cpu(), best.indices.float().cpu()


def score_pictures(
    speaker: Speaker,
    vocabulary: Vocabulary,
    store: RegionStore,
    best: BestRegions,
    device: torch.device,
    done: Callable[[], None] = lambda: None,
) -> None:
    """Score each phrase against the regions of each picture that is not yet in ``best``; ``done`` after each.

    A few pictures' regions are scored together, by :func:`phrase_log_probs`.
    """
    words = encode_phrases(vocabulary, best.asked.phrases)
    waiting: list[Tensor] = []
    names = best.asked.names[best.done :]
    for number, name in enumerate(names, 1):
        waiting.append(torch.as_tensor(store.load(name).features))
        counts = [len(codes) for codes in waiting]
        if sum(counts) >= TOGETHER or number == len(names):
            table = phrase_log_probs(speaker, torch.cat(waiting).to(device), words)
            best.append(list(table.split(counts)))
            waiting.clear()
            for _ in counts:
                done()


def answers(asked: Asked, best: BestRegions, store: RegionStore) -> tuple[Tensor, Tensor, list[int], Tensor]:
    """What :func:`saywhere.evaluation.retrieval.evaluate_retrieval` takes: of the pictures ``best`` knows."""
    log_probs, rows = best.tables()
    column = {phrase: number for number, phrase in enumerate(asked.phrases)}
    place = {name: number for number, name in enumerate(asked.names)}
    columns = torch.tensor([[column[phrase] for phrase in query.phrases] for query in asked.queries])
    sources = [place[query.picture] for query in asked.queries]
    found = torch.stack(
        [_boxes(store, query.picture, rows[s, c]) for query, s, c in zip(asked.queries, sources, columns, strict=True)]
    )
    truths = torch.tensor([query.boxes for query in asked.queries])
    return log_probs.T[columns], found, sources, truths


def _boxes(store: RegionStore, name: str, rows: Tensor) -> Tensor:
    """The boxes ``(K, 4)`` of regions ``rows (K,)`` of a picture; those of no region have no area."""
    boxes = torch.cat((store.load(name).boxes, torch.zeros(1, 4)))
    return boxes[rows]


def query_rows(queries: Sequence[Query], ranks: Sequence[int]) -> list[Mapping[str, object]]:
    """The queries and the ranks of their pictures, for ``queries.json``."""
    return [asdict(query) | {"rank": rank} for query, rank in zip(queries, ranks, strict=True)]

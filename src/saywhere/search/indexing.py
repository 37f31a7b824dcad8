"""One run over paths that brings an index up to date."""

from __future__ import annotations

import glob
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from saywhere.images import LoadedImage
from saywhere.inference import ImageResult, Source, find_images, run_images
from saywhere.models.grounding import ImageVectors
from saywhere.models.model import Model
from saywhere.search.store import WASTE, Stamp, Store


@dataclass
class Changes:
    """Count what a run did to an index.

    Attributes:
        added, updated, unchanged: images that were new, had changed, or were as before.
        removed: images that were forgotten because their files are gone.
        skipped: images that cannot be read, with the reasons; they are not in the index.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {name: value if isinstance(value, int) else len(value) for name, value in vars(self).items()}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items())


class Indexing:
    """Bring an index up to date with what is below some paths.

    Args:
        store: of the index.
        model: that embeds.
        paths: images, folders or patterns, see :func:`saywhere.inference.find_images`.
        regions: of an image beside the whole of it, instead of the model's own number.
        components: of the vectors' codes, see :meth:`saywhere.search.store.Store.encode`.

    Attributes:
        todo: images that have to be embedded.
        changes: so far.

    Raises:
        UserError: see :func:`saywhere.inference.find_images`.
    """

    def __init__(
        self, store: Store, model: Model, paths: Sequence[str | Path], regions: int | None = None,
        components: int | None = None,
    ) -> None:  # fmt: skip
        self._store, self._model, self._regions, self._components = store, model, regions, components
        self._known = store.stamps()
        self._stamps: dict[str, Stamp] = {}
        self._touched: dict[str, Stamp] = {}
        self.changes = Changes()
        found = {absolute(source.path): source for source in find_images(paths, [store.folder])}
        self.todo = [source for path, source in found.items() if not self._is_unchanged(path)]
        self.changes.unchanged = len(found) - len(self.todo)
        folders = tuple(os.path.join(folder, "") for folder in _folders(paths))
        missing = (path for path in self._known.keys() - found.keys() if path.startswith(folders))
        self._gone = sorted(path for path in missing if not os.path.lexists(path))

    def _is_unchanged(self, path: str) -> bool:
        try:
            status = os.stat(path)
        except OSError:
            return False  # whoever opens it says what is wrong
        now = self._stamps[path] = Stamp(status.st_size, status.st_mtime_ns)
        before = self._known.get(path)
        if before is None or not before.hash:
            return False
        if (before.size, before.time) == (now.size, now.time):
            return True
        if before.size == now.size and before.hash == _hash(path):
            self._touched[path] = Stamp(now.size, now.time, before.hash)
            return True
        return False

    def results(self, batch: int = 8) -> Iterator[ImageResult[bool]]:
        """Do it; yield for each image of :attr:`todo` whether it is new, or why it cannot be read.

        After each batch the index is committed: a run that is killed loses no more.
        """
        self._store.tidy()
        if self._touched:
            self._store.restamp(self._touched)
        self.changes.removed = self._store.remove(self._gone) if self._gone else 0
        waiting: list[tuple[Source, Stamp, ImageVectors]] = []
        for one in run_images(self._embed, self.todo, batch=batch, long_side=self._model.long_side):
            if one.result is None:
                self._skip(one)
                yield ImageResult(one.source, error=one.error)
                continue
            waiting.append((one.source, self._stamp(absolute(one.source.path)), one.result))
            if len(waiting) == batch:
                yield from self._keep(waiting)
                waiting = []
        yield from self._keep(waiting)
        self._store.compact(WASTE)
        self._store.encode(self._components)

    def _embed(self, images: list[LoadedImage], _: list[np.ndarray] | None) -> list[ImageVectors]:
        return self._model.embed(images, regions=self._regions)

    def _stamp(self, path: str) -> Stamp:
        """What the file was before it was read; with the hash of its content if it is so still."""
        before = self._stamps.get(path, Stamp(0, 0))
        try:
            digest, status = _hash(path), os.stat(path)
        except OSError:
            return before
        same = (before.size, before.time) == (status.st_size, status.st_mtime_ns)
        return Stamp(before.size, before.time, digest) if same else before

    def _keep(self, waiting: Sequence[tuple[Source, Stamp, ImageVectors]]) -> Iterator[ImageResult[bool]]:
        self._store.put([(absolute(source.path), stamp, vectors) for source, stamp, vectors in waiting])
        for source, _, _ in waiting:
            new = absolute(source.path) not in self._known
            self.changes.added += new
            self.changes.updated += not new
            yield ImageResult(source, new)

    def _skip(self, one: ImageResult[ImageVectors]) -> None:
        self.changes.skipped[one.source.name] = one.error or "cannot be read"
        if (path := absolute(one.source.path)) in self._known:
            self._store.remove([path])


def absolute(path: str | Path) -> str:
    """Return the path by which an index knows an image."""
    return os.path.abspath(path)


def _folders(paths: Sequence[str | Path]) -> list[str]:
    """The folders below which all images are meant: as given, or those that a pattern begins with."""
    found = []
    for path in map(str, paths):
        if os.path.isdir(path):
            found.append(absolute(path))
        elif glob.has_magic(path) and not os.path.lexists(path):
            parts = Path(path).parts
            first = next(number for number, part in enumerate(parts) if glob.has_magic(part))
            found.append(absolute(Path(*parts[:first])))
    return found


def _hash(path: str) -> bytes:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).digest()

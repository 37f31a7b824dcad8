"""A run over paths that updates an index."""

from __future__ import annotations

import functools
import glob
import hashlib
import io
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from PIL import Image, UnidentifiedImageError

from saywhere import archives
from saywhere.errors import UserError
from saywhere.files import content_hash
from saywhere.images import SUFFIXES as IMAGES
from saywhere.images import LoadedImage, open_image, opened, read_image
from saywhere.inference import ImageResult, Source, run_images
from saywhere.inference.sources import VIDEO_SUFFIXES as VIDEOS
from saywhere.inference.sources import NoImages, name_images, named_source, split_pattern
from saywhere.models.aligner import ImageVectors
from saywhere.models.model import Model, One
from saywhere.models.nouns import TABLE, pack_leaves
from saywhere.models.phrases import COLOUR_TABLE, colours_of_boxes, pack_colours
from saywhere.options import dataclass
from saywhere.report import counted
from saywhere.search.qdrant import QdrantStore
from saywhere.search.scan import VECTOR
from saywhere.search.store import Store
from saywhere.search.stores import Stamp, Video, moment_name
from saywhere.video import EVERY, Damage, check_duration, to_ticks

if TYPE_CHECKING:
    from saywhere.video.reading import VideoReader


def embed_for_index(model: Model, images: Sequence[One]) -> list[ImageVectors]:
    """Return the embeddings of images for an index; with a noun classifier, with the nouns and colours of regions."""
    if model.nouns is None:
        return model.embed(images)
    encodings = model.encode(list(images))
    found = model.embed(encodings)
    posteriors = model.nouns.posteriors(encodings, [image.boxes for image in found], thin=False)
    return [
        replace(image, nouns=pack_leaves(each), colours=pack_colours(colours_of_boxes(encoding, image.boxes)))
        for encoding, image, each in zip(encodings, found, posteriors, strict=True)
    ]


def index_digest(model: Model) -> str:
    """Return a hash of what an index depends on: the vectors and, with a noun classifier, the tables it uses."""
    digest = model.engine.vectors_digest()
    if model.nouns is None:
        return digest
    tables = TABLE.read_bytes() + COLOUR_TABLE.read_bytes()
    return f"{digest}-{hashlib.blake2b(tables, digest_size=4).hexdigest()}"


SAME = 0.93
"""A sampled frame is kept if its :func:`likeness` with the last kept one is below this (docs/search.md)."""
INDEXED = IMAGES | VIDEOS
"""Endings of files that an index takes."""
MISSING = "a video needs av, which is not installed: pip install 'saywhere[video]'"


class _Look(NamedTuple):
    ticks: int
    time: float
    image: LoadedImage


def likeness(vectors: np.ndarray, others: np.ndarray) -> float:
    """Return how similar a frame is to another: the mean over its regions of the cosine with the most similar region.

    ``vectors (R, D)`` are those of the frame, ``others (S, D)`` those of the other one.
    """
    lengths = np.linalg.norm(vectors, axis=1)[:, None] * np.linalg.norm(others, axis=1)
    return float((vectors @ others.T / np.maximum(lengths, 1e-9)).max(axis=1).mean())


def open_found(path: str, time: float | None, long_side: int, refuse_slow: bool = False) -> LoadedImage:
    """Open an image, or the frame of a video at ``time`` seconds.

    ``long_side`` is the number of pixels needed. With ``refuse_slow``, for a server, a large JPEG 2000 is refused,
    because decoding it would block all requests.

    Raises:
        UserError: the image or frame cannot be read, or no longer.
    """
    if time is None and refuse_slow:
        data = archives.read_member(path)
        return read_image(Path(path).read_bytes() if data is None else data, path, long_side, refuse_slow=True)
    if time is None:
        return open_image(path, long_side)
    try:
        from saywhere.video.reading import VideoReader
    except ModuleNotFoundError:
        raise UserError(f"{path}: {MISSING}") from None
    with VideoReader(path, path, start=max(0, to_ticks(time - 0.0005))) as reader:
        frame = next(iter(reader), None)
        if frame is None:
            raise UserError(f"{path}: has no frame at {time} seconds any more")
        return frame.image(long_side, path)


@dataclass
class Changes:
    """Counts of what a run did to an index.

    Attributes:
        added, updated, unchanged: numbers of new, changed and unchanged images and videos. Those that are embedded
            again because their vectors were damaged count as updated.
        removed: number of images and videos that were removed because their files are gone.
        skipped: files that cannot be read and are not in the index, with reasons.
        damaged: videos of which some could not be read, now or when they were indexed, with details.
    """

    added: int = 0
    updated: int = 0
    unchanged: int = 0
    removed: int = 0
    skipped: dict[str, str] = field(default_factory=dict)
    damaged: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        counts = {name: value if isinstance(value, int) else len(value) for name, value in vars(self).items()}
        return ", ".join(f"{count:,} {name}" for name, count in counts.items() if count or name != "damaged")


class Indexing:
    """Update an index with the images and videos below some paths.

    Args:
        paths: images, videos, folders, patterns, archives or lists, see :func:`saywhere.inference.find_images`. With
            sources found by that function, no image is removed.
        components: number of components of the codes, see :meth:`saywhere.search.store.Store.settle`.
        every: seconds between the sampled frames of a video, see :meth:`saywhere.Index.add`.

    Attributes:
        todo: images to embed, also those of other folders whose vectors were damaged.
        videos: videos to sample, from the beginning or further, likewise.
        gone: paths of images and videos that will be removed.
        emptied: folders and patterns that no longer have images, though the index has some of theirs.

    Raises:
        UserError: see :func:`saywhere.inference.find_images`.
    """

    def __init__(
        self, store: Store | QdrantStore, model: Model, paths: Sequence[str | Path] | Sequence[Source],
        components: int | None = None, every: float | None = None,
    ) -> None:  # fmt: skip
        self._store, self._model, self._components = store, model, components
        self._every = None if every is None else to_ticks(check_duration(every, "every"))
        self._looked = store.videos()
        given = [path for path in paths if not isinstance(path, Source)]
        self._lost = store.lost() if given else set[str]()
        self._known = dict.fromkeys(self._lost, Stamp(0, 0)) | store.stamps()
        self._known |= {path: self._stamp_of(video) for path, video in self._looked.items()}
        self._stamps: dict[str, Stamp] = {}
        self._touched: dict[str, Stamp] = {}
        self.changes = Changes()
        sources = {absolute(path.path): path for path in paths if isinstance(path, Source)}
        own = [] if store.folder is None else [store.folder]
        self.emptied: list[str] = []
        names = self._names(given, own)
        found = {**{path: source.name for path, source in sources.items()}, **{absolute(name): name for name in names}}
        folders = tuple(os.path.join(folder, "") for folder in _folders(given))
        missing = (path for path in self._known.keys() - found.keys() if path.startswith(folders))
        listed = {absolute(parts[0]) for name in found.values() if (parts := archives.split(name))}
        self.gone = sorted(path for path in missing if not _is_there(path, listed))
        found |= {path: path for path in sorted(self._lost.difference(found, self.gone))}
        changed = [path for path in found if not self._is_unchanged(path)]
        todo = [sources.get(path) or named_source(found[path]) for path in changed]
        self.todo = [source for source in todo if not source.is_video]
        self.videos = [source for source in todo if source.is_video]
        self.changes.unchanged = len(found) - len(todo)
        for path, video in self._looked.items():
            if path in found and path not in changed and (damage := Damage(*video.damage)):
                self.changes.damaged[found[path]] = str(damage)

    def _names(self, paths: Sequence[str | Path], own: Sequence[Path]) -> Iterable[str]:
        """Return the names of the images and videos below paths; paths without any go to :attr:`emptied`."""
        left = [*map(str, paths)]
        while True:
            try:
                return name_images(left, own, INDEXED)[0].values()
            except NoImages as error:
                below = tuple(os.path.join(folder, "") for folder in _folders([error.path]))
                if not any(path.startswith(below) and not _is_there(path, set()) for path in self._known):
                    raise
                self.emptied.append(error.path)
                left = [path for path in left if path != error.path]
            except UserError as error:
                for path in left:
                    below = os.path.join(absolute(path), "")
                    count = sum(known.startswith(below) for known in self._known)
                    if count and str(error).startswith(f"{path}: ") and not os.path.lexists(path):
                        way = f"give '{path}/*' to remove its {counted(count, 'file')} from the index"
                        raise UserError(f"{error}; {way}") from error
                raise

    def _stamp_of(self, video: Video) -> Stamp:
        """Return the stamp of a video, without its hash if the sampling interval has changed."""
        same = self._every in (None, video.every)
        return video.stamp if same else replace(video.stamp, hash=b"")

    def _is_unchanged(self, path: str) -> bool:
        try:
            now, before = _stamp(path), self._known.get(path)
            self._stamps[path] = now
            if before is None or not before.hash or before.size != now.size:
                return False
            if before.time == now.time:
                return True
            if before.hash == _hash(path):
                self._touched[path] = Stamp(now.size, now.time, before.hash, taken(path))
                return True
        except OSError:
            pass  # reported when the file is opened
        return False

    def results(self, batch: int = 8) -> Iterator[ImageResult[bool]]:
        """Run; yield for each image of :attr:`todo`, then for each of :attr:`videos`, whether it is new, or an error.

        The index is committed after each batch (of images or sampled frames), so a killed run loses no more than that.
        """
        self._forget_gone()
        waiting: list[tuple[Source, Stamp, ImageVectors]] = []
        for one in run_images(self._embed, self.todo, batch=batch, long_side=self._model.long_side):
            if one.result is None:
                self._skip(one.source.name, absolute(one.source.path), one.error)
                yield ImageResult(one.source, error=one.error)
                continue
            waiting.append((one.source, self._stamp(absolute(one.source.path)), one.result))
            if len(waiting) == batch:
                yield from self._keep(waiting)
                waiting = []
        yield from self._keep(waiting)
        for source in self.videos:
            yield self._look_through(source, batch)
        self._store.settle(self._components)

    def _look_through(self, source: Source, batch: int) -> ImageResult[bool]:
        path = absolute(source.path)
        before, now = self._looked.get(path), self._stamps.get(path, Stamp(0, 0))
        every = self._every or (before.every if before else to_ticks(EVERY))
        video = Video(path, now, every)
        if before is not None and replace(before, damage=video.damage, ticks=None, kept=None) == video:
            video = before  # continue where an earlier run was interrupted
        error, damage = self._add_video(video, source.name, batch)
        if error:
            self._skip(source.name, path, error)
            return ImageResult(source, error=error)
        if damage:
            self.changes.damaged[source.name] = damage
        new = path not in self._lost and (before is None or not before.stamp.hash)
        self.changes.added += new
        self.changes.updated += not new
        return ImageResult(source, new)

    def _add_video(self, video: Video, name: str, batch: int) -> tuple[str, str]:
        """Sample a video from the position in ``video``; from the beginning, it replaces what is in the index.

        Returns:
            the reason if nothing can be read, and a description of damaged parts; both empty if all went well.
        """
        try:
            from saywhere.video.reading import VideoError, VideoReader
        except ModuleNotFoundError:
            return MISSING, ""
        before = self._looked.get(video.path)
        try:
            with VideoReader(video.path, name, start=video.ticks or 0) as reader:
                if video.ticks is None and before is not None and before.ticks is not None:
                    self._store.remove([video.path])
                reader.damage = Damage(*video.damage)
                video = self._keep_looks(reader, video, batch)
                if video.ticks is None:
                    return "no frame could be read", ""
                self._store.put((), replace(video, stamp=self._stamp(video.path)))
                return "", str(reader.damage) if reader.damage else ""
        except VideoError as error:
            return str(error).removeprefix(f"{name}: "), ""

    def _keep_looks(self, reader: VideoReader, video: Video, batch: int) -> Video:
        """Keep the frames that show something new; commit the index after each batch."""
        kept = None if video.kept is None else self._store.load(moment_name(video.path, video.kept))
        last = None if kept is None else kept.vectors
        frames, side = reader.sampled(video.every, video.ticks), self._model.long_side
        while looks := [_Look(f.ticks, f.time, f.image(side, reader.name)) for f in islice(frames, batch)]:
            rows: list[tuple[str, Stamp, ImageVectors]] = []
            for look, seen in zip(looks, self._embed([look.image for look in looks], None), strict=True):
                if last is None or likeness(seen.vectors, last) < SAME:
                    rows.append((moment_name(video.path, look.time), Stamp(0, 0), seen))
                    last = seen.vectors.astype(VECTOR).astype(np.float32)  # rounded as in the index
                    video = replace(video, kept=look.time)
            video = replace(video, ticks=looks[-1].ticks, damage=reader.damage.facts)
            self._store.put(rows, video)
        return replace(video, damage=reader.damage.facts)

    def merge(self, stores: Iterable[Store], skipped: Mapping[str, str], batch: int = 500) -> None:
        """Run with the vectors of other stores instead of the model; images that they lack remain to be done.

        Args:
            stores: stores of parts of the same images, in the order of the index.
            skipped: images that could not be read for those stores, with reasons.
            batch: number of images per commit; a killed run leaves the rest in the stores.
        """
        self._forget_gone()
        todo = {absolute(source.path): source for source in self.todo}
        for store in stores:
            snapshot, stamps = store.snapshot(), store.stamps()
            entries = np.flatnonzero(snapshot.alive).tolist()
            for start in range(0, len(entries), batch):
                some = entries[start : start + batch]
                paths = store.look_up(snapshot, some) or ()  # also compares the checksums
                rows = [
                    (todo.pop(path), stamps[path], snapshot.load(entry, path))
                    for path, entry in zip(paths, some, strict=True) if path in todo
                ]  # fmt: skip
                for _ in self._keep(rows):
                    pass
        names = {source.name: path for path, source in todo.items()}
        for name, reason in skipped.items():
            if name in names:
                self._skip(name, names[name], reason)
        self._store.settle(self._components)

    def _forget_gone(self) -> None:
        self._store.tidy()
        if self._touched:
            self._store.restamp(self._touched)
        self.changes.removed = self._store.remove(self.gone) if self.gone else 0

    def _embed(self, images: list[LoadedImage], _: list[np.ndarray] | None) -> list[ImageVectors]:
        return embed_for_index(self._model, images)

    def _stamp(self, path: str) -> Stamp:
        """Return the stamp of a file before it was read; with its hash if the file has not changed since."""
        before = self._stamps.get(path, Stamp(0, 0))
        try:
            digest, when, now = _hash(path), taken(path), _stamp(path)
        except OSError:
            return before
        return replace(before, hash=digest, taken=when) if before == now else before

    def _keep(self, waiting: Sequence[tuple[Source, Stamp, ImageVectors]]) -> Iterator[ImageResult[bool]]:
        self._store.put([(absolute(source.path), stamp, vectors) for source, stamp, vectors in waiting])
        for source, _, _ in waiting:
            new = absolute(source.path) not in self._known
            self.changes.added += new
            self.changes.updated += not new
            yield ImageResult(source, new)

    def _skip(self, name: str, path: str, reason: str | None) -> None:
        self.changes.skipped[name] = reason or "cannot be read"
        if path in self._known and reason != MISSING:
            self._store.remove([path])


def absolute(path: str | Path) -> str:
    """Return the path under which an index stores an image."""
    return os.path.abspath(path)


def _folders(paths: Sequence[str | Path]) -> list[str]:
    """Return the folders and archives that paths cover completely: as given, or at the beginning of a pattern."""
    found = []
    for path in map(str, paths):
        if os.path.isdir(path) or archives.is_archive(path):
            found.append(absolute(path))
        elif glob.has_magic(path) and not os.path.lexists(path):
            found.append(absolute(split_pattern(path)[0]))
    return found


def _stamp(path: str) -> Stamp:
    """Return the current stamp of a file, or of an image in an archive, without the hash of its content."""
    try:
        status = os.stat(path)
        size = status.st_size
    except NotADirectoryError:
        parts = archives.split(path)
        if parts is None or parts[1] not in (members := archives.list_archive(parts[0]).members):
            raise
        size, status = members[parts[1]][1], os.stat(parts[0])
    return Stamp(size, min(max(status.st_mtime_ns, -LATEST - 1), LATEST))


LATEST = (1 << 63) - 1
"""Largest time in nanoseconds that an index can store (the year 2262); files can have later, wrong times."""
HASHES = 10_000
"""Number of hashes in the cache."""
EXIF, TAKEN, DIGITIZED = 0x8769, 36867, 36868
"""EXIF tags: the block of camera settings, and in it the times when a photograph was taken and scanned."""


def taken(path: str) -> str:
    """Return when a photograph was taken, as ``2024-05-01T12:30:00``: from EXIF, or else the file's time."""
    try:
        data = archives.read_member(path)
        source = Path(path) if data is None else io.BytesIO(data)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about corrupt EXIF
            try:
                with Image.open(source) as image:  # reads the EXIF of most RAW files, which that of their preview lacks
                    exif = image.getexif().get_ifd(EXIF)
            except UnidentifiedImageError:
                with opened(source, path) as image:
                    exif = image.getexif().get_ifd(EXIF)
        said = exif.get(TAKEN) or exif.get(DIGITIZED)
        return datetime.strptime(str(said).strip(" \0"), "%Y:%m:%d %H:%M:%S").isoformat()
    except Exception:  # a damaged EXIF block raises anything, while the pixels may be fine
        parts = archives.split(path)
        when = os.stat(path if parts is None else parts[0]).st_mtime
        try:
            return datetime.fromtimestamp(when).isoformat(timespec="seconds")
        except (ValueError, OverflowError, OSError):  # a year before 1 or after 9999
            return (datetime.max if when > 0 else datetime.min).isoformat(timespec="seconds")


def is_as_indexed(path: str, stamp: Stamp) -> bool:
    """Return whether a file is the indexed one, or has the same content; ``OSError`` if it cannot be read.

    If links lead to it, size and time are not sufficient: a link that has come since could expose another file.
    """
    now, real = _stamp(path), os.path.realpath(path)
    if now.size != stamp.size:
        return False
    return (real == path and now.time == stamp.time) or _known_hash(real, now) == stamp.hash


@functools.lru_cache(HASHES)
def _known_hash(path: str, _: Stamp) -> bytes:
    return _hash(path)


def _hash(path: str) -> bytes:
    data = archives.read_member(path)
    if data is not None:
        return content_hash(data)
    with open(path, "rb") as file:
        return content_hash(file)


def _is_there(path: str, listed: set[str]) -> bool:
    """Return whether a file exists, or the archive of an image does, unless the archive was just listed.

    A file in a folder without permission counts as existing.
    """
    parts = archives.split(path)
    if parts is not None and parts[0] not in listed:
        return True
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return False
    except OSError:
        pass
    return True

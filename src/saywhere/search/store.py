"""The embedded store of an index: vectors in flat files, and metadata of images in SQLite."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sqlite3
import threading
import urllib.parse
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from saywhere.errors import UserError
from saywhere.files import atomic_path
from saywhere.inference import claims
from saywhere.models.aligner import ImageVectors
from saywhere.search.scan import Extent, Question, Snapshot, append, compact, damage, nearest, unpack, write_at
from saywhere.search.stores import AFTER, MARK, Found, Located, Only, Stamp, Video, split_moment

PATIENCE = 60.0
"""Seconds that readers and the writer wait for each other; each locks the database for milliseconds."""
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (entry INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
    time INTEGER NOT NULL, hash BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE dead (entry INTEGER PRIMARY KEY);
CREATE TABLE videos (path BLOB PRIMARY KEY, size INTEGER NOT NULL, time INTEGER NOT NULL, hash BLOB NOT NULL,
    state TEXT NOT NULL);
CREATE TABLE dates (path BLOB PRIMARY KEY, taken TEXT NOT NULL);
CREATE TABLE lost (path BLOB PRIMARY KEY);
"""


class Database:
    """An open database for several threads; ``UserError`` if its file does not exist or cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.guard = threading.RLock()
        where = f"file:{urllib.parse.quote(os.fsencode(path.absolute()))}?mode=rw"
        with explained(path):
            self._connection: sqlite3.Connection | None = sqlite3.connect(
                where, PATIENCE, isolation_level=None, check_same_thread=False, uri=True
            )

    @contextlib.contextmanager
    def transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        """Yield the connection within a transaction: committed at the end, rolled back after an error."""
        connection = self._connection
        if connection is None:
            raise UserError(f"{self._path.parent}: the index was closed")
        with self.guard, explained(self._path):
            try:
                connection.execute(f"BEGIN {kind}")  # within try: Ctrl-C can come right after it
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def create(path: Path, facts: Mapping[str, str]) -> None:
    """Create a new database atomically."""
    with atomic_path(path) as part:
        part.unlink(missing_ok=True)
        with explained(path), contextlib.closing(sqlite3.connect(part)) as new, new:
            new.executescript(TABLES)
            new.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into errors for users."""
    try:
        yield
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        if "locked" in str(error):
            raise UserError(f"{path}: another program holds it; try again") from error
        raise UserError(f"{path}: cannot be used ({error})") from error
    except sqlite3.DatabaseError as error:
        way_out = f"remove {path.parent} and index the images again"
        raise UserError(f"{path}: is damaged ({error}); {way_out}") from error


SAMPLE = 40_000
"""Approximate number of vectors for fitting the basis: all vectors of randomly chosen images."""
BLOCK = 1 << 14
"""Number of vectors encoded at a time."""
LARGEST = 127


def fit_codes(snapshot: Snapshot, components: int) -> np.ndarray:
    """Return the basis ``(D, P)``: the principal directions of the vectors, scaled so that products fit into bytes."""
    images = np.flatnonzero(snapshot.alive)
    count = max(1, SAMPLE * snapshot.extent.entries // max(1, snapshot.extent.regions))
    if len(images) > count:
        images = np.sort(np.random.default_rng(0).choice(images, count, replace=False))
    snapshot.expect(images)
    parts = [snapshot.vectors[snapshot.rows(image)] for image in images.tolist()]
    sample = unpack(np.concatenate([snapshot.vectors[:0], *parts]))
    _, directions = np.linalg.eigh(sample.T @ sample)
    basis = directions[:, ::-1][:, :components]
    widest = np.abs(sample @ basis).max(axis=0, initial=0)
    return np.ascontiguousarray(basis * (LARGEST / np.maximum(widest, 1e-6)), np.float32)


def write_codes(folder: Path, snapshot: Snapshot, extent: Extent) -> Extent:
    """Write the codes of the images without any, and return the extent that includes them."""
    basis_file, codes_file = extent.code_files(folder)
    basis = np.fromfile(basis_file, "<f4").reshape(extent.size, extent.components)
    first = int(snapshot.starts[extent.coded])
    codes_sum = extent.codes_sum
    for start in range(first, extent.regions, BLOCK):
        values = unpack(snapshot.vectors[start : start + BLOCK]) @ basis
        codes = np.round(values).clip(-LARGEST, LARGEST).astype(np.int8)
        write_at(codes_file, start * extent.components, codes)
        codes_sum = zlib.crc32(codes.data, codes_sum)
    return replace(extent, coded=extent.entries, codes_sum=codes_sum)


VERSION = "5"
"""Version of the format; others are refused."""
DATABASE, LOCK = "index.sqlite", "lock"
STALE = 0.25
"""A new basis is fitted if the old one was fitted on less than this fraction of the images."""
WASTE = 0.3
"""Fraction of removed regions above which the files are rewritten."""
ATTEMPTS = 5
"""Number of attempts to open the files, or to search, while a writer keeps replacing them."""
ENTRY_NAME = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
"""Key of an entry in search results: the generation of the files, since compaction renumbers, and the number."""
EXTENT = tuple(field.name for field in fields(Extent))
FILE = "iif(instr(path, x'00'), substr(path, 1, instr(path, x'00') - 1), path)"
"""SQL expression for the file path of an entry; for a video frame that of the video."""


def _note_dates(db: sqlite3.Connection, stamps: Mapping[str, Stamp]) -> None:
    """Store when files were taken, where known."""
    rows = [(os.fsencode(path), stamp.taken) for path, stamp in stamps.items() if stamp.taken]
    db.executemany("INSERT OR REPLACE INTO dates VALUES (?, ?)", rows)


class Store:
    """Keep the vectors of images and video frames in a folder, and find the nearest ones.

    Images are named by their paths, frames by :func:`saywhere.search.stores.moment_name`.

    Only one process can write at a time. Readers continue meanwhile and see the last commit. What a killed run wrote
    after its last commit is ignored.

    Args:
        facts: what a new index is made for, such as the model and ``size`` of its vectors. None: the index must
            exist.

    Raises:
        UserError: there is no index, it has another version, or it is damaged.
    """

    def __init__(self, folder: Path, facts: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self._database = folder / DATABASE
        self._lock: int | None = None
        self._snapshot: Snapshot | None = None
        self._seen = -1
        self._checked: tuple[int, int, int] | None = None
        if not self._database.exists():
            if facts is None:
                raise UserError(f"{folder}: no index is here; make one: saywhere index PATH... --index {folder}")
            self._create(facts)
        self._open = Database(self._database)
        self.facts = self._read_facts()

    def _create(self, facts: Mapping[str, str]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.claim()
        if not self._database.exists():  # unless another run was faster
            create(self._database, {"version": VERSION, **dict.fromkeys(EXTENT, "0"), **facts})

    def _read_facts(self) -> dict[str, str]:
        with self._open.transaction("DEFERRED") as db:
            facts = dict(db.execute("SELECT name, value FROM facts"))
        if (version := facts.get("version")) != VERSION:
            way_out = "index into another folder"
            raise UserError(f"{self.folder}: has format {version}, and this program reads {VERSION}; {way_out}")
        return facts

    def _extent(self, db: sqlite3.Connection) -> Extent:
        facts = dict(db.execute("SELECT name, value FROM facts"))
        return Extent(*(int(facts[name]) for name in EXTENT))

    # Reading

    def snapshot(self) -> Snapshot:
        """Return the current contents of the index; the same object if nothing has been written.

        ``UserError`` if a file is damaged or missing.
        """
        missing = ""
        with self._open.guard:
            for _ in range(ATTEMPTS):
                with self._open.transaction("DEFERRED") as db:
                    (seen,) = db.execute("PRAGMA data_version").fetchone()
                    if self._snapshot is not None and seen == self._seen:
                        return self._snapshot
                    extent = self._extent(db)
                    dead = [entry for (entry,) in db.execute("SELECT entry FROM dead")]
                try:
                    self._snapshot, self._seen = Snapshot.open(self.folder, extent, dead), seen
                    return self._snapshot
                except FileNotFoundError as error:  # missing, or just replaced by compaction
                    missing = str(error.filename)
        raise UserError(damage(Path(missing), "it is missing"))

    def __len__(self) -> int:
        with self._open.transaction("DEFERRED") as db:
            return int(db.execute("SELECT COUNT(*) FROM images").fetchone()[0])

    def look_up(self, snapshot: Snapshot, entries: Sequence[int]) -> list[str] | None:
        """Return the paths of entries of a snapshot; None if one has been removed or moved since.

        ``UserError`` if the data of one differ from what was written.
        """
        query = "SELECT path, checksum FROM images WHERE entry = ?"
        with self._open.transaction("DEFERRED") as db:
            rows = [db.execute(query, (entry,)).fetchone() for entry in entries]
            if self._extent(db).generation != snapshot.extent.generation or None in rows:
                return None
        for entry, (_, known) in zip(entries, rows, strict=True):
            if snapshot.checksum(entry) != known:
                raise UserError(damage(list(snapshot.extent.files(self.folder))[2], "a checksum differs"))
        return [os.fsdecode(path) for path, _ in rows]

    def find(self, path: str) -> int | None:
        """Return the entry of an image; None if it is not in the index."""
        with self._open.transaction("DEFERRED") as db:
            row = db.execute("SELECT entry FROM images WHERE path = ?", (os.fsencode(path),)).fetchone()
        return None if row is None else int(row[0])

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def load(self, name: str) -> ImageVectors | None:
        """Return an image or frame as it was embedded; None if it is not in the index."""
        entry = self.find(name)
        return None if entry is None else self.snapshot().load(entry, split_moment(name)[0])

    def locate(self, entry: str) -> Located | None:
        """Return what an entry of a search result is; None if it does not exist, or no longer."""
        if not (parts := ENTRY_NAME.fullmatch(entry)):
            return None
        with self._open.transaction("DEFERRED") as db:
            row = db.execute("SELECT path, size, time, hash FROM images WHERE entry = ?", (int(parts[2]),)).fetchone()
            if row is None or self._extent(db).generation != int(parts[1]):
                return None
            path, time = split_moment(os.fsdecode(row[0]))
            if time is not None:
                query = "SELECT path, size, time, hash FROM videos WHERE path = ?"
                row = db.execute(query, (os.fsencode(path),)).fetchone()
        return None if row is None else Located(path, time, Stamp(*row[1:]))

    def nearest(
        self, question: Question, top: int, *, exact: bool = False, threads: int = 1, only: Only | None = None
    ) -> list[Found]:
        """Return the best images for one query, best first.

        ``exact`` ignores the codes. ``only`` restricts the searched images; None: all.
        """
        for _ in range(ATTEMPTS):
            snapshot = self._narrowed(only) if only else self.snapshot()
            if not exact:
                self._check_codes(snapshot)
            best = nearest(snapshot, question, top, exact=exact, threads=threads)
            names = self.look_up(snapshot, best.entries.tolist())
            if names is not None:
                rows = zip(best.entries.tolist(), map(split_moment, names), best.values.tolist(), best.leads.tolist(),
                           strict=True)  # fmt: skip
                made, among = snapshot.extent.generation, len(snapshot)
                return [
                    Found(value, snapshot.load(entry, path), time, f"{made}-{entry}", lead, among)
                    for entry, (path, time), value, lead in rows
                ]
        raise UserError(f"{self.folder}: the index changes faster than it can be searched; try again")

    def _narrowed(self, only: Only) -> Snapshot:
        """Return the snapshot with only the selected images alive."""
        snapshot = self.snapshot()
        needles = list(map(os.fsencode, only.needles))
        places = ["instr(path, ?) = 1" if os.path.isabs(part) else "instr(path, ?) > 0" for part in only.under]
        clauses, values = [f"({' OR '.join(places)})"] if places else [], list[Any](needles)
        with self._open.transaction("DEFERRED") as db:
            for day, sign in ((only.after, ">="), (only.before, "<")):
                if day:
                    clauses.append(f"{FILE} IN (SELECT path FROM dates WHERE taken {sign} ?)")
                    values.append(day)
            rows = db.execute(f"SELECT entry FROM images WHERE {' AND '.join(clauses)}", values).fetchall()
        among = np.zeros(len(snapshot.alive), bool)
        among[[entry for (entry,) in rows if entry < len(among)]] = True
        return replace(snapshot, alive=snapshot.alive & among)

    def _check_codes(self, snapshot: Snapshot) -> None:
        """Call :meth:`Snapshot.check_codes` once per state of the codes."""
        codes = (snapshot.extent.generation, snapshot.extent.coding, snapshot.extent.coded)
        if codes != self._checked:
            snapshot.check_codes(self.folder)
            self._checked = codes

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamps of all images by path, without video frames."""
        query = "SELECT path, size, time, hash, coalesce(taken, '') FROM images LEFT JOIN dates USING (path)"
        with self._open.transaction("DEFERRED") as db:
            rows = db.execute(f"{query} WHERE instr(path, ?) = 0", (MARK.encode(),)).fetchall()
        return {os.fsdecode(path): Stamp(*stamp) for path, *stamp in rows}

    def videos(self) -> dict[str, Video]:
        """Return the videos by path."""
        query = "SELECT path, size, time, hash, state, taken FROM videos LEFT JOIN dates USING (path)"
        with self._open.transaction("DEFERRED") as db:
            rows = db.execute(query).fetchall()
        videos = (
            Video(os.fsdecode(path), Stamp(size, time, digest, taken or ""), **json.loads(state))
            for path, size, time, digest, state, taken in rows
        )
        return {video.path: video for video in videos}

    # Writing

    def claim(self) -> None:
        """Become the only writer, until :meth:`release`; ``UserError`` if there is another."""
        if self._lock is not None:
            return
        lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        locked = claims.lock(lock)
        if not locked:
            os.close(lock)
            other = "another run is writing to this index; wait for its end, or stop it if it watches"
            none = "this file system has no locks (flock), without which an index may be damaged; put it elsewhere"
            raise UserError(f"{self.folder}: {none if locked is None else other}")
        self._lock = lock

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self.claim()
        self._snapshot = None
        with self._open.transaction() as db:
            yield db

    def put(self, images: Sequence[tuple[str, Stamp, ImageVectors]], video: Video | None = None) -> None:
        """Add images, or replace those of the same name, in one transaction.

        Args:
            images: images with their paths or :func:`saywhere.search.stores.moment_name`.
            video: progress through the video of the images.

        Raises:
            OSError: for example a full disk; the index is unchanged.
        """
        if not images and video is None:
            return
        with self._writing() as db:
            if images:
                self._add(db, images)
            if video is not None:
                row = (os.fsencode(video.path), video.stamp.size, video.stamp.time, video.stamp.hash, video.state)
                db.execute("INSERT OR REPLACE INTO videos VALUES (?, ?, ?, ?, ?)", row)
                _note_dates(db, {video.path: video.stamp})
                if video.stamp.hash:
                    db.execute("DELETE FROM lost WHERE path = ?", (os.fsencode(video.path),))

    def _add(self, db: sqlite3.Connection, images: Sequence[tuple[str, Stamp, ImageVectors]]) -> None:
        before = self._extent(db)
        extent, sums = append(self.folder, before, [vectors for _, _, vectors in images])
        self._forget(db, [path for path, _, _ in images])
        rows = [
            (before.entries + i, os.fsencode(path), stamp.size, stamp.time, stamp.hash, sums[i])
            for i, (path, stamp, _) in enumerate(images)
        ]
        db.executemany("INSERT INTO images VALUES (?, ?, ?, ?, ?, ?)", rows)
        _note_dates(db, {path: stamp for path, stamp, _ in images})
        self._set_extent(db, extent)

    def remove(self, paths: Iterable[str]) -> int:
        """Remove images, and videos with all their frames; return how many of the paths existed."""
        with self._writing() as db:
            return self._forget(db, paths)

    def restamp(self, stamps: Mapping[str, Stamp]) -> None:
        """Update the stamps of images and videos with unchanged content."""
        with self._writing() as db:
            rows = [(stamp.size, stamp.time, stamp.hash, os.fsencode(path)) for path, stamp in stamps.items()]
            for table in ("images", "videos"):
                db.executemany(f"UPDATE {table} SET size = ?, time = ?, hash = ? WHERE path = ?", rows)
            _note_dates(db, stamps)

    def _forget(self, db: sqlite3.Connection, paths: Iterable[str]) -> int:
        count = 0
        for path in map(os.fsencode, paths):
            query = "DELETE FROM images WHERE path >= ? AND path < ? RETURNING entry"
            found = db.execute(query, (path, path + AFTER)).fetchall()
            db.executemany("INSERT INTO dead VALUES (?)", found)
            video = db.execute("DELETE FROM videos WHERE path = ?", (path,)).rowcount
            lost = db.execute("DELETE FROM lost WHERE path = ?", (path,)).rowcount
            db.execute("DELETE FROM dates WHERE path = ?", (path,))
            count += bool(found or video or lost)
        return count

    def _set_extent(self, db: sqlite3.Connection, extent: Extent) -> None:
        db.executemany("REPLACE INTO facts VALUES (?, ?)", [(name, str(getattr(extent, name))) for name in EXTENT])

    def encode(self, components: int | None = None) -> None:
        """Update the codes of the vectors, by which a search selects candidates.

        ``components`` is their length; 0: no codes; None: unchanged.
        """
        self.claim()
        snapshot = self.snapshot()
        extent = snapshot.extent
        wanted = extent.components if components is None else min(components, extent.size)
        if wanted != extent.components or (wanted and extent.fitted < STALE * extent.entries):
            basis = fit_codes(snapshot, wanted) if wanted else np.zeros(0, np.float32)
            new = {"coded": 0, "coding": extent.coding + 1, "basis_sum": zlib.crc32(basis.data), "codes_sum": 0}
            extent = replace(extent, components=wanted, fitted=extent.entries, **new)
            if wanted:
                write_at(extent.code_files(self.folder)[0], 0, basis)
        if wanted and extent.coded < extent.entries:
            if extent.coded:
                snapshot.check_codes(self.folder, basis_alone=True)
            extent = write_codes(self.folder, snapshot, extent)
        if extent != snapshot.extent:
            with self._writing() as db:
                self._set_extent(db, extent)
            self.tidy()

    def settle(self, components: int | None = None) -> None:
        """Rewrite files with many removed regions, and update the codes, see :meth:`encode`."""
        self.compact(WASTE)
        self.encode(components)

    def repair(self) -> int:
        """Remove damaged vectors, and note their images and videos as :meth:`lost`; return how many there are."""
        videos = self.videos()
        with self._writing() as db:
            extent = self._extent(db)
            self._set_extent(db, replace(extent, coded=0, fitted=0))  # discards the codes
            for path, size in extent.files(self.folder).items():
                with open(path, "ab") as stream:
                    if stream.tell() < size:
                        stream.truncate(size)
        try:
            snapshot = self.snapshot()
        except UserError:  # regions can no longer be assigned to images
            snapshot = None
        with self._writing() as db:
            known = db.execute("SELECT entry, path, checksum FROM images").fetchall()
            names = (os.fsdecode(path) for entry, path, total in known
                     if snapshot is None or snapshot.checksum(entry) != total)  # fmt: skip
            lost = {split_moment(name)[0] for name in names}
            self._lose(db, lost, [video for path, video in videos.items() if path in lost])
            if snapshot is None:
                extent = self._extent(db)
                self._set_extent(db, replace(extent, generation=extent.generation + 1, entries=0, regions=0))
                db.execute("DELETE FROM dead")
        self.compact()
        self.tidy()
        return len(lost)

    def _lose(self, db: sqlite3.Connection, paths: Iterable[str], videos: Iterable[Video]) -> None:
        """Remove images and videos, and note their paths, and the intervals at which the videos were sampled."""
        self._forget(db, paths)
        db.executemany("INSERT INTO lost VALUES (?)", [(os.fsencode(path),) for path in paths])
        rows = [
            (os.fsencode(one.path), one.stamp.size, one.stamp.time, b"", Video(one.path, one.stamp, one.every).state)
            for one in videos
        ]
        db.executemany("INSERT INTO videos VALUES (?, ?, ?, ?, ?)", rows)

    def lost(self) -> set[str]:
        """Return the paths of images and videos whose vectors were damaged, until they are embedded again."""
        with self._writing() as db:
            return {os.fsdecode(path) for (path,) in db.execute("SELECT path FROM lost")}

    def compact(self, waste: float = 0.0) -> bool:
        """Rewrite the files if more than this fraction of the regions is removed; return whether it did."""
        self.claim()
        snapshot = self.snapshot()
        dead = ~snapshot.alive
        if not dead.any() or snapshot.entries["count"][dead].sum() <= waste * snapshot.extent.regions:
            return False
        extent, kept = compact(self.folder, snapshot)
        with self._writing() as db:
            db.executemany("UPDATE images SET entry = ? WHERE entry = ?", enumerate(kept.tolist()))
            db.execute("DELETE FROM dead")
            self._set_extent(db, extent)
        self.tidy()
        return True

    def tidy(self) -> None:
        """Delete unused files: those of killed runs, and those from before the last compaction."""
        self.claim()
        with self._open.transaction("DEFERRED") as db:
            extent = self._extent(db)
        known = {*extent.files(self.folder), *extent.code_files(self.folder)}
        for path in self.folder.glob("*-*.bin"):
            if path not in known:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the files; the store cannot be used afterwards."""
        self._open.close()
        self._snapshot = None
        self.release()

    def release(self) -> None:
        """Let other processes write, until this store writes again."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

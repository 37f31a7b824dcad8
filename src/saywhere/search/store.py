"""The embedded store of an index: vectors in flat files, and SQLite for what is known of the images."""

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
"""Seconds that a reader and the writer wait for each other; each holds the database for milliseconds."""
TABLES = """
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE images (entry INTEGER PRIMARY KEY, path BLOB NOT NULL UNIQUE, size INTEGER NOT NULL,
    time INTEGER NOT NULL, hash BLOB NOT NULL, checksum INTEGER NOT NULL);
CREATE TABLE dead (entry INTEGER PRIMARY KEY);
CREATE TABLE videos (path BLOB PRIMARY KEY, size INTEGER NOT NULL, time INTEGER NOT NULL, hash BLOB NOT NULL,
    state TEXT NOT NULL);
CREATE TABLE dates (path BLOB PRIMARY KEY, taken TEXT NOT NULL);
"""


class Database:
    """An open database, for several threads; ``UserError`` if its file, which must exist, cannot be used."""

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
        """Yield the database; what is done with it counts at the end, all or nothing."""
        connection = self._connection
        if connection is None:
            raise UserError(f"{self._path.parent}: the index was closed")
        with self.guard, explained(self._path):
            try:
                connection.execute(f"BEGIN {kind}")  # in here: Ctrl-C may come as soon as it has begun
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Let go of the file."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def create(path: Path, facts: Mapping[str, str]) -> None:
    """Write a new database, whole or not at all."""
    with atomic_path(path) as part:
        part.unlink(missing_ok=True)
        with explained(path), contextlib.closing(sqlite3.connect(part)) as new, new:
            new.executescript(TABLES)
            new.executemany("INSERT INTO facts VALUES (?, ?)", facts.items())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn SQLite's errors into those that a user knows."""
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
"""Vectors, about, on which the basis is found: all of images that are chosen at random."""
BLOCK = 1 << 14
"""Vectors that are encoded together."""
LARGEST = 127


def fit_codes(snapshot: Snapshot, components: int) -> np.ndarray:
    """Return the basis ``(D, P)``: the vectors' principal directions, as long as bytes can hold their products."""
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
    """Write the codes of the images that have none, and return the extent with them."""
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


VERSION = "4"
"""Version of the format; others are refused."""
DATABASE, LOCK = "index.sqlite", "lock"
STALE = 0.25
"""A new basis is computed where the old one was computed from less than this share of the images."""
WASTE = 0.3
"""Share of forgotten regions from which on the files are written anew."""
ATTEMPTS = 5
"""How often the files are looked for, or a search begins anew, because the writer has changed the files meanwhile."""
ENTRY_NAME = re.compile(r"(\d{1,18})-(\d{1,18})", re.ASCII)
"""How a search names entries: the generation of the files, since a compaction gives other numbers, and the number."""
EXTENT = tuple(field.name for field in fields(Extent))
FILE = "iif(instr(path, x'00'), substr(path, 1, instr(path, x'00') - 1), path)"
"""The path of the file of an entry: of a moment that of its video."""


def _note_dates(db: sqlite3.Connection, stamps: Mapping[str, Stamp]) -> None:
    """Note when files were taken, where that is known."""
    rows = [(os.fsencode(path), stamp.taken) for path, stamp in stamps.items() if stamp.taken]
    db.executemany("INSERT OR REPLACE INTO dates VALUES (?, ?)", rows)


class Store:
    """Keep the vectors of images and of moments of videos in a folder, and find the nearest ones.

    Images are named by their paths, moments by :func:`saywhere.search.stores.moment_name`.

    Writing is for one process at a time; readers go on meanwhile, and see what was last committed. What a killed run
    has written since its last commit does not count.

    Args:
        facts: what a new index is made for, such as the model and ``size`` of its vectors. If None, the index must
            exist.

    Raises:
        UserError: there is no index, or it is of another version, or damaged.
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
        self._claim()
        if not self._database.exists():  # no other run was faster
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
        """Return what the index holds now; the same object as before if nothing was written.

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
                except FileNotFoundError as error:  # or the files were written anew since
                    missing = str(error.filename)
        raise UserError(damage(Path(missing), "it is missing"))

    def __len__(self) -> int:
        with self._open.transaction("DEFERRED") as db:
            return int(db.execute("SELECT COUNT(*) FROM images").fetchone()[0])

    def look_up(self, snapshot: Snapshot, entries: Sequence[int]) -> list[str] | None:
        """Return the paths of entries of a snapshot; None if one of them has been forgotten or moved since.

        ``UserError`` if the vectors of one of them are not those that were written.
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
        """Return the entry of an image."""
        with self._open.transaction("DEFERRED") as db:
            row = db.execute("SELECT entry FROM images WHERE path = ?", (os.fsencode(path),)).fetchone()
        return None if row is None else int(row[0])

    def __contains__(self, name: str) -> bool:
        return self.find(name) is not None

    def load(self, name: str) -> ImageVectors | None:
        """Return an image, or a moment, as it was embedded; None if it is not in the index."""
        entry = self.find(name)
        return None if entry is None else self.snapshot().load(entry, split_moment(name)[0])

    def locate(self, entry: str) -> Located | None:
        """Return what an entry is, by the name that a search gave it; None if there is none, or not any more."""
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
        """Return the images that fit one query best, best first.

        ``exact`` does not use the codes; ``only`` says which images are searched, all if None.
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
        """The contents of the index of which only some images are alive."""
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
        """Call :meth:`Snapshot.check_codes`, but only once for each state of the codes."""
        codes = (snapshot.extent.generation, snapshot.extent.coding, snapshot.extent.coded)
        if codes != self._checked:
            snapshot.check_codes(self.folder)
            self._checked = codes

    def stamps(self) -> dict[str, Stamp]:
        """Return the stamp of every image, by its path; moments of videos have none."""
        query = "SELECT path, size, time, hash, coalesce(taken, '') FROM images LEFT JOIN dates USING (path)"
        with self._open.transaction("DEFERRED") as db:
            rows = db.execute(f"{query} WHERE instr(path, ?) = 0", (MARK.encode(),)).fetchall()
        return {os.fsdecode(path): Stamp(*stamp) for path, *stamp in rows}

    def videos(self) -> dict[str, Video]:
        """Return the videos, by their paths."""
        query = "SELECT path, size, time, hash, state, taken FROM videos LEFT JOIN dates USING (path)"
        with self._open.transaction("DEFERRED") as db:
            rows = db.execute(query).fetchall()
        videos = (
            Video(os.fsdecode(path), Stamp(size, time, digest, taken or ""), **json.loads(state))
            for path, size, time, digest, state, taken in rows
        )
        return {video.path: video for video in videos}

    # Writing

    def _claim(self) -> None:
        """Become the one process that writes; ``UserError`` if there is another."""
        if self._lock is not None:
            return
        lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        locked = claims.lock(lock)
        if not locked:
            os.close(lock)
            other = "another run is writing to this index; wait for its end"
            none = "this file system has no locks (flock), without which an index may be damaged; put it elsewhere"
            raise UserError(f"{self.folder}: {none if locked is None else other}")
        self._lock = lock

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        self._claim()
        self._snapshot = None
        with self._open.transaction() as db:
            yield db

    def put(self, images: Sequence[tuple[str, Stamp, ImageVectors]], video: Video | None = None) -> None:
        """Add images, in place of those of the same path; all or, after an error, none of them.

        Args:
            images: with their paths, or :func:`saywhere.search.stores.moment_name`.
            video: that the images are of, as far as it was looked through.

        Raises:
            OSError: such as a full disk; the index is as it was.
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
        """Forget images, and videos with all their moments; return how many of the paths were there."""
        with self._writing() as db:
            return self._forget(db, paths)

    def restamp(self, stamps: Mapping[str, Stamp]) -> None:
        """Note the stamps of images and videos whose content is as it was."""
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
            db.execute("DELETE FROM dates WHERE path = ?", (path,))
            count += bool(found or video)
        return count

    def _set_extent(self, db: sqlite3.Connection, extent: Extent) -> None:
        db.executemany("REPLACE INTO facts VALUES (?, ?)", [(name, str(getattr(extent, name))) for name in EXTENT])

    def encode(self, components: int | None = None) -> None:
        """Bring the codes of the vectors up to date, by which a search finds its candidates.

        They have so many components; 0 for no codes, as it was if None.
        """
        self._claim()
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
        """Write files anew of which much is forgotten, and bring the codes up to date, see :meth:`encode`."""
        self.compact(WASTE)
        self.encode(components)

    def repair(self) -> int:
        """Forget the images and videos whose vectors are damaged; return how many. They are new to the next run."""
        with self._writing() as db:
            extent = self._extent(db)
            self._set_extent(db, replace(extent, coded=0, fitted=0))  # the codes are made anew
            for path, size in extent.files(self.folder).items():
                with open(path, "ab") as stream:
                    if stream.tell() < size:
                        stream.truncate(size)
        try:
            snapshot = self.snapshot()
        except UserError:  # it is not known any more whose regions are whose
            return self._reset()
        with self._writing() as db:
            known = db.execute("SELECT entry, path, checksum FROM images").fetchall()
            names = (os.fsdecode(path) for entry, path, total in known if snapshot.checksum(entry) != total)
            lost = {split_moment(name)[0] for name in names}
            self._forget(db, lost)
        self.compact()
        return len(lost)

    def _reset(self) -> int:
        with self._writing() as db:
            extent = self._extent(db)
            self._set_extent(db, replace(extent, generation=extent.generation + 1, entries=0, regions=0))
            db.execute("DELETE FROM dead")
            db.execute("DELETE FROM videos")
            db.execute("DELETE FROM dates")
            count = db.execute("DELETE FROM images").rowcount
        self.tidy()
        return count

    def compact(self, waste: float = 0.0) -> bool:
        """Write the files anew if more than this share of the regions is forgotten; return whether it was done."""
        self._claim()
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
        """Remove files that no longer count: of killed runs, and from before the last compaction."""
        self._claim()
        with self._open.transaction("DEFERRED") as db:
            extent = self._extent(db)
        known = {*extent.files(self.folder), *extent.code_files(self.folder)}
        for path in self.folder.glob("*-*.bin"):
            if path not in known:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the files; a closed store cannot be used any more."""
        self._open.close()
        self._snapshot = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

"""Images in tar archives, such as those of webdataset, read in place without unpacking."""

from __future__ import annotations

import functools
import os
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from saywhere.files import TAR
from saywhere.options import dataclass

BLOCK = tarfile.BLOCKSIZE
"""Size of a header in bytes."""
TYPE, MARK = 156, 257
"""Offsets of a header's type and of its magic number."""
OLD_GNU = b"ustar  \0"
"""Magic number of GNU tar's headers, which use the field for the prefix of a long name differently from POSIX."""
LINKS = 40
"""Maximum number of links followed in a chain, as in Linux."""
OPEN = 64
"""Number of archive listings in the cache."""
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of headers whose data describe the next member."""
MOST_EXTENSION = 1 << 20
"""Maximum size of such data in bytes; they are names, times and attributes, so more is damage."""


@dataclass(frozen=True)
class Listing:
    """Contents of an archive.

    Attributes:
        members: byte offset and size of each file; a link has those of its target. Hidden files are left out. Files
            outside the folder that unpacking would fill are left out as damage.
        broken: target of each link that leads to no file of the archive.
        damage: description of the archive's damage, else empty. Readable members are listed all the same.
    """

    members: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    damage: str = ""


def list_archive(path: str | Path) -> Listing:
    """Return the contents of an archive, read again if the file has changed; ``OSError`` if it cannot be read."""
    status = os.stat(path)
    return _listing(os.path.abspath(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(OPEN)
def _listing(path: str, size: int, time: int) -> Listing:
    """Return the listing of a file; size and time are part of the cache key, so that a changed file is read again."""
    found: dict[str, tuple[int, int] | str] = {}
    damage = _Damage()
    with open(path, "rb") as file:
        if not _begins_with_a_header(file):
            return Listing(damage="not a tar archive (compressed ones are not read)")
        end = 0
        for member, behind in _sound_members(file, size, damage):
            if not _is_no_file(file, end, member.offset):
                damage.note_gap(end, member.offset)
            end = behind
            name = _normal(member.name)
            place: tuple[int, int] | str
            if member.isreg():
                place = member.offset_data, member.size
            elif member.islnk():  # another name of an earlier file; a later file does not replace it
                place = found.get(_normal(member.linkname), member.linkname)
            elif member.issym():
                place = posixpath.join(posixpath.dirname(name), member.linkname)
            else:
                continue
            if name.split("/")[0] == "..":
                damage.note(f"{name!r} is outside of the archive's folder and left out")
            elif name in found and not _is_hidden(name):
                damage.note(f"{name!r} is there twice and the last one counts")
            found[name] = place
        if end >= size:
            damage.note("the end mark is missing, as if the rest were cut off")
        elif not _is_no_file(file, end, size):
            damage.note_gap(end, size)
    members, broken = _visible(found)
    return Listing(members, broken, str(damage))


def _normal(name: str) -> str:
    return posixpath.normpath(name.lstrip("/"))


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _visible(found: Mapping[str, tuple[int, int] | str]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return the positions of files that are not hidden, and the links that lead to none."""
    members: dict[str, tuple[int, int]] = {}
    broken: dict[str, str] = {}
    for name, place in found.items():
        steps = 0
        while isinstance(place, str) and (target := posixpath.normpath(place)) in found and steps < LINKS:
            place, steps = found[target], steps + 1
        if _is_hidden(name):
            continue
        if isinstance(place, str):
            broken[name] = place
        else:
            members[name] = place
    return members, broken


class _Damage:
    """Damage of an archive: all of it is counted, the first few places are named."""

    NAMED = 3

    def __init__(self) -> None:
        self._count, self._named, self._last = 0, list[str](), -1

    def note_header(self, member: tarfile.TarInfo, place: int, rest: int) -> None:
        """Add a file with unreadable data, whose header is at ``place`` and is followed by ``rest`` bytes."""
        size = member.size if abs(member.size) < 10**15 else f"about 10^{len(str(abs(member.size))) - 1}"
        sparse = member.issparse() or member.type == tarfile.GNUTYPE_SPARSE
        reason = (
            "is stored without its zeros, which is not read" if sparse else f"claims {size} bytes where {rest} are left"
        )
        self.note(f"{member.name!r} {reason}")
        self._last = place

    def note_gap(self, start: int, end: int) -> None:
        """Add a range of bytes outside of files, unless damage of a header within it has been added."""
        if self._last < start:
            self.note(f"bytes {start} to {end} are no files")

    def note(self, text: str) -> None:
        """Add a description of damage."""
        self._count += 1
        if len(self._named) < self.NAMED:
            self._named.append(text)

    def __str__(self) -> str:
        more = self._count - len(self._named)
        named = self._named + ([f"and {more} more"] if more else [])
        return f"damaged archive: {'; '.join(named)}" if named else ""


def _sound_members(file: BinaryIO, size: int, damage: _Damage) -> Iterator[tuple[tarfile.TarInfo, int]]:
    """Yield each intact member and the position after it; after a damaged one continue at the next header.

    A size in a header is compared with the file size before it is used.
    """

    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            member, place = super().frombuf(buf, encoding, errors), file.tell()
            if buf[MARK : MARK + 8] == OLD_GNU and member.type not in tarfile.GNU_TYPES:  # the field has times, no name
                member.name = bytes(buf[:100]).partition(b"\0")[0].decode(encoding, errors)
            rest = size - place
            most = min(rest, MOST_EXTENSION) if member.type in EXTENSIONS else rest  # extensions are read into memory
            if _has_data(member) and not (0 <= member.size <= most and member.type != tarfile.GNUTYPE_SPARSE):
                damage.note_header(member, place - BLOCK, rest)
                raise tarfile.HeaderError("data that cannot be read")
            return member

    class Archive(tarfile.TarFile):
        def next(self) -> tarfile.TarInfo | None:
            while True:
                start = self.offset
                try:
                    return super().next()
                except OSError:
                    raise
                except Exception:  # for a damaged header tarfile raises anything, such as RecursionError
                    behind = (self.offset, file.tell(), start + BLOCK)  # what it has skipped, or else read
                    self.offset = next((place for place in behind if start < place < size), size)
                    if self.offset >= size:
                        return None

    with Archive(fileobj=file, ignore_zeros=True, tarinfo=Member) as archive:
        while (member := archive.next()) is not None:
            rest = size - member.offset_data
            if "\0" in member.name:  # a broken extension gave it a name that runs past its end
                continue
            if not _has_data(member) or (0 <= member.size <= rest and not member.issparse()):
                yield member, archive.offset
            else:  # by an extension for this member
                damage.note_header(member, member.offset, rest)
                archive.offset = member.offset_data


def _has_data(member: tarfile.TarInfo) -> bool:
    """Return whether the size in a header is that of data after it."""
    return member.isreg() or member.type in EXTENSIONS or member.type not in tarfile.SUPPORTED_TYPES


def _begins_with_a_header(file: BinaryIO) -> bool:
    """Return whether the first block is a header, even a damaged one, or zeros, as in an empty archive."""
    first = file.read(BLOCK)
    file.seek(0)
    return is_tar(first) or first[MARK:].startswith(b"ustar") or (len(first) == BLOCK and not first.strip(b"\0"))


def is_tar(first: bytes) -> bool:
    """Return whether the first block of a file is a tar header."""
    try:
        tarfile.TarInfo.frombuf(first, tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _is_no_file(file: BinaryIO, start: int, end: int) -> bool:
    """Return whether a range has only the zeros that end an archive, or begins with a global header."""
    file.seek(start)
    while start < end:
        block = file.read(min(BLOCK, end - start))
        if not block or block.strip(b"\0"):
            return block[TYPE : TYPE + 1] == tarfile.XGLTYPE
        start += len(block)
    return True


def split(path: str | Path) -> tuple[str, str] | None:
    """Split a path such as ``shard.tar/a.jpg`` into archive and member; None for other paths."""
    text = str(path)
    at = text.find(f"{TAR}/")
    while at >= 0:
        archive = text[: at + len(TAR)]
        if os.path.isfile(archive):
            return archive, posixpath.normpath(text[at + len(TAR) + 1 :])
        at = text.find(f"{TAR}/", at + 1)
    return None


def read_member(path: str | Path) -> bytes | None:
    """Return the bytes of ``shard.tar/a.jpg``; None if there is no such archive or member."""
    parts = split(path)
    place = parts and list_archive(parts[0]).members.get(parts[1])
    if not parts or not place:
        return None
    with open(parts[0], "rb") as file:
        file.seek(place[0])
        return file.read(place[1])


def broken_link(path: str | Path) -> str | None:
    """Return the target of ``shard.tar/a.jpg`` if it is a link to something outside the archive."""
    parts = split(path)
    return list_archive(parts[0]).broken.get(parts[1]) if parts else None


def has_member(path: str | Path) -> bool:
    """Return whether a path such as ``shard.tar/a.jpg`` names a file or link in an archive."""
    parts = split(path)
    try:
        listing = list_archive(parts[0]) if parts else Listing()
    except OSError:
        return False
    return parts is not None and (parts[1] in listing.members or parts[1] in listing.broken)


def is_archive(path: str | Path) -> bool:
    """Return whether a path is that of an archive, by its name."""
    return str(path).endswith(TAR) and os.path.isfile(path)

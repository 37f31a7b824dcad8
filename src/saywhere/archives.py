"""Images in tar archives, as webdataset lays them out, read where they lie and never unpacked."""

from __future__ import annotations

import functools
import os
import posixpath
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from saywhere.files import TAR

BLOCK = tarfile.BLOCKSIZE
"""Bytes of a header."""
TYPE, MARK = 156, 257
"""Where a header says what it is the header of, and that it is one."""
OLD_GNU = b"ustar  \0"
"""Mark of headers of GNU tar, in which other things stand where those of POSIX have the beginning of a long name."""
LINKS = 40
"""Links that are followed from one to the next, as many as Linux follows."""
OPEN = 64
"""Archives whose listings are kept, those that were used last."""
EXTENSIONS = (
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
)
"""Types of headers whose data say something of the member that comes next."""
MOST_EXTENSION = 1 << 20
"""Bytes of such data; more are damage: they are names, times and attributes."""


@dataclass(frozen=True)
class Listing:
    """What an archive holds.

    Attributes:
        members: for each file its place: the first byte and the number of bytes; that of a link is its target's.
            Hidden files are left out, and files outside the folder that unpacking would fill, which are damage.
        broken: for each link that leads to no file of the archive, where it leads.
        damage: what is wrong with the archive; empty if nothing is. The members that could be found are there all the
            same.
    """

    members: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    broken: Mapping[str, str] = field(default_factory=dict)
    damage: str = ""


def list_archive(path: str | Path) -> Listing:
    """Return what an archive holds, read anew if the file has changed; ``OSError`` if it cannot be read."""
    status = os.stat(path)
    return _listing(os.path.abspath(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(OPEN)
def _listing(path: str, size: int, time: int) -> Listing:
    """The listing of a file of this size and time, which are arguments so that a changed file is read anew."""
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
            elif member.islnk():  # another name of a file before it, which one behind it does not replace
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
    """The places of files that are not hidden, and the links that lead to none."""
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
    """What is wrong with an archive: all of it is counted, the first places are named."""

    NAMED = 3

    def __init__(self) -> None:
        self._count, self._named, self._last = 0, list[str](), -1

    def note_header(self, member: tarfile.TarInfo, place: int, rest: int) -> None:
        """Add a file whose header is at ``place``, ``rest`` bytes before the end, and whose data cannot be read."""
        size = member.size if abs(member.size) < 10**15 else f"about 10^{len(str(abs(member.size))) - 1}"
        sparse = member.issparse() or member.type == tarfile.GNUTYPE_SPARSE
        reason = (
            "is stored without its zeros, which is not read" if sparse else f"claims {size} bytes where {rest} are left"
        )
        self.note(f"{member.name!r} {reason}")
        self._last = place

    def note_gap(self, start: int, end: int) -> None:
        """Add bytes that are no files, unless a header among them is noted."""
        if self._last < start:
            self.note(f"bytes {start} to {end} are no files")

    def note(self, text: str) -> None:
        """Add what is wrong."""
        self._count += 1
        if len(self._named) < self.NAMED:
            self._named.append(text)

    def __str__(self) -> str:
        more = self._count - len(self._named)
        named = self._named + ([f"and {more} more"] if more else [])
        return f"damaged archive: {'; '.join(named)}" if named else ""


def _sound_members(file: BinaryIO, size: int, damage: _Damage) -> Iterator[tuple[tarfile.TarInfo, int]]:
    """Each member that is whole, and the place behind it; after a damaged one come those from the next header on.

    No size that a header claims is believed before it is compared with the size of the file.
    """

    class Member(tarfile.TarInfo):
        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Member:
            member, place = super().frombuf(buf, encoding, errors), file.tell()
            if buf[MARK : MARK + 8] == OLD_GNU and member.type not in tarfile.GNU_TYPES:  # its times are no name
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
                except Exception:  # of a damaged header tarfile raises anything, such as RecursionError
                    behind = (self.offset, file.tell(), start + BLOCK)  # what it has passed, or else what it has read
                    self.offset = next((place for place in behind if start < place < size), size)
                    if self.offset >= size:
                        return None

    with Archive(fileobj=file, ignore_zeros=True, tarinfo=Member) as archive:
        while (member := archive.next()) is not None:
            rest = size - member.offset_data
            if "\0" in member.name:  # an extension gave it one that goes on behind the extension's end
                continue
            if not _has_data(member) or (0 <= member.size <= rest and not member.issparse()):
                yield member, archive.offset
            else:  # an extension for this member said so
                damage.note_header(member, member.offset, rest)
                archive.offset = member.offset_data


def _has_data(member: tarfile.TarInfo) -> bool:
    """Whether the size of a header is that of data behind it."""
    return member.isreg() or member.type in EXTENSIONS or member.type not in tarfile.SUPPORTED_TYPES


def _begins_with_a_header(file: BinaryIO) -> bool:
    """Whether the first block is a header, also a damaged one, or zeros, as those of an empty archive."""
    first = file.read(BLOCK)
    file.seek(0)
    return is_tar(first) or first[MARK:].startswith(b"ustar") or (len(first) == BLOCK and not first.strip(b"\0"))


def is_tar(first: bytes) -> bool:
    """Return whether the first block of a file is the header of an archive."""
    try:
        tarfile.TarInfo.frombuf(first, tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
    return True


def _is_no_file(file: BinaryIO, start: int, end: int) -> bool:
    """Whether between two places there are but the zeros that an archive ends with, or a header for all files."""
    file.seek(start)
    while start < end:
        block = file.read(min(BLOCK, end - start))
        if not block or block.strip(b"\0"):
            return block[TYPE : TYPE + 1] == tarfile.XGLTYPE
        start += len(block)
    return True


def split(path: str | Path) -> tuple[str, str] | None:
    """Return the archive and the member that a path such as ``shard.tar/a.jpg`` means, or None."""
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
    """Return where ``shard.tar/a.jpg`` leads if it is a link to what is not in the archive."""
    parts = split(path)
    return list_archive(parts[0]).broken.get(parts[1]) if parts else None


def has_member(path: str | Path) -> bool:
    """Return whether a path such as ``shard.tar/a.jpg`` is that of a file or link in an archive."""
    parts = split(path)
    try:
        listing = list_archive(parts[0]) if parts else Listing()
    except OSError:
        return False
    return parts is not None and (parts[1] in listing.members or parts[1] in listing.broken)


def is_archive(path: str | Path) -> bool:
    """Return whether a path is that of an archive, by its name."""
    return str(path).endswith(TAR) and os.path.isfile(path)

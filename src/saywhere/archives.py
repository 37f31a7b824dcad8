"""Images in tar archives, as webdataset lays them out, read where they lie and never unpacked."""

from __future__ import annotations

import functools
import os
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

SUFFIX = ".tar"
TYPE = 156
"""Where a header says what it is the header of."""
OPEN = 64
"""Archives whose listings are kept, those that were used last."""


@dataclass(frozen=True)
class Listing:
    """What an archive holds.

    Attributes:
        members: for each file its place: the first byte and the number of bytes. Hidden files, and files outside the
            folder that unpacking would fill, are left out.
        damage: what is wrong with the archive; empty if nothing is. The members that could be found are there all the
            same.
    """

    members: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    damage: str = ""


def list_archive(path: str | Path) -> Listing:
    """Return what an archive holds; reading it again is saved as long as the file does not change.

    Raises:
        OSError: the file cannot be read.
    """
    status = os.stat(path)
    return _listing(os.path.abspath(path), status.st_size, status.st_mtime_ns)


@functools.lru_cache(OPEN)
def _listing(path: str, size: int, time: int) -> Listing:
    """The listing of a file of this size and time, which are arguments so that a changed file is read anew."""
    members: dict[str, tuple[int, int]] = {}
    damaged: list[str] = []
    with open(path, "rb") as file:
        if not _begins_with_a_header(file):
            return Listing(members, "not a tar archive (compressed ones are not read)")
        end = 0
        try:
            with tarfile.open(fileobj=file, mode="r:", ignore_zeros=True) as archive:  # which also passes over damage
                for member in archive:
                    if not _is_no_file(file, end, member.offset):
                        damaged.append(f"bytes {end} to {member.offset} are no files")
                    end = archive.offset
                    name = posixpath.normpath(member.name.lstrip("/"))
                    if member.isreg() and not any(part.startswith(".") for part in name.split("/")):
                        members[name] = (member.offset_data, member.size)
        except (tarfile.TarError, ValueError, EOFError):
            damaged.append(f"ends within a file, after {size} bytes")
        else:
            if not _is_no_file(file, end, size):
                damaged.append(f"bytes {end} to {size} are no files")
    return Listing(members, f"damaged archive: {'; '.join(damaged)}" if damaged else "")


def _begins_with_a_header(file: BinaryIO) -> bool:
    first = file.read(tarfile.BLOCKSIZE)
    file.seek(0)
    try:
        tarfile.TarInfo.frombuf(first, tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return len(first) == tarfile.BLOCKSIZE and not first.strip(b"\0")  # an empty archive
    return True


def _is_no_file(file: BinaryIO, start: int, end: int) -> bool:
    """Whether between two places there are but the zeros that an archive ends with, or a header for all files."""
    file.seek(start)
    while start < end:
        block = file.read(min(tarfile.BLOCKSIZE, end - start))
        if not block or block.strip(b"\0"):
            return block[TYPE : TYPE + 1] == tarfile.XGLTYPE
        start += len(block)
    return True


def split(path: str | Path) -> tuple[str, str] | None:
    """Return the archive and the member that a path such as ``shard.tar/a.jpg`` means, or None."""
    text = str(path)
    at = text.find(f"{SUFFIX}/")
    while at >= 0:
        archive = text[: at + len(SUFFIX)]
        if os.path.isfile(archive):
            return archive, posixpath.normpath(text[at + len(SUFFIX) + 1 :])
        at = text.find(f"{SUFFIX}/", at + 1)
    return None


def read_member(path: str | Path) -> bytes | None:
    """Return the bytes of ``shard.tar/a.jpg``; None if there is no such archive or member.

    Raises:
        OSError: the archive cannot be read.
    """
    parts = split(path)
    place = parts and list_archive(parts[0]).members.get(parts[1])
    if not parts or not place:
        return None
    with open(parts[0], "rb") as file:
        file.seek(place[0])
        return file.read(place[1])


def has_member(path: str | Path) -> bool:
    """Return whether a path such as ``shard.tar/a.jpg`` leads to a file in an archive."""
    parts = split(path)
    try:
        return parts is not None and parts[1] in list_archive(parts[0]).members
    except OSError:
        return False


def is_archive(path: str | Path) -> bool:
    """Return whether a path is that of an archive, by its name."""
    return str(path).endswith(SUFFIX) and os.path.isfile(path)

"""Images in tar archives, such as those of webdataset, read in place without unpacking."""

from __future__ import annotations

import functools
import os
import posixpath
import tarfile
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from saywhere.files import TAR
from saywhere.options import dataclass

BLOCK = tarfile.BLOCKSIZE
"""Size of a header in bytes."""
LINKS = 40
"""Maximum number of links followed in a chain, as in Linux."""
OPEN = 64
"""Number of archive listings in the cache."""
NAMED = 3
"""Number of faults of an archive that its description names."""


@dataclass(frozen=True)
class Listing:
    """Contents of an archive.

    Attributes:
        members: byte offset and size of each file; a link has those of its target. Hidden files are left out. Files
            outside the folder that unpacking would fill are left out as damage.
        broken: target of each link that leads to no file of the archive.
        damage: description of the archive's damage, else empty. Readable members are listed all the same. A file that
            a later one of the same name replaces is none, as appending to an archive leaves it.
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
    faults: list[str] = []
    end = -1
    with open(path, "rb") as file:
        try:
            with tarfile.open(fileobj=file, mode="r:") as archive:
                end = 0
                while (member := archive.next()) is not None:
                    short = member.isreg() and member.offset_data + member.size > size
                    if member.size < 0 or short or not end < archive.offset < size + BLOCK:
                        raise tarfile.ReadError(f"{member.name!r} claims bytes that are not there")
                    faults += _add(found, member)
                    end = archive.offset
            faults += _faults_behind(file, end, size)
        except OSError:
            raise
        except Exception as error:  # for a damaged header tarfile raises anything, such as RecursionError
            if end < 0:
                return Listing(damage="not a tar archive (compressed ones are not read)")
            faults.append(f"only its first {min(end, size)} bytes are read ({str(error) or type(error).__name__})")
    if len(faults) > NAMED:
        faults[NAMED:] = [f"and {len(faults) - NAMED} more"]
    members, broken = _visible(found)
    return Listing(members, broken, f"damaged archive: {'; '.join(faults)}" if faults else "")


def _add(found: dict[str, tuple[int, int] | str], member: tarfile.TarInfo) -> list[str]:
    """Add a file or link to those that were found; return what is wrong with it, at most one thing."""
    name, faults = _normal(member.name), list[str]()
    if not (member.isreg() or member.islnk() or member.issym()):
        return faults
    if member.issparse():
        return [f"{name!r} is stored without its zeros, which is not read"]
    if "\0" in name:
        return [f"{name[:50]!r} is no name of a file"]
    if name.split("/")[0] == "..":
        faults.append(f"{name!r} is outside of the archive's folder and left out")
    if member.isreg():
        found[name] = member.offset_data, member.size
    elif member.islnk():  # another name of an earlier file; a later file does not replace it
        found[name] = found.get(_normal(member.linkname), member.linkname)
    else:
        found[name] = posixpath.join(posixpath.dirname(name), member.linkname)
    return faults


def _faults_behind(file: BinaryIO, end: int, size: int) -> list[str]:
    """Return what is wrong with the bytes behind the last member: there must be zeros and nothing else."""
    if end >= size:
        return ["the end mark is missing, as if the rest were cut off"]
    file.seek(end)
    if any(block.strip(b"\0") for block in iter(lambda: file.read(1 << 20), b"")):
        return [f"only its first {end} bytes are read, what follows is not part of it"]
    return []


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


def is_tar(first: bytes) -> bool:
    """Return whether the first block of a file is a tar header."""
    try:
        tarfile.TarInfo.frombuf(first, tarfile.ENCODING, "surrogateescape")
    except tarfile.TarError:
        return False
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

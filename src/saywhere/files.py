"""File access: atomic writes that survive a power cut, valid file names, and strict readers.

The readers of user files (JSON, YAML and lines) report everything that they cannot keep.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, ParamSpec

from saywhere.errors import UserError

P = ParamSpec("P")

LONGEST_NAME = 255
"""Maximum length of a file name in bytes."""
TOO_LONG = "its name is too long for the file that would be written"
"""Message for an image or video for which :func:`fits` returns False."""
NOT_SYNCED = frozenset((errno.EINVAL, errno.EBADF, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP))
"""Errors of file systems without fsync for files or folders."""
FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""Errors for a full disk or an exhausted quota."""
OPENING = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
"""Flags for opening files; a pipe in the place of a file does not block."""
TAR = ".tar"
"""Extension of archives that images are read from, see :mod:`saywhere.archives`."""
DRAWN_SUFFIXES = frozenset((".jpg", ".jpeg", ".png"))
"""File extensions whose drawings keep the image's name; other drawings get ``.jpg`` appended."""
_PART = re.compile(r"\.[0-9a-f]{16}\.part")


def short_name(name: str) -> str:
    """Return a hash of a name of any length as 16 hexadecimal digits."""
    import hashlib

    return hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()


def content_hash(content: bytes | BufferedReader) -> bytes:
    """Return a hash of the bytes of a file, or of an open file from its position on, in 16 bytes."""
    import hashlib

    new = functools.partial(hashlib.blake2b, digest_size=16)
    return new(content).digest() if isinstance(content, bytes) else hashlib.file_digest(content, new).digest()


def part_of(path: Path) -> Path:
    """Return the temporary path that is renamed to ``path`` when complete: a short hidden name in the same folder."""
    return path.with_name(f".{short_name(path.name)}.part")


def beside(path: Path, pattern: str) -> Path:
    """Return a sibling of ``path`` named by ``pattern``; its ``{}`` becomes the name of ``path``, or its short name."""
    name = pattern.format(path.name)
    return path.with_name(name if len(os.fsencode(name)) <= LONGEST_NAME else pattern.format(short_name(path.name)))


def fit_name(stem: str, ending: str) -> str:
    """Return ``stem`` and ``ending`` as a file name, with ``stem`` cut where the name would be too long."""
    while len(os.fsencode(stem + ending)) > LONGEST_NAME:
        stem = stem[:-1]
    return stem + ending


def fits(write: Callable[P, object], *arguments: P.args, **options: P.kwargs) -> bool:
    """Call a function that writes a file; return False if the file system refuses the name as too long."""
    try:
        write(*arguments, **options)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return False
    return True


def is_utf8(name: str) -> bool:
    """Return whether a file name is valid UTF-8; other programs cannot read other names as text."""
    return not any("\udc80" <= letter <= "\udcff" for letter in name)


def printable(name: str) -> str:
    """Return a file name as printable text on one line; escape control characters and bytes that are not UTF-8."""
    text = name.encode("utf-8", "replace").decode("utf-8")
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cache_folder() -> Path:
    """Return the user's cache folder of this program."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "saywhere"


def sync(file: Path | int) -> None:
    """Wait until a file's bytes (by path, or open for writing) or a folder's names are on the disk."""
    try:
        if isinstance(file, int):
            os.fsync(file)
        elif os.name != "nt":  # which can sync only files open for writing
            opened = os.open(file, os.O_RDONLY)
            try:
                os.fsync(opened)
            finally:
                os.close(opened)
    except PermissionError:  # a folder that can be written to but not read
        return
    except OSError as error:
        if error.errno not in NOT_SYNCED:
            raise


@contextmanager
def explain_full_disk(place: Path) -> Iterator[None]:
    """Turn a full disk's error into a ``UserError`` that names ``place`` instead of a temporary file."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        full = "the disk is full; what is done stays. Free some space and run the same command again"
        raise UserError(f"{place}: {full}") from error


def require_there(file: int, path: Path) -> None:
    """Raise ``UserError`` if an open file has been deleted, because further writes to it would be lost."""
    if os.fstat(file).st_nlink == 0:
        raise UserError(f"{path}: was removed while this run wrote to it; give the same command again")


def put_in_place(part: Path, path: Path) -> None:
    """Rename a file or folder after its bytes are on the disk, and wait until the new name is on the disk too.

    A file within a folder that still has a temporary name is only renamed; it is synced with that folder.
    """
    if any(_PART.fullmatch(folder.name) for folder in path.parents):
        os.replace(part, path)
        return
    if part.is_dir():
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(16) as pool:  # concurrent syncs are written together
            list(pool.map(sync, part.rglob("*")))
    sync(part)
    os.replace(part, path)
    sync(path.parent)


@contextmanager
def atomic_path(path: Path, folder: bool = False) -> Iterator[Path]:
    """Yield a temporary path to fill, which replaces ``path`` at the end or is deleted after an error.

    Parent folders are created. ``path`` is always the old file or the new one, even after a power cut. A link stays and
    its target is replaced; the mode of an old file is kept. Another process that writes the same file is waited for. A
    device or pipe, such as /dev/null, is written to directly. An ``OSError``, such as a full disk, names ``path``.

    Args:
        folder: fill a new folder instead; at the end ``path`` must not exist or be an empty folder.
    """
    place = Path(os.path.realpath(path)) if path.is_symlink() else path
    if place.exists() and not place.is_file() and not place.is_dir():
        yield place
        return
    part, held = part_of(place), None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        held = _hold(part, folder)
        yield part
        with suppress(OSError):  # no old file, or a file system without modes
            os.chmod(part, os.stat(place).st_mode & 0o7777)
        put_in_place(part, place)
    except BaseException as error:
        if held is not None:
            with suppress(OSError):
                _remove(part)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise
    finally:
        if held is not None and held >= 0:
            os.close(held)


def _hold(part: Path, folder: bool) -> int:
    """Create an empty file or folder and lock it against other processes; return the open descriptor, or -1."""
    try:
        import fcntl
    except ImportError:  # Windows, where an open file cannot be renamed
        _remove(part)
        part.mkdir() if folder else part.touch()
        return -1
    while True:
        if folder:
            part.mkdir(exist_ok=True)
        held = os.open(part, os.O_RDONLY if folder else os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(held, fcntl.LOCK_EX)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(held), os.stat(part)):  # it has not been renamed meanwhile
                    for left_over in part.iterdir() if folder else ():  # by a run that was killed
                        _remove(left_over)
                    if not folder and os.fstat(held).st_size:
                        os.ftruncate(held, 0)
                    return held
        except BaseException:
            os.close(held)
            raise
        os.close(held)


def _remove(path: Path) -> None:
    """Remove a file, or a folder with its content, if it exists."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file by ``write``, which gets a stream; it appears at ``path`` when complete. Folders are created."""
    with atomic_path(path) as part, open(part, "wb") as stream:
        write(stream)


def write_text(path: Path, text: str) -> None:
    """Write a text atomically as UTF-8; bytes of file names that are not UTF-8 are escaped."""
    write_atomically(path, lambda stream: stream.write(text.encode("utf-8", "backslashreplace")))


LARGEST = 1 << 30
"""Maximum size in bytes of files that are read whole: about ten million paths."""


def read_whole(path: str | Path, stream: IO[bytes] | None = None) -> bytes:
    """Return the content of a user's file or pipe; ``stream`` is the file if it is already open.

    ``ValueError`` for a device, such as ``/dev/zero``, or for more than :data:`LARGEST` bytes.
    """
    if stream is None:
        if stat.S_IFMT(os.stat(path).st_mode) in (stat.S_IFCHR, stat.S_IFBLK):
            raise ValueError("a device, not a file")
        with open(path, "rb") as file:
            return read_whole(path, file)
    data = bytearray()
    while piece := stream.read(1 << 20):
        data += piece
        if len(data) > LARGEST:
            raise ValueError(f"longer than {LARGEST} bytes; divide it")
    return bytes(data)


def decode(data: bytes) -> str:
    """Decode UTF-8 without its byte order mark, if it has one; ``ValueError`` for other bytes."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"not a UTF-8 text file: {error.reason} at byte {error.start}") from None


def split_lines(text: str) -> list[str]:
    r"""Return the lines of a text, separated by ``\n`` or ``\r\n`` only.

    ``str.splitlines`` also splits at U+2028, U+0085 and others, which can occur within a line of JSON.
    """
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines if lines[-1] else lines[:-1]


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON document, or of one line of JSON; an initial byte order mark is ignored.

    ``ValueError`` if it is not JSON, is nested too deeply, or repeats a key in an object (other readers keep the last
    one). Messages name the line only for texts of several lines; readers of JSON lines add their own line number.
    """
    try:
        text = text.decode(json.detect_encoding(text), "surrogatepass") if isinstance(text, bytes) else text
        text = text.removeprefix("\ufeff").rstrip()
        return json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        if "\n" in str(text):
            raise
        raise ValueError(f"{error.msg}: column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"not {error.encoding} text: {error.reason} at byte {error.start}") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read_record(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file that a program wrote for itself; an empty one if it cannot be read."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return stored if isinstance(stored, dict) else {}


def read_json(path: Path, kind: type = dict) -> Any:
    """Return the content of a JSON file; ``UserError`` if it cannot be read or is not a ``kind`` (list, dict)."""
    try:
        content = parse_json(read_whole(path))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {getattr(error, 'strerror', None) or error}") from error
    if not isinstance(content, kind):
        raise UserError(f"{path} must be a JSON {'list' if kind is list else 'object'}, not {type(content).__name__}")
    return content


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def parse_yaml(text: str | bytes) -> Any:
    """Return the value of a YAML document as PyYAML's ``safe_load`` does; ``ModuleNotFoundError`` without PyYAML.

    ``ValueError`` if it is not YAML, is nested too deeply or endlessly, or repeats a key in a mapping.
    """
    import yaml

    try:
        loader = _yaml_loader()(decode(text) if isinstance(text, bytes) else text)
        return loader.get_single_data()
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
    except (AttributeError, IndexError, KeyError, OverflowError, TypeError) as error:  # tags with invalid values
        raise ValueError(f"a value in it is not what its tag says ({error})") from error


@functools.cache
def _yaml_loader() -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """The safe loader, which also refuses a mapping with a repeated key, and a node that contains itself."""

        def __init__(self, stream: str) -> None:
            super().__init__(stream)
            self.open: list[str | None] = []  # anchors of the nodes around the next one

        def compose_node(self, parent: Any, index: Any) -> Any:
            is_alias, event = self.check_event(yaml.AliasEvent), self.peek_event()
            if is_alias and event.anchor in self.open:
                raise ValueError(f"an alias makes it endless: line {event.start_mark.line + 1}")
            self.open.append(None if is_alias else event.anchor)
            node = super().compose_node(parent, index)
            self.open.pop()
            return node

        def compose_mapping_node(self, anchor: Any) -> Any:
            node = super().compose_mapping_node(anchor)
            keys = set()
            for key, _ in node.value:
                if isinstance(key, yaml.ScalarNode):
                    if (key.tag, key.value) in keys:
                        raise ValueError(f"the key {key.value!r} is there twice: line {key.start_mark.line + 1}")
                    keys.add((key.tag, key.value))
            return node

    return Loader


def link_or_copy(source: Path, target: Path) -> None:
    """Make a new file equal to another: by a hard link if possible, because files are never changed in place."""
    try:
        target.hardlink_to(source)
    except OSError:
        shutil.copy2(source, target)

"""Results on disk: JSON lines and drawings, written in an order in which a killed run loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from saywhere.errors import UserError
from saywhere.files import TOO_LONG, beside, fits, read_record, require_there, sync, write_text
from saywhere.images import DRAWN_SIDES, ImageError, LoadedImage, open_image, resized, save_image
from saywhere.inference.sources import Source, out_path
from saywhere.loading import CONTENT
from saywhere.options import dataclass
from saywhere.regions import Regions

if TYPE_CHECKING:
    from saywhere.inference.claims import Claim

T = TypeVar("T")

HIT = "similarity"
"""Key that only hits of a search have, besides those of an answer of ``ground``."""
_BEGINNING = b'{"image":'
"""Beginning of each line of ours; only an incomplete line that begins like this is cut off."""


@dataclass(frozen=True)
class ImageResult(Generic[T]):
    """The outcome for one image: its result, or the error.

    ``image`` is the model's input; its pixels are freed with this object.
    """

    source: Source
    result: T | None = None
    image: LoadedImage | None = None
    error: str | None = None


class AppendedFile:
    """A file that one process at a time appends to; each append is complete or undone. Folders are created.

    Args:
        way_out: advice if another process is writing the file.

    Raises:
        UserError: the file cannot be written, is not a regular file, or another process is writing it.
    """

    def __init__(self, path: Path, way_out: str) -> None:
        self.path = path
        self._claim: Claim | None = None
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o666)
        except (FileExistsError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{path}: cannot be written ({error.strerror})") from error
        try:
            self._begin(way_out)
            self._resume()
        except BaseException:
            self.close()
            raise

    def _begin(self, way_out: str) -> None:
        """Refuse anything but a regular file, and a file that another run is writing."""
        from saywhere.inference.claims import claim_file

        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise UserError(f"{self.path}: this is not a regular file; results need one, because it is read again")
        self._claim = claim_file(self._file, self.path, way_out)

    def _resume(self) -> None:
        """Continue what an earlier run has left."""

    def _write(self, data: bytes) -> None:
        """Append all of ``data``, or nothing."""
        if self._claim is not None and not self._claim.held():
            raise UserError(f"{self.path}: another run is writing to it, because this one seemed dead; nothing is lost")
        end, written = os.fstat(self._file).st_size, 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except BaseException as error:
            os.ftruncate(self._file, end)
            if isinstance(error, OSError):
                error.filename = str(self.path)
            raise

    def close(self) -> None:
        """Close the file, so that other processes can write it."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
            if self._claim is not None:
                self._claim.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ResultsFile(AppendedFile):
    """JSON lines with the result of one image each, under the image's name in ``image``; lines are written atomically.

    An existing file is continued: :attr:`done` has its images, and an incomplete last line of a killed run is cut off.

    Args:
        key: key of each line's result: ``boxes``, as in :meth:`Regions.to_dict`, or ``caption``.

    Raises:
        UserError: the file has other content or cannot be written.
    """

    def __init__(self, path: Path, key: str = "boxes") -> None:
        self.key, self._changed = key, False
        self._starts: dict[str, int] = {}
        super().__init__(path, "give another file")

    def _resume(self) -> None:
        end, whole = 0, True
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                row = _parsed(line, self.key)
                whole = line.endswith(b"\n")
                if row is not None:
                    self._starts[row["image"]] = end
                elif not whole and (line[: len(_BEGINNING)] == _BEGINNING[: len(line)] or not line.strip(b"\0")):
                    whole = True  # cuts off this incomplete line; a power cut can leave zeros
                    break
                elif line.strip():
                    what = "a hit of a search" if _parsed(line, HIT) else f"not a result with {self.key}"
                    raise UserError(f"{self.path} line {number} is {what}; give another file")
                end += len(line)
        os.ftruncate(self._file, end)
        self._end = end
        if not whole:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        self._changed = True
        super()._write(data)
        self._end += len(data)

    @property
    def done(self) -> frozenset[str]:
        """Names of the images in the file."""
        return frozenset(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in file order."""
        return (self[name] for name in list(self._starts))

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the row of an image."""
        with open(self.path, "rb") as lines:
            lines.seek(self._starts[name])
            return json.loads(lines.readline())

    def merge(self, other: Path) -> int:
        """Append the images of another file that this one lacks; return their number."""
        if not other.exists():  # merged and removed by another process
            return 0
        with ResultsFile(other, self.key) as lines:
            new = [row for row in lines if row["image"] not in self._starts]
            for row in new:
                self.append(row, row["image"])
        return len(new)

    def regions(self, name: str, read: Callable[[dict[str, Any]], Any] = Regions.from_dict) -> Any:
        """Return the regions of an image, or what ``read`` makes of its row; ``UserError`` if that fails."""
        try:
            return read(self[name])
        except ValueError as error:
            raise UserError(f"{self.path}: the result for {name} cannot be used ({error})") from error

    def append(self, row: Mapping[str, Any], name: str) -> None:
        """Append the row of the image ``name``; on a full disk the file is unchanged, and OSError is raised."""
        if self.key not in row:
            raise ValueError(f"the row of {name} has no {self.key}")
        line, start = json_line(row, name), self._end
        self._write(line)
        require_there(self._file, self.path)
        self._starts[name] = start

    def close(self) -> None:
        """Sync all lines to disk and close the file; without this call a power cut can lose lines."""
        try:
            if self._changed and self._file >= 0:
                sync(self._file)
        except OSError as error:
            error.filename = str(self.path)
            raise
        finally:
            super().close()


def _parsed(line: bytes, key: str) -> dict[str, Any] | None:
    """Return the row of a line if it is a result with ``key``."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    ours = isinstance(row, dict) and isinstance(row.get("image"), str) and key in row and (key == HIT or HIT not in row)
    return row if ours else None


def require_hits(path: Path) -> None:
    """Refuse to replace an existing file that has anything but hits of a search (``UserError``)."""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        for number, line in enumerate(lines, 1):
            cut = line.startswith(_BEGINNING) and not line.endswith(b"\n")
            if line.strip() and not cut and _parsed(line, HIT) is None:
                raise UserError(f"{path} line {number} is not a hit of a search, and would be lost; give another file")


def json_line(row: Mapping[str, Any], name: str) -> bytes:
    """Return the JSON line of the image ``name``."""
    full = {"image": name, **{key: value for key, value in row.items() if key != "image"}}
    try:
        return (json.dumps(full, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return (json.dumps(full) + "\n").encode()


@dataclass(frozen=True)
class Outputs:
    """Destinations of answers, which have ``to_dict`` and, for a folder, ``draw``.

    Attributes:
        lines: results file, or None.
        folder: folder for images, or None.
        beside: function that writes an answer beside its image and returns None, or why it cannot.
        read: function that turns a row of the file into an answer; ``ValueError`` if the row is incomplete.
    """

    lines: ResultsFile | None = None
    folder: Path | None = None
    beside: Callable[[Source, Any], str | None] | None = None
    read: Callable[[dict[str, Any]], Any] = Regions.from_dict

    @property
    def long_side(self) -> int:
        """Long side in pixels that images need for being written; 0 if none are."""
        return 0 if self.folder is None else DRAWN_SIDES[1]

    def check(self, sources: Sequence[Source]) -> None:
        """Create the folder; ``UserError`` if that fails, or if an input image would be overwritten."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        inputs = {os.path.realpath(source.path) for source in sources}
        for source in sources:
            if os.path.realpath(path := out_path(self.folder, source)) in inputs:
                raise UserError(f"{path}: is an image to describe and would be overwritten; give another --out")

    def is_described(self, source: Source) -> bool:
        """Return whether the results file has the image; its drawing may still be missing."""
        return self.lines is not None and source.name in self.lines.done

    def keep(self, done: ImageResult[Any]) -> str | None:
        """Save the drawing first, then the line if it is new, so that an image in the file always has its drawing.

        No file is left incomplete after an error, such as an ``OSError``. Return why this image cannot be saved, or
        None.
        """
        if done.result is None or done.image is None:
            return None
        if self.folder is not None:
            pixels = done.result.draw(resized(done.image, *DRAWN_SIDES))
            if not fits(save_image, out_path(self.folder, done.source), pixels):
                return TOO_LONG
        why = None if self.beside is None else self.beside(done.source, done.result)
        if why is None and self.lines is not None and not self.is_described(done.source):
            self.lines.append(done.result.to_dict(), done.source.name)
        return why

    def lacks_image(self, source: Source) -> bool:
        """Return whether the results file has the image but the folder lacks its drawing."""
        return (
            self.is_described(source) and self.folder is not None and not os.path.exists(out_path(self.folder, source))
        )

    def read_back(self, sources: Iterable[Source]) -> Iterator[ImageResult[Any]]:
        """Yield the results of described ``sources`` from the file, with their images, for :meth:`keep`."""
        for source in sources:
            try:
                image = open_image(source.path, self.long_side)
                found = self.answer(source)
                if (image.width, image.height) == (found.width, found.height):
                    yield ImageResult(source, found, image)
                else:
                    was = f"{found.width} x {found.height} when it was described"
                    yield ImageResult(source, error=f"is {image.width} x {image.height} now, and was {was}")
            except ImageError as error:
                yield ImageResult(source, error=str(error).removeprefix(f"{source.path}: "))

    def answer(self, source: Source) -> Any:
        """Return the answer for an image from the results file."""
        if self.lines is None:
            raise ValueError("these outputs have no file of results")
        return self.lines.regions(source.name, self.read)


def read_names(path: Path) -> frozenset[str]:
    """Return the image names in a results file, which another process may be writing; none if it does not exist.

    Other lines are ignored; :class:`ResultsFile` reports them.
    """
    names: set[str] = set()
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                names.add(json.loads(line)["image"])
    return frozenset(names)


def ensure_same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to add to results with other settings (``UserError``), and store the settings of new results.

    They are stored in a hidden file beside the results. Results without it are accepted. Pipes and the like get none.
    """
    compare_settings(path, settings)
    if path.is_file() and not path.stat().st_size:
        note_settings(path, settings)


def note_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Store the settings of results in a file beside them, if its folder is writable."""
    with contextlib.suppress(PermissionError):
        write_text(_note(path), json.dumps(settings) + "\n")


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return the settings of results; None if they are not stored."""
    return read_record(_note(path)) or None


def forget_settings(path: Path) -> None:
    """Remove the stored settings of results."""
    _note(path).unlink(missing_ok=True)


def compare_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse results with other settings: ``UserError`` names these, and how to start over."""
    try:
        known = read_settings(path) if path.stat().st_size else None
    except OSError:
        return
    if known is not None:
        way_out = f"give the same options or another file, or remove it and {_note(path).name} to start over"
        require_same(path, known, settings, way_out)


def require_same(path: Path, known: Mapping[str, Any], settings: Mapping[str, Any], way_out: str) -> None:
    """Refuse results begun with other settings: ``UserError`` lists them, as in ``top: 5, now 10; size: not set``.

    Those of earlier versions, which did not note a hash of the model's files, are accepted.
    """

    def text(value: object) -> str:
        if isinstance(value, list):
            return ", ".join(map(str, value))
        return "not set" if value is None else str(value)

    pairs = {name: (known.get(name), value) for name, value in settings.items() if name != CONTENT or name in known}
    if other := [f"{name}: {text(old)}, now {text(new)}" for name, (old, new) in pairs.items() if old != new]:
        raise UserError(f"{path}: was started with other options ({'; '.join(other)}); {way_out}")


def _note(path: Path) -> Path:
    """Return the hidden settings file of results; if the path is a link, it is beside the target."""
    return beside(path.resolve(), ".{}.settings.json")

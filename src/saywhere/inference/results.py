"""Results on disk: JSON lines that survive a kill, and drawings, in an order in which a kill loses nothing."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar

from saywhere.errors import UserError
from saywhere.files import beside, read_record, require_there, sync, write_text
from saywhere.images import DRAWN_SIDES, ImageError, LoadedImage, open_image, resized, save_image
from saywhere.inference.sources import Source, out_path
from saywhere.regions import Regions

if TYPE_CHECKING:
    from PIL.Image import Image

    from saywhere.inference.claims import Claim

T = TypeVar("T")

_BEGINNING = b'{"image":'
"""What each line begins with: only a half line that does is taken for one of ours and cut off."""


@dataclass(frozen=True)
class ImageResult(Generic[T]):
    """What became of one image: its result, or the error.

    ``image`` is what the model saw; its pixels are dropped with this object.
    """

    source: Source
    result: T | None = None
    image: LoadedImage | None = None
    error: str | None = None


class NotKeptError(Exception):
    """An answer that has no place beside its image; the text says why."""


class AppendedFile:
    """A file that one process at a time appends to, all of what it has to add or nothing; its folders are made.

    Args:
        way_out: what to do if another process writes to it.

    Raises:
        UserError: the file cannot be written, is no regular file, or another process is writing it.
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
        """Refuse what is no regular file, and a file that another run is writing."""
        from saywhere.inference.claims import claim_file

        if not stat.S_ISREG(os.fstat(self._file).st_mode):
            raise UserError(f"{self.path}: results are kept in a regular file, which can be read again; this is none")
        self._claim = claim_file(self._file, self.path, way_out)

    def _resume(self) -> None:
        """Go on with what an earlier run has left."""

    def _write(self, data: bytes) -> None:
        """Append all of ``data``, or nothing of it."""
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
        """Close the file, and let other processes write it."""
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
    """JSON lines with the name of an image in ``image`` and its result, one an image, each written whole.

    An existing file is resumed: :attr:`done` has the images in it, and the half line that a killed run may have left
    at its end is cut off.

    Args:
        key: what each line has beside ``image``: ``boxes`` as :meth:`Regions.to_dict` has them, or ``caption``.

    Raises:
        UserError: the file is not one of these, or cannot be written.
    """

    def __init__(self, path: Path, key: str = "boxes") -> None:
        self.key, self._changed = key, False
        self._starts: dict[str, int] = {}
        super().__init__(path, "give another file")

    def _resume(self) -> None:
        end, whole = 0, True
        with open(self.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                row = self._parsed(line)
                whole = line.endswith(b"\n")
                if row is not None:
                    self._starts[row["image"]] = end
                elif not whole and (line[: len(_BEGINNING)] == _BEGINNING[: len(line)] or not line.strip(b"\0")):
                    whole = True  # without this torn line; a power cut may leave zeros
                    break
                elif line.strip():
                    raise UserError(f"{self.path} line {number} is not a result with {self.key}; give another file")
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
        """Names of the images that are in the file."""
        return frozenset(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield the rows in the order of the file."""
        return (self[name] for name in list(self._starts))

    def __getitem__(self, name: str) -> dict[str, Any]:
        """Return the row of an image."""
        with open(self.path, "rb") as lines:
            lines.seek(self._starts[name])
            return json.loads(lines.readline())

    def merge(self, other: Path) -> int:
        """Append what another file has and this one has not; return how many images those are."""
        with ResultsFile(other, self.key) as lines:
            new = [row for row in lines if row["image"] not in self._starts]
            for row in new:
                self.append(row, row["image"])
        return len(new)

    def regions(self, name: str, read: Callable[[dict[str, Any]], Any] = Regions.from_dict) -> Any:
        """Return the regions of an image, or what ``read`` makes of its row; ``UserError`` if it cannot."""
        try:
            return read(self[name])
        except ValueError as error:
            raise UserError(f"{self.path}: the result for {name} cannot be used ({error})") from error

    def append(self, row: Mapping[str, Any], name: str) -> None:
        """Add the row of the image ``name``; if the disk is full the file is as it was, and OSError is raised."""
        if self.key not in row:
            raise ValueError(f"the row of {name} has no {self.key}")
        line, start = json_line(row, name), self._end
        self._write(line)
        require_there(self._file, self.path)
        self._starts[name] = start

    def close(self) -> None:
        """Wait until all lines are on the disk, and close the file; if it is not called, a power cut may cost some."""
        try:
            if self._changed and self._file >= 0:
                sync(self._file)
        except OSError as error:
            error.filename = str(self.path)
            raise
        finally:
            super().close()

    def _parsed(self, line: bytes) -> dict[str, Any] | None:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            return None
        return row if isinstance(row, dict) and isinstance(row.get("image"), str) and self.key in row else None


def json_line(row: Mapping[str, Any], name: str) -> bytes:
    """Return the line of results about the image ``name``."""
    full = {"image": name, **{key: value for key, value in row.items() if key != "image"}}
    try:
        return (json.dumps(full, ensure_ascii=False) + "\n").encode()
    except UnicodeEncodeError:  # a file name that is not UTF-8
        return (json.dumps(full) + "\n").encode()


@dataclass(frozen=True)
class Outputs:
    """Where the answers about images are kept: regions or, without a folder, others that have ``to_dict``.

    Attributes:
        lines: the file of results, or None.
        folder: of the images, or None.
        beside: writes an answer beside its image, and returns why it could not or None.
        bare: None to draw the regions on the images; else these are only resized, to this long side in pixels.
        draw: returns an image with an answer drawn on it.
        read: returns an answer of its row in the file; ``ValueError`` says what the row lacks.
    """

    lines: ResultsFile | None = None
    folder: Path | None = None
    bare: int | None = None
    beside: Callable[[Source, Any], str | None] | None = None
    draw: Callable[[Image, Any], Image] = lambda image, found: found.draw(image)
    read: Callable[[dict[str, Any]], Any] = Regions.from_dict

    @property
    def long_side(self) -> int:
        """Pixels that an image needs on its long side to be written; 0 if none are."""
        return 0 if self.folder is None else self._sides[1]

    @property
    def _sides(self) -> tuple[int, int]:
        return DRAWN_SIDES if self.bare is None else (self.bare, self.bare)

    def check(self, sources: Sequence[Source]) -> None:
        """Make the folder; ``UserError`` if it cannot be made, or an image to be described would be written over."""
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        inputs = {os.path.realpath(source.path) for source in sources}
        for source in sources:
            if os.path.realpath(path := out_path(self.folder, source)) in inputs:
                raise UserError(f"{path}: is an image to describe and would be written over; give another --out")

    def is_described(self, source: Source) -> bool:
        """Return whether the result is in the file; at most its image is missing in the folder."""
        return self.lines is not None and source.name in self.lines.done

    def keep(self, done: ImageResult[Any]) -> None:
        """Write the image, then the line if it is new: an image in the file is never without its drawing.

        Nothing is left half written after an error, such as an ``OSError`` or a :class:`NotKeptError`.
        """
        if done.result is None or done.image is None:
            return
        if self.folder is not None:
            pixels = resized(done.image, *self._sides)
            if self.bare is None:
                pixels = self.draw(pixels, done.result)
            save_image(out_path(self.folder, done.source), pixels)
        self.keep_beside(done.source, done.result)
        if self.lines is not None and not self.is_described(done.source):
            self.lines.append(done.result.to_dict(), done.source.name)

    def keep_beside(self, source: Source, answer: Any) -> None:
        """Write an answer beside its image, if that is wanted; ``NotKeptError`` if it cannot be."""
        if self.beside is not None and (why := self.beside(source, answer)):
            raise NotKeptError(why)

    def lacks_image(self, source: Source) -> bool:
        """Return whether the result is in the file, but its image is missing in the folder."""
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
        """Return the answer about an image that is in the file."""
        if self.lines is None:
            raise ValueError("these outputs have no file of results")
        return self.lines.regions(source.name, self.read)


def read_names(path: Path) -> frozenset[str]:
    """Return the names of the images in a file of results that another process may be writing; none if it is not there.

    What is no whole line of results is passed over; :class:`ResultsFile` tells of it.
    """
    names: set[str] = set()
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
                names.add(json.loads(line)["image"])
    return frozenset(names)


def ensure_same_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to add to results that were begun with other settings (``UserError``), and write down those of new ones.

    They stand in a hidden file beside the results. Results without one are taken as they are, and what is no file, such
    as a pipe, gets none.
    """
    compare_settings(path, settings)
    if path.is_file() and not path.stat().st_size:
        note_settings(path, settings)


def note_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write down beside results what they follow from, where files can be written there."""
    with contextlib.suppress(PermissionError):
        write_text(_note(path), json.dumps(settings) + "\n")


def read_settings(path: Path) -> dict[str, Any] | None:
    """Return what results follow from; None if it was not written down."""
    return read_record(_note(path)) or None


def forget_settings(path: Path) -> None:
    """Remove what was written down of results."""
    _note(path).unlink(missing_ok=True)


def compare_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Refuse results that were begun with other settings: ``UserError`` names which, and how to begin anew."""
    try:
        known = read_settings(path) if path.stat().st_size else None
    except OSError:
        return
    if known is not None and (other := [name for name, value in settings.items() if known.get(name) != value]):
        told = "; ".join(f"{name}: {known.get(name)}, now {settings[name]}" for name in other)
        way_out = f"give the same options or another file, or remove it and {_note(path).name} to begin anew"
        raise UserError(f"{path}: was begun otherwise ({told}); {way_out}")


def _note(path: Path) -> Path:
    """The hidden file of the settings of results: beside the file itself, if the path is a link to it."""
    return beside(path.resolve(), ".{}.settings.json")

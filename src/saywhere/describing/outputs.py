"""Where results go: lines, drawn pictures, the original program's folder; in an order in which a kill loses nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from saywhere.describing.batches import Described
from saywhere.describing.results import ORIGINAL_SIDE, ResultsFile
from saywhere.describing.sources import Source, out_path
from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import Picture, open_picture

if TYPE_CHECKING:
    from saywhere.regions import Regions

DRAWN_SIDES = (800, 1600)
"""Drawn pictures have their long side within these: small ones are enlarged so that captions can be read."""


@dataclass(frozen=True)
class Outputs:
    """Where results are kept.

    Attributes:
        lines: the file of results, or None.
        folder: of the pictures, or None.
        drawn: the pictures have their regions drawn on them; if not, they are resized as the original program does.
    """

    lines: ResultsFile | None = None
    folder: Path | None = None
    drawn: bool = True

    def check(self, sources: Sequence[Source]) -> None:
        """Make the folder, and refuse to write over a picture that is to be described.

        Raises:
            UserError: that, or the folder cannot be made.
        """
        if self.folder is None:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError, PermissionError) as error:
            raise UserError(f"{self.folder}: cannot be made a folder ({error.strerror})") from error
        inputs = {source.path.resolve() for source in sources}
        for source in sources:
            if (path := out_path(self.folder, source)).resolve() in inputs:
                raise UserError(f"{path}: is a picture to describe and would be written over; give another --out")

    def is_complete(self, source: Source) -> bool:
        """There is nothing left to do for this picture: it is in the file, and so is its picture in the folder."""
        return self.is_described(source) and (self.folder is None or out_path(self.folder, source).exists())

    def is_described(self, source: Source) -> bool:
        """The result is in the file; at most its picture is missing in the folder."""
        return self.lines is not None and source.name in self.lines.done

    def keep(self, done: Described) -> None:
        """Write the picture, then the line: a picture in the file is never without its drawing.

        Raises:
            ImageError: the picture, read again at the size that is drawn, has become unreadable.
            OSError: such as a full disk; nothing is left half written.
        """
        if done.regions is None:
            return
        self._write_picture(done.source, done.regions, done.picture)
        if self.lines is not None:
            self.lines.append(done.regions, done.source.name)

    def complete(self, source: Source) -> None:
        """Write the picture of a result that an earlier run left in the file; raises as :meth:`keep`."""
        if self.lines is not None:
            self._write_picture(source, self.lines[source.name], None)

    def _write_picture(self, source: Source, regions: Regions, picture: Picture | None) -> None:
        if self.folder is None:
            return
        sides = DRAWN_SIDES if self.drawn else (ORIGINAL_SIDE, ORIGINAL_SIDE)
        if picture is None or max(picture.pixels.size) < min(sides[1], max(picture.width, picture.height)):
            picture = open_picture(source.path, sides[1])  # the model had it smaller
        pixels = resized(picture, *sides)
        save_picture(out_path(self.folder, source), regions.draw(pixels) if self.drawn else pixels)

    def write_original(self, sources: Sequence[Source], options: Mapping[str, Any]) -> Path | None:
        """Write ``results.json`` of those ``sources`` that are in the file; its path."""
        from saywhere.describing.original import result, write_results

        if self.folder is None or self.lines is None:
            return None
        rows = [
            result(self.lines[source.name], out_path(Path(), source).as_posix())
            for source in sources
            if self.is_described(source)
        ]
        write_results(self.folder / "results.json", rows, options)
        return self.folder / "results.json"


def resized(picture: Picture, least: int, most: int) -> Image.Image:
    """The pixels of ``picture``, resized if its long side is not within ``least`` and ``most``."""
    long_side = max(picture.width, picture.height)
    target = min(max(long_side, least), most)
    size = (max(1, picture.width * target // long_side), max(1, picture.height * target // long_side))
    if size == picture.pixels.size:
        return picture.pixels
    return picture.pixels.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


def save_picture(path: Path, image: Image.Image) -> None:
    """Write ``image`` as PNG if the name says so, else as JPEG, atomically."""
    if path.suffix.lower() == ".png":
        write_atomically(path, lambda stream: image.save(stream, "PNG"))
    else:
        write_atomically(path, lambda stream: image.save(stream, "JPEG", quality=92))

"""Where results go: lines and images, in an order in which a kill loses nothing."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.images import ImageError, LoadedImage, open_image
from saywhere.inference.batches import ImageResult
from saywhere.inference.results import ResultsFile
from saywhere.inference.sources import Source, out_path
from saywhere.regions import Regions

DRAWN_SIDES = (800, 1600)
"""Drawn images have their long side within these: small ones are enlarged so that captions can be read."""


@dataclass(frozen=True)
class Outputs:
    """Where the answers about images are kept: regions or, without a folder, others that have ``to_dict``.

    Attributes:
        lines: the file of results, or None.
        folder: of the images, or None.
        bare: None to draw the regions on the images; else these are only resized, to this long side in pixels.
    """

    lines: ResultsFile | None = None
    folder: Path | None = None
    bare: int | None = None

    @property
    def long_side(self) -> int:
        """Pixels that an image needs on its long side to be written; 0 if none are."""
        return 0 if self.folder is None else self._sides[1]

    @property
    def _sides(self) -> tuple[int, int]:
        return DRAWN_SIDES if self.bare is None else (self.bare, self.bare)

    def check(self, sources: Sequence[Source]) -> None:
        """Make the folder, and refuse to write over an image that is to be described.

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
                raise UserError(f"{path}: is an image to describe and would be written over; give another --out")

    def is_described(self, source: Source) -> bool:
        """Return whether the result is in the file; at most its image is missing in the folder."""
        return self.lines is not None and source.name in self.lines.done

    def keep(self, done: ImageResult[Any]) -> None:
        """Write the image, then the line if it is new: an image in the file is never without its drawing.

        Raises:
            OSError: such as a full disk; nothing is left half written.
        """
        if done.result is None or done.image is None:
            return
        if self.folder is not None:
            pixels, found = resized(done.image, *self._sides), done.result
            if self.bare is None:
                from saywhere.drawing import draw_boxes

                pixels = draw_boxes(pixels, found.boxes, (found.width, found.height), found.captions, found.scores)
            save_image(out_path(self.folder, done.source), pixels)
        if self.lines is not None and not self.is_described(done.source):
            self.lines.append(done.result.to_dict(), done.source.name)

    def lacks_image(self, source: Source) -> bool:
        """Return whether the result is in the file, but its image is missing in the folder."""
        return (
            self.is_described(source) and self.folder is not None and not os.path.exists(out_path(self.folder, source))
        )

    def read_back(self, sources: Iterable[Source]) -> Iterator[ImageResult[Regions]]:
        """Yield the results of described ``sources`` from the file, with their images, for :meth:`keep`."""
        for source in sources:
            try:
                image = open_image(source.path, self.long_side)
                yield ImageResult(source, self.regions(source), image)
            except ImageError as error:
                yield ImageResult(source, error=str(error).removeprefix(f"{source.path}: "))

    def regions(self, source: Source) -> Regions:
        """Return the regions of an image that is in the file."""
        if self.lines is None:
            raise ValueError("these outputs have no file of results")
        return self.lines.regions(source.name)


def resized(image: LoadedImage, least: int, most: int) -> Image.Image:
    """Return the pixels of ``image``, resized if its long side is not within ``least`` and ``most``."""
    long_side = max(image.width, image.height)
    target = min(max(long_side, least), most)
    size = (max(1, image.width * target // long_side), max(1, image.height * target // long_side))
    if size == image.pixels.size:
        return image.pixels
    return image.pixels.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)


def save_image(path: Path, image: Image.Image) -> None:
    """Write ``image`` as PNG if the name says so, else as JPEG, atomically."""
    if path.suffix.lower() == ".png":
        write_atomically(path, lambda stream: image.save(stream, "PNG"))
    else:
        write_atomically(path, lambda stream: image.save(stream, "JPEG", quality=92))

"""The vector files of an index: arrays that only grow, mapped into memory, and what may be read of them."""

from __future__ import annotations

import contextlib
import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from saywhere.errors import UserError
from saywhere.files import sync
from saywhere.models.aligner import ImageVectors

ENTRY = np.dtype([("count", "<i4"), ("width", "<i4"), ("height", "<i4")])
"""An image: how many regions it has, which lie behind those of the image before it, and its size in pixels."""
REGION = np.dtype([("box", "<f4", (4,)), ("logit", "<f4")])
VECTOR = np.dtype("<f2")
KINDS = (ENTRY, REGION, VECTOR)
LARGEST = float(np.finfo(VECTOR).max)


@dataclass(frozen=True)
class Extent:
    """Lengths of the files that count; what a killed run wrote beyond them does not.

    Attributes:
        generation: in the names of the files; compaction writes new ones.
        entries, regions: number of images, also of forgotten ones, and of their regions.
        size: of a vector.
        components: of a vector's code; 0 if there are no codes.
        coded: number of images that have codes, the first ones.
        fitted: number of images when their basis was found.
        coding: in the names of the files of codes; each new basis makes new ones.
        basis_sum, codes_sum: CRC-32 of the basis and of the codes; -1 in an index that was made without.
    """

    generation: int
    entries: int
    regions: int
    size: int
    components: int = 0
    coded: int = 0
    fitted: int = 0
    coding: int = 0
    basis_sum: int = -1
    codes_sum: int = -1

    def files(self, folder: Path) -> dict[Path, int]:
        """Return the files of images, regions and vectors, with the bytes of each that count."""
        each = (
            self.entries * ENTRY.itemsize,
            self.regions * REGION.itemsize,
            self.regions * self.size * VECTOR.itemsize,
        )
        names = (folder / f"{name}-{self.generation}.bin" for name in ("images", "regions", "vectors"))
        return dict(zip(names, each, strict=True))

    def code_files(self, folder: Path) -> tuple[Path, Path]:
        """Return the files of the basis and of the codes."""
        basis, codes = (folder / f"{name}-{self.generation}-{self.coding}.bin" for name in ("basis", "codes"))
        return basis, codes


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Contents of an index at one moment; later writing does not change them.

    Attributes:
        extent: of the files.
        entries: ``(E,)`` of :data:`ENTRY`.
        regions: ``(R,)`` of :data:`REGION`.
        vectors: ``(R, D)`` in half precision, see :func:`with_hubness`.
        alive: ``(E,)`` whether an image is still in the index.
        codes: of the first regions ``(C, P)``: their vectors' products with the columns of the basis, as bytes.
        basis: ``(D, P)``.
    """

    extent: Extent
    entries: np.ndarray
    regions: np.ndarray
    vectors: np.ndarray
    alive: np.ndarray
    codes: np.ndarray
    basis: np.ndarray

    @classmethod
    def open(cls, folder: Path, extent: Extent, dead: Sequence[int]) -> Snapshot:
        """Map the files of an index.

        Raises:
            FileNotFoundError: they are of a generation that is gone.
            UserError: a file is shorter than it was when it was written, or the files do not fit each other.
        """
        names = list(extent.files(folder))
        shapes = ((extent.entries,), (extent.regions,), (extent.regions, extent.size))
        maps = [_mapped(*parts) for parts in zip(names, KINDS, shapes, strict=True)]
        counts = maps[0]["count"]
        if counts.min(initial=1) < 1 or counts.sum(dtype=np.int64) != extent.regions:
            raise UserError(damage(names[0], f"its images do not have {extent.regions} regions"))
        alive = np.ones(extent.entries, bool)
        alive[np.asarray(dead, np.int64)] = False
        basis, codes = extent.code_files(folder)
        components = extent.components if extent.coded else 0
        columns = _mapped(basis, np.dtype("<f4"), (extent.size, components))
        coded = _mapped(codes, np.dtype(np.int8), (int(counts[: extent.coded].sum(dtype=np.int64)), components))
        return cls(extent, maps[0], maps[1], maps[2], alive, coded, columns)

    def __len__(self) -> int:
        return int(self.alive.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        """``(E + 1,)`` number of the first region of each image, and of the one behind the last."""
        return np.append(0, np.cumsum(self.entries["count"], dtype=np.int64))

    def rows(self, entry: int) -> slice:
        """Return which regions are an image's."""
        return slice(int(self.starts[entry]), int(self.starts[entry + 1]))

    def load(self, entry: int, name: str) -> ImageVectors:
        """Return an image as :meth:`saywhere.Model.embed` returned it, in half precision."""
        row, rows = self.entries[entry], self.rows(entry)
        regions, (vectors, hubness) = self.regions[rows], without_hubness(self.vectors[rows].astype(np.float32))
        boxes, logits = np.array(regions["box"]), np.array(regions["logit"])
        return ImageVectors(int(row["width"]), int(row["height"]), boxes, vectors, name, logits, hubness)

    @cached_property
    def decoder(self) -> np.ndarray:
        """``(D, P)``: a word's products with it have the codes' products with the word for their own."""
        return self.basis / np.square(self.basis).sum(axis=0)

    def check_codes(self, folder: Path, basis_alone: bool = False) -> None:
        """Compare the basis and the codes with their checksums.

        Of a gigabyte of codes, those of some 800,000 images, this takes a third of a second.

        Args:
            folder: of the index.
            basis_alone: leave out the codes.

        Raises:
            UserError: they are not as they were written.
        """
        extent = self.extent
        sums = ((extent.basis_sum, self.basis), (extent.codes_sum, self.codes))
        for path, (known, array) in list(zip(extent.code_files(folder), sums, strict=True))[: 1 if basis_alone else 2]:
            if extent.coded and known not in (-1, zlib.crc32(array.data)):
                raise UserError(damage(path, "a checksum differs"))

    def expect(self, entries: np.ndarray) -> None:
        """Advise the operating system which vectors are read next, so that the disk reads them all at the same time.

        Of a file larger than the memory they would else be waited for one after the other.
        """
        mapping: object = self.vectors
        while isinstance(mapping, np.ndarray):
            mapping = mapping.base
        if isinstance(mapping, mmap.mmap) and hasattr(mmap, "MADV_WILLNEED"):
            width = self.vectors.shape[1] * VECTOR.itemsize
            starts, ends = self.starts[entries] * width, self.starts[entries + 1] * width
            starts -= starts % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # it is advice
                for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
                    mapping.madvise(mmap.MADV_WILLNEED, start, end - start)

    def checksum(self, entry: int) -> int:
        """Return the CRC-32 of all that the files hold of an image."""
        rows = self.rows(entry)
        return checksum(self.entries[entry], self.regions[rows], self.vectors[rows])


def checksum(entry: np.ndarray, regions: np.ndarray, vectors: np.ndarray) -> int:
    """Return the CRC-32 of an image's entry, regions and vectors."""
    found = 0
    for part in (entry, regions, vectors):
        found = zlib.crc32(part.tobytes(), found)
    return found


def to_arrays(image: ImageVectors) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return an image's entry, regions and vectors as they are written.

    Raises:
        UserError: a vector has numbers that half precision cannot hold.
    """
    vectors = with_hubness(image)
    if not (np.abs(vectors) <= LARGEST).all():
        raise UserError(f"{image.image}: the model gives vectors with numbers beyond {LARGEST:g}: it cannot be indexed")
    regions = np.zeros(len(image), REGION)
    regions["box"], regions["logit"] = image.boxes, image.logits
    entry = np.array((len(image), image.width, image.height), ENTRY)
    return entry, regions, vectors.astype(VECTOR)


def with_hubness(image: ImageVectors) -> np.ndarray:
    """Return an image's vectors ``(R, D + 1)`` with minus its hubness behind each.

    Their products with a text's vectors, which have 1 behind the last one and 0 behind the others, add up to the
    similarity: an index compares images as if there were no hubness.
    """
    return np.pad(image.vectors, ((0, 0), (0, 1)), constant_values=-image.hubness)


def without_hubness(vectors: np.ndarray) -> tuple[np.ndarray, float]:
    """Return what :func:`with_hubness` was made of: vectors ``(R, D)``, and the hubness."""
    return np.ascontiguousarray(vectors[:, :-1]), -float(vectors[0, -1])


def append(folder: Path, extent: Extent, images: Sequence[ImageVectors]) -> tuple[Extent, list[int]]:
    """Write images behind ``extent`` and wait until they are on the disk; return the new extent and the checksums."""
    parts = [to_arrays(image) for image in images]
    columns = [np.concatenate([np.atleast_1d(part[i]) for part in parts]) for i in range(3)]
    for (path, end), column in zip(extent.files(folder).items(), columns, strict=True):
        write_at(path, end, column)
    after = replace(extent, entries=extent.entries + len(images), regions=extent.regions + len(columns[1]))
    return after, [checksum(*part) for part in parts]


def compact(folder: Path, snapshot: Snapshot, batch: int = 1024) -> tuple[Extent, np.ndarray]:
    """Write what is alive into files of the next generation; return their extent and the entries, old by new."""
    old = snapshot.extent
    extent = replace(old, generation=old.generation + 1, entries=0, regions=0, coded=0, fitted=0)
    kept = np.flatnonzero(snapshot.alive)
    for path in extent.files(folder):
        write_at(path, 0, np.zeros(0, np.int8))
    for first in range(0, len(kept), batch):
        images = [snapshot.load(entry, "") for entry in kept[first : first + batch].tolist()]
        extent, _ = append(folder, extent, images)
    return extent, kept


def write_at(path: Path, end: int, column: np.ndarray) -> None:
    """Put an array at a place in a file, cut off what was behind it, and wait for the disk."""
    new = not path.exists()
    try:
        with open(path, "xb" if new else "r+b") as stream:
            stream.truncate(end)
            stream.seek(end)
            stream.write(column.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
        if new:
            sync(path.parent)
    except OSError as error:
        error.filename = str(path)
        raise


def _mapped(path: Path, kind: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
    wanted = int(np.prod(shape)) * kind.itemsize
    if not wanted:
        return np.zeros(shape, kind)
    if (size := path.stat().st_size) < wanted:
        raise UserError(damage(path, f"has {size} bytes instead of {wanted}"))
    return np.memmap(path, kind, "r", shape=shape).view(np.ndarray)


def damage(path: Path, what: str) -> str:
    """Return the message about a damaged file, with the way out."""
    return f"{path}: is damaged ({what}); saywhere index PATH... --index {path.parent} --repair embeds what is lost"

"""Features of a frozen network on disk, so that training on a CPU does not compute them again in each epoch.

A cache is a folder named by a hash of everything its contents depend on. ``features.bin`` holds the maps of each view
of each image one after the other in half precision; ``index.jsonl`` has a line for each block: where it starts, the
shapes of its maps, its CRC-32. The block is written before its line, so a cache that was interrupted at any point is
resumed after the last whole block, and every block is checked against its CRC when it is first read. ``lock`` is held
while a cache is filled, so that of several runs one fills it and the others wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.errors import UserError
from saywhere.files import FULL, sync
from saywhere.images import ImageError, LoadedImage, Preprocess, open_image
from saywhere.inference.claims import lock

HALF_MAX = float(np.finfo(np.float16).max)


class CachedImage(Protocol):
    """A sample as the cache needs it: the file and its upright size."""

    @property
    def image(self) -> Path:
        """The file."""
        ...

    @property
    def width(self) -> int:
        """Pixels of the upright image."""
        ...

    @property
    def height(self) -> int:
        """Pixels of the upright image."""
        ...


@dataclass(frozen=True)
class Block:
    """Location of the maps of one view of one image: byte offset, shape of each map, CRC-32 of the bytes."""

    offset: int
    shapes: tuple[tuple[int, int, int], ...]
    crc: int

    @property
    def size(self) -> int:
        """Bytes."""
        return 2 * sum(c * h * w for c, h, w in self.shapes)


class FeatureCache:
    """Read the cached maps of images by number of the image and view (as it is, or mirrored); made by :func:`build`.

    Attributes:
        folder: of ``features.bin`` and ``index.jsonl``.
        damaged: number of each image that cannot be read, and why.
    """

    def __init__(self, folder: Path, blocks: dict[tuple[int, bool], Block], damaged: dict[int, str]):
        self.folder, self.damaged = folder, damaged
        self._blocks, self._checked = blocks, set[tuple[int, bool]]()
        path = folder / "features.bin"
        self._bytes = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.zeros(0, np.uint8)

    def __len__(self) -> int:
        return len(self._blocks)

    def read(self, index: int, flipped: bool) -> tuple[Tensor, ...]:
        """Return the maps ``(C_l, H_l, W_l)`` float16 of image ``index``, finest first; only their bytes are copied.

        Raises:
            UserError: the bytes on disk are not those that were written.
        """
        block = self._blocks[index, flipped]
        data = np.array(self._bytes[block.offset : block.offset + block.size])
        if (index, flipped) not in self._checked:
            if zlib.crc32(data.data) != block.crc:
                raise UserError(f"{self.folder / 'features.bin'} is damaged; delete {self.folder} and run again")
            self._checked.add((index, flipped))
        values = torch.from_numpy(data.view(np.float16))
        sizes = [c * h * w for c, h, w in block.shapes]
        return tuple(part.view(shape) for part, shape in zip(values.split(sizes), block.shapes, strict=True))

    def subset(self, indices: Sequence[int]) -> FeatureView:
        """Return a view of the images ``indices``, which are counted from 0 in it."""
        return FeatureView(self, tuple(indices))


@dataclass(frozen=True)
class FeatureView:
    """Read some images of a cache, which have numbers of their own."""

    cache: FeatureCache
    indices: tuple[int, ...]

    def read(self, index: int, flipped: bool) -> tuple[Tensor, ...]:
        """See :meth:`FeatureCache.read`."""
        return self.cache.read(self.indices[index], flipped)


def read_pixels(image: CachedImage, preprocess: Preprocess) -> Tensor:
    """Return the pixels ``(3, h, w)`` of an image or, if it has a ``crop``, of that part of it.

    Raises:
        ImageError: it cannot be read.
    """
    crop: tuple[int, int, int, int] | None = getattr(image, "crop", None)
    if crop is None:
        return torch.from_numpy(preprocess(open_image(image.image, preprocess.long_side)))
    whole = open_image(image.image)
    return torch.from_numpy(preprocess(LoadedImage(whole.pixels.crop(crop), image.width, image.height, whole.name)))


def cache_key(name: str, network: nn.Module, preprocess: Preprocess, images: Sequence[CachedImage]) -> str:
    """Return a hash of all that features depend on: the network, the preprocessing, the files (:func:`file_digest`).

    Args:
        name: the network's name, or its settings; its ``strides`` and weights count too.
        network, preprocess, images: see :func:`build`.
    """
    strides = getattr(network, "strides", None)
    digest = hashlib.sha256(f"2 {name} {strides} {dataclasses.astuple(preprocess)}".encode())
    for key, tensor in network.state_dict().items():
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    for image in images:
        path, crop = image.image.resolve(), getattr(image, "crop", "")
        digest.update(os.fsencode(f"{path} {image.width} {image.height} {file_digest(path)}{crop}\n"))
    return digest.hexdigest()[:20]


def file_digest(path: Path) -> str:
    """Return the size of a file and a checksum of its first 64 KiB; an empty text if it cannot be read.

    Its time does not count: a data set that is copied or mounted anew is the same.
    """
    try:
        with path.open("rb") as file:
            return f"{path.stat().st_size} {zlib.crc32(file.read(1 << 16))}"
    except OSError:
        return ""


def build(
    root: str | Path,
    name: str,
    network: nn.Module,
    preprocess: Preprocess,
    images: Sequence[CachedImage],
    flip: bool,
    device: str | torch.device = "cpu",
    batch_size: int = 8,
    title: str = "features",
) -> FeatureCache:
    """Open the cache of images under ``root``; what is missing in it is computed first, with a progress bar.

    Damaged images are left out and listed in ``damaged``.

    Args:
        root: folder of all caches.
        name: of the network, or its settings.
        network: turns a list of pixels ``(3, h, w)`` into a tuple of maps each; runs in eval mode.
        preprocess: turns images into pixels.
        images: samples with ``image``, ``width``, ``height``.
        flip: also the features of the mirrored images.
        device: where the network runs meanwhile.
        batch_size: images of equal shape in one pass.
        title: of the progress bar.

    Raises:
        UserError: the disk is full, or will be.
    """
    folder = Path(root) / cache_key(name, network, preprocess, images)
    folder.mkdir(parents=True, exist_ok=True)
    views = (False, True) if flip else (False,)
    with _locked(folder):
        blocks, damaged, end = _read_index(folder)
        complete = [i in damaged or all((i, view) in blocks for view in views) for i in range(len(images))]
        if missing := [i for i, whole in enumerate(complete) if not whole]:
            training, home = network.training, _device(network)
            network.eval().to(device)
            try:
                _fill(folder, end, network, preprocess, images, missing, views, batch_size, title)
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise _disk_full(folder) from error
            finally:
                network.train(training).to(home)
            blocks, damaged, _ = _read_index(folder)
    return FeatureCache(folder, blocks, damaged)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Wait until no other run fills this cache, and keep others waiting; a killed run releases it.

    Where a system or a file system has no locks, users must start one run at a time.
    """
    with (folder / "lock").open("a") as file:
        if lock(file.fileno()) is False:
            print(f"{folder}: another run is filling this cache; waiting for it", file=sys.stderr, flush=True)
            while lock(file.fileno()) is False:
                pass
        yield


def _device(network: nn.Module) -> torch.device:
    return next((p.device for p in network.parameters()), torch.device("cpu"))


def _disk_full(folder: Path, needed: float | None = None) -> UserError:
    more = f" (about {needed / 1e9:.1f} GB are needed)" if needed else ""
    return UserError(
        f"{folder}: the disk is full{more}; what is cached so far stays. Free some space, name another "
        "folder with training.cache=DIR, or do without with training.cache=null"
    )


def _read_index(folder: Path) -> tuple[dict[tuple[int, bool], Block], dict[int, str], int]:
    """Return the whole blocks, the damaged images and the start of the next block; cut off what is incomplete."""
    index, data = folder / "index.jsonl", folder / "features.bin"
    index.touch()
    data.touch()
    blocks: dict[tuple[int, bool], Block] = {}
    damaged: dict[int, str] = {}
    end, whole, size = 0, 0, data.stat().st_size
    for line in index.read_bytes().splitlines(keepends=True):
        try:
            row = json.loads(line)
            if not line.endswith(b"\n"):
                break
            if "error" in row:
                damaged[row["image"]] = row["error"]
            else:
                block = Block(row["offset"], tuple((c, h, w) for c, h, w in row["shapes"]), row["crc"])
                if block.offset != end or block.offset + block.size > size:
                    break
                blocks[row["image"], row["flipped"]] = block
                end += block.size
        except (ValueError, KeyError, TypeError):
            break
        whole += len(line)
    if whole < index.stat().st_size:
        with index.open("r+b") as file:
            file.truncate(whole)
    return blocks, damaged, end


def _fill(
    folder: Path,
    end: int,
    network: nn.Module,
    preprocess: Preprocess,
    images: Sequence[CachedImage],
    missing: Sequence[int],
    views: Sequence[bool],
    batch_size: int,
    title: str,
) -> None:
    from saywhere.training.progress import track

    with (folder / "features.bin").open("r+b") as data, (folder / "index.jsonl").open("a") as index:
        data.truncate(end)
        data.seek(end)
        groups = list(_equal_shapes(preprocess, images, missing, batch_size))
        with track(title, len(missing)) as progress:
            for number, group in enumerate(groups):
                _fill_group(data, index, network, preprocess, images, group, views)
                if number == 0:
                    _check_space(folder, (data.tell() - end) / len(group) * (len(missing) - len(group)))
                progress.advance(len(group))


def _check_space(folder: Path, needed: float) -> None:
    if needed > shutil.disk_usage(folder).free:
        raise _disk_full(folder, needed)


def _fill_group(
    data: IO[bytes],
    index: IO[str],
    network: nn.Module,
    preprocess: Preprocess,
    images: Sequence[CachedImage],
    group: Sequence[int],
    views: Sequence[bool],
) -> None:
    pixels: dict[int, Tensor] = {}
    lines: list[dict[str, object]] = []
    for i in group:
        try:
            pixels[i] = read_pixels(images[i], preprocess)
        except ImageError as error:
            lines.append({"image": i, "error": str(error)})
    device = _device(network)
    for flipped in views if pixels else ():
        batch = [(p.flip(-1) if flipped else p).to(device) for p in pixels.values()]
        with torch.inference_mode():
            features = network(batch)
        for i, maps in zip(pixels, features, strict=True):
            halves = [m.clamp(-HALF_MAX, HALF_MAX).half().cpu().numpy() for m in maps]
            block = b"".join(half.tobytes() for half in halves)
            shapes = [list(half.shape) for half in halves]
            offset = data.tell()
            data.write(block)
            row = {"image": i, "flipped": flipped, "offset": offset, "shapes": shapes, "crc": zlib.crc32(block)}
            lines.append(row)
    data.flush()
    sync(data.fileno())
    index.write("".join(json.dumps(line) + "\n" for line in lines))
    index.flush()


def _equal_shapes(
    preprocess: Preprocess, images: Sequence[CachedImage], missing: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Numbers of images of one shape after resizing, at most ``batch_size`` at a time."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for i in missing:
        shapes.setdefault(preprocess.size(images[i].width, images[i].height), []).append(i)
    for group in shapes.values():
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]

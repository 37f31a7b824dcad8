"""Disk cache for features of a frozen network, so that CPU training does not recompute them in each epoch.

A cache is a folder named by a hash of everything its contents depend on. It has one file per view of each image, with
half-precision maps and checksums; files are written whole or not at all. Filling a cache holds ``lock``: of several
runs, one fills it and the others wait.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import sys
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.files import FULL, write_atomically
from saywhere.images import ImageError, LoadedImage, Preprocess, open_image
from saywhere.inference.claims import lock
from saywhere.options import dataclass
from saywhere.training.progress import track

HALF_MAX = float(np.finfo(np.float16).max)


@dataclass(frozen=True)
class FeatureCache:
    """The cached maps of images; :func:`build` makes it.

    Attributes:
        numbers: indices of the readable images.
        damaged: for each unreadable image its index and the reason.
    """

    folder: Path
    numbers: Sequence[int]
    damaged: Mapping[int, str]

    def read(self, index: int, flipped: bool) -> tuple[Tensor, ...]:
        """Return the float16 maps ``(C_l, H_l, W_l)`` of the image ``numbers[index]``, from fine to coarse.

        ``UserError`` if the file does not match its checksum.
        """
        path = _file(self.folder, self.numbers[index], flipped)
        try:
            with np.load(path) as stored:
                return tuple(torch.from_numpy(stored[name]) for name in stored.files)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise UserError(f"{path} is damaged; delete {self.folder} and run again") from error


def _file(folder: Path, number: int, flipped: bool) -> Path:
    return folder / f"{number:06}{'-mirrored' if flipped else ''}.npz"


def read_pixels(image: Sample, preprocess: Preprocess) -> Tensor:
    """Return the pixels ``(3, h, w)`` of an image or of its ``crop``; ``ImageError`` if it cannot be read."""
    crop: tuple[int, int, int, int] | None = getattr(image, "crop", None)
    if crop is None:
        return torch.from_numpy(preprocess(open_image(image.image, preprocess.long_side)))
    whole = open_image(image.image)
    return torch.from_numpy(preprocess(LoadedImage(whole.pixels.crop(crop), image.width, image.height, whole.name)))


def cache_key(name: str, network: nn.Module, preprocess: Preprocess, images: Sequence[Sample]) -> str:
    """Return a hash of all that features depend on: network, preprocessing, and files (by :func:`file_digest`).

    The network is represented by its ``name`` (or settings), ``strides`` and weights.
    """
    strides = getattr(network, "strides", None)
    digest = hashlib.sha256(f"3 {name} {strides} {dataclasses.astuple(preprocess)}".encode())
    for key, tensor in network.state_dict().items():
        digest.update(f"{key} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    for image in images:
        path, crop = image.image.resolve(), getattr(image, "crop", "")
        digest.update(os.fsencode(f"{path} {image.width} {image.height} {file_digest(path)}{crop}\n"))
    return digest.hexdigest()[:20]


def file_digest(path: Path) -> str:
    """Return a file's size and a checksum of its first 64 KiB; empty if it cannot be read.

    Modification times are ignored, so a copied or remounted data set keeps its digest.
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
    images: Sequence[Sample],
    flip: bool,
    device: str | torch.device = "cpu",
    batch_size: int = 8,
    title: str = "features",
) -> FeatureCache:
    """Open the cache of images under ``root``, computing what is missing with a progress bar.

    Args:
        name: the network's name or settings.
        network: maps a list of pixels ``(3, h, w)`` to one tuple of maps each; runs in eval mode.
        images: unreadable ones are listed in ``damaged``.
        flip: include features of the mirrored images.
        device: device that the network runs on meanwhile.
        batch_size: maximum images of equal shape in one forward pass.

    Raises:
        UserError: the disk is full or would become full.
    """
    folder = Path(root) / cache_key(name, network, preprocess, images)
    folder.mkdir(parents=True, exist_ok=True)
    views = (False, True) if flip else (False,)
    with _locked(folder):
        missing = [i for i in range(len(images)) if not all(_file(folder, i, view).exists() for view in views)]
        damaged: dict[int, str] = {}
        if missing:
            training, home = network.training, next((p.device for p in network.parameters()), torch.device("cpu"))
            network.eval().to(device)
            try:
                with track(title, len(missing)) as progress:
                    done = 0
                    for group in _equal_shapes(preprocess, images, missing, batch_size):
                        size = _fill(folder, network, preprocess, {i: images[i] for i in group}, views, device, damaged)
                        done += len(group)
                        if (needed := size / len(group) * (len(missing) - done)) > shutil.disk_usage(folder).free:
                            raise _disk_full(folder, needed)
                        progress.advance(len(group))
            except OSError as error:
                if error.errno not in FULL:
                    raise
                raise _disk_full(folder) from error
            finally:
                network.train(training).to(home)
    return FeatureCache(folder, [i for i in range(len(images)) if i not in damaged], damaged)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a cache, after waiting for other runs that fill it; a killed run releases its lock.

    On systems or file systems without locks, users must start one run at a time.
    """
    with (folder / "lock").open("a") as file:
        if lock(file.fileno()) is False:
            print(f"{folder}: another run is filling this cache; waiting for it", file=sys.stderr, flush=True)
            while lock(file.fileno()) is False:
                pass
        yield


def _disk_full(folder: Path, needed: float | None = None) -> UserError:
    more = f" (about {needed / 1e9:.1f} GB are needed)" if needed else ""
    return UserError(
        f"{folder}: the disk is full{more}; what is cached so far stays. Free some space, name another "
        "folder with training.cache=DIR, or do without with training.cache=null"
    )


@torch.inference_mode()
def _fill(
    folder: Path, network: nn.Module, preprocess: Preprocess, images: Mapping[int, Sample], views: Sequence[bool],
    device: str | torch.device, damaged: dict[int, str],
) -> int:  # fmt: skip
    """Write the views of images of one shape; return the bytes. Unreadable images are added to ``damaged``."""
    pixels: dict[int, Tensor] = {}
    for number, image in images.items():
        try:
            pixels[number] = read_pixels(image, preprocess).to(device)
        except ImageError as error:
            damaged[number] = str(error)
    size = 0
    for flipped in views if pixels else ():
        features = network([p.flip(-1) if flipped else p for p in pixels.values()])
        for number, maps in zip(pixels, features, strict=True):
            halves = [m.clamp(-HALF_MAX, HALF_MAX).half().cpu().numpy() for m in maps]
            write_atomically(_file(folder, number, flipped), lambda stream, halves=halves: np.savez(stream, *halves))
            size += sum(half.nbytes for half in halves)
    return size


def _equal_shapes(
    preprocess: Preprocess, images: Sequence[Sample], missing: Sequence[int], batch_size: int
) -> Iterator[list[int]]:
    """Yield groups of at most ``batch_size`` image indices with equal shapes after resizing."""
    shapes: dict[tuple[int, int], list[int]] = {}
    for i in missing:
        shapes.setdefault(preprocess.size(images[i].width, images[i].height), []).append(i)
    for group in shapes.values():
        for start in range(0, len(group), batch_size):
            yield group[start : start + batch_size]

"""Images as the program's network wants them: its resizing, blue before red, means taken away, 0 to 255."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from saywhere.images import LoadedImage, Preprocess

BLUE_GREEN_RED_MEANS = (103.939, 116.779, 123.68)


def scaled_size(width: int, height: int, long_side: int) -> tuple[int, int]:
    """Return width and height after resizing to ``long_side``; the short side is rounded down."""
    longest = max(width, height)
    return max(1, width * long_side // longest), max(1, height * long_side // longest)


def scale_weights(source: int, target: int) -> Tensor:
    """Return the matrix ``(target, source)`` that resizes rows or columns from ``source`` to ``target`` pixels.

    Larger: linear between pixels, the first and the last ones staying where they are. Smaller: each new pixel is the
    mean of the old ones that it covers. Places are computed in single precision, as there.
    """
    places = np.arange(target + 1, dtype=np.float32)
    weights = np.zeros((target, source), np.float32)
    rows = np.arange(target)
    if target > source:
        places = places[:-1] * np.float32((source - 1) / (target - 1))
        places[-1] = source - 1
        left = places.astype(np.int64)
        weights[rows, left] += 1 - (places - left)
        weights[rows, np.minimum(left + 1, source - 1)] += places - left
    elif target < source:
        edges = places * np.float32(source / target)
        cells = np.arange(source, dtype=np.float32)
        covered = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
        weights = covered.clip(0, 1)
        weights /= weights.sum(axis=1, keepdims=True)
    else:
        weights[rows, rows] = 1
    return torch.from_numpy(weights)


def scale_image(pixels: Tensor, width: int, height: int) -> Tensor:
    """Resize ``pixels (C, h, w)`` as the program's image library does: columns first, then rows."""
    across = scale_weights(pixels.shape[2], width).to(pixels)
    down = scale_weights(pixels.shape[1], height).to(pixels)
    return down @ (pixels @ across.T)


def caffe_pixels(pixels: Tensor) -> Tensor:
    """Return what Caffe's VGG-16 takes of ``pixels (3, h, w)``, R G B from 0 to 1: B G R, 0 to 255, less the means."""
    return pixels.flip(0) * 255 - pixels.new_tensor(BLUE_GREEN_RED_MEANS)[:, None, None]


@dataclass(frozen=True)
class OriginalPreprocess(Preprocess):
    """The program's way to look at an image; ``multiple`` is 1, ``mean`` and ``std`` are B G R, as shares of 255."""

    def size(self, width: int, height: int) -> tuple[int, int]:
        """See :func:`scaled_size`."""
        return scaled_size(width, height, self.long_side)

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return pixels ``(3, h, w)`` float32, see :func:`caffe_pixels`."""
        width, height = self.size(image.width, image.height)
        values = torch.from_numpy(np.array(image.pixels)).permute(2, 0, 1).float() / 255
        return caffe_pixels(scale_image(values, width, height)).numpy()

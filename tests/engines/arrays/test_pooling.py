"""Pooling in numpy, on maps of odd shapes and boxes of all kinds, is what the networks do."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saywhere import boxes as geometry
from saywhere.engines.arrays.pooling import ImageMaps, Pyramid, grid_boxes, grid_means
from saywhere.networks.densecap.build import pool_pyramid
from saywhere.networks.vision import grid

STRIDES = (8, 16, 32)
SHAPES = [(1, 1), (1, 7), (5, 3), (9, 12), (3, 1)]
"""Cells of the coarsest level, down and across."""


def maps(height: int, width: int, channels: int = 3, strides: tuple[int, ...] = STRIDES, seed: int = 0):
    """Random maps of a pyramid, finest first."""
    random = np.random.default_rng(seed)
    sizes = [(height * strides[-1] // stride, width * strides[-1] // stride) for stride in strides]
    return [random.normal(size=(channels, *size)).astype(np.float32) for size in sizes]


def random_boxes(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    corners = np.sort(np.random.default_rng(seed).uniform(0, 1, (count, 2, 2)), axis=1).reshape(count, 4)
    return (corners * np.array([width, height, width, height]) * 32).astype(np.float32)


def border_boxes(height: int, width: int) -> np.ndarray:
    """All of the image, its edges and corners, boxes that leave it or lie beside it, and boxes without area."""
    w, h = 32.0 * width, 32.0 * height
    return np.array(
        [[0, 0, w, h], [0, 0, 1, 1], [w - 1, h - 1, w, h], [0, 0, w, 1], [w - 2, 0, w, h], [-9, -9, w + 9, h + 9],
         [-40, -40, -8, -8], [w + 8, 0, w + 50, h], [3, 4, 3, 9], [5, 5, 5, 5], [0, 0, 0, 0], [9, 9, 4, 4]],
        np.float32,
    )  # fmt: skip


def same(found: np.ndarray, expected: torch.Tensor, atol: float = 1e-5) -> None:
    assert found.dtype == np.float32 and found.shape == tuple(expected.shape)
    np.testing.assert_allclose(found, expected.numpy(), atol=atol, rtol=1e-4)


def pooled_by_torch(levels, strides, boxes: np.ndarray, size: int) -> torch.Tensor:
    tensors = [torch.from_numpy(level) for level in levels]
    pooled = pool_pyramid(tensors, strides, torch.from_numpy(boxes), size)
    return pooled.flatten(2).transpose(1, 2)  # (N, points, C)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("size", [1, 2, 7])
@pytest.mark.parametrize("count", [0, 1, 1000, None], ids=lambda count: "borders" if count is None else str(count))
def test_a_pyramid_is_pooled_as_by_the_networks(shape: tuple[int, int], size: int, count: int | None):
    levels, boxes = maps(*shape), border_boxes(*shape) if count is None else random_boxes(count, *shape)
    same(Pyramid(levels, STRIDES).pool(boxes, size), pooled_by_torch(levels, STRIDES, boxes, size), 1e-4)


def test_boxes_go_to_the_level_of_their_size():
    """Each level is of one value, so that the answer says which level was read."""
    levels = [np.full((1, 64 // 2**i, 64 // 2**i), float(i), np.float32) for i in range(3)]
    sides = [10, 127, 128, 129, 255, 256, 257, 400]
    boxes = np.array([[50, 50, 50 + side, 50 + side] for side in sides], np.float32)
    found = Pyramid(levels, STRIDES).pool(boxes, 2)[:, 0, 0]
    assert found.tolist() == [0, 0, 1, 1, 1, 2, 2, 2]
    for some in ([0], [2], [5], [0, 7], [3, 4]):  # levels without boxes
        assert Pyramid(levels, STRIDES).pool(boxes[some], 2)[:, 0, 0].tolist() == found[some].tolist()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("boxes", [random_boxes, lambda _, *shape: border_boxes(*shape), lambda *_: np.zeros((0, 4))])
def test_means_over_boxes(shape: tuple[int, int], boxes):
    rows = boxes(200, *shape).astype(np.float32)
    for level, stride in zip(maps(*shape), STRIDES, strict=True):
        expected = geometry.means(torch.from_numpy(level), torch.from_numpy(rows), stride)
        same(geometry.means(level, rows, stride), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("cells", [1, 2, 6, 13])
def test_means_over_the_cells_of_a_grid(shape: tuple[int, int], cells: int):
    sources = list(zip(maps(*shape), STRIDES, strict=True))
    width, height = 32 * shape[1], 32 * shape[0]
    features, boxes = grid.cell_features([(torch.from_numpy(m), s) for m, s in sources], cells, width, height)
    found = np.concatenate([grid_means(level, cells) for level, _ in sources], axis=1)
    same(found, features[1:, :-5])
    same(grid_boxes(cells, width, height), boxes[1:], 1e-4)
    same(geometry.place(grid_boxes(cells, width, height), width, height), features[1:, -5:])


def test_where_boxes_are():
    boxes = np.array([[0, 0, 60, 40], [15, 10, 45, 20], [30, 30, 20, 35]], np.float32)
    expected = [[0, 0, 1, 1, 1], [0.25, 0.25, 0.75, 0.5, 0.125], [0.5, 0.75, 1 / 3, 0.875, 0]]
    np.testing.assert_allclose(geometry.place(boxes, 60, 40), expected, rtol=1e-6)
    same(geometry.place(boxes, 60, 40), geometry.place(torch.from_numpy(boxes), 60, 40), 1e-6)


def test_means_that_are_kept_are_those_of_the_boxes_that_are_asked_for():
    drawn = np.random.default_rng(3)
    outputs = {name: drawn.normal(size=(1, 4, 6, 8)).astype(np.float32) for name in ("map16", "head")}
    some, others = (np.sort(drawn.uniform(0, 96, (5, 2, 2)), axis=1).reshape(5, 4).astype(np.float32) for _ in "ab")
    maps = ImageMaps(outputs, (8, 16), (128, 96))
    for boxes in (some, others, some, some[:2]):
        for levels, head in (((16,), True), ((), True), ((16,), False)):
            fresh = ImageMaps(outputs, (8, 16), (128, 96)).means(boxes, levels, head)
            np.testing.assert_array_equal(maps.means(boxes, levels, head), fresh)

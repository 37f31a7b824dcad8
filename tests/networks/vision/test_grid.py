from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.grid import Grid, bin_boxes, bins, cell_boxes, cell_features, pick, position_boxes
from saywhere.networks.vision.region_features import PLACE


def test_cells_have_the_means_of_their_part_of_the_map():
    fine = torch.arange(16.0).reshape(1, 4, 4)
    coarse = torch.stack((torch.tensor([[1.0, 2], [3, 4]]), torch.zeros(2, 2)))
    sources = [(fine, 16), (coarse, 32)]
    found, boxes = cell_features(sources, 2, 64, 64)
    assert found[:, 0].tolist() == [7.5, 2.5, 4.5, 10.5, 12.5]
    assert found[:, 1].tolist() == [2.5, 1.0, 2.0, 3.0, 4.0]
    assert found[:, 2].tolist() == [0.0] * 5
    assert found[2, 3:].tolist() == [0.5, 0.0, 1.0, 0.5, 0.25]  # where it is, and how large
    assert boxes.tolist() == [[0, 0, 64, 64], [0, 0, 32, 32], [32, 0, 64, 32], [0, 32, 32, 64], [32, 32, 64, 64]]
    whole, box = cell_features(sources, 0, 64, 64)
    torch.testing.assert_close(whole, found[:1])
    assert box.tolist() == [[0, 0, 64, 64]]


def test_cells_of_equal_size_have_the_mean_of_the_whole():
    found, _ = cell_features([(torch.randn(3, 4, 6), 32)], 2, 192, 128)
    torch.testing.assert_close(found[1:, :-PLACE].mean(dim=0), found[0, :-PLACE])


def test_cells_of_a_wide_image():
    assert cell_boxes(2, 96, 64)[1:].tolist() == [[0, 0, 48, 32], [48, 0, 96, 32], [0, 32, 48, 64], [48, 32, 96, 64]]


def test_bins_cover_every_cell():
    assert bins(6, 3) == [(0, 2), (2, 4), (4, 6)]
    assert bins(5, 3) == [(0, 2), (1, 4), (3, 5)]
    assert bins(2, 7) == bins(2, None) == [(0, 1), (1, 2)]


def test_the_boxes_of_bins_are_in_pixels():
    assert bin_boxes(2, 4, 2, 16).tolist() == [[0, 0, 32, 16], [32, 0, 64, 16], [0, 16, 32, 32], [32, 16, 64, 32]]


def test_half_as_many_are_every_second_position():
    assert pick(4, 6, 2, sample=False).tolist() == [[0, 1], [0, 4], [2, 1], [2, 4]]
    assert pick(14, 14, 7, sample=False)[:8].tolist() == [[0, 2 * j] for j in range(7)] + [[2, 0]]


def test_a_sampled_position_is_any_of_its_bin_and_follows_the_seed():
    sampled = [pick(4, 6, 2, True, torch.Generator().manual_seed(seed)) for seed in range(60)]
    for region, (rows, columns) in enumerate([((0, 1), (0, 1, 2)), ((0, 1), (3, 4, 5)), ((2, 3), (0, 1, 2))]):
        seen = {tuple(positions[region].tolist()) for positions in sampled}
        assert seen == {(row, column) for row in rows for column in columns}
    assert torch.equal(sampled[3], pick(4, 6, 2, True, torch.Generator().manual_seed(3)))


def test_boxes_around_positions_are_cut_to_the_map():
    boxes = position_boxes(torch.tensor([[0, 0], [2, 3]]), 3, 4, 5, 10)
    assert boxes.tolist() == [[0, 0, 20, 20], [20, 10, 50, 40]]
    assert position_boxes(torch.tensor([[2, 3]]), 1, 4, 5, 10).tolist() == [[30, 20, 40, 30]]


def test_every_position_is_a_region():
    maps = torch.arange(24.0).reshape(1, 2, 3, 4)
    features, boxes = Grid(2, 8, cells=None)(maps)
    assert features[0].tolist() == [[i, 12 + i] for i in range(12)]
    assert boxes[0, 5].tolist() == [8, 8, 16, 16]


def test_which_feature_a_region_has_of_its_positions():
    maps = torch.tensor([[[[1.0, 2, 3, 4], [5, 6, 7, 8]]]])
    found = {how: Grid(1, 8, 2, how).eval()(maps) for how in ("pick", "average", "max")}
    assert found["pick"][0].flatten().tolist() == [1, 3, 5, 7]
    assert found["average"][0].flatten().tolist() == [1.5, 3.5, 5.5, 7.5]
    assert found["max"][0].flatten().tolist() == [2, 4, 6, 8]
    for _, boxes in found.values():
        assert boxes[0].tolist() == [[0, 0, 16, 8], [16, 0, 32, 8], [0, 8, 16, 16], [16, 8, 32, 16]]
    around = Grid(1, 8, 2, span=3).eval()(maps)[1]
    assert around[0, 1].tolist() == [8, 0, 32, 16]


def test_training_samples_and_use_does_not():
    maps = torch.randn(1, 3, 8, 8)
    grid = Grid(3, 8, 2)
    sampled = [grid(maps, torch.Generator().manual_seed(seed))[0] for seed in (0, 0, 1)]
    assert torch.equal(sampled[0], sampled[1]) and not torch.equal(sampled[0], sampled[2])
    grid.eval()
    assert torch.equal(grid(maps)[0], grid(maps)[0])


def test_the_filter_is_a_convolution_with_relu():
    maps = torch.randn(2, 3, 4, 5)
    grid = Grid(3, 8, None, filters=6).eval()
    assert grid.filter is not None and grid.size == 6
    expected = functional.conv2d(maps, grid.filter.weight, grid.filter.bias, padding=1).clamp(min=0)
    torch.testing.assert_close(grid(maps)[0], expected.flatten(2).transpose(1, 2))


def test_more_or_fewer_regions_in_use_than_in_training():
    grid = Grid(3, 8, 2).eval()
    maps = torch.randn(1, 3, 6, 9)
    counts = []
    for cells in (1, 2, 3, 100, None):
        grid.cells = cells
        features, boxes = grid(maps)
        assert features.shape[:2] == boxes.shape[:2]
        counts.append(features.shape[1])
    assert counts == [1, 4, 9, 54, 54]


def test_images_of_different_sizes():
    maps = [(torch.randn(3, 4, 6),), (torch.randn(3, 5, 3),), (torch.randn(3, 4, 6),)]
    grid = Grid(3, 8, 4).eval()
    found = by_shape(grid, maps)
    assert [features.shape for features, _ in found] == [(16, 3), (12, 3), (16, 3)]
    torch.testing.assert_close(found[2][0], grid(maps[2][0][None])[0][0])


def test_options_that_do_not_exist_are_refused():
    with pytest.raises(ValueError, match="pick, average, max, not 'mean'"):
        Grid(3, 8, 2, "mean")
    with pytest.raises(ValueError, match="average has none"):
        Grid(3, 8, 2, "average", span=3)

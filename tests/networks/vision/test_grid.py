from __future__ import annotations

import torch

from saywhere.configs.parts import PLACE
from saywhere.networks.vision.grid import bins, cell_boxes, cell_features, pick


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
    assert bins(2, 7) == [(0, 1), (1, 2)]


def test_half_as_many_are_every_second_position():
    assert pick(4, 6, 2, sample=False).tolist() == [[0, 1], [0, 4], [2, 1], [2, 4]]
    assert pick(14, 14, 7, sample=False)[:8].tolist() == [[0, 2 * j] for j in range(7)] + [[2, 0]]


def test_a_sampled_position_is_any_of_its_bin_and_follows_the_seed():
    sampled = [pick(4, 6, 2, True, torch.Generator().manual_seed(seed)) for seed in range(60)]
    for region, (rows, columns) in enumerate([((0, 1), (0, 1, 2)), ((0, 1), (3, 4, 5)), ((2, 3), (0, 1, 2))]):
        seen = {tuple(positions[region].tolist()) for positions in sampled}
        assert seen == {(row, column) for row in rows for column in columns}
    assert torch.equal(sampled[3], pick(4, 6, 2, True, torch.Generator().manual_seed(3)))

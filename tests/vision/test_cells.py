from __future__ import annotations

import torch

from saywhere.vision.areas import AreaFeatures
from saywhere.vision.cells import cell_boxes, cell_features


def test_cells_have_the_means_of_their_part_of_the_map():
    features = AreaFeatures((16, 32), (1, 2), (16, 32), head=False)
    fine = torch.arange(16.0).reshape(1, 4, 4)
    coarse = torch.stack((torch.tensor([[1.0, 2], [3, 4]]), torch.zeros(2, 2)))
    seen, boxes = cell_features(features, (fine, coarse), 2, 64, 64)
    assert seen[:, 0].tolist() == [7.5, 2.5, 4.5, 10.5, 12.5]
    assert seen[:, 1].tolist() == [2.5, 1.0, 2.0, 3.0, 4.0]
    assert seen[:, 2].tolist() == [0.0] * 5
    assert seen[2, 3:].tolist() == [0.5, 0.0, 1.0, 0.5, 0.25]  # where it is, and how large
    assert boxes.tolist() == [[0, 0, 64, 64], [0, 0, 32, 32], [32, 0, 64, 32], [0, 32, 32, 64], [32, 32, 64, 64]]
    whole, box = cell_features(features, (fine, coarse), 0, 64, 64)
    torch.testing.assert_close(whole, seen[:1])
    assert box.tolist() == [[0, 0, 64, 64]]


def test_the_last_layer_comes_after_the_maps():
    torch.manual_seed(0)
    features = AreaFeatures((32,), (3,), (), head=True)
    assert features.head is not None
    seen, _ = cell_features(features, (torch.randn(3, 4, 6),), 2, 192, 128)
    assert seen.shape == (5, features.size)
    torch.testing.assert_close(seen[1:, :-5].mean(dim=0), seen[0, :-5])  # cells of equal size


def test_boxes_of_a_wide_picture():
    assert cell_boxes(2, 96, 64)[1:].tolist() == [[0, 0, 48, 32], [48, 0, 96, 32], [0, 32, 48, 64], [48, 32, 96, 64]]

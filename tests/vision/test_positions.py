from __future__ import annotations

import torch
from torch import nn

from saywhere.vision.areas import AreaFeatures, place
from saywhere.vision.positions import box_maxima, box_peaks, position_features


def maps() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 4, 8), torch.randn(3, 2, 4)


def test_a_position_sees_its_cell_of_every_map():
    fine, coarse = maps()
    features = AreaFeatures((16, 32), (2, 3), (16, 32), head=False)
    seen, stride = position_features(features, (fine, coarse), 2, 128, 64)
    assert seen.shape == (2, 4, features.size) and stride == 32
    torch.testing.assert_close(seen[1, 2, :2], fine[:, 2:4, 4:6].mean(dim=(1, 2)))
    torch.testing.assert_close(seen[1, 2, 2:5], coarse[:, 1, 2])
    # Its place is a cell of a 2 x 2 grid around (80, 48), cut to the picture.
    torch.testing.assert_close(seen[1, 2, 5:], place(torch.tensor([[48.0, 32, 112, 64]]), 128, 64)[0])


def test_a_position_of_the_finest_map_alone_and_of_the_last_layer():
    fine, coarse = maps()
    alone, stride = position_features(AreaFeatures((16, 32), (2, 3), (16,), head=False), (fine, coarse), 2, 128, 64)
    assert stride == 16 and alone.shape == (4, 8, 7)
    torch.testing.assert_close(alone[3, 7, :2], fine[:, 3, 7])
    features = AreaFeatures((16, 32), (2, 3), (16,), head=False)
    features.head = nn.Conv2d(3, 4, 1)
    seen, stride = position_features(features, (fine, coarse), 2, 128, 64)
    assert stride == 32
    torch.testing.assert_close(seen[0, 3, 2:6], features.head(coarse)[:, 0, 3])


def test_the_strongest_in_boxes_by_hand():
    fine = torch.arange(32.0).reshape(1, 4, 8)
    boxes = torch.tensor([[0.0, 0, 16, 16], [17, 0, 40, 33], [-9, -9, 500, 500], [200, 0, 300, 9], [5, 5, 5, 9]])
    # Cells 0; columns 1 to 2 and rows 0 to 2; all; outside; no area
    assert box_maxima(fine, boxes, 16)[:, 0].tolist() == [0, 18, 31, 0, 0]
    assert box_maxima(fine, boxes[:0], 16).shape == (0, 1)


def test_peaks_stand_where_means_stand():
    fine, coarse = maps()
    features = AreaFeatures((16, 32), (2, 3), (16, 32), head=False)
    cells = torch.tensor([[32.0, 0, 64, 32], [0, 32, 32, 64]])
    peaks, means = box_peaks(features, (fine, coarse), cells, 128, 64), features((fine, coarse), cells, 128, 64)
    torch.testing.assert_close(peaks[:, 2:], means[:, 2:])  # one cell of the coarse map, and the place
    torch.testing.assert_close(peaks[0, :2], fine[:, :2, 2:4].amax(dim=(1, 2)))
    assert (peaks[:, :2] > means[:, :2]).all()

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere.networks.densecap.build import pool, pool_pyramid, roi_align
from saywhere.networks.vision.spatial_transformer import bilinear, sample_points


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def ramp(height, width, stride, slope=(0.5, -2.0), offset=3.0):
    """A map (1, H, W) that is linear in the pixels at which its cells stand."""
    y = (torch.arange(height, dtype=torch.float64) + 0.5) * stride
    x = (torch.arange(width, dtype=torch.float64) + 0.5) * stride
    return (slope[0] * x[None, :] + slope[1] * y[:, None] + offset)[None]


@given(st.floats(8, 80), st.floats(8, 60), st.floats(1, 40), st.floats(1, 40))
def test_a_linear_ramp_is_sampled_exactly(x, y, width, height):
    box = torch.tensor([[x, y, x + width, y + height]], dtype=torch.float64)
    values = bilinear(ramp(8, 10, 16), box, size=5, stride=16)[0, 0]
    xs = torch.linspace(x, x + width, 5, dtype=torch.float64)
    ys = torch.linspace(y, y + height, 5, dtype=torch.float64)
    torch.testing.assert_close(values, 0.5 * xs[None, :] - 2 * ys[:, None] + 3, rtol=1e-9, atol=1e-9)


def test_cells_return_themselves():
    features = random(3, 4, 6)
    values = bilinear(features, torch.tensor([[8.0, 8, 88, 56]]).double(), size=(4, 6), stride=16)
    torch.testing.assert_close(values[0], features)


def test_outside_counts_as_zero():
    features = torch.ones(1, 4, 4, dtype=torch.float64)
    boxes = torch.tensor([[100.0, 100, 120, 120], [-8, 24, 24, 24]]).double()
    values = bilinear(features, boxes, size=3, stride=16)
    assert values[0].abs().max() == 0
    torch.testing.assert_close(values[1, 0, 0], torch.tensor([0.0, 1, 1]).double())  # the points are a cell apart
    edge = bilinear(features, torch.tensor([[0.0, 24, 0, 24]]).double(), size=1, stride=16)
    assert edge.item() == pytest.approx(0.5)  # half a cell beyond the last: half faded


def test_gradients_in_features_and_boxes():
    features = random(2, 4, 5).requires_grad_()
    boxes = torch.tensor([[5.3, 7.1, 40.2, 33.7], [-9.4, 20.3, 71.9, 90.6], [30.1, 11.2, 31.4, 12.7]]).double()
    assert torch.autograd.gradcheck(lambda f, b: bilinear(f, b, size=3, stride=16), (features, boxes.requires_grad_()))
    x, y = (random(2, 3, 2, seed=s).abs().add(0.1).requires_grad_() for s in (1, 2))
    assert torch.autograd.gradcheck(sample_points, (features, x, y))


def test_gradient_moves_a_box_along_the_ramp():
    boxes = torch.tensor([[20.0, 20, 60, 50]]).double().requires_grad_()
    bilinear(ramp(8, 10, 16), boxes, size=4, stride=16).mean().backward()
    torch.testing.assert_close(boxes.grad, torch.tensor([[0.25, -1, 0.25, -1]]).double())


def test_half_precision_maps_are_sampled_at_exact_points():
    ramp = torch.arange(64.0).expand(1, 4, 64)
    box = torch.tensor([[40.8, 1.0, 41.8, 2.0]])
    half = bilinear(ramp.bfloat16(), box, 1, 1.0)
    assert abs(float(half) - 40.3) < 0.1  # bfloat16 itself holds 40.25; a rounded grid would give 40.5


def test_the_values_have_the_type_of_the_features():
    assert bilinear(random(3, 6, 7).bfloat16(), torch.tensor([[3.0, 5, 60, 70]]), 7, 16).dtype == torch.bfloat16


@pytest.mark.parametrize("how", ["bilinear", "roi_align"])
def test_a_constant_map_gives_the_constant(how):
    features = torch.tensor([2.0, -3.0])[:, None, None].expand(2, 6, 8).contiguous()
    boxes = torch.tensor([[10.0, 10, 90, 70], [40, 30, 44, 34]])
    values = pool(features, boxes, size=7, stride=16, how=how)
    torch.testing.assert_close(values, features[None, :, :1, :1].expand(2, 2, 7, 7))


def test_roi_align_averages_four_points_of_each_cell():
    box = torch.tensor([[16.0, 24, 80, 56]])
    values = roi_align(ramp(8, 10, 16).float(), box, size=2, stride=16)[0, 0]
    middles = torch.tensor([[0.5 * x - 2 * y + 3 for x in (32, 64)] for y in (32, 48)])
    torch.testing.assert_close(values, middles)  # as the mean of a ramp is
    bumps = torch.zeros(2, 8, 10)
    bumps[0, 2, 1] = bumps[1, 2, 2] = 1  # at (24, 40) and (40, 40)
    wide = torch.tensor([[8.0, 24, 136, 56]])  # first cell: points (24 or 56, 28 or 36), middle (40, 32)
    cell = roi_align(bumps, wide, size=2, stride=16)[0, :, 0, 0]
    torch.testing.assert_close(cell, torch.tensor([(4 / 16 + 12 / 16) / 4, 0]))


@pytest.mark.parametrize("how", ["bilinear", "roi_align"])
def test_one_box_alone_equals_the_same_box_among_others(how):
    features = random(3, 6, 7).float()
    boxes = torch.tensor([[3.0, 5, 60, 70], [20, 20, 30, 90], [0, 0, 112, 96]])
    together = pool(features, boxes, 7, 16, how)
    for i in range(len(boxes)):
        torch.testing.assert_close(pool(features, boxes[i : i + 1], 7, 16, how)[0], together[i])


@pytest.mark.parametrize("how", ["bilinear", "roi_align"])
def test_pyramid_takes_each_box_from_its_level(how):
    strides = (8, 16, 32)
    maps = tuple(random(2, 256 // s, 320 // s, seed=s).float() for s in strides)
    # sides 20, 127, 128, 255, 256, and a thin box whose area is 256 squared; in no order
    levels = {20: 0, 127: 0, 128: 1, 255: 1, 256: 2}
    sides = [128, 20, 256, 127, 255]
    boxes = torch.tensor([[10.0, 0, 10 + side, side] for side in sides] + [[0, 0, 512, 128]])
    values = pool_pyramid(maps, strides, boxes, 7, how)
    for box, value, level in zip(boxes, values, [*(levels[side] for side in sides), 2], strict=True):
        torch.testing.assert_close(value, pool(maps[level], box[None], 7, strides[level], how)[0])


def test_pyramid_gradients_reach_every_box():
    maps = tuple(random(1, 64 // s, 96 // s, seed=s) for s in (4, 8))
    boxes = torch.tensor([[3.3, 5.1, 80.2, 61.7], [10.4, 20.3, 22.9, 40.6]]).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda b: pool_pyramid(maps, (4, 8), b, 3, "bilinear"), (boxes,))


@pytest.mark.parametrize("how", ["bilinear", "roi_align"])
def test_no_boxes(how):
    features = random(3, 5, 6).float()
    none = torch.zeros(0, 4)
    assert pool(features, none, 7, 16, how).shape == (0, 3, 7, 7)
    assert pool_pyramid((features, features), (8, 16), none, 7, how).shape == (0, 3, 7, 7)


def test_roi_align_follows_the_type_of_the_features():
    assert roi_align(random(3, 6, 7).float(), torch.tensor([[3.0, 5, 60, 70]]).double(), 7, 16).dtype == torch.float32

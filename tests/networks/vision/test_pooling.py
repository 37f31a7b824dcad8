from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from saywhere.networks.densecap.build import pool_pyramid
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


def test_half_precision_maps_are_sampled_at_exact_points():
    ramp = torch.arange(64.0).expand(1, 4, 64)
    box = torch.tensor([[40.8, 1.0, 41.8, 2.0]])
    half = bilinear(ramp.bfloat16(), box, 1, 1.0)
    assert abs(float(half) - 40.3) < 0.1  # bfloat16 itself holds 40.25; a rounded grid would give 40.5


def test_pyramid_takes_each_box_from_its_level():
    strides = (8, 16, 32)
    maps = tuple(random(2, 256 // s, 320 // s, seed=s).float() for s in strides)
    # sides 20, 127, 128, 255, 256, and a thin box whose area is 256 squared; in no order
    levels = {20: 0, 127: 0, 128: 1, 255: 1, 256: 2}
    sides = [128, 20, 256, 127, 255]
    boxes = torch.tensor([[10.0, 0, 10 + side, side] for side in sides] + [[0, 0, 512, 128]])
    values = pool_pyramid(maps, strides, boxes, 7)
    for box, value, level in zip(boxes, values, [*(levels[side] for side in sides), 2], strict=True):
        torch.testing.assert_close(value, bilinear(maps[level], box[None], 7, strides[level])[0])


def test_no_boxes():
    features = random(3, 5, 6).float()
    none = torch.zeros(0, 4)
    assert bilinear(features, none, 7, 16).shape == (0, 3, 7, 7)
    assert pool_pyramid((features, features), (8, 16), none, 7).shape == (0, 3, 7, 7)

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from saywhere.networks.densecap.build import pool_pyramid
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.grid import pick
from saywhere.networks.vision.spatial_transformer import (
    SpatialTransformer,
    around,
    bilinear,
    corners,
    patches,
    sample_points,
    transform,
)

ONES = torch.tensor([[1.0, 0, 0], [0, 1, 0]])


def test_an_affine_map_by_hand():
    positions = torch.tensor([[2, 5]])  # row 2, column 5
    affine = torch.tensor([[[2.0, 0, 1], [0, 3, -1]]])
    points = torch.tensor([[0.0, 0], [1, 0], [0, 1]])
    assert transform(positions, affine, points)[0].tolist() == [[6, 1], [8, 1], [6, 4]]
    turned = torch.tensor([[[0.0, -1, 0], [1, 0, 0]]])
    assert transform(positions, turned, points)[0].tolist() == [[5, 2], [5, 3], [4, 2]]


def test_corners_and_boxes_in_pixels():
    positions = torch.tensor([[2, 5]])
    quad = corners(positions, ONES[None], 10)
    assert quad[0].tolist() == [[40, 10], [70, 10], [70, 40], [40, 40]]
    assert corners(positions, 2 * ONES[None], 10)[0].tolist() == [[25, -5], [85, -5], [85, 55], [25, 55]]
    assert around(corners(positions, 2 * ONES[None], 10), 80, 60)[0].tolist() == [25, 0, 80, 55]
    half = torch.tensor([[[1.0, 1, 0], [-1, 1, 0]]])  # turned by an eighth and larger by the root of 2
    assert corners(positions, half, 10)[0].tolist() == [[25, 25], [55, -5], [85, 25], [55, 55]]


def test_patches_of_boxes_that_stay_are_the_cells_around():
    maps = torch.randn(2, 3, 4, 5)
    positions = pick(4, 5, 5, False)
    cells = patches(maps, positions, ONES.expand(2, 20, 2, 3))
    torch.testing.assert_close(cells[1, 7], maps[1, :, 0:3, 1:4], atol=1e-6, rtol=0)
    padded = torch.nn.functional.pad(maps, (1, 1, 1, 1))
    torch.testing.assert_close(cells[0, 0], padded[0, :, :3, :3], atol=1e-6, rtol=0)


def test_captions_can_move_the_boxes():
    """Numeric gradients of the features in the layers that regress the affine maps."""
    transformer = SpatialTransformer(2, 8, cells=2, hidden=3, zoom=1.4).double().eval()
    with torch.no_grad():
        for parameter in transformer.localization.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    maps = torch.randn(1, 2, 5, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    names, values = zip(*transformer.localization.named_parameters(prefix="localization"), strict=True)

    def features(*parameters):
        return torch.func.functional_call(transformer, dict(zip(names, parameters, strict=True)), (maps,))[0]

    assert gradcheck(features, [value.detach().clone().requires_grad_() for value in values])
    gradients = torch.autograd.grad(transformer(maps)[0].sum(), list(transformer.localization.parameters()))
    assert all(gradient.abs().max() > 0 for gradient in gradients)


@pytest.mark.parametrize("cells", [9, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_identity_is_exactly_the_grid(cells, dtype):
    torch.manual_seed(0)
    transformer = SpatialTransformer(4, 16, cells, hidden=5, zoom=1).to(dtype).eval()
    maps = torch.randn(2, 4, 7, 9, dtype=dtype)
    row, column = pick(7, 9, cells, False).unbind(1)
    found, boxes, quads = transformer(maps)
    torch.testing.assert_close(found, maps[:, :, row, column].transpose(1, 2), atol=1e-6, rtol=1e-6)
    edges = torch.stack((column - 1, row - 1, column + 2, row + 2), dim=1).clamp(min=0)
    expected = 16 * edges.minimum(torch.tensor([9, 7, 9, 7]))  # the anchor boxes of 3 x 3 cells, cut to the map
    torch.testing.assert_close(boxes, expected.float().expand(2, -1, -1))
    assert quads.shape == (*boxes.shape[:2], 4, 2) and transformer.size == 4


def test_it_samples_the_positions_of_the_grid_in_training():
    transformer = SpatialTransformer(4, 16, 2, zoom=1)
    maps = torch.randn(1, 4, 6, 8)
    row, column = pick(6, 8, 2, True, torch.Generator().manual_seed(5)).unbind(1)
    expected = maps[:, :, row, column].transpose(1, 2)
    torch.testing.assert_close(transformer(maps, torch.Generator().manual_seed(5))[0], expected, atol=1e-6, rtol=1e-6)
    transformer.cells = 3
    assert transformer(maps)[0].shape == (1, 9, 4)


def test_it_begins_with_boxes_of_twice_the_size():
    maps = torch.randn(1, 4, 9, 9)
    _, boxes, quads = SpatialTransformer(4, 16, 9).eval()(maps)
    middle = 4 * 9 + 4
    assert (boxes[0, middle, 2:] - boxes[0, middle, :2]).tolist() == [96, 96]  # twice 3 cells of 16 pixels
    assert quads[0, middle].tolist() == [[24, 24], [120, 24], [120, 120], [24, 120]]
    twice = patches(maps, torch.tensor([[4, 4]]), 2 * ONES[None, None])[0, 0]
    torch.testing.assert_close(twice, maps[0, :, 2:7:2, 2:7:2], atol=1e-6, rtol=0)


def test_images_of_different_sizes_and_half_precision():
    transformer = SpatialTransformer(3, 8, 4, hidden=5).eval()
    maps = [(torch.randn(3, 4, 6),), (torch.randn(3, 5, 3),)]
    found = by_shape(transformer, maps)
    assert [features.shape for features, _, _ in found] == [(16, 3), (12, 3)]
    half = SpatialTransformer(3, 8, 4, hidden=5).eval().bfloat16()
    features, boxes, quads = half(maps[0][0][None].bfloat16())
    assert features.dtype == torch.bfloat16 and boxes.dtype == quads.dtype == torch.float32


# Pooling


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

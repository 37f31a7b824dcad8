from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image

from saywhere.configs.parts import TrunkConfig
from saywhere.images import open_image
from saywhere.networks.vision.trunk import build_trunk
from saywhere.papers.densecap2016.conventions import scale_image, scale_weights, scaled_size


def test_the_short_side_is_rounded_down():
    assert scaled_size(640, 480, 720) == (720, 540)
    assert scaled_size(500, 333, 720) == (720, 479)  # 479.52
    assert scaled_size(333, 500, 720) == (479, 720)
    assert scaled_size(1000, 1, 720) == (720, 1)


def test_larger_keeps_the_outer_pixels_in_place():
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    assert scale_weights(3, 5).tolist() == expected
    assert scale_weights(1, 3).tolist() == [[1], [1], [1]]


def test_smaller_averages_what_is_covered():
    assert scale_weights(4, 2).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    torch.testing.assert_close(
        scale_weights(5, 2), torch.tensor([[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]]), rtol=0, atol=1e-6
    )
    assert scale_weights(3, 3).tolist() == torch.eye(3).tolist()


@pytest.mark.parametrize(("source", "target"), [(720, 719), (1333, 720), (480, 720), (7, 720), (2000, 3)])
def test_weights_of_a_pixel_add_up_to_one(source, target):
    weights = scale_weights(source, target)
    assert weights.shape == (target, source) and weights.min() >= 0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(target))


def test_columns_and_rows():
    pixels = torch.tensor([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    assert scale_image(pixels, 2, 3).tolist() == [[[0.5, 2.5], [2.5, 4.5], [4.5, 6.5]]]


def test_images_are_blue_green_red_less_the_means():
    config = TrunkConfig("vgg16_caffe", vgg_channels=(1, 1, 1, 1, 1), strides=(16,), long_side=720, multiple=1)
    preprocess = build_trunk(config, pretrained=False).preprocess
    array = np.zeros((40, 72, 3), np.uint8)
    array[..., 0], array[..., 1], array[..., 2] = 200, 100, 50
    pixels = preprocess(open_image(Image.fromarray(array)))
    assert pixels.shape == (3, 400, 720) and pixels.dtype == np.float32 and preprocess.long_side == 720
    means = np.array([103.939, 116.779, 123.68])
    np.testing.assert_allclose(pixels.mean(axis=(1, 2)), np.array([50.0, 100, 200]) - means, rtol=0, atol=1e-3)
    assert [round(m * 255, 3) for m in preprocess.mean] == [103.939, 116.779, 123.68]

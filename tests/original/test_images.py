from __future__ import annotations

import numpy
import pytest
import torch
from PIL import Image

from saywhere.images import open_picture
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.densecap_parts import build_preprocess
from saywhere.original import scale_picture, scale_weights, scaled_size
from saywhere.vision.backbones import build_caffe_vgg16


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
    assert scale_picture(pixels, 2, 3).tolist() == [[[0.5, 2.5], [2.5, 4.5], [4.5, 6.5]]]


def test_pictures_are_blue_green_red_less_the_means():
    config = DenseCapConfig.original()
    preprocess = build_preprocess(config, build_caffe_vgg16((1, 1, 1, 1, 1), False))
    array = numpy.zeros((40, 72, 3), numpy.uint8)
    array[..., 0], array[..., 1], array[..., 2] = 200, 100, 50
    pixels = preprocess(open_picture(Image.fromarray(array)))
    assert pixels.shape == (3, 400, 720) and pixels.dtype == torch.float32
    means = torch.tensor([103.939, 116.779, 123.68])
    torch.testing.assert_close(pixels.mean(dim=(1, 2)), torch.tensor([50.0, 100, 200]) - means, rtol=0, atol=1e-3)
    assert [round(m * 255, 3) for m in preprocess.mean] == [103.939, 116.779, 123.68]

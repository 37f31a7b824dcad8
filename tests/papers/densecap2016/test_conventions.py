"""What the golden values do not pin: how the conventions relate to ours, properties, and empty inputs."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from PIL import Image

from saywhere import boxes as ours
from saywhere.configs.parts import TrunkConfig
from saywhere.images import open_image
from saywhere.networks.densecap.build import RegionSampler, SampledBoxes
from saywhere.networks.vision.trunk import build_trunk
from saywhere.papers.densecap2016 import conventions as original
from saywhere.papers.densecap2016.conventions import inside_image, pick, scale_image, scale_weights, scaled_size


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_ascending_order_of_ties_is_the_quicksorts():
    """The orders in which the program's library, compiled, leaves 24 equal numbers and 12 pairs of 0 and 1."""
    equal = [18, 19, 15, 16, 17, 13, 11, 20, 21, 22, 14, 0, 12, 5, 6, 2, 3, 4, 1, 10, 7, 8, 9, 23]
    pairs = [0, 20, 12, 18, 10, 8, 16, 6, 4, 22, 2, 14, 21, 19, 17, 11, 15, 13, 1, 9, 7, 5, 3, 23]
    assert original.ascending_order(torch.zeros(24)).tolist() == equal
    assert original.ascending_order(torch.arange(24.0) % 2).tolist() == pairs
    assert original.ascending_order(torch.zeros(11)).tolist() == list(range(11))
    assert original.ascending_order(torch.zeros(12)).tolist() != list(range(12))


def test_nms_takes_the_last_of_equals_where_ours_takes_the_first():
    corners, scores = torch.tensor([[1.0, 1, 10, 10]] * 3), torch.full((3,), 0.5)
    assert original.nms(corners, scores, 0.5).tolist() == [2]
    assert ours.nms(original.corners_to_ours(corners), scores, 0.5).tolist() == [0]


def run(optimizer, parameter, steps=5):
    for step in range(steps):
        parameter.grad = random(4, seed=step)
        optimizer.step()
    return parameter.detach().clone()


def parameter():
    return torch.nn.Parameter(random(4, seed=9))


def test_adam_resumes_from_its_state():
    a, b = parameter(), parameter()
    whole = original.Adam([a], lr=0.1)
    run(whole, a, steps=3)
    resumed = original.Adam([b], lr=0.1)
    with torch.no_grad():
        b.copy_(a)
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert torch.equal(run(whole, a), run(resumed, b))


def test_adam_leaves_parameters_without_gradient_and_calls_the_closure():
    a, frozen = parameter(), parameter()
    before = frozen.detach().clone()
    optimizer = original.Adam([{"params": [a], "lr": 0.5}, {"params": [frozen]}], lr=0.1)

    def closure():
        optimizer.zero_grad()
        loss = a.square().sum()
        loss.backward()
        return loss.item()

    first, start = optimizer.step(closure), a.detach().clone()
    assert optimizer.step(closure) < first and not torch.equal(start, a)
    assert torch.equal(frozen, before) and optimizer.step() is None


def test_nothing_in_nothing_out():
    none = torch.zeros(0, 4)
    clipped, valid = original.clip_boxes(none, 10, 10)
    assert clipped.shape == (0, 4) and valid.shape == (0,)
    assert original.nms(none, torch.zeros(0), 0.5).shape == (0,)
    assert original.box_iou(none, torch.zeros(3, 4)).shape == (0, 3)
    assert original.roi_pooling(torch.zeros(2, 3, 4), none, 48, 64).shape == (0, 2, 7, 7)


TRUTHS = torch.tensor([[50.0, 50, 40, 40], [120, 60, 20, 60]])


def boxes() -> torch.Tensor:
    """0 and 1 near truth 0, 2 near truth 1, 3 between, 4 to 8 far, 9 far and outside, 10 near truth 0 and outside."""
    far = [[200.0 + 20 * i, 150, 30, 30] for i in range(5)]
    near = [[50.0, 50, 40, 40], [52, 50, 42, 40], [121, 62, 20, 60], [60, 50, 40, 40]]
    return torch.tensor([*near, *far, [-30, 150, 30, 30], [50, 18, 42, 42]])


def candidates(predicted: torch.Tensor, image: tuple[float, float] | None = None) -> tuple[list[int], list[int]]:
    """Rows of the positive and the negative boxes."""
    inside = None if image is None else inside_image(predicted, *image)
    positive, _, negative = RegionSampler(256, 0.7, 0.3, fill=True).candidates(
        original.box_iou(predicted, TRUTHS), inside
    )
    return positive.nonzero().flatten().tolist(), negative.nonzero().flatten().tolist()


def sample(size: int, predicted: torch.Tensor, truths: torch.Tensor = TRUTHS) -> SampledBoxes:
    iou, inside = original.box_iou(predicted, truths), inside_image(predicted, 300, 200)
    return RegionSampler(size, 0.7, 0.3, fill=True)(iou, inside, torch.Generator().manual_seed(0))


def test_masks_by_the_programs_iou_and_the_image():
    ious = original.box_iou(boxes(), TRUTHS).amax(dim=1)
    assert ious[0] > 0.7 and ious[1] > 0.7 and 0.3 < ious[3] < 0.7
    assert candidates(boxes(), (300, 200)) == ([0, 1, 2], [4, 5, 6, 7, 8])
    assert candidates(boxes())[1] == [4, 5, 6, 7, 8, 9, 10]
    near = boxes()[[0, 1, 2, 3, 10]]  # without negatives all that is not positive is negative, outside too
    assert candidates(near, (300, 200))[1] == [3, 4]


def test_the_best_box_of_each_truth_is_positive_even_outside_and_learns_its_own_best_truth():
    predicted = torch.tensor([[-5.0, 50, 40, 40], [150, 150, 30, 30]])
    truths = torch.tensor([[-3.0, 50, 40, 40], [20, 50, 40, 40]])  # box 0 is the best of both
    iou = original.box_iou(predicted, truths)
    assert iou.argmax(dim=0).tolist() == [0, 0] and iou[0].argmax() == 0
    choice = sample(8, predicted, truths)
    assert choice.positive.tolist() == [0] and choice.truth.tolist() == [0]
    assert choice.negative.tolist() == [1] * 7


def test_few_negatives_are_drawn_again():
    choice = sample(256, boxes())
    assert sorted(choice.positive.tolist()) == [0, 1, 2]
    assert len(choice.negative) == 253 and set(choice.negative.tolist()) == {4, 5, 6, 7, 8}
    assert sorted(sample(8, boxes()).negative.tolist()) == [4, 5, 6, 7, 8]  # as many as wanted: each once


def test_first_and_last_pixel_are_in_the_image():
    corners = torch.tensor([[1.0, 1, 30, 20], [0.5, 1, 30, 20], [1, 1, 30.5, 20], [1, 0, 30, 20], [1, 1, 30, 21]])
    sizes = corners[:, 2:] - corners[:, :2] + 1
    assert inside_image(torch.cat(((corners[:, :2] + corners[:, 2:]) / 2, sizes), dim=1), 30, 20).tolist() == [
        True, False, False, False, False,
    ]  # fmt: skip


def test_a_row_picked_twice_gets_the_last_gradient():
    values = torch.tensor([[1.0, 2], [3, 4], [5, 6]], requires_grad=True)
    picked = pick(values, torch.tensor([2, 0, 2]))
    assert picked.tolist() == [[5, 6], [1, 2], [5, 6]]
    picked.backward(torch.tensor([[1.0, 1], [2, 2], [7, 8]]))
    assert values.grad.tolist() == [[2, 2], [0, 0], [7, 8]]


def test_the_short_side_is_rounded_down():
    assert scaled_size(640, 480, 720) == (720, 540)
    assert scaled_size(500, 333, 720) == (720, 479)  # 479.52
    assert scaled_size(333, 500, 720) == (479, 720)
    assert scaled_size(1000, 1, 720) == (720, 1)


def test_larger_keeps_the_outer_pixels_in_place_and_smaller_averages_what_is_covered():
    expected = [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0], [0, 0.5, 0.5], [0, 0, 1]]
    assert scale_weights(3, 5).tolist() == expected
    assert scale_weights(1, 3).tolist() == [[1], [1], [1]]
    assert scale_weights(4, 2).tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]]
    torch.testing.assert_close(
        scale_weights(5, 2), torch.tensor([[0.4, 0.4, 0.2, 0, 0], [0, 0, 0.2, 0.4, 0.4]]), rtol=0, atol=1e-6
    )
    assert scale_weights(3, 3).tolist() == torch.eye(3).tolist()
    pixels = torch.tensor([[[0.0, 1, 2, 3], [4, 5, 6, 7]]])
    assert scale_image(pixels, 2, 3).tolist() == [[[0.5, 2.5], [2.5, 4.5], [4.5, 6.5]]]


@pytest.mark.parametrize(("source", "target"), [(720, 719), (1333, 720), (480, 720), (7, 720), (2000, 3)])
def test_weights_of_a_pixel_add_up_to_one(source, target):
    weights = scale_weights(source, target)
    assert weights.shape == (target, source) and weights.min() >= 0
    torch.testing.assert_close(weights.sum(dim=1), torch.ones(target))


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

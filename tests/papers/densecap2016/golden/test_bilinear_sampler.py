"""The three modules inside the program's RoI pooling: box to affine map, affine map to grid, grid to values."""

import torch
from torch.nn import functional

from saywhere.boxes import from_center
from saywhere.ops.bilinear import bilinear, sample_points
from saywhere.papers.densecap2016 import conventions as original


def test_box_to_affine(golden, same, gradients):
    case = golden("bilinear_sampler")["box_to_affine"]
    output, (gradient,) = gradients(
        lambda boxes: original.box_to_affine(boxes, case["image_height"], case["image_width"]),
        case["boxes"],
        seed=case["gradOutput"],
    )
    same(output, case["output"])
    same(gradient, case["gradBoxes"])


def ramps(reach: int) -> torch.Tensor:
    """A map (2, H, W) whose cells hold their own (y, x) and reach from ``-reach`` to ``reach``."""
    line = torch.linspace(-reach, reach, 2 * reach + 1, dtype=torch.float64)
    return torch.stack(torch.meshgrid(line, line, indexing="ij"))


def test_affine_grid(golden, same, gradients):
    """Our sampler builds the same grid: seen by sampling a map that holds its own coordinates."""
    case = golden("bilinear_sampler")["affine_grid_7x7"]
    assert not case["input"][:, [0, 1], [1, 0]].any()  # a box has no shear

    def grid(affine):
        y, x, h, w = affine[:, 0, 2], affine[:, 1, 2], 2 * affine[:, 0, 0], 2 * affine[:, 1, 1]
        cells = from_center(torch.stack((x, y, w, h), dim=-1)) + 4.5  # the cell that holds 0 is number 4
        return bilinear(ramps(4), cells, 7, stride=1).permute(0, 2, 3, 1)

    output, (gradient,) = gradients(grid, case["input"], seed=case["gradOutput"])
    same(output, case["output"])
    shear = torch.tensor([[False, True, False], [True, False, False]])
    same(gradient[:, ~shear], case["gradInput"][:, ~shear])


def test_affine_grid_with_shear(golden, same, gradients):
    """The gradients for shear, which the program computes and drops, are those of torch's grid with corners aligned."""
    case = golden("bilinear_sampler")["affine_grid_7x7"]

    def grid(affine):
        x_first = affine.flip(1)[:, :, [1, 0, 2]]
        return functional.affine_grid(x_first, [len(affine), 1, 7, 7], align_corners=True).flip(-1)

    output, (gradient,) = gradients(grid, case["input"], seed=case["gradOutput"])
    same(output, case["output"])
    same(gradient, case["gradInput"])


def test_sampler(golden, same, gradients):
    case = golden("bilinear_sampler")["batch_bilinear_sampler"]

    def sample(image, grid):
        height, width = image.shape[:2]
        y, x = ((grid + 1) / 2).unbind(-1)
        return sample_points(image.permute(2, 0, 1), x * (width - 1), y * (height - 1)).permute(0, 2, 3, 1)

    same(sample(case["image_HWC"], case["grid"]), case["output"])
    # The first point lies on the corner of the map, where the values have a kink. The program's gradient there is the
    # one towards the inside; ours is either one, as rounding has it, so go a hair inside.
    points = case["grid"].clone()
    assert torch.equal(points[0, 0, 0], points.new_tensor([-1, -1]))
    points[0, 0, 0] += 1e-12
    output, (image, grid) = gradients(sample, case["image_HWC"], points, seed=case["gradOutput"])
    same(output, case["output"])
    same(image, case["gradImage"])
    same(grid, case["gradGrid"])


def test_every_case_is_run(golden):
    assert golden("bilinear_sampler").keys() == {"box_to_affine", "affine_grid_7x7", "batch_bilinear_sampler"}

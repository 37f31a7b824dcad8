"""Boxes, anchors, sampling and Adam as the published program computes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.nn import functional

from saywhere.boxes import from_center
from saywhere.networks.vision.spatial_transformer import bilinear, sample_points
from saywhere.papers.densecap2016 import conventions as original
from saywhere.papers.densecap2016.network import build_caffe_vgg16

FOLDER = Path(__file__).parent
GOLDEN = {
    "test_roi_pooling": "bilinear_roi_pooling",
    "test_conversion": "box_conversions",
    "test_box_iou": "box_iou",
    "test_clip_boxes": "clip_boxes",
    "test_nms": "nms",
}
"""The file whose cases a test runs on."""


def test_four_steps(golden, same):
    case = golden("adam")
    assert len(case["steps"]) == 4
    x = torch.nn.Parameter(case["x0"].clone())
    optimizer = original.Adam([x], lr=case["lr"], betas=(case["beta1"], case["beta2"]), eps=case["eps"])
    for step in case["steps"]:
        x.grad = step["dx"].clone()
        optimizer.step()
        same(x.detach(), step["x"])


LAYOUTS = ["default_anchors_2x3", "default_anchors_3x4", "custom_batch2"]
RESHAPED = "anchors_reshaped_2x3"


def shapes(case):
    return [tuple(column) for column in case["anchors"].T.tolist()]


def field(case):
    return {"stride": (case["sx"], case["sy"]), "first": (case["x0"], case["y0"])}


def anchors(case):
    height, width = case["input_shape"][2:] if "input_shape" in case else case["input"].shape[2:]
    return original.make_anchors(shapes(case), height, width, dtype=torch.float64, **field(case))


def test_field_center(golden):
    case = golden("make_anchors")["field_centers_vgg16"]
    assert case["x0"] == case["y0"] == original.field_center(case["sx"]) == original.field_center(case["sy"])


@pytest.mark.parametrize("name", LAYOUTS)
def test_make_anchors(name, golden, same):
    case = golden("make_anchors")[name]
    result = anchors(case)
    # The program's module writes the layout of a convolution and has a gradient of zero; ours takes no input at all.
    assert case.get("grad_is_zero", True) and not result.requires_grad
    expected = original.reshape_box_features(case["output"], k=len(shapes(case)))
    same(result.expand_as(expected), expected)


def test_make_anchors_as_rows(golden, same):
    case = golden("make_anchors")[RESHAPED]
    same(anchors(case)[None], case["output"])
    same(original.make_anchors(shapes(case), 2, 3, dtype=torch.float64)[None], case["output"])  # the field of VGG-16


def test_feature_map_sizes(golden):
    backbone = build_caffe_vgg16((1, 1, 1, 1, 1), pretrained=False)
    for size in golden("make_anchors")["feature_map_sizes"]["sizes"]:
        found = backbone.body(torch.zeros(1, 3, int(size["h"]), int(size["w"])))[0]
        assert tuple(found.shape[-2:]) == (size["fh"], size["fw"])


def test_roi_pooling(case, same, gradients):
    output, (features, boxes) = gradients(
        lambda features, boxes: original.roi_pooling(
            features, boxes, case["image_height"], case["image_width"], (case["height"], case["width"])
        ),
        case["feats_CHW"],
        case["boxes"],
        seed=case["gradOutput"],
    )
    same(output, case["output"])
    same(features, case["gradFeats"])
    same(boxes, case["gradBoxes"])


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


def test_conversion(case, same):
    """Of the program's conversions those that are needed here."""
    if case["name"].startswith("roundtrip"):
        same(original.x1y1x2y2_to_xcycwh(original.xcycwh_to_x1y1x2y2(case["input"])), case["output"])
    elif case["fn"] == "xcycwh_to_xywh":
        same(original.x1y1x2y2_to_xywh(original.xcycwh_to_x1y1x2y2(case["input"])), case["output"])
    elif case["fn"] not in ("xywh_to_x1y1x2y2", "xywh_to_xcycwh", "scale_boxes_xywh"):
        same(getattr(original, case["fn"])(case["input"]), case["output"])


def test_box_iou(case, same):
    same(original.box_iou(case["boxes1"], case["boxes2"]), case["output"])


def make_boxes(case, offsets):
    return original.apply_box_transform(anchors(case), original.reshape_box_features(offsets, len(shapes(case))))


WITH_GRADIENTS = {
    "make_anchors": (lambda case, x: original.reshape_box_features(x, case["k"]), {"input": "gradInput"}),
    "make_boxes": (make_boxes, {"input": "gradInput"}),
    "bilinear_sampler": (
        lambda case, boxes: original.box_to_affine(boxes, case["image_height"], case["image_width"]),
        {"boxes": "gradBoxes"},
    ),
    "apply_box_transform": (
        lambda _, boxes, offsets: original.apply_box_transform(boxes, offsets),
        {"boxes": "gradBoxes", "trans": "gradTrans"},
    ),
    "invert_box_transform": (
        lambda _, anchors, targets: original.invert_box_transform(anchors, targets),
        {"anchors": "gradAnchors", "targets": "gradTargets"},
    ),
}
"""What computes the cases of a file, and the keys of its inputs and of the gradients with respect to them."""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("make_anchors", "reshape_box_features_k3_D2"),
        *(("make_boxes", name) for name in ("makeboxes_N1_k2", "makeboxes_N2_k3")),
        ("bilinear_sampler", "box_to_affine"),
        *(("apply_box_transform", name) for name in ("apply_2d", "apply_3d")),
        ("invert_box_transform", "invert"),
    ],
)
def test_boxes_and_their_gradients(file, name, golden, same, gradients):
    case, (function, keys) = golden(file)[name], WITH_GRADIENTS[file]
    output, found = gradients(
        lambda *given: function(case, *given), *(case[key] for key in keys), seed=case["gradOutput"]
    )
    same(output, case["output"])
    for gradient, key in zip(found, keys.values(), strict=True):
        same(gradient, case[key])


def test_invert_without_size_gives_infinities(golden, same):
    case = golden("invert_box_transform")["invert_degenerate"]
    assert torch.isinf(case["output"]).sum() == 3
    same(original.invert_box_transform(case["anchors"], case["targets"]), case["output"])


def test_clip_boxes(case, same):
    if case["format"] == "xcycwh" and case["bounds"]["x_min"] == 1:  # the others are asked nowhere
        clipped, valid = original.clip_boxes(case["boxes"], case["bounds"]["x_max"], case["bounds"]["y_max"])
        same(clipped, case["clipped"])
        assert torch.equal(valid.reshape(-1), case["valid"])


def test_nms(case):
    corners, scores = case["boxes"][:, :4], case["boxes"][:, 4]
    picks = original.nms(corners, scores, case["overlap"], case["max_boxes"])
    assert torch.equal(picks + 1, case["pick_1based"])
    if "pick_old_1based" in case:
        assert torch.equal(picks + 1, case["pick_old_1based"])


def test_every_case_is_asked_for():
    texts = "".join(path.read_text() for path in FOLDER.glob("test_*.py"))
    for path in FOLDER.glob("*.json"):
        if path.stem not in {*GOLDEN.values(), "merge_boxes"}:  # tests of these run on all cases
            cases = json.loads(path.read_text()).get("cases", [])
            assert not [case["name"] for case in cases if f'"{case["name"]}"' not in texts], path.stem

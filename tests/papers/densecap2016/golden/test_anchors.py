import pytest
import torch

from saywhere.papers.densecap2016 import conventions as original

LAYOUTS = ["default_anchors_2x3", "default_anchors_3x4", "custom_batch2"]
RESHAPED = "anchors_reshaped_2x3"


def shapes(case):
    return [tuple(column) for column in case["anchors"].T.tolist()]


def field(case):
    return {"stride": (case["sx"], case["sy"]), "first": (case["x0"], case["y0"])}


def anchors(case):
    height, width = case["input_shape"][2:]
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


def test_reshape_box_features(golden, same, gradients):
    case = golden("make_anchors")["reshape_box_features_k3_D2"]
    output, (gradient,) = gradients(
        lambda features: original.reshape_box_features(features, case["k"]), case["input"], seed=case["gradOutput"]
    )
    same(output, case["output"])
    same(gradient, case["gradInput"])


def test_feature_map_sizes(golden):
    for size in golden("make_anchors")["feature_map_sizes"]["sizes"]:
        assert original.feature_map_size(size["h"], size["w"]) == (size["fh"], size["fw"])


@pytest.mark.parametrize("name", ["makeboxes_N1_k2", "makeboxes_N2_k3"])
def test_make_boxes(name, golden, same, gradients):
    case = golden("make_boxes")[name]
    output, (gradient,) = gradients(
        lambda offsets: original.make_boxes(offsets, shapes(case), **field(case)),
        case["input"],
        seed=case["gradOutput"],
    )
    same(output, case["output"])
    same(gradient, case["gradInput"])


def test_every_case_is_run(golden):
    others = {"field_centers_vgg16", "reshape_box_features_k3_D2", "feature_map_sizes", RESHAPED}
    assert golden("make_anchors").keys() == {*LAYOUTS, *others}
    assert golden("make_boxes").keys() == {"makeboxes_N1_k2", "makeboxes_N2_k3"}

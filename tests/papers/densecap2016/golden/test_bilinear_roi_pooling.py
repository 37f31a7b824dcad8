from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "bilinear_roi_pooling"


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

from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "box_iou"


def test_box_iou(case, same):
    same(original.box_iou(case["boxes1"], case["boxes2"]), case["output"])

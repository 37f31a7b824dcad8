from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "box_conversions"


def test_conversion(case, same):
    if case["fn"] == "scale_boxes_xywh":
        result = original.scale_boxes_xywh(case["input"], case["frac"])
    elif case["name"].startswith("roundtrip"):
        result = original.x1y1x2y2_to_xcycwh(original.xcycwh_to_x1y1x2y2(case["input"]))
    else:
        result = getattr(original, case["fn"])(case["input"])
    same(result, case["output"])

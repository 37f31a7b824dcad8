from saywhere.papers.densecap2016 import conventions as original

GOLDEN = "merge_boxes"


def test_iou_matrix(case, same):
    if case["iou_matrix"] is None:  # hundreds of equal boxes
        assert (original.iou_matrix(case["boxes"]) == 1).all()
    else:
        same(original.iou_matrix(case["boxes"]), case["iou_matrix"])


def test_merge_boxes(case, same):
    means, groups = original.merge_boxes(case["boxes"], case["thr"])
    if case["name"] == "byte_overflow_256":
        # The program's count of 256 neighbours overflows to 0 and it returns nothing; ours is the one group they form.
        assert case["groups_1based"] == [] and case["merged_boxes"].numel() == 0
        assert groups == [list(range(256))]
        same(means, case["boxes"][:1])
    else:
        assert [[member + 1 for member in group] for group in groups] == case["groups_1based"]
        same(means, case["merged_boxes"])

"""The published program's evaluator of dense captioning, with its METEOR values: every step and every cell, digit for
digit."""

from dataclasses import replace

import numpy as np
import pytest

from saywhere.evaluation.dense import IOUS, METEORS, DenseCaptioning, first_claims
from saywhere.papers.densecap2016 import evaluator
from saywhere.papers.densecap2016.evaluator import ORIGINAL

PRECISIONS = ["double", "float"]
CASES = [
    *("single_perfect", "unmatched_consumes_last_gt", "unmatched_last_only", "unmatched_consumes_last_of_three"),
    *("unmatched_after_merge_order", "duplicate_detection", "no_fallback_to_second_best", "iou_tie_first_gt"),
    *("iou_exactly_half", "iou_exactly_0.3_0.7", "merge_exactly_0.7", "merge_multi_ref", "meteor_zero"),
    *("empty_caption", "separator_in_candidate", "punctuation_and_case", "npos100_alternating", "npos100_first99"),
    *("npos100_all", "npos50_half", "npos100_six", "two_images_ties", "ties_40", "per_image_use", "degenerate_boxes"),
    "float32_rounding",
]


def corners(boxes):
    """What the program makes of ``xcycwh``, in its floats: the evaluator takes it from there."""
    boxes = np.asarray(boxes, dtype=np.float32).reshape(-1, 4)
    half = (boxes[:, 2:] - 1) / np.float32(2)
    return np.concatenate((boxes[:, :2] - half, boxes[:, :2] + half), axis=1)


def rules(precision, ties="torch"):
    return replace(ORIGINAL, precision=precision, ties=ties)


def images(case):
    for image in case["images"]:
        yield corners(image["boxes"]), np.array(image["logprobs"], dtype=float), corners(image["gt_boxes"]), image


def evaluate(case, rules):
    scored = {(r["candidate"], tuple(r["references"])): r["meteor"] for r in case["records"]}
    metric = DenseCaptioning(rules)
    for boxes, scores, truths, image in images(case):
        metric.add_arrays(boxes, scores, image["captions"], truths, [[text] for text in image["gt_captions"]])
    return metric.result(lambda pairs: [scored.get((said, tuple(references)), 0.0) for said, references in pairs])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_groups_and_records(golden, name, precision):
    case, chosen = golden(f"evaluator_tiny_{precision}")[name], rules(precision)
    records, positives, sorted_scores = [], 0, []
    for number, (boxes, scores, truths, image) in enumerate(images(case)):
        merged, groups = chosen.merge(truths)
        expected = case["merged"][number]
        assert [[member + 1 for member in group] for group in groups] == expected["groups_1based"]
        assert merged.tolist() == expected["merged_boxes_x1y1x2y2"].tolist()
        phrases = [[image["gt_captions"][i] for i in group] for group in groups]
        assert phrases == expected["merged_captions"]
        positives += len(groups)
        matches = chosen.match(boxes, scores, merged)
        ok = first_claims(matches.claim, matches.claim >= 0)
        sorted_scores += scores[matches.order].tolist()
        for row, (place, truth) in enumerate(zip(matches.order.tolist(), matches.truth.tolist(), strict=True)):
            records.append(
                {
                    "candidate": image["captions"][place],
                    "imgid": number + 1,
                    "ok": int(ok[row]),
                    "ov": matches.overlap[row],
                    "references": phrases[truth] if truth >= 0 else [],
                }
            )
    assert positives == case["npos"]
    assert sorted_scores == case["sorted_logprobs"].tolist()
    assert records == [{k: v for k, v in record.items() if k != "meteor"} for record in case["records"]]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("name", CASES)
def test_every_cell(golden, name, precision):
    case = golden(f"evaluator_tiny_{precision}")[name]
    result, expected = evaluate(case, rules(precision)), case["results"]
    cells = {f"iou_{t}/meteor_{m}": expected["ap_breakdown"][f"ov{t}_score{m}"] for t in IOUS for m in METEORS}
    assert result.ap == cells and len(cells) == len(expected["ap_breakdown"])
    assert result.detection_ap == {f"iou_{t}": expected["det_breakdown"][f"ov{t}"] for t in IOUS}
    assert result.truths == case["npos"] and result.images == len(case["images"])
    # The program adds the cells up in the order of a hash table, so their mean has other roundings.
    assert result.map == pytest.approx(expected["map"], rel=1e-15, abs=0)
    assert result.detection_map == pytest.approx(expected["detmap"], rel=1e-15, abs=0)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_long_ties_alone_need_the_programs_sort(golden, precision):
    """The protocol as users name it keeps the input order of equal scores."""
    assert ORIGINAL.ties == "input"
    cases = golden(f"evaluator_tiny_{precision}")
    differ = {n for n in CASES if evaluate(cases[n], rules(precision)) != evaluate(cases[n], rules(precision, "input"))}
    assert differ == {"ties_40"}


def test_double_and_float_differ(golden):
    double, single = golden("evaluator_tiny_double"), golden("evaluator_tiny_float")
    assert evaluate(double["npos100_first99"], rules("double")).map == pytest.approx(0.99)
    assert evaluate(single["npos100_first99"], rules("float")).map == 1


def test_merging_counts_neighbours_in_a_byte(golden):
    cases = golden("merge_boxes")
    for case in cases.values():
        means, groups = evaluator.merge(case["boxes"].numpy().astype(np.float32), case["thr"], np.float64)
        assert [[member + 1 for member in group] for group in groups] == case["groups_1based"]
        np.testing.assert_allclose(means, case["merged_boxes"].reshape(-1, 4), rtol=1e-7)
        if case["iou_matrix"] is not None:
            boxes = case["boxes"].numpy()
            assert evaluator.overlaps(boxes, boxes).tolist() == case["iou_matrix"].tolist()
    assert cases["byte_overflow_256"]["groups_1based"] == []

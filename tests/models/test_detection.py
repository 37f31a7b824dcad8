"""Finding and describing regions: the verb ``describe`` on DenseCap's network."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise
from stubs import calibrated
from tiny_densecap import tiny_config, tiny_detector, tiny_model

from saywhere import boxes as geometry
from saywhere.calibration import Calibration, Logistic
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.models.densecap import Detections, detect, rank
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.model import Model
from saywhere.models.phrases import Phrases

BOXES = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]], np.float32)


# Scores and their order


def detections() -> Detections:
    encoding = Encoding(None, 40, 40, 32, 32, "a.png", TorchEngine({"densecap": tiny_model()}).trunk)
    logits, confidence = np.array([2.0, 1.0, 0.0], np.float32), np.array([-3.0, -0.5, -0.1], np.float32)
    features = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    phrases = Phrases(("a dog", "a dog", "a cat"), confidence, ((), (), ()))
    return Detections(encoding, BOXES, logits, features, features, phrases)


def box(*numbers: float) -> Logistic:
    return calibrated(box=numbers).box


def test_a_score_is_the_logistic_function_of_logit_and_confidence() -> None:
    wanted = [1 / (1 + math.exp(-x)) for x in (0.5 * 2 + 2 * -3 + 1, 0.5 * 1 + 2 * -0.5 + 1, 2 * -0.1 + 1)]
    np.testing.assert_allclose(detections().regions(box(0.5, 2.0, 1.0)).scores, wanted, rtol=1e-5)
    plain = [1 / (1 + math.exp(-x)) for x in (2, 1, 0)]
    np.testing.assert_allclose(detections().regions(Calibration().box).scores, plain, rtol=1e-5)


def test_the_calibrated_score_ranks_and_cuts() -> None:
    regions = detections().regions(box(1.0, 1.0, 0.0))  # logits -1, 0.5, -0.1
    assert rank(regions, None) == [1, 2, 0]
    assert rank(regions, 0.4) == [1, 2]
    assert rank(regions, 0.95) == [1, 2, 0]
    assert rank(regions, None, threshold=0.3) == [1, 2]
    assert rank(regions, None, threshold=0.3, top=1) == [1]
    assert rank(regions, None, threshold=0.99) == []


def test_describe_ranks_by_the_calibrated_score() -> None:
    image = noise(96, 64)
    plain, weighted = tiny_detector(), tiny_detector()
    weighted.calibration = calibrated(box=(0.0, 1.0, 0.0))
    assert plain.densecap is not None
    (found,) = detect(plain.densecap, [plain.encode(image)])
    best = weighted.describe(image)
    assert best.scores is not None
    assert best.scores[0] == pytest.approx(1 / (1 + math.exp(-float(found.confidence.max()))), rel=1e-4)
    assert plain.describe(image).boxes.tolist() != best.boxes.tolist()
    assert weighted.describe(image, BOXES).boxes.tolist() == BOXES.tolist()


# The verb


def test_describe_gives_regions_in_the_pixels_of_the_image() -> None:
    regions = tiny_detector().describe(noise(300, 150))
    assert (regions.width, regions.height) == (300, 150)
    assert len(regions) > 3
    assert regions.boxes[:, 2].max() > 150  # not those of the 96-pixel input
    assert regions.features is not None and regions.features.shape == (len(regions), 32)
    assert regions.scores is not None and (np.diff(regions.scores) <= 0).all()


def test_a_list_of_different_sizes_equals_one_at_a_time() -> None:
    model = tiny_detector()
    images = [noise(120, 80, 0), noise(80, 120, 1), noise(121, 80, 2), noise(50, 50, 3)]
    for together, alone in zip(model.describe(images), map(model.describe, images), strict=True):
        np.testing.assert_allclose(together.boxes, alone.boxes, atol=1e-3)
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
        assert together.captions == alone.captions
    assert model.describe([]) == []


def test_top_and_threshold_cut_the_same_ranking() -> None:
    model, image = tiny_detector(), noise(120, 80)
    everything = model.describe(image)
    assert everything.scores is not None
    assert model.describe(image, top=2).captions == everything[:2].captions
    cut = float(everything.scores[2])
    assert len(model.describe(image, threshold=cut)) == int((everything.scores >= cut).sum()) < len(everything)
    assert len(model.describe(image, threshold=1.1)) == 0


def test_given_boxes_are_described_as_they_are_and_in_order() -> None:
    model, image = tiny_detector(), noise(120, 80)
    boxes = np.array([[60.0, 10, 110, 70], [0, 0, 120, 80], [3, 4, 20, 30]])
    regions = model.describe(image, boxes)
    assert regions.boxes.tolist() == boxes.tolist()
    backwards = model.describe(image, boxes[::-1])
    assert backwards.captions == tuple(reversed(regions.captions or ()))
    assert len(model.describe(image, np.zeros((0, 4)))) == 0
    assert model.describe(image, torch.tensor(boxes)).captions == regions.captions
    assert model.describe(image, boxes.tolist()).captions == regions.captions


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[0.0, 0, 500, 20]], r"box 0 .* is not inside the 120 x 80 image"),
        ([10, 20, 30], r"four numbers each, \(N, 4\); these are \(3,\)"),
        ([[0.0, 0, float("nan"), 20]], "box 0"),
    ],
)
def test_boxes_that_do_not_fit_are_refused(boxes: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        tiny_detector().describe(noise(120, 80), boxes)


def test_boxes_are_given_for_each_image_and_without_a_choice() -> None:
    model, image = tiny_detector(), noise(120, 80)
    with pytest.raises(UserError, match="1 values for 2 images"):
        model.describe([image, image], [BOXES])
    with pytest.raises(UserError, match="given boxes are all described"):
        model.describe(image, BOXES, top=1)


def test_given_boxes_come_back_as_they_are_from_weights_in_half_precision() -> None:
    box = [[101.0, 203, 637, 477]]
    model = Model(TorchEngine({"densecap": tiny_model().bfloat16()}))
    assert model.describe(noise(800, 600), box).boxes.tolist() == box
    assert len(model.describe(noise(800, 600))) > 0


def test_a_long_list_is_worked_off_a_few_images_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model, sizes = tiny_detector(), []
    trunk = model.engine.trunk
    encode = trunk.encode

    def counted(pixels: Sequence[np.ndarray]) -> list[Any]:
        sizes.append(len(pixels))
        return encode(pixels)

    monkeypatch.setattr(trunk, "encode", counted)
    images = [noise(40 + i, 40, i) for i in range(20)]
    regions = model.describe(images, [[[0.0, 0, 20 + i, 30]] for i in range(20)])
    assert sizes == [16, 4]
    assert [r.width for r in regions] == [40 + i for i in range(20)]
    assert [float(r.boxes[0, 2]) for r in regions] == [20 + i for i in range(20)]


def test_an_encoding_is_asked_without_the_backbone() -> None:
    network = tiny_model()
    model, image = Model(TorchEngine({"densecap": network})), noise(120, 80)
    encoding, expected = model.encode(image), model.describe(image)
    network.trunk.backbone.body = torch.nn.Identity()  # would fail
    assert model.describe(encoding).captions == expected.captions


def test_a_bad_image_is_named() -> None:
    with pytest.raises(ImageError, match=r"nowhere\.jpg: no such file"):
        tiny_detector().describe("nowhere.jpg")


# What the options of the configuration change in use


def test_proposals_are_as_many_as_told_and_suppressed() -> None:
    model = tiny_detector()
    assert model.densecap is not None
    coder, encoding = model.densecap.box_coder, model.encode(noise(120, 80))
    settings = tiny_config(proposals={"nms_iou": 0.3}).proposals
    boxes, logits = propose_boxes(encoding, settings, coder)
    assert len(boxes) == len(logits) <= 20 and (np.diff(logits) <= 0).all()
    assert (geometry.iou(boxes, boxes) - np.eye(len(boxes))).max() <= 0.3 + 1e-5
    assert len(propose_boxes(encoding, settings, coder, limit=3)[0]) == 3


def test_final_suppression_holds_and_only_its_survivors_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    for final_nms in (0.5, 0.1):
        model = tiny_detector(repeat_nms=None, final_nms=final_nms)
        assert model.densecap is not None
        decoder, decoded = model.densecap.decoder, []
        start = decoder.start
        monkeypatch.setattr(decoder, "start", lambda e, start=start, rows=decoded: rows.append(len(e)) or start(e))
        regions = model.describe(noise(120, 80))
        overlap = geometry.iou(regions.boxes, regions.boxes) - np.eye(len(regions))
        assert overlap.max() <= final_nms + 1e-4
        assert decoded == [len(regions)] and len(regions) < 20
        counts.append(len(regions))
    assert counts[1] < counts[0]


def test_a_region_that_repeats_a_better_one_is_left_out() -> None:
    image = noise(120, 80)
    kept, everything = tiny_detector(repeat_nms=0.05).describe(image), tiny_detector(repeat_nms=None).describe(image)
    captions, overlap = everything.captions or (), geometry.iou(everything.boxes, everything.boxes)
    expected: list[int] = []
    for row, caption in enumerate(captions):
        if not any(overlap[row, i] > 0.05 and captions[i] == caption for i in expected):
            expected.append(row)
    assert len(expected) < len(everything)
    assert kept.captions == everything[expected].captions
    np.testing.assert_allclose(kept.boxes, everything[expected].boxes)
    assert tiny_detector(repeat_nms=0.05).describe(image, top=2).captions == kept[:2].captions


def test_captions_are_as_long_as_told_and_beams_change_them() -> None:
    image = noise(120, 80)
    boxes = [[4.0 * i, 0, 4 * i + 30, 60 + i] for i in range(20)]

    def captions(**options: Any) -> tuple[str, ...]:
        return tiny_detector(decoding=options).describe(image, boxes).captions or ()

    assert {len(text.split()) for text in captions(max_words=1)} <= {0, 1}
    assert max(len(text.split()) for text in captions(max_words=7)) == 7
    assert captions(beam_size=5) != captions()
    assert captions(beam_size=5, length_penalty=2.0) != captions(beam_size=5)

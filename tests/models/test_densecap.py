"""What is found in images, what is left of it, and in which order."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from photographs import noise
from stubs import calibrated
from tiny_densecap import tiny_detector, tiny_model

from saywhere.boxes import BoxCoder
from saywhere.calibration import Calibration, Logistic
from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import ProposalConfig
from saywhere.engines.engine import DenseCap, RegionHeadOutput, RpnOutput
from saywhere.engines.torch import TorchEngine
from saywhere.models.densecap import Detections, detect, rank, select
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.model import Model
from saywhere.models.phrases import Phrases
from saywhere.regions import Regions
from saywhere.text import END, PAD, START, UNKNOWN, Vocabulary

PIXELS = np.zeros((1, 1, 3), np.uint8)
BOXES = np.array([[0.0, 0, 10, 10], [0, 0, 10, 9], [20, 20, 30, 30]], np.float32)


# Scores and their order


def detections() -> Detections:
    encoding = Encoding(None, 40, 40, 32, 32, "a.png", TorchEngine({"densecap": tiny_model()}).trunk, PIXELS)
    logits, confidence = np.array([2.0, 1.0, 0.0], np.float32), np.array([-3.0, -0.5, -0.1], np.float32)
    features = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    phrases = Phrases(("a dog", "a dog", "a cat"), confidence, ((), (), ()), np.zeros(3, np.float32))
    return Detections(encoding, BOXES, logits, features, features, phrases)


def box(*numbers: float) -> Logistic:
    return calibrated(box=numbers).box


def test_a_score_is_the_logistic_function_of_logit_confidence_and_area() -> None:
    areas = np.array([100, 90, 100]) / 1600
    sums = np.array([0.5 * 2 + 2 * -3, 0.5 * 1 + 2 * -0.5, 2 * -0.1]) + 0.25 * np.log(areas)
    wanted = 1 / (1 + np.exp(-sums - 1))
    np.testing.assert_allclose(detections().regions(box(0.5, 2.0, 0.25, 1.0)).scores, wanted, rtol=1e-5)
    plain = [1 / (1 + math.exp(-x)) for x in (2, 1, 0)]
    np.testing.assert_allclose(detections().regions(Calibration().box).scores, plain, rtol=1e-5)


def test_describe_ranks_by_the_calibrated_score() -> None:
    image = noise(96, 64)
    plain, weighted = tiny_detector(), tiny_detector()
    weighted.calibration = calibrated(box=(0.0, 1.0, 0.0, 0.0))
    assert plain.densecap is not None
    (found,) = detect(plain.densecap, [plain.encode(image)])
    best = weighted.describe(image)
    assert best.scores[0] == pytest.approx(1 / (1 + math.exp(-float(found.confidence.max()))), rel=1e-4)
    assert plain.describe(image).boxes.tolist() != best.boxes.tolist()
    assert weighted.describe(image, BOXES).boxes.tolist() == BOXES.tolist()


# The verb


def test_given_boxes_are_described_as_they_are_and_in_order() -> None:
    model, image = tiny_detector(), noise(120, 80)
    boxes = np.array([[60.0, 10, 110, 70], [0, 0, 120, 80], [3, 4, 20, 30]])
    regions = model.describe(image, boxes)
    assert regions.boxes.tolist() == boxes.tolist()
    backwards = model.describe(image, boxes[::-1])
    assert backwards.captions == tuple(reversed(regions.captions or ()))
    none, same = model.describe([image, image], [np.zeros((0, 4)), boxes])
    assert len(none) == 0 and same.captions == regions.captions
    assert model.describe(image, torch.tensor(boxes)).captions == regions.captions
    assert model.describe(image, boxes.tolist()).captions == regions.captions


def test_given_boxes_come_back_as_they_are_from_weights_in_half_precision() -> None:
    box = [[101.0, 203, 637, 477]]
    model = Model(TorchEngine({"densecap": tiny_model().bfloat16()}))
    assert model.describe(noise(800, 600), box).boxes.tolist() == box
    assert len(model.describe(noise(800, 600))) > 0


# What the options of the configuration change in use


def test_captions_are_as_long_as_told_and_beams_change_them() -> None:
    image = noise(120, 80)
    boxes = [[4.0 * i, 0, 4 * i + 30, 60 + i] for i in range(20)]

    def captions(**options: Any) -> tuple[str, ...]:
        return tiny_detector(decoding=options).describe(image, boxes).captions or ()

    assert {len(text.split()) for text in captions(max_words=1)} <= {0, 1}
    assert max(len(text.split()) for text in captions(max_words=7)) == 7
    assert captions(beam_size=5) != captions()
    assert captions(beam_size=5, length_penalty=2.0) != captions(beam_size=5)


CODER = BoxCoder()
WIDTH, HEIGHT = 96, 64
Row = list[float]


def rpn(count: int, seed: int) -> RpnOutput:
    """Random anchors, some of which leave the input, and offsets."""
    random = np.random.default_rng(seed)
    corners = random.uniform(-20, 80, (count, 2))
    anchors = np.hstack((corners, corners + random.uniform(2, 60, (count, 2))))
    logits, offsets = random.normal(size=count), random.normal(size=(count, 4), scale=0.5)
    return RpnOutput(*(values.astype(np.float32) for values in (anchors, logits, offsets)))


def encoding(output: RpnOutput | None = None, factor: int = 2) -> Encoding:
    trunk = cast(Any, SimpleNamespace(propose=lambda maps: maps))
    return Encoding(output, factor * WIDTH, factor * HEIGHT, WIDTH, HEIGHT, "a.png", trunk, PIXELS)


def overlap(a: Row, b: Row) -> float:
    sides = [max(0.0, min(a[i + 2], b[i + 2]) - max(a[i], b[i])) for i in (0, 1)]
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    union = sum(areas) - sides[0] * sides[1]
    return sides[0] * sides[1] / union if union > 0 else 0.0


def decoded(anchor: Row, offset: Row) -> Row:
    """Eqs. 1 and 2 of DenseCap, the box cut to the input."""
    w, h = anchor[2] - anchor[0], anchor[3] - anchor[1]
    x, y = (anchor[0] + anchor[2]) / 2 + offset[0] * w, (anchor[1] + anchor[3]) / 2 + offset[1] * h
    w, h = w * math.exp(min(offset[2], 4.135)), h * math.exp(min(offset[3], 4.135))
    box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
    return [min(max(v, 0.0), limit) for v, limit in zip(box, (WIDTH, HEIGHT) * 2, strict=True)]


def kept_by(boxes: Sequence[Row], order: Sequence[int], most: float) -> list[int]:
    """Greedy suppression."""
    kept: list[int] = []
    for row in order:
        if all(overlap(boxes[row], boxes[other]) <= most for other in kept):
            kept.append(row)
    return kept


@given(
    seed=st.integers(0, 999), count=st.integers(0, 40), nms_iou=st.sampled_from([0.2, 0.5, 0.9]),
    before=st.sampled_from([None, 1, 10]), limit=st.sampled_from([None, 0, 3]),
)  # fmt: skip
def test_proposals_are_those_of_the_definition(seed: int, count: int, nms_iou: float, before: Any, limit: Any):
    output = rpn(count, seed)
    settings = ProposalConfig(nms_iou=nms_iou, pre_nms_top_n=before, post_nms_top_n=8)
    boxes, logits = propose_boxes(encoding(output), settings, CODER, limit)
    all_boxes = [decoded(a, o) for a, o in zip(output.anchors.tolist(), output.offsets.tolist(), strict=True)]
    order = sorted(range(count), key=lambda row: -output.logits[row])[:before]
    solid = [r for r in order if all(all_boxes[r][i + 2] - all_boxes[r][i] >= 1 for i in (0, 1))]
    expected = kept_by(all_boxes, solid, nms_iou)[: 8 if limit is None else limit]
    assert boxes.shape == (len(expected), 4) and boxes.dtype == np.float32
    np.testing.assert_allclose(boxes, np.array([all_boxes[r] for r in expected]).reshape(-1, 4), atol=1e-3)
    assert logits.tolist() == [output.logits[r] for r in expected]


@given(seed=st.integers(0, 999), count=st.integers(0, 20), nms_iou=st.sampled_from([0.2, 0.7]))
def test_final_boxes_are_moved_put_on_the_image_and_suppressed(seed: int, count: int, nms_iou: float):
    output = rpn(count, seed)
    proposals = np.clip(output.anchors, 0, (WIDTH, HEIGHT) * 2).astype(np.float32)
    head = RegionHeadOutput(np.zeros((count, 1)), output.logits, output.offsets)
    boxes, rows = select(CODER, encoding(), proposals, head, nms_iou)
    all_boxes = [
        [2 * v for v in decoded(p, o)] for p, o in zip(proposals.tolist(), output.offsets.tolist(), strict=True)
    ]
    order = sorted(range(count), key=lambda row: -output.logits[row])
    solid = [
        r for r in kept_by(all_boxes, order, nms_iou) if all(all_boxes[r][i + 2] > all_boxes[r][i] for i in (0, 1))
    ]
    assert rows.tolist() == solid
    np.testing.assert_allclose(boxes, np.array([all_boxes[r] for r in solid]).reshape(-1, 4), atol=1e-2)


@given(data=st.data(), count=st.integers(0, 12), repeat_nms=st.sampled_from([None, 0.0, 0.4, 1.0]))
def test_ranking_is_that_of_the_definition(data: st.DataObject, count: int, repeat_nms: float | None):
    boxes = np.clip(rpn(count, count).anchors, 0, (WIDTH, HEIGHT) * 2)
    scores = data.draw(st.lists(st.sampled_from([0.1, 0.5, 0.5, 0.9]), min_size=count, max_size=count))
    captions = data.draw(st.lists(st.sampled_from(["a dog", "a cat"]), min_size=count, max_size=count))
    threshold, top = data.draw(st.sampled_from([None, 0.5, 1.0])), data.draw(st.sampled_from([None, 0, 2]))
    expected: list[int] = []
    for row in sorted(range(count), key=lambda r: -scores[r]):
        repeats = [r for r in expected if captions[r] == captions[row]]
        close = any(
            overlap(boxes[row].tolist(), boxes[r].tolist()) > (1 if repeat_nms is None else repeat_nms) for r in repeats
        )
        if not close and (threshold is None or scores[row] >= threshold):
            expected.append(row)
    regions = Regions(WIDTH, HEIGHT, boxes, scores, captions)  # pyright: ignore[reportArgumentType]
    assert rank(regions, repeat_nms, threshold, top) == expected[: top or None]  # 0: all


class Speaks:
    """A decoder that says of an embedding ``(k,)`` the word k, and counts the embeddings."""

    never, unknown, independent = (PAD, START, UNKNOWN), "<unk>", True
    words = Vocabulary.build(["one two three four"])

    def __init__(self) -> None:
        self.counts: list[int] = []

    def start(self, embeddings: np.ndarray) -> tuple[np.ndarray, ...]:
        self.counts.append(len(embeddings))
        return (embeddings[:, 0],)

    def step(self, token_ids: np.ndarray, state: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        log_probs = np.full((len(token_ids), 8), np.log(0.5 / 7), np.float32)
        chosen = np.where(token_ids == START, 4 + state[0].astype(int) % 4, END)
        log_probs[np.arange(len(token_ids)), chosen] = np.log(0.5)
        return log_probs, state

    def select(self, state: tuple[np.ndarray, ...], rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part[rows] for part in state)


def detector(decoder: Speaks) -> DenseCap:
    """Boxes stay as they are; the embedding of a box is its number, and so is its logit."""

    def region_head(maps: Sequence[Any], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        numbers = [np.arange(len(rows), dtype=np.float32) for rows in boxes]
        return [RegionHeadOutput(n[:, None], n, np.zeros((len(n), 4), np.float32)) for n in numbers]

    parts = {"config": DenseCapConfig(), "vocabulary": Speaks.words, "box_coder": CODER, "ngrams": None}
    parts |= {"phrase_features": lambda *given: given[2], "phrase_embeddings": lambda features: features}
    return cast(DenseCap, SimpleNamespace(**parts, decoder=decoder, region_head=region_head))


def test_only_boxes_that_are_kept_are_described_all_images_together():
    decoder = Speaks()
    proposals = [
        np.array([[0, 0, 20, 20], [0, 0, 20, 19], [50, 5, 90, 60]], np.float32),
        np.zeros((0, 4), np.float32),
        np.array([[0, 0, 9, 9], [-5, -5, -1, -1], [3, 3, 3, 9]], np.float32),  # outside, and without area
    ]
    found = detect(detector(decoder), [encoding(), encoding(factor=1), encoding(factor=1)], proposals=proposals)
    assert decoder.counts == [3]
    assert [f.boxes.tolist() for f in found] == [[[100, 10, 180, 120], [0, 0, 40, 38]], [], [[0, 0, 9, 9]]]
    words = Speaks.words.tokens[4:]
    assert [f.captions for f in found] == [(words[2], words[1]), (), (words[0],)]
    assert [f.logits.tolist() for f in found] == [[2, 1], [], [0]]
    assert [f.embeddings.shape for f in found] == [(2, 1), (0, 1), (1, 1)]
    for f in found:
        np.testing.assert_allclose(f.confidence, np.log(0.5))


@pytest.mark.parametrize(("weight", "area", "decoded"), [(0.5, 0.0, 2), (0.0, 0.0, 2), (-0.5, 0.0, 3), (0.5, 0.25, 1)])
def test_regions_whose_score_must_be_below_the_threshold_get_no_phrase(weight: float, area: float, decoded: int):
    """Logits are 2, 1 and 0, the words of each phrase have a mean log-probability of log .5."""
    decoder, proposals = Speaks(), [np.array([[0, 0, 20, 20], [30, 0, 50, 19], [50, 5, 90, 60]], np.float32)]
    calibration = calibrated(box=(1.0, weight, area, 0.0))
    (every,) = detect(detector(Speaks()), [encoding()], proposals=proposals, calibration=calibration)
    (some,) = detect(detector(decoder), [encoding()], proposals=proposals, calibration=calibration, threshold=0.6)
    assert decoder.counts == [decoded]
    assert some.captions == every.captions[:decoded] and some.boxes.tolist() == every.boxes[:decoded].tolist()
    dropped = every.regions(calibration.box).scores[decoded:]
    assert (dropped < 0.6).all()


@pytest.mark.parametrize("calibration", [(1.0, 0.0, 0.0, 0.0), (100.0, 100.0, 0.0, 1e9), (-100.0, 0.0, 0.0, -1e9)])
def test_scores_are_probabilities_whatever_the_calibration(calibration: Any):
    (found,) = detect(detector(Speaks()), [encoding()], [[[0, 0, 5, 5]] * 7])
    scores = found.regions(calibrated(box=calibration).box).scores
    assert scores is not None and ((scores >= 0) & (scores <= 1)).all()

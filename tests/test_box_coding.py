"""Both box coders, for numpy arrays as for torch tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from saywhere.boxes import BoxCoder, propose
from saywhere.engines.engine import RpnOutput
from saywhere.papers.densecap2016.conventions import OriginalBoxCoder

CODERS = pytest.mark.parametrize("coder", [BoxCoder(), OriginalBoxCoder()], ids=["saywhere", "original"])
RANDOM = np.random.default_rng(0)
LOW, SIDES = RANDOM.uniform(0, 40, (40, 2)), RANDOM.uniform(4, 40, (40, 2))
CORNERS = np.hstack((LOW, LOW + SIDES)).astype(np.float32)
OFFSETS = RANDOM.normal(0, 0.3, (40, 4)).astype(np.float32)
LOGITS = RANDOM.normal(0, 2, 40).astype(np.float32)


def same(arrays: object, tensors: object) -> None:
    for array, tensor in zip(
        arrays if isinstance(arrays, tuple) else (arrays,),
        tensors if isinstance(tensors, tuple) else (tensors,),
        strict=True,
    ):
        assert isinstance(array, np.ndarray) and isinstance(tensor, torch.Tensor)
        assert array.dtype == tensor.numpy().dtype
        np.testing.assert_allclose(array, tensor.numpy(), rtol=1e-5, atol=1e-5)


@CODERS
def test_arrays_give_what_tensors_give(coder: BoxCoder):
    boxes = coder.from_xyxy(CORNERS)
    b, offsets, logits = (torch.from_numpy(np.array(values)) for values in (boxes, OFFSETS, LOGITS))
    same(boxes, coder.from_xyxy(torch.from_numpy(CORNERS)))
    same(coder.to_xyxy(boxes), coder.to_xyxy(b))
    np.testing.assert_allclose(coder.to_xyxy(boxes), CORNERS, atol=1e-4)
    same(coder.decode(OFFSETS, boxes), coder.decode(offsets, b))
    same(coder.encode(boxes, boxes[::-1].copy()), coder.encode(b, b.flip(0)))
    same(coder.iou(boxes, boxes[:5]), coder.iou(b, b[:5]))
    same(coder.inside(boxes, 50, 40), coder.inside(b, 50, 40))
    same(coder.clip(boxes, 50, 40), coder.clip(b, 50, 40))
    same(coder.suppress_proposals(boxes, LOGITS, 0.5, 9), coder.suppress_proposals(b, logits, 0.5, 9))
    same(coder.suppress_final(boxes, CORNERS, LOGITS, 0.3), coder.suppress_final(b, torch.tensor(CORNERS), logits, 0.3))


@CODERS
def test_anchors_are_arrays_of_the_type_that_is_asked_for(coder: BoxCoder):
    shapes = [(4.0, 8.0), (6.0, 2.0), (1 / 3, 1.0)]
    single, double = coder.anchors(shapes, 3, 5, 16), coder.anchors(shapes, 3, 5, 16, np.float64)
    assert single.shape == (45, 4) and single.dtype == np.float32 and double.dtype == np.float64
    np.testing.assert_allclose(single, double, rtol=1e-6)
    if isinstance(coder, OriginalBoxCoder):  # centres from 1, by shape, row, column
        np.testing.assert_allclose(double[:, :2].reshape(3, 3, 5, 2)[0, 1, 2], [40.5, 24.5])
    else:  # by row, column, shape
        centres = (double[:, :2] + double[:, 2:]) / 2
        np.testing.assert_allclose(centres.reshape(3, 5, 3, 2)[1, 2, 0], [40, 24])


@CODERS
@pytest.mark.parametrize("pre_nms_top_n", [None, 10])
def test_proposals_of_arrays_are_those_of_tensors(coder: BoxCoder, pre_nms_top_n: int | None):
    anchors = coder.from_xyxy(CORNERS)
    arrays = RpnOutput(anchors, LOGITS, OFFSETS)
    tensors = RpnOutput(*(torch.from_numpy(np.array(values)) for values in (anchors, LOGITS, OFFSETS)))
    found, logits = propose(coder, arrays, (50, 40), 0.6, pre_nms_top_n, 12)
    b, scores = propose(coder, tensors, (50, 40), 0.6, pre_nms_top_n, 12)
    same((found, logits), (b, scores))
    assert 3 < len(found) <= (12 if pre_nms_top_n is None else 10)
    assert (np.diff(logits) <= 0).all()


def test_no_anchors_no_proposals():
    none = RpnOutput(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros((0, 4), np.float32))
    boxes, logits = propose(BoxCoder(), none, (50, 40), 0.6, 100, 12)
    assert boxes.shape == (0, 4) and logits.shape == (0,)

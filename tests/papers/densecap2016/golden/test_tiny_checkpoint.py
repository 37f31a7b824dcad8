"""A whole small checkpoint of the program, and all that it computed of one image, see README.md."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
import torch

import saywhere
import saywhere.boxes
from saywhere.models.encoding import Encoding
from saywhere.networks.checkpoint import save
from saywhere.networks.densecap.loss import score_loss
from saywhere.papers.densecap2016 import conventions as original
from saywhere.papers.densecap2016 import torch7
from saywhere.papers.densecap2016.convert import convert
from saywhere.papers.densecap2016.trace import trace_inference as run

NAME = Path(__file__).parent / "densecap-tiny-a"


@pytest.fixture(scope="module")
def model():
    return convert(NAME.with_suffix(".t7"))


@pytest.fixture(scope="module")
def pixels():
    return torch.from_numpy(np.load(f"{NAME}-image.npy"))[0]


@pytest.fixture(scope="module")
def single(model, pixels):
    return run(model, pixels)


@pytest.fixture(scope="module")
def double(model, pixels):
    return run(copy.deepcopy(model).double(), pixels.double())


def test_sizes_thresholds_and_words_are_those_of_the_file(model, golden):
    sizes, thresholds = golden(NAME.name)["sizes"], golden(NAME.name)["test_args"]
    config = model.config
    assert list(config.trunk.vgg_channels) == sizes["conv_channels"]
    assert (config.embed_dim, config.fc_size) == (sizes["fc_dim"], None)
    assert config.proposals.hidden_size == sizes["rpn_num_filters"]
    assert (config.word_size, config.hidden_size) == (sizes["rnn_encoding_size"], sizes["rnn_size"])
    assert (config.decoding.max_words, config.pool_size) == (sizes["seq_length"], sizes["output_height"])
    assert (config.proposals.nms_iou, config.final_nms) == (
        thresholds["rpn_nms_thresh"],
        thresholds["final_nms_thresh"],
    )
    assert config.proposals.post_nms_top_n == thresholds["num_proposals"]
    assert [*model.vocabulary.counts, "<UNK>"] == golden(NAME.name)["vocab"]
    assert len(config.proposals.anchors[0]) == sizes["num_anchors"]


def test_every_step_in_double_precision(double, golden, same):
    """Where the program gave a step in doubles, to 1e-9."""
    case = golden(NAME.name)["float64"]
    same(double.conv_features[None, :1], case["conv_features_first_channel"])
    assert torch.equal(double.rpn_nms + 1, case["rpn_nms_idx_1based"])
    same(double.proposals, case["proposals"])
    same(double.embeddings[:3], case["codes_first3"])
    same(double.objectness[:, None], case["objectness_all"])
    same(double.final_boxes, case["final_boxes_all"])
    assert torch.equal(double.tokens, case["token_ids_all"])
    assert torch.equal(double.final_nms + 1, case["final_nms_idx_1based"])
    kept = double.final_nms
    same(double.final_boxes[kept].float().double(), case["boxes"])
    same(double.objectness[kept, None].float().double(), case["scores"])


def test_steps_between_that_are_known_in_single_precision_only(double, golden):
    """Doubles beside what the program computed in floats: equal but for the rounding of those."""
    case = golden(NAME.name)["float32"]

    def close(actual, expected, tolerance):
        torch.testing.assert_close(actual, expected, rtol=1e-5, atol=tolerance)

    close(double.conv_features[None], case["conv_features"], 1e-4)
    close(double.rpn_trans[None], case["rpn_trans"], 1e-4)
    close(double.rpn_scores[None], case["rpn_scores"], 1e-4)
    close(double.rpn_boxes[None], case["rpn_boxes"], 0.01)
    close(double.rpn_boxes_clipped[None], case["rpn_boxes_clipped"], 0.01)
    assert torch.equal(double.rpn_valid, case["rpn_valid"])
    close(double.rpn_pos_prob_of_valid, case["rpn_pos_prob_of_valid"], 1e-5)
    close(double.roi_features[:3], case["roi_features_first3"], 1e-3)
    close(double.box_trans, case["box_trans_all"], 1e-4)


def test_in_single_precision_the_same_words_and_boxes(single, golden):
    case = golden(NAME.name)["float32"]
    assert torch.equal(single.rpn_nms + 1, case["rpn_nms_idx_1based"])
    assert torch.equal(single.tokens, case["token_ids_all"])
    assert single.captions == case["captions_all"]
    assert torch.equal(single.final_nms + 1, case["final_nms_idx_1based"])
    assert [single.captions[i] for i in single.final_nms.tolist()] == case["captions"]
    assert torch.equal(single.tokens[single.final_nms], case["token_ids"])
    assert "" in case["captions"]
    torch.testing.assert_close(single.final_boxes[single.final_nms].double(), case["boxes"], rtol=0, atol=0.01)
    torch.testing.assert_close(single.objectness[single.final_nms, None].double(), case["scores"], rtol=0, atol=1e-3)
    torch.testing.assert_close(single.proposals.double(), case["proposals"], rtol=0, atol=0.01)


def test_the_saved_model_describes_the_image_in_our_format(model, pixels, golden, tmp_path):
    """Boxes from 0, cut to the image, scores as probabilities; a box that is all outside is left out."""
    case = golden(NAME.name)["float32"]
    loaded = saywhere.load(save(model, tmp_path / "tiny"), "cpu")
    height, width = pixels.shape[1:]
    (maps,) = loaded.engine.trunk.encode([pixels.numpy()])
    regions = loaded.describe(
        Encoding(maps, width, height, width, height, "image", loaded.engine.trunk, np.zeros((1, 1, 3), np.uint8))
    )
    ours = original.xcycwh_to_ours(case["boxes"])
    cut = saywhere.boxes.clip(ours, width, height)
    inside = ((cut[:, 2:] - cut[:, :2]) > 0).all(dim=1)
    np.testing.assert_allclose(regions.boxes, cut[inside], rtol=0, atol=0.01)
    np.testing.assert_allclose(regions.scores, case["scores"][inside, 0].sigmoid(), rtol=0, atol=1e-4)
    captions = [caption for caption, kept in zip(case["captions"], inside.tolist(), strict=True) if kept]
    assert list(regions.captions) == captions


def test_what_its_last_training_step_left_in_the_file(model):
    """Of another image: the targets of the four positives, and the loss of their scores, in single precision."""
    layer = torch7.read(NAME.with_suffix(".t7"))["model"]["nets"]["localization_layer"]
    sampler = layer["nets"]["box_sampler_helper"]

    def tensor(value):
        return torch.tensor(np.array(value), dtype=torch.float64)

    positive, truth = (tensor(sampler[name]).long() - 1 for name in ("pos_input_idx", "pos_target_idx"))
    truths, anchors = (
        tensor(layer["gt_boxes"])[0],
        original.make_anchors(model.config.proposals.anchors[0], 12, 15).double(),
    )
    assert sorted(truth.tolist()) == [0, 1, 2, 3]
    targets = model.box_coder.encode(truths[truth], anchors[positive])
    torch.testing.assert_close(targets, tensor(layer["pos_trans_targets"]), rtol=1e-5, atol=1e-6)
    scores = tensor(layer["pos_scores"])
    loss = 0.1 * score_loss(scores[:, 0] - scores[:, 1], torch.ones(4, dtype=torch.bool))
    assert loss.item() == pytest.approx(layer["stats"]["losses"]["obj_loss_pos"], rel=1e-5)
    masks = [tensor(sampler["box_sampler"][name]).flatten() for name in ("pos_mask", "neg_mask")]
    negatives = tensor(sampler["neg_input_idx"]).long() - 1
    assert sorted(positive.tolist()) == masks[0].nonzero().flatten().tolist()
    assert len(negatives) == 256 - 4 > masks[1].sum() > len(set(negatives.tolist()))  # drawn with replacement
    assert masks[1][negatives].all()

"""Phrases decoded from what a region looks like in its image: both engines, training, and what stays as it was."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise
from refusals import refuses
from tiny_classes import KINDS, TRUNK, graph_outputs, made_up_tower
from tiny_densecap import VOCABULARY, tiny_config, tiny_target

from saywhere import boxes as geometry
from saywhere.configs.nouns import NounsConfig
from saywhere.engines.arrays.densecap import DenseCap as ArrayDenseCap
from saywhere.engines.arrays.layers import Weights, require_shapes
from saywhere.engines.arrays.pooling import ImageMaps
from saywhere.engines.export import random_boxes
from saywhere.engines.torch import TorchEngine
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.densecap.loss import DenseCapCriterion
from saywhere.networks.densecap.network import DenseCap, PhraseHead, move
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.trunk import build_trunk
from saywhere.text import END
from saywhere.training.finetuning import freeze

SIZE = 112 + 1280 + 5 + 1280 + 32
"""Features: the map of stride 16, the last layer, the place, the last layer over the image, the embedding."""
WITH_BRANCH = 112 + 5 + 2 * (128 + 1280) + 32
"""With a second branch: its maps over the region and over the image take the place of the last layer."""


@functools.cache
def networks(branch: str = "") -> dict[str, Any]:
    torch.manual_seed(0)
    config = tiny_config(trunk={**TRUNK, branch: True} if branch else TRUNK, phrase_levels=[16])
    trunk = build_trunk(config.trunk, config.proposals, head=True, pretrained=False)
    trunk.tower = made_up_tower() if branch == "tower" else None
    densecap = DenseCap(config, VOCABULARY, trunk)
    densecap.phrase_head[0].running_mean.normal_(std=0.1)
    densecap.phrase_head[0].running_var.uniform_(0.5, 2.0)
    classes = Nouns(NounsConfig(embed_dim=32, trunk=config.trunk), KINDS, trunk)
    return {"densecap": densecap.eval(), "nouns": classes.eval()}


@pytest.fixture(scope="module")
def model() -> Model:
    return Model(TorchEngine(networks()), "tiny")


def arrays(branch: str = "") -> Weights:
    state = networks(branch)["densecap"].state_dict()
    return Weights.of({name: value.numpy() for name, value in state.items() if not name.startswith("trunk.")})


@pytest.mark.parametrize(
    ("count", "branch"), [(0, ""), (1, ""), (50, ""), (0, "branch"), (50, "branch"), (0, "tower"), (50, "tower")]
)
def test_both_engines_decode_from_the_same_codes(count: int, branch: str) -> None:
    model = Model(TorchEngine(networks(branch)), "tiny")
    encoding, other = model.encode(noise(96, 64)), model.encode(noise(64, 96, 1))
    random = np.random.default_rng(count)
    seen = [encoding, other]
    boxes = [random_boxes(random, count, *each.input_size) for each in seen]
    embeddings = [random.normal(size=(count, 32)).astype(np.float32) for _ in seen]
    detector = model.engine.densecap
    features = detector.phrase_features([each.maps for each in seen], boxes, embeddings)
    ours = detector.phrase_embeddings(features)
    maps = [ImageMaps(graph_outputs(each.maps), (8, 16, 32), each.input_size) for each in seen]
    without = ArrayDenseCap(detector.config, VOCABULARY, arrays(branch))
    own = without.phrase_features(maps, boxes, embeddings)
    for one, two in zip(features, own, strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)
    for one, two in zip(ours, without.phrase_embeddings(own), strict=True):
        assert one.shape == two.shape == (count, 32)
        np.testing.assert_allclose(one, two, atol=1e-5)
    for each in (detector, without):
        assert each.phrase_features([], [], []) == each.phrase_embeddings([]) == []


def test_the_features_are_means_place_context_and_embedding(model: Model) -> None:
    encoding = model.encode(noise(96, 64))
    maps, embedding = encoding.maps, torch.arange(32.0)[None]
    given: list[torch.Tensor] = []
    head = networks()["densecap"].phrase_head
    hook = head.register_forward_pre_hook(lambda _, inputs: given.append(inputs[0]))
    box = torch.tensor([[16.0, 0, 64, 32]])
    with torch.inference_mode():
        networks()["densecap"].phrase_embeddings(networks()["densecap"].phrase_features([maps], [box], embedding))
        hook.remove()
        parts = given[0].split([112, 1280, 5, 1280, 32], dim=1)
        torch.testing.assert_close(parts[0], geometry.means(maps.maps[1], box, 16))
        torch.testing.assert_close(parts[1], geometry.means(maps.head, box, 32))
        torch.testing.assert_close(parts[2], torch.tensor([[1 / 6, 0, 2 / 3, 0.5, 0.25]]))
        torch.testing.assert_close(parts[3][0], maps.head.mean(dim=(1, 2)))
        assert torch.equal(parts[4], embedding)


def test_regions_carry_what_their_captions_are_decoded_from(model: Model) -> None:
    """The classes read the region head's embeddings, and make them anew where a region has other features."""
    encoding, boxes = model.encode(noise(96, 64)), [[4, 4, 60, 50], [10, 20, 90, 60]]
    found = model.describe(encoding, boxes)
    detector, classes = model.engine.densecap, model.nouns
    assert detector is not None and classes is not None and found.features is not None
    inputs = [encoding.to_input(found.boxes)]
    (head,) = detector.region_head([encoding.maps], inputs)
    (codes,) = detector.phrase_embeddings(detector.phrase_features([encoding.maps], inputs, [head.embeddings]))
    np.testing.assert_allclose(found.features, codes, atol=1e-5)
    (posterior,) = classes.posteriors([encoding], [found.boxes], [head.embeddings])
    dog = classes.lookup("a dog")
    assert dog is not None
    kinds, _ = classes.log_kinds(encoding, found, ["a dog"])
    np.testing.assert_allclose(np.exp(kinds[:, 0]), classes.probability(posterior, dog), rtol=1e-3)


def test_only_what_is_not_frozen_learns() -> None:
    torch.manual_seed(1)
    config = tiny_config(trunk=TRUNK, phrase_levels=[16])
    network = checkpoint.new_network(DenseCap, config, VOCABULARY).train()
    for module in (network.trunk, network.region_head):
        module.requires_grad_(False)
    features = network.trunk.backbone([torch.randn(3, 64, 96)])
    output = network(features, [tiny_target()], torch.Generator().manual_seed(0))
    output.word_logits.square().mean().backward()
    learns = {name.partition(".")[0] for name, value in network.named_parameters() if value.grad is not None}
    assert learns == {"phrase_head", "decoder"}
    assert network.phrase_head is not None and network.phrase_head[2].weight.grad.abs().sum() > 0


def test_one_region_in_a_batch_is_learnt_from_too() -> None:
    assert torch.isfinite(PhraseHead(4, 3, 0.0).train()(torch.randn(1, 4))).all()


def test_options_weights_and_backbone_must_fit() -> None:
    config = tiny_config(trunk=TRUNK, phrase_levels=[16])
    require_shapes("densecap", ArrayDenseCap.shapes(config, len(VOCABULARY)), len(VOCABULARY), arrays())
    shapes = ArrayDenseCap.shapes(tiny_config(trunk=TRUNK), len(VOCABULARY))
    refuses(r"have, against its options, phrase_head", require_shapes, "densecap", shapes, len(VOCABULARY), arrays())
    refuses("phrase_levels is .*, but must be empty for test_efficientnet", tiny_config, phrase_levels=[16])
    assert networks()["densecap"].phrase_head[2].in_features == SIZE
    assert networks("branch")["densecap"].phrase_head[2].in_features == WITH_BRANCH
    assert networks("tower")["densecap"].phrase_head[2].in_features == 112 + 5 + 2 * 1280 + 512 + 32
    refuses("branch is True, but must be false for test_efficientnet", tiny_config, trunk={"branch": True})


@torch.no_grad()
def test_a_branch_begins_as_a_copy_of_the_last_stages_and_leaves_the_trunk_alone() -> None:
    trunk = networks("branch")["densecap"].trunk
    pixels = [torch.randn(3, 64, 96, generator=torch.Generator().manual_seed(0))]
    maps = trunk.backbone(pixels)[0]
    near, far = trunk.branch(maps[1])
    assert near.shape == (128, 4, 6) and far.shape == (1280, 2, 3)
    torch.testing.assert_close(trunk.branch.stages(maps[1][None])[0], maps[2])
    torch.testing.assert_close(far, trunk.branch.head(maps[2]))
    assert not any(parameter.requires_grad for parameter in trunk.branch.parameters())
    assert not any(module.training for module in trunk.train().branch.modules())
    trunk.eval()


def test_where_boxes_are_frozen_only_phrases_learn_from_the_true_boxes_and_near_them() -> None:
    network = copy.deepcopy(networks()["densecap"])
    freeze(network, ["trunk", "region_head"])
    target = tiny_target()
    with torch.no_grad():
        features = list(network.trunk.backbone([torch.rand(3, 64, 96)]))
    criterion = DenseCapCriterion(network.config)
    found = network(features, [target])
    losses = {name: float(value.detach()) for name, value in criterion(found).items()}
    assert {name for name, value in losses.items() if value} == {"caption"}
    assert found.token_ids.tolist() == [*target.token_ids[0][target.token_ids[0] > 0].tolist(), END, *(
        token for row in target.token_ids[1:] for token in [*row[row > 0].tolist(), END]
    )]  # fmt: skip
    halved = network(features, [replace(target, phrase_weights=torch.tensor([0.0, 1.0, 0.5]))])
    assert len(halved.word_logits) == len(halved.token_ids) == len(halved.word_weights) < len(found.token_ids)
    network.train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in network.parameters() if p.requires_grad], 0.1)
    sum(criterion(network(features, [target], torch.Generator().manual_seed(0))).values()).backward()
    optimizer.step()
    changed = {
        name.split(".")[0] for name, value in network.state_dict().items() if not torch.equal(value, before[name])
    }
    assert changed - {"trunk"} == {"phrase_head", "decoder"}
    assert all(torch.equal(p, before[f"trunk.{name}"]) for name, p in network.trunk.named_parameters())


def test_a_moved_box_keeps_most_of_itself_and_half_of_them_stay() -> None:
    boxes = torch.tensor([[10.0, 10, 60, 50], [0, 0, 96, 64]]).repeat(500, 1)
    moved = move(boxes, (96, 64), torch.Generator().manual_seed(0))
    stays = (moved == boxes).all(dim=1).float().mean()
    assert 0.4 < stays < 0.75
    assert (geometry.iou(moved, boxes).diagonal() >= 0.6).all()
    assert (moved >= 0).all() and (moved[:, 2] <= 96).all() and (moved[:, 3] <= 64).all()

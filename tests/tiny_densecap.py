"""A DenseCap small enough to train in a test."""

from __future__ import annotations

import torch

from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.engines.torch import TorchEngine
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.densecap.network import DenseCap, Target
from saywhere.text import Vocabulary, pad

PHRASES = ("a red square", "the blue sky", "a dog", "two people on a green field")


def tiny_config(**options) -> DenseCapConfig:
    """The default's structure on timm's smallest network; a nested mapping changes the options that it names."""
    base = DenseCapConfig(
        trunk=TrunkConfig(backbone="test_efficientnet", long_side=96),
        proposals=ProposalConfig(pyramid_channels=16, hidden_size=16, post_nms_top_n=20),
        embed_dim=32,
        word_size=16,
        hidden_size=24,
        batch=16,
        rpn_batch=32,
        dropout=0.0,
        decoder_dropout=0.0,
    )
    return base.merge(options)


VOCABULARY = Vocabulary.build(PHRASES)


def tiny_model(seed: int = 0, **options) -> DenseCap:
    """Untrained, in eval mode."""
    torch.manual_seed(seed)
    model = checkpoint.new_network(DenseCap, tiny_config(**options), VOCABULARY).eval()
    with torch.no_grad():  # untrained scores and offsets are all but equal: make them differ
        model.trunk.localization.head.score.weight.normal_(std=1.0)
        model.trunk.localization.head.offset.weight.normal_(std=0.1)
        model.region_head.score.weight.normal_(std=0.5)
        model.region_head.offset.weight.normal_(std=0.02)
    return model


def tiny_target(width: int = 96, height: int = 64) -> Target:
    """Three boxes with a phrase each."""
    boxes = torch.tensor([[8.0, 8, 40, 40], [0, 0, 96, 24], [50, 20, 90, 60]])
    return Target(width, height, boxes, torch.from_numpy(pad([VOCABULARY.encode(p) for p in PHRASES[:3]])))


def tiny_detector(seed: int = 0, **options) -> Model:
    """The tiny network as the model that answers questions."""
    return Model(TorchEngine({"densecap": tiny_model(seed, **options)}))

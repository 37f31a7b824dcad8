"""A DenseCap small enough to train in a test."""

from __future__ import annotations

import torch

from saywhere.models.densecap import DenseCap, Target
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.text import Vocabulary, pad

PHRASES = ("a red square", "the blue sky", "a dog", "two people on a green field")


def tiny_config(**options) -> DenseCapConfig:
    """The default's structure on timm's smallest network."""
    base = {
        "backbone": "test_efficientnet",
        "long_side": 96,
        "pyramid": 16,
        "rpn_hidden": 16,
        "code_size": 32,
        "word_size": 16,
        "hidden_size": 24,
        "proposals": 20,
        "batch": 16,
        "rpn_batch": 32,
        "dropout": 0.0,
        "speaker_dropout": 0.0,
    }
    return DenseCapConfig.from_dict({**base, **options})


VOCABULARY = Vocabulary.build(PHRASES)


def tiny_model(seed: int = 0, **options) -> DenseCap:
    """Untrained, in eval mode."""
    torch.manual_seed(seed)
    model = DenseCap(tiny_config(**options), VOCABULARY, pretrained_backbone=False).eval()
    with torch.no_grad():  # untrained scores and offsets are all but equal: make them differ
        model.localization.head.score.weight.normal_(std=1.0)
        model.localization.head.offset.weight.normal_(std=0.1)
        model.recognition.score.weight.normal_(std=0.5)
        model.recognition.offset.weight.normal_(std=0.02)
    return model


def tiny_target(width: int = 96, height: int = 64) -> Target:
    """Three boxes with a phrase each."""
    boxes = torch.tensor([[8.0, 8, 40, 40], [0, 0, 96, 24], [50, 20, 90, 60]])
    return Target(width, height, boxes, pad([VOCABULARY.encode(p) for p in PHRASES[:3]]))

"""An aligner small enough to train in a test."""

from __future__ import annotations

import torch
from pictures import noise

from saywhere.images import open_picture
from saywhere.models.aligner import Aligner
from saywhere.models.aligner_config import AlignerConfig
from saywhere.text import Vocabulary

SENTENCES = (
    "A man in a red shirt rides a horse.",
    "Two dogs run on the green grass.",
    "A child plays on the left of the beach.",
    "Blue sky over a white house.",
)
VOCABULARY = Vocabulary.build(SENTENCES)


def tiny_aligner_config(**options) -> AlignerConfig:
    """The default's structure on timm's smallest network."""
    base = {
        "backbone": "test_efficientnet",
        "head": False,
        "long_side": 96,
        "pyramid": 16,
        "rpn_hidden": 16,
        "before_nms": 100,
        "proposals": 6,
        "size": 16,
        "word_size": 8,
        "hidden_size": 12,
        "feature_dropout": 0.0,
        "dropout": 0.0,
        "word_dropout": 0.0,
        "unit": "none",
        "temperature": 1.0,
    }
    return AlignerConfig.from_dict({**base, **options})


def tiny_aligner(seed: int = 0, **options) -> Aligner:
    """Untrained, in eval mode."""
    torch.manual_seed(seed)
    model = Aligner(tiny_aligner_config(**options), VOCABULARY, pretrained_backbone=False).eval()
    layer = getattr(model.provider, "localization", None)
    if layer is not None:  # untrained scores and offsets are all but equal: make them differ
        with torch.no_grad():
            layer.head.score.weight.normal_(std=1.0)
            layer.head.offset.weight.normal_(std=0.1)
    with torch.no_grad():  # what training does: no area is to win all words
        model.standardise.momentum = 1.0
        pixels = [model.preprocess(open_picture(noise(96, 64, seed=number))) for number in range(3)]
        model.train().embed_areas([features[0] for features, _ in model.extractor(pixels)])
        model.standardise.momentum = 0.1
        for project, reader in zip(model.projects, model.readers, strict=True):  # nor all words be much the same
            project.bias.zero_()
            reader.decode.bias.zero_()
            reader.words.weight.mul_(6)
    return model.eval()

"""Captioners small enough to train in a test."""

from __future__ import annotations

import torch

from saywhere.models.caption_loss import CaptionTarget
from saywhere.models.captioner import Captioner
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.text import Vocabulary, pad

SENTENCES = ("a dog runs on the grass", "two people sit on a red bench", "a man", "the sky is blue")
VOCABULARY = Vocabulary.build(SENTENCES)
SPEAKERS = ("rnn", "lstm", "gru", "attention")


def tiny_config(**options) -> CaptionerConfig:
    """The default's structure on timm's smallest network; ``areas`` follows from ``speaker`` if it is not given."""
    base = {
        "backbone": "test_efficientnet",
        "long_side": 96,
        "head": False,
        "grid": 2,
        "area_size": 12,
        "area_dropout": 0.0,
        "word_size": 16,
        "hidden_size": 24,
        "dropout": 0.0,
        "smoothing": 0.0,
        "max_words": 8,
        "areas": "grid" if options.get("speaker", "attention") == "attention" else "whole",
    }
    return CaptionerConfig.from_dict({**base, **options})


def tiny_captioner(seed: int = 0, **options) -> Captioner:
    """Untrained, in eval mode, with weights large enough for pictures and words to matter."""
    torch.manual_seed(seed)
    model = Captioner(tiny_config(**options), VOCABULARY, pretrained_backbone=False).eval()
    with torch.no_grad():
        for parameter in model.speaker.parameters():
            parameter.normal_(std=0.5)
    return model


def tiny_target(*sentences: str, width: int = 96, height: int = 64, boxes: object = None) -> CaptionTarget:
    """The sentences, or the first two of :data:`SENTENCES`."""
    words = pad([VOCABULARY.encode(sentence) for sentence in sentences or SENTENCES[:2]])
    return CaptionTarget(words, width, height, None if boxes is None else torch.tensor(boxes))

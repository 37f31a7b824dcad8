"""Captioners small enough to train in a test."""

from __future__ import annotations

from typing import get_args

import torch

from saywhere.configs.captioner import CaptionerConfig, DecoderKind
from saywhere.configs.parts import DecodingConfig, ProposalConfig, TrunkConfig
from saywhere.engines.torch import TorchEngine
from saywhere.images import open_image
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.captioner.loss import CaptionTarget
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.vision.region_features import ImageMaps
from saywhere.text import Vocabulary, pad

SENTENCES = ("a dog runs on the grass", "two people sit on a red bench", "a man", "the sky is blue")
VOCABULARY = Vocabulary.build(SENTENCES)
DECODERS = get_args(DecoderKind)


def tiny_config(**options) -> CaptionerConfig:
    """The default's structure on timm's smallest network; a nested mapping changes the options that it names.

    ``attend_to`` follows from ``decoder`` if it is not given.
    """
    base = CaptionerConfig(
        trunk=TrunkConfig(backbone="test_efficientnet", long_side=96),
        proposals=ProposalConfig(pyramid_channels=16, hidden_size=16, nms_iou=0.5, pre_nms_top_n=100, post_nms_top_n=6),
        decoding=DecodingConfig(max_words=8, beam_size=3, length_penalty=0.7),
        head=False,
        grid=2,
        region_size=12,
        region_dropout=0.0,
        word_size=16,
        hidden_size=24,
        dropout=0.0,
        smoothing=0.0,
    )
    kind = "grid" if options.get("decoder", "attention") == "attention" else "whole"
    return base.merge({"attend_to": kind, **options})


def tiny_captioner(seed: int = 0, **options) -> Captioner:
    """Untrained, in eval mode, with weights large enough for images and words to matter."""
    torch.manual_seed(seed)
    network = checkpoint.new_network(Captioner, tiny_config(**options), VOCABULARY).eval()
    with torch.no_grad():
        for parameter in network.decoder.parameters():
            parameter.normal_(std=0.5)
        if network.trunk.localization is not None:  # untrained scores and offsets are all but equal: make them differ
            network.trunk.localization.head.score.weight.normal_(std=1.0)
            network.trunk.localization.head.offset.weight.normal_(std=0.1)
    return network


def captioner_model(network: Captioner) -> Model:
    """What a user holds of a network."""
    return Model(TorchEngine({"captioner": network}), "tiny")


def tiny_maps(network: Captioner, *images) -> list[ImageMaps]:
    """The maps of images on a network's trunk."""
    pixels = [torch.from_numpy(network.trunk.preprocess(open_image(image))) for image in images]
    with torch.no_grad():
        return ImageMaps.look(network.trunk, pixels)


def tiny_target(*sentences: str, width: int = 96, height: int = 64, boxes: object = None) -> CaptionTarget:
    """The sentences, or the first two of :data:`SENTENCES`."""
    token_ids = torch.from_numpy(pad([VOCABULARY.encode(sentence) for sentence in sentences or SENTENCES[:2]]))
    return CaptionTarget(token_ids, width, height, None if boxes is None else torch.tensor(boxes))


def tiny_lstm(seed: int = 0) -> LstmDecoder:
    """A decoder of embeddings ``(N, 6)`` with 12 words, whose words are far from equally likely."""
    torch.manual_seed(seed)
    decoder = LstmDecoder(6, 12, 5, 7).eval()
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.normal_(std=0.8)
    return decoder

"""An aligner small enough to train in a test."""

from __future__ import annotations

import torch
from photographs import noise

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.parts import ProposalConfig, TrunkConfig
from saywhere.engines.torch import TorchEngine
from saywhere.images import open_image
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.text import END, Vocabulary, pad

SENTENCES = (
    "A man in a red shirt rides a horse.",
    "Two dogs run on the green grass.",
    "A child plays on the left of the beach.",
    "Blue sky over a white house.",
)
VOCABULARY = Vocabulary.build(SENTENCES)


def tiny_aligner_config(**options) -> AlignerConfig:
    """The default's structure on timm's smallest network; a nested mapping changes the options that it names."""
    base = AlignerConfig(
        trunk=TrunkConfig(backbone="test_efficientnet", long_side=96),
        proposals=ProposalConfig(pyramid_channels=16, hidden_size=16, nms_iou=0.5, pre_nms_top_n=100, post_nms_top_n=6),
        head=False,
        embed_dim=16,
        word_size=8,
        hidden_size=12,
        feature_dropout=0.0,
        dropout=0.0,
        word_dropout=0.0,
        temperature=1.0,
    )
    return base.merge(options)


def tiny_aligner(seed: int = 0, **options) -> Aligner:
    """Untrained, in eval mode."""
    torch.manual_seed(seed)
    network = checkpoint.new_network(Aligner, tiny_aligner_config(**options), VOCABULARY).eval()
    layer = network.trunk.localization
    if layer is not None:  # untrained scores and offsets are all but equal: make them differ
        with torch.no_grad():
            layer.head.score.weight.normal_(std=1.0)
            layer.head.offset.weight.normal_(std=0.1)
    with torch.no_grad():  # what training does: no region is to win all words
        network.standardise.momentum = 1.0
        pixels = [tiny_pixels(network, noise(96, 64, seed=number)) for number in range(3)]
        network.train().embed_regions([features[0] for features, _ in network.extractor(pixels)])
        network.standardise.momentum = 0.1
        for project, encoder in zip(network.projects, network.encoders, strict=True):  # nor all words be much the same
            project.bias.zero_()
            encoder.decode.bias.zero_()
            encoder.words.weight.mul_(6)
        if network.hubs is not None:
            generator = torch.Generator().manual_seed(4)
            for parameter in network.hubs.parameters():
                parameter.normal_(std=0.3, generator=generator)
            network.hubs.temperatures.copy_(torch.tensor([2.0, 5.0]))
    return network.eval()


def aligner_model(network: Aligner) -> Model:
    """What a user holds of a network."""
    return Model(TorchEngine({"aligner": network}), "tiny")


def tiny_pixels(network: torch.nn.Module, image) -> torch.Tensor:
    """An image as the network takes it."""
    return torch.from_numpy(network.trunk.preprocess(open_image(image)))


def tiny_token_ids(network: Aligner, sentences) -> torch.Tensor:
    """Sentences ``(S, T)`` as the text encoder takes them."""
    end = [END] * network.config.sentence_token
    return torch.from_numpy(pad([network.vocabulary.encode(sentence) + end for sentence in sentences]))

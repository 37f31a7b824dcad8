"""One tiny model with all three parts on one trunk: as networks, as a model, as a folder with a graph."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from made_once import made_once
from photographs import noise
from tiny_aligner import VOCABULARY as ALIGNER_VOCABULARY
from tiny_aligner import tiny_aligner_config, tiny_pixels
from tiny_captioner import VOCABULARY as CAPTIONER_VOCABULARY
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import VOCABULARY as DENSECAP_VOCABULARY
from tiny_densecap import tiny_config, tiny_model
from torch import nn

from saywhere.engines import export as exporting
from saywhere.engines.export import export
from saywhere.engines.torch import TorchEngine
from saywhere.models.bundle import GRAPH, GRAPH_WEIGHTS
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner, Ngrams
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.trunk import Trunk

PARTS = ("densecap", "aligner", "captioner")
PROPOSALS = {"pyramid_channels": 16, "hidden_size": 16}
"""Of the trunk that they share."""


def tiny_networks(
    parts: Mapping[str, Mapping[str, Any]] | None = None, trunk: Trunk | None = None, seed: int = 0
) -> dict[str, Any]:
    """Networks on one trunk, untrained, with weights large enough for images and words to matter.

    Args:
        parts: options of each part that there is to be; all three with the tiny defaults if None.
        trunk: of the tiny DenseCap's options; a new one if None.
        seed: of the weights.
    """
    parts = {part: {} for part in PARTS} if parts is None else parts
    trunk = tiny_model(seed).trunk if trunk is None else trunk
    networks: dict[str, Any] = {}
    for part, options in parts.items():
        torch.manual_seed(seed)
        if part == "densecap":
            network: Any = DenseCap(tiny_config(**options), DENSECAP_VOCABULARY, trunk)
            with torch.no_grad():
                network.region_head.score.weight.normal_(std=0.5)
                network.region_head.offset.weight.normal_(std=0.02)
                for number in (1, 4):
                    network.region_head.layers[number].weight.mul_(5)
                _shake(network.decoder)
        elif part == "aligner":
            network = _aligner(trunk, options)
        else:
            config = tiny_captioner_config(**{"proposals": PROPOSALS, **options})
            network = Captioner(config, CAPTIONER_VOCABULARY, trunk)
            _shake(network.decoder)
        if part != "aligner" and network.ngrams is not None:
            _expect(network.ngrams, len(network.vocabulary))
        networks[part] = network.eval()
    return networks


def _aligner(trunk: Trunk, options: Mapping[str, Any]) -> Aligner:
    network = Aligner(tiny_aligner_config(**{"proposals": PROPOSALS, **options}), ALIGNER_VOCABULARY, trunk)
    with torch.no_grad():
        network.standardise.momentum = 1.0  # what training does: no region is to win all words
        pixels = [tiny_pixels(network, noise(96, 64, seed=number)) for number in range(3)]
        network.eval().standardise.train()
        network.embed_regions([features[0] for features, _ in network.extractor(pixels)])
        for project, encoder in zip(network.projects, network.encoders, strict=True):  # nor all words be much the same
            project.bias.zero_()
            encoder.decode.bias.zero_()
            encoder.words.weight.mul_(6)
    return network


@torch.no_grad()
def _expect(ngrams: Ngrams, words: int) -> None:
    """Draw n-grams of as many words each, and what their probabilities are made of."""
    if ngrams.hidden is not None:
        ngrams.hidden.weight.normal_(std=0.02)
    ngrams.query.weight.normal_(std=0.01)
    ngrams.keys.random_(-127, 128)
    ngrams.offsets.normal_()
    ngrams.rarity.uniform_(1, 9)
    ngrams.lengths.fill_(len(ngrams.token_ids) // len(ngrams.lengths))
    ngrams.token_ids.random_(4, words)


@torch.no_grad()
def _shake(module: nn.Module) -> None:
    """Draw weights as large as trained ones, and the stored statistics of normalisations."""
    for parameter in module.parameters():
        parameter.normal_(std=0.5)
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.get_buffer("running_mean").normal_(std=0.5)
            layer.get_buffer("running_var").uniform_(0.5, 2)


def bundle_model(**parts: Mapping[str, Any]) -> Model:
    """The model on the torch engine; with keyword arguments only these parts, with their options."""
    return Model(TorchEngine(tiny_networks(parts or None)), "tiny")


def write_parts(exported: Path, folder: Path, parts: Mapping[str, Mapping[str, Any]]) -> Path:
    """Write a model whose parts have other options, on the trunk and with the graph of an exported one."""
    first = next(iter(checkpoint.load_networks(exported).values()))
    trunk = first.get_submodule("trunk")
    assert isinstance(trunk, Trunk)
    checkpoint.save(tiny_networks(parts, trunk), folder, dtype=torch.float16)
    for name in (GRAPH, GRAPH_WEIGHTS):
        shutil.copy(exported / name, folder / name)
    return folder


def exported_bundle() -> Path:
    """The folder of :func:`tiny_networks` as ``saywhere export`` writes it."""

    def make(root: Path) -> None:
        checkpoint.save(tiny_networks(), root / "trained", "# The card\n", "a tiny model")
        export([root / "trained"], root / "tiny")

    return made_once("bundle", make) / "tiny"


def take_graph_again(monkeypatch: pytest.MonkeyPatch, model: Path | None = None) -> None:
    """Let exports on the trunk of a model, that of :func:`exported_bundle` if None, take its graph as it is.

    To write it, and to compare the engines, takes seconds.
    """
    source = exported_bundle() if model is None else model

    def copied(_: Any, folder: Path) -> None:
        for name in (GRAPH, GRAPH_WEIGHTS):
            shutil.copy(source / name, folder / name)

    monkeypatch.setattr(exporting, "write_graph", copied)
    monkeypatch.setattr(exporting, "compare_engines", lambda *_: 0.0)

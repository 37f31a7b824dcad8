"""A dense captioner and a classifier of regions on one small trunk that has the backbone's last layer."""

from __future__ import annotations

import functools
from typing import Any

import torch
from stubs import calibrated
from tiny_densecap import VOCABULARY, tiny_config

from saywhere.configs.nouns import NounsConfig
from saywhere.engines.torch import TorchEngine
from saywhere.models.model import Model
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.trunk import build_trunk
from saywhere.text import Vocabulary

KINDS = Vocabulary({"person": 20, "dog": 30, "grass": 12, "airplane": 9})
TRUNK = {"backbone": "efficientnet_lite0", "long_side": 96}


def tiny_networks(embed_dim: int = 0, branch: bool = False) -> dict[str, Any]:
    """Untrained, in eval mode; the classifier takes this many numbers of the dense captioner's embeddings."""
    return _networks(embed_dim, branch)


@functools.cache
def _networks(embed_dim: int, branch: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    config = tiny_config(trunk={**TRUNK, "branch": branch}, noun_threshold=0.3)
    trunk = build_trunk(config.trunk, config.proposals, head=True, pretrained=False)
    classes = Nouns(NounsConfig(branch=branch, embed_dim=embed_dim, trunk=config.trunk), KINDS, trunk)
    return {"densecap": DenseCap(config, VOCABULARY, trunk).eval(), "nouns": classes.eval()}


def tiny_model(embed_dim: int = 0, branch: bool = False) -> Model:
    """The model on the torch engine."""
    return Model(TorchEngine(tiny_networks(embed_dim, branch), calibrated(noun=(0.0, 0.0, 0.0, 0.0))), "tiny")

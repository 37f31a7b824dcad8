"""A dense captioner and a classifier of regions on one small trunk that has the backbone's last layer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from made_once import made_once
from tiny_densecap import VOCABULARY, tiny_config
from tiny_tower import write_tower

from saywhere.configs.nouns import NounsConfig
from saywhere.configs.parts import SUMMARY, TOWER
from saywhere.engines.torch import TorchEngine
from saywhere.models.model import Model
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.nouns import Nouns
from saywhere.networks.vision.trunk import Tower, build_trunk
from saywhere.text import Vocabulary

KINDS = Vocabulary({"person": 20, "dog": 30, "grass": 12, "airplane": 9})
TRUNK = {"backbone": "efficientnet_lite0", "long_side": 96}


def tiny_networks(embed_dim: int = 0, branch: str = "") -> dict[str, Any]:
    """Untrained, in eval mode; the classifier takes this many numbers of the dense captioner's embeddings."""
    return _networks(embed_dim, branch)


@functools.cache
def _networks(embed_dim: int, branch: str) -> dict[str, Any]:
    torch.manual_seed(0)
    config = tiny_config(trunk={**TRUNK, branch: True} if branch else TRUNK)
    trunk = build_trunk(config.trunk, config.proposals, head=True, pretrained=False)
    trunk.tower = made_up_tower() if branch == "tower" else None
    classes = Nouns(NounsConfig(branch=bool(branch), embed_dim=embed_dim, trunk=config.trunk), KINDS, trunk)
    return {"densecap": DenseCap(config, VOCABULARY, trunk).eval(), "nouns": classes.eval()}


def tiny_model(embed_dim: int = 0, branch: str = "") -> Model:
    """The model on the torch engine; ``branch`` is the trunk's option, ``branch`` or ``tower``."""
    return Model(TorchEngine(tiny_networks(embed_dim, branch)), "tiny")


@functools.cache
def made_up_tower() -> Tower:
    """An image tower, the same in all tests."""
    return Tower(made_once("made-up-tower", lambda root: write_tower(root / "tower.onnx")) / "tower.onnx")


def graph_outputs(maps: Any) -> dict[str, np.ndarray]:
    """What the graphs would give of an image, of the maps of the torch engine; with the last layer and the branch."""
    found = dict(zip(("map8", "map16", "map32"), maps.maps, strict=True)) | {"head": maps.head}
    if len(maps.summary):
        found |= {TOWER: maps.branch[0][0], SUMMARY: maps.summary}
    else:
        found |= {f"branch{stride}": own for own, stride in maps.branch}
    return {name: value.detach().numpy()[None] for name, value in found.items()}

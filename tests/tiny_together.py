"""A model with all four parts on one small trunk, and data that teach them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from photographs import noise
from tiny_aligner import tiny_aligner_config
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import tiny_config

from saywhere.configs.classes import ClassesConfig
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.classes import RegionClassifier
from saywhere.networks.densecap.network import DenseCap
from saywhere.networks.vision.trunk import build_trunk
from saywhere.text import Vocabulary

TRUNK = {"backbone": "efficientnet_lite0", "long_side": 96}
TEXTS = ("a man and a dog on the grass", "two people under a blue sky", "a red block on the left")
REGIONS = (((4, 4, 50, 40), "a red block"), ((0, 0, 96, 30), "blue sky"), ((40, 20, 90, 60), "a man and a dog"))


def tiny_parts() -> dict[str, Any]:
    """Untrained, in eval mode."""
    torch.manual_seed(0)
    words = Vocabulary.build(TEXTS)
    dense = tiny_config(trunk=TRUNK, dropout=0.1)
    trunk = build_trunk(dense.trunk, dense.proposals, head=True, pretrained=False)
    aligner = tiny_aligner_config(trunk=TRUNK, head=True, feature_dropout=0.2)
    captioner = tiny_captioner_config(trunk=TRUNK, head=True, reward="cider", word_weight=0.1, dropout=0.1)
    kinds = Vocabulary({"man": 9, "dog": 9, "sky": 9})
    networks = {
        "densecap": DenseCap(dense, words, trunk),
        "aligner": Aligner(aligner, words, trunk),
        "captioner": Captioner(captioner, words, trunk),
        "classes": RegionClassifier(ClassesConfig(trunk=dense.trunk), kinds, trunk),
    }
    return {part: network.eval() for part, network in networks.items()}


def write_texts(root: Path, train: int = 10, validation: int = 4) -> Path:
    """Images of noise in two shapes with sentences, and boxes with phrases, as JSON lines; and two with boxes alone."""
    root.mkdir(parents=True, exist_ok=True)
    rows = {"all.jsonl": [], "names.jsonl": []}
    for number in range(train + validation + 2):
        size = (96, 64) if number % 3 else (64, 96)
        noise(*size, seed=number).save(root / f"{number}.png")
        regions = [{"box": [min(v, size[k % 2]) for k, v in enumerate(box)], "phrase": text} for box, text in REGIONS]
        row = {"image": f"{number}.png", "split": "train", "regions": regions}
        if number >= train + validation:
            rows["names.jsonl"].append(row)
        else:
            split = "train" if number < train else "val"
            rows["all.jsonl"].append({**row, "split": split, "sentences": [TEXTS[number % 3], TEXTS[(number + 1) % 3]]})
    for name, lines in rows.items():
        (root / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return root

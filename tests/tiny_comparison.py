"""A comparison of seconds: images of noise, a tiny FCLN, tiny baselines, a METEOR without Java."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tiny_densecap
import tiny_training
import yaml

from saywhere.networks import checkpoint

SENTENCES = ("Two people stand on a green field.", "A red block and a dog under the blue sky.")


class StubMeteor:
    """1 for a caption that is among the references, else a tenth for each word that one of them has too."""

    version = "stub"

    def score(self, pairs: Any) -> list[float]:
        found = []
        for caption, references in pairs:
            words = {word for reference in references for word in reference.split()}
            found.append(1.0 if caption in references else min(0.9, 0.1 * len(words & set(caption.split()))))
        return found


def write_comparison(folder: Path, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Path:
    """Data, an FCLN a seed, and the recipe; its file."""
    root = tiny_training.write_data(folder / "data", train=4, validation=3)
    lines = [json.loads(line) for line in (root / "images.jsonl").read_text().splitlines()]
    rows = [json.dumps({**line, "sentences": list(SENTENCES)}) for line in lines]
    (root / "images.jsonl").write_text("\n".join(rows) + "\n")
    for seed in seeds:
        checkpoint.save(tiny_densecap.tiny_model(seed), folder / f"fcln-{seed}")
    recipe = {
        "name": "tiny",
        "data": {"format": "jsonl", "root": str(root), "train": "train", "validation": "val"},
        "fcln": str(folder / "fcln-{seed}"),
        "seeds": list(seeds),
        "proposals": 6,
        "pretrained": False,
        "model": {
            "trunk": {"backbone": "test_efficientnet", "long_side": 64, "multiple": 64},
            "grid": 1,
            "embed_dim": 16,
            "hidden_size": 16,
        },
        "training": {"epochs": 2, "batch_size": 4, "warmup": 1},
        "cache": str(folder / "crops"),
        "timing": {"images": 1, "rounds": 1},
        **options,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path

"""Images of four kinds, and what people said of them: as numbers, and as a data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from photographs import noise
from PIL import Image
from tiny_captioner import SENTENCES

from saywhere.training.ngrams import Captioned

KINDS = 4


def captioned(count: int = 200, seed: int = 0) -> Captioned:
    """Images of four kinds, whose sentences begin with other words."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((KINDS, 12))
    embeddings = np.stack([centres[i % KINDS] + 0.3 * generator.standard_normal(12) for i in range(count)])
    sentences = [[[4 + i % KINDS, 8 + int(word)] for word in generator.integers(0, 9, 3)] for i in range(count)]
    return Captioned(embeddings.astype(np.float32), sentences)


def data(folder: Path, count: int) -> Path:
    rows = []
    for number in range(count):
        colour = [(250, 20, 20), (20, 250, 20), (20, 20, 250), (240, 240, 240)][number % KINDS]
        Image.blend(noise(96, 64, seed=number), Image.new("RGB", (96, 64), colour), 0.8).save(folder / f"{number}.png")
        sentences = [SENTENCES[number % KINDS], "", "a " * 30]
        rows.append({"image": f"{number}.png", "sentences": sentences, "split": "train"})
    rows[0]["sentences"] = ["..."]
    (folder / "data.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder / "data.jsonl"

"""Images of four kinds, and what people said of them: as numbers, and as a data set."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from photographs import noise
from PIL import Image
from tiny_captioner import SENTENCES

from saywhere.training.ngrams import Described

KINDS = 4


def captioned(count: int = 200, seed: int = 0) -> Described:
    """Images of four kinds, whose sentences begin with other words."""
    generator = np.random.default_rng(seed)
    centres = generator.standard_normal((KINDS, 12))
    embeddings = np.stack([centres[i % KINDS] + 0.3 * generator.standard_normal(12) for i in range(count)])
    sentences = [[[4 + i % KINDS, 8 + int(word)] for word in generator.integers(0, 9, 3)] for i in range(count)]
    return Described(embeddings.astype(np.float32), sentences, np.arange(count) % 20 == 0)


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


def regions(folder: Path, count: int) -> Path:
    """Images whose left and right half have a colour each, and a phrase for it."""
    rows, names = [], ["a man", "the sky"]
    for number in range(count):
        left, right = number % 2, number // 2 % 2
        image = np.zeros((64, 96, 3), np.uint8)
        for half, kind in ((image[:, :48], left), (image[:, 48:], right)):
            half[:] = np.random.default_rng(number).integers(0, 40, 3) + (200 if kind else 0)
        Image.fromarray(image).save(folder / f"{number}.png")
        boxes = [[0, 0, 48, 64], [48, 0, 96, 64]]
        said = [{"box": box, "phrase": names[kind]} for box, kind in zip(boxes, (left, right), strict=True)]
        rows.append({"image": f"{number}.png", "width": 96, "height": 64, "regions": said, "split": "train"})
    (folder / "regions.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return folder / "regions.jsonl"

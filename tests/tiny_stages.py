"""Data for a recipe of all stages: images of coloured things with phrases and sentences, and marked sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

THINGS = {"red": "car", "green": "tree", "blue": "bird", "yellow": "dog"}
"""The colour tells the thing."""
MARKED = ("[/EN#1/vehicles A red car] stands under [/EN#2/other a green tree] .",
          "[/EN#1/animals A yellow dog] sees [/EN#2/animals a blue bird] .",
          "[/EN#1/people Two men] run with [/EN#2/animals a dog] .")  # fmt: skip


def write_data(root: Path, train: int = 48, validation: int = 8) -> tuple[Path, Path]:
    """Write images of two things each, as JSON lines, and marked sentences; return the two files."""
    root.mkdir(parents=True, exist_ok=True)
    generator, lines = np.random.default_rng(0), list[str]()
    for number in range(train + validation):
        colours = [str(name) for name in generator.permutation(list(THINGS))[:2]]
        image = Image.fromarray(generator.integers(90, 160, (64, 96, 3), dtype=np.uint8))
        draw, regions = ImageDraw.Draw(image), []
        for side, colour in enumerate(colours):
            left, top = 4 + 46 * side + int(generator.integers(0, 8)), int(generator.integers(4, 24))
            box = [left, top, left + 34, top + 34]
            draw.rectangle(box, fill=colour)
            regions.append({"box": box, "phrase": f"a {colour} {THINGS[colour]}"})
        one, two = (region["phrase"] for region in regions)
        sentences = [f"{one} next to {two}.", f"there is {one} and {two}."]
        image.save(root / f"{number:03}.png")
        split = "train" if number < train else "val"
        lines.append(
            json.dumps({"image": f"{number:03}.png", "split": split, "regions": regions, "sentences": sentences})
        )
    (root / "images.jsonl").write_text("\n".join(lines) + "\n")
    (root / "sentences.txt").write_text("".join(f"{i}\t{line}\n" for i, line in enumerate(MARKED * 4)))
    return root / "images.jsonl", root / "sentences.txt"

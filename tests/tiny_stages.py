"""Data for a recipe of all stages: images of coloured things with phrases and sentences, and marked sentences."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
from onnx import helper, numpy_helper
from PIL import Image, ImageDraw

THINGS = {"red": "car", "green": "tree", "blue": "bird", "yellow": "dog"}
"""The colour tells the thing."""
MARKED = ("[/EN#1/vehicles A red car] stands under [/EN#2/other a green tree] .",
          "[/EN#1/animals A yellow dog] sees [/EN#2/animals a blue bird] .",
          "[/EN#1/people Two men] run with [/EN#2/animals a dog] .")  # fmt: skip


def write_data(root: Path, train: int = 40, validation: int = 4) -> tuple[Path, Path]:
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


def write_teacher(path: Path, width: int = 64, blocks: int = 2, dim: int = 24, side: int = 4) -> Path:
    """Write an image tower like CLIP's in int8, untrained and small, as far as it is read: weights and their names."""
    generator, place = np.random.default_rng(1), "vision_model.encoder.layers"
    arrays = {
        "embeddings.class_embedding": (width,), "embeddings.patch_embedding.weight": (width, 3, 16, 16),
        "embeddings.position_embedding.weight": (side * side + 1, width),
    }  # fmt: skip
    norms = ["pre_layrnorm", "post_layernorm"]
    norms += [f"encoder.layers.{i}.layer_norm{n}" for i in range(blocks) for n in "12"]
    found = {f"vision_model.{name}": generator.normal(0, 0.1, shape) for name, shape in arrays.items()}
    found |= {f"vision_model.{name}.weight": np.ones(width) for name in norms}
    found |= {f"vision_model.{name}.bias": np.zeros(width) for name in norms}
    layers = {"visual_projection": (width, dim)}
    for number in range(blocks):
        own = {f"self_attn.{name}_proj": (width, width) for name in ("q", "k", "v", "out")}
        own |= {"mlp.fc1": (width, 2 * width), "mlp.fc2": (2 * width, width)}
        layers |= {f"{place}.{number}.{name}": shape for name, shape in own.items()}
        found |= {f"{place}.{number}.{name}.bias": generator.normal(0, 0.1, shape[1]) for name, shape in own.items()}
    tensors = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in found.items()]
    nodes = []
    for number, (name, shape) in enumerate(layers.items()):
        base = f"onnx::MatMul_{number}"
        values = generator.integers(-127, 128, shape).astype(np.int8)
        tensors += [numpy_helper.from_array(values, f"{base}_quantized"),
                    numpy_helper.from_array(np.zeros(shape[1], np.int8), f"{base}_zero_point"),
                    numpy_helper.from_array(np.full(shape[1], 0.002, np.float32), f"{base}_scale")]  # fmt: skip
        place_ = f"/{name.replace('layers.', 'layers#').replace('.', '/').replace('#', '.')}/MatMul_quant"
        nodes.append(helper.make_node("MatMulInteger", ["x", f"{base}_quantized"], ["y"], place_))
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(helper.make_graph(nodes, "teacher", [], [], tensors)), str(path))
    return path

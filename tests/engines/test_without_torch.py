"""A model with a graph answers in a process that has no torch and opens no connection."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from photographs import noise
from tiny_bundle import exported_bundle

import saywhere

BLOCKED = """
import socket, sys
for name in ("torch", "torchvision", "timm", "onnx", "onnxscript", "scipy", "matplotlib"):
    sys.modules[name] = None

def refuse(*_, **__):
    raise AssertionError("a connection was opened")

socket.socket = socket.create_connection = socket.getaddrinfo = refuse
"""
ANSWERS = """
import json
import saywhere

folder, image = sys.argv[1:]
model = saywhere.load(folder)
seen = model.encode(image)
answers = {
    "describe": model.describe(seen).to_dict(),
    "boxes": model.describe(seen, [[1, 2, 40, 50]]).to_dict(),
    "align": model.align(seen, "Two dogs run on the green grass.", beta=0.1).to_dict(),
    "phrases": model.ground(seen, ["a red square", "a dog"]).to_dict(),
    "caption": model.caption(seen).to_dict(),
    "attend": model.attend(seen, ["a dog runs"])[0].to_dict(),
    "similarity": model.similarity([model.embed(seen)], [model.embed_text("a dog")]).tolist(),
    "models": list(saywhere.list_models()),
}
wrong = ("torch", "saywhere.networks", "saywhere.training", "saywhere.papers", "saywhere.engines.torch")
answers["imported"] = [name for name in sys.modules if name.startswith(wrong) and sys.modules[name] is not None]
print(json.dumps(answers))
"""


def test_the_verbs(tmp_path: Path):
    image = tmp_path / "a.png"
    noise(130, 90).save(image)
    command = [sys.executable, "-c", BLOCKED + ANSWERS, str(exported_bundle()), str(image)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    assert answers["imported"] == [] and "flickr-coco" in answers["models"]
    model = saywhere.load(exported_bundle(), "cpu", engine="torch")
    expected = {
        "describe": model.describe(image).to_dict(),
        "boxes": model.describe(image, [[1, 2, 40, 50]]).to_dict(),
        "align": model.align(image, "Two dogs run on the green grass.", beta=0.1).to_dict(),
        "phrases": model.ground(image, ["a red square", "a dog"]).to_dict(),
        "caption": model.caption(image).to_dict(),
        "attend": model.attend(image, ["a dog runs"])[0].to_dict(),
        "similarity": model.similarity([model.embed(image)], [model.embed_text("a dog")]).tolist(),
    }
    for verb, value in expected.items():
        assert_close(answers[verb], value)


def assert_close(one: Any, other: Any) -> None:
    """The same JSON, but for the rounding of numbers."""
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_close(one[key], other[key])
    elif isinstance(one, list):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_close(a, b)
    elif isinstance(one, float):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=0.02)
    else:
        assert one == other

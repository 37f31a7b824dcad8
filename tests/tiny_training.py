"""Data and a recipe for training runs of seconds."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from photographs import noise
from tiny_aligner import SENTENCES, tiny_aligner_config
from tiny_densecap import tiny_config

from saywhere import options
from saywhere.training.loop import Training
from saywhere.training.recipe import Recipe

PHRASES = (("a red block", "the block on the left"), ("blue sky",), ("two people", "a man and a dog"))
BOXES = ((4, 4, 50, 40), (0, 0, 96, 30), (40, 20, 90, 60))
CONFIG = tiny_config(
    proposals={"pyramid_channels": 8, "hidden_size": 8}, embed_dim=16, dropout=0.3, decoder_dropout=0.3
)
"""Of the model of :func:`tiny_recipe`."""


def write_data(root: Path, train: int = 12, validation: int = 4) -> Path:
    """Images of noise in two shapes with three boxes each, as JSON lines."""
    root.mkdir(parents=True, exist_ok=True)
    lines = []
    for number in range(train + validation):
        name = f"{number:03}.jpg"
        size = (96, 64) if number % 3 else (64, 96)
        noise(*size, seed=number).save(root / name)
        boxes = [[min(v, limit) for v, limit in zip(box, size * 2, strict=True)] for box in BOXES]
        regions = [{"box": box, "phrases": list(p)} for box, p in zip(boxes, PHRASES, strict=True)]
        split = "train" if number < train else "val"
        lines.append(json.dumps({"image": name, "split": split, "regions": regions}))
    (root / "images.jsonl").write_text("\n".join(lines) + "\n")
    return root


def tiny_recipe(root: Path, **training: Any) -> dict[str, Any]:
    """A recipe that uses dropout, flips, accumulation, clipping and a schedule, on timm's smallest network."""
    settings = {
        "epochs": 2,
        "batch_size": 2,
        "accumulate": 2,
        "rest": {"kind": "adamw", "lr": 0.01},
        "warmup": 2,
        "clip": 5.0,
        "pretrained": False,
        "accelerator": "cpu",
        **training,
    }
    data = {"format": "jsonl", "root": str(root), "train": "train", "validation": "val"}
    return {"name": "tiny", "seed": 3, "data": data, "model": plain(CONFIG.to_dict()), "training": settings}


def write_recipe(path: Path, root: Path, **training: Any) -> Path:
    """:func:`tiny_recipe` as a file."""
    path.write_text(yaml.safe_dump(tiny_recipe(root, **training)))
    return path


def plain(value: Any) -> Any:
    """Options as YAML holds them: tuples become lists."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, tuple) else value


def aligner_recipe(root: Path, **model: Any) -> Recipe:
    """Four images, each with its sentence, learnt from cached regions; an epoch has each ten times."""
    lines = []
    for number, sentence in enumerate(SENTENCES):
        noise(96, 64, number).save(root / f"{number}.png")
        lines.append(
            {"image": f"{number}.png", "regions": [{"box": [0, 0, 9, 9], "phrases": ["a"]}], "sentences": [sentence]}
        )
    rows = [{**line, "split": "val"} for line in lines]
    for copy, line in product(range(10), lines):
        shutil.copy(root / line["image"], root / f"{copy}-{line['image']}")
        rows.append({**line, "split": "train", "image": f"{copy}-{line['image']}"})
    (root / "images.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = plain(tiny_aligner_config(**{"signed_sqrt": False, **model}).to_dict())
    settings = {
        "epochs": 8, "batch_size": 4, "shuffle": False, "rest": {"kind": "adamw", "lr": 0.01}, "pretrained": False,
        "accelerator": "cpu", "flip": False, "cache": str(root / "cache"),
    }  # fmt: skip
    data = {"format": "jsonl", "root": str(root), "train": "train", "validation": "val"}
    tree = {"name": "tiny", "system": "aligner", "data": data, "model": config, "training": settings}
    return options.from_dict(Recipe, tree)


KILLED = """
import os, signal
from saywhere.cli import main
from saywhere.training import loop
from saywhere.training.loop import Training

loop.draw_curves = lambda log, image: None
after_batch = Training.after_batch

def killed(self):
    goes_on = after_batch(self)
    if (self.recipe.name, self.state.epoch, self.state.batches) == {}:
        os.kill(os.getpid(), signal.SIGKILL)
    return goes_on

Training.after_batch = killed
main()
"""
"""``saywhere`` in a process that kills itself after a batch."""


def train_and_be_killed(
    arguments: Sequence[str], name: str, epoch: int, batches: int, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Call ``saywhere`` in a process that is killed in the recipe or stage ``name``."""
    command = [sys.executable, "-c", KILLED.format((name, epoch, batches)), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    killed = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    return killed


@contextmanager
def stopped_by_ctrl_c(when: Callable[[Training], bool]) -> Iterator[None]:
    """Interrupt the training that is run here before it counts a batch, if ``when`` is true of it."""
    after_batch = Training.after_batch

    def stopped(training: Training) -> bool:
        if when(training):
            os.kill(os.getpid(), signal.SIGINT)
        return after_batch(training)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Training, "after_batch", stopped)
        yield

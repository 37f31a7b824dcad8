"""A run that is killed or stopped is the run that was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import write_data, write_recipe

from saywhere.training.loop import read_log

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LONG = 1800.0
"""Seconds: far more than is needed on an idle machine."""


STOPPED = """
import os, sys
from saywhere.cli import main
from saywhere.training.loop import Training

number, epoch, batch = map(int, sys.argv[1:4])
plain = Training.after_batch

def stopped(self):
    goes_on = plain(self)
    if (self.state.epoch, self.state.batches) == (epoch, batch + 1):
        os.kill(os.getpid(), number)
    return goes_on

Training.after_batch = stopped
sys.argv[1:4] = []
main()
"""

Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(recipe: Path) -> Iterator[Start]:
    """Start ``saywhere train`` with an output folder and changes; what still runs at the end is killed.

    With ``stop`` (signal, epoch, batch) it sends itself that signal after that batch.
    """
    running: list[subprocess.Popen[str]] = []

    def run(out: Path, *changes: str, stop: tuple[int, int, int] | None = None) -> subprocess.Popen[str]:
        program = [str(Path(sys.executable).with_name("saywhere"))]
        if stop is not None:
            program = [sys.executable, "-c", STOPPED, *map(str, stop)]
        command = [*program, "train", str(recipe), *changes, "--out", str(out)]
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        running.append(subprocess.Popen(command, env=ENVIRONMENT, text=True, **pipes))
        return running[-1]

    yield run
    for process in running:
        process.kill()
        process.wait()


def finish(process: subprocess.Popen[str], code: int = 0) -> str:
    text, _ = process.communicate(timeout=LONG)
    assert process.returncode == code, text
    return text


def position(out: Path) -> dict[str, Any]:
    """Where the run in ``out`` stands: epoch, and batches done in it."""
    return torch.load(out / "last.ckpt", weights_only=True)["state"]


def equal(a: Any, b: Any) -> bool:
    """Whether two nests of tensors and values are the same to the last bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return a == b


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of 24 batches, the backbone trained in the second; saved every two steps."""
    folder = tmp_path_factory.mktemp("run")
    root = write_data(folder / "data", train=48, validation=4)
    return write_recipe(
        folder / "recipe.yaml", root, cache=str(folder / "cache"), unfreeze_after=1, save_every=2, log_every=5
    )


def assert_same_run(one: Path, other: Path) -> None:
    states = [torch.load(out / "last.ckpt", weights_only=True) for out in (one, other)]
    for part in ("network", "optimizer", "schedule"):
        assert equal(states[0][part], states[1][part]), part
    one_state, other_state = ({**state["state"], "seconds": 0} for state in states)
    assert equal(one_state, other_state)
    assert equal(*(load_file(out / "model" / "model.safetensors") for out in (one, other)))
    logs = [read_log(out / "metrics.csv") for out in (one, other)]
    assert {"train/loss", "val/loss", "val/caption", "lr/rest"} <= logs[0].keys()
    assert logs[0] == logs[1]


def test_a_run_killed_and_stopped_in_the_middle_of_epochs_ends_like_one_that_was_not(
    recipe: Path, start: Start
) -> None:
    whole, out = recipe.parent / "whole", recipe.parent / "broken"
    undisturbed = start(whole)
    finish(start(out, stop=(signal.SIGKILL, 0, 12)), -signal.SIGKILL)
    before = position(out)
    assert before["epoch"] == 0 and 0 < before["batches"] <= 13

    text = finish(start(out, stop=(signal.SIGINT, 1, 8)), 130)
    assert "resuming the run" in text
    assert "the same command" in text.lower()
    assert "Traceback" not in text
    before = position(out)
    assert before["epoch"] == 1 and 8 < before["batches"] < 16

    finish(start(out))
    finish(undisturbed)
    assert_same_run(whole, out)

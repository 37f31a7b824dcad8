"""A run that is killed, stopped or spread over processes is the run that was asked for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny_training import write_data, write_recipe

from saywhere.training.curves import read_log

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
LONG = 400.0
"""Seconds: far more than is needed on an idle machine."""


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(recipe: Path) -> Iterator[Start]:
    """Start ``saywhere train`` with an output folder and changes; what still runs at the end is killed."""
    running: list[subprocess.Popen[str]] = []

    def run(out: Path, *changes: str) -> subprocess.Popen[str]:
        command = [str(Path(sys.executable).with_name("saywhere")), "train", str(recipe), *changes, "--out", str(out)]
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


def wait_for_state(process: subprocess.Popen[str], last: Path, epoch: int) -> dict[str, Any]:
    """The position in ``last.ckpt`` once it is in the middle of ``epoch``."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        if last.exists():
            position = torch.load(last, weights_only=True)["position"]
            if position["epoch"] == epoch and position["batches"] > 0:
                return position
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    raise AssertionError("the run did not get there")


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
    """Two epochs of 60 batches, the backbone trained in the second; saved every two steps."""
    folder = tmp_path_factory.mktemp("run")
    root = write_data(folder / "data", train=120, validation=4)
    return write_recipe(
        folder / "recipe.yaml", root, cache=str(folder / "cache"), unfreeze_after=1, save_every=2, log_every=5
    )


def assert_same_run(one: Path, other: Path) -> None:
    states = [torch.load(out / "last.ckpt", weights_only=True) for out in (one, other)]
    for part in ("state_dict", "optimizer_states", "lr_schedulers", "global_step", "position"):
        assert equal(states[0][part], states[1][part]), part
    assert equal(*(load_file(out / "model" / "model.safetensors") for out in (one, other)))
    logs = [read_log(out / "metrics.csv") for out in (one, other)]
    assert {"train/loss", "val/loss", "val/caption", "lr/rest"} <= logs[0].keys()
    assert logs[0] == logs[1]


def test_a_run_killed_and_stopped_in_the_middle_of_epochs_ends_like_one_that_was_not(
    recipe: Path, start: Start
) -> None:
    whole, out = recipe.parent / "whole", recipe.parent / "broken"
    process = start(out)
    position = wait_for_state(process, out / "last.ckpt", epoch=0)
    process.send_signal(signal.SIGKILL)
    finish(process, -signal.SIGKILL)
    assert 0 < position["batches"] < 60
    undisturbed = start(whole)

    process = start(out)
    wait_for_state(process, out / "last.ckpt", epoch=1)
    process.send_signal(signal.SIGINT)
    text = finish(process, 130)
    assert "going on with the run" in text
    assert "The same command goes on from there" in text
    assert "Traceback" not in text
    position = torch.load(out / "last.ckpt", weights_only=True)["position"]
    assert (position["epoch"], 0 < position["batches"] < 60) == (1, True)

    finish(start(out))
    finish(undisturbed)
    assert_same_run(whole, out)


def test_two_processes_train_one_model(recipe: Path, start: Start) -> None:
    out = recipe.parent / "two"
    text = finish(start(out, "training.devices=2", "training.epochs=1"))
    assert text.count(f"{out / 'model'}: weights after epoch 1") == 1
    state = torch.load(out / "last.ckpt", weights_only=True)
    assert state["global_step"] == 15  # 120 pictures, 2 processes of 2 pictures, 2 batches a step
    assert torch.isfinite(torch.cat([v.float().flatten() for v in state["state_dict"].values()])).all()
    assert len(read_log(out / "metrics.csv")["val/loss"]) == 1

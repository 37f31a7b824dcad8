"""A run that is killed or stopped is the run that was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import run
from safetensors.torch import load_file
from tiny_training import stopped_by_ctrl_c, train_and_be_killed, write_data, write_recipe

from saywhere.training.loop import read_log

pytestmark = pytest.mark.usefixtures("plain_curves", "one_thread")


@pytest.fixture(scope="module")
def one_thread() -> Iterator[None]:
    """Let torch sum in the same order in this process as in another one, whatever the processor."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


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


def test_a_run_killed_and_stopped_in_the_middle_of_epochs_ends_like_one_that_was_not(tmp_path: Path) -> None:
    """Two epochs of eight batches, the backbone trained in the second; saved every two steps."""
    root, cache = write_data(tmp_path / "data", train=16, validation=2), str(tmp_path / "cache")
    options = {"cache": cache, "unfreeze_after": 1, "save_every": 2, "log_every": 5}
    recipe = write_recipe(tmp_path / "recipe.yaml", root, **options)
    whole, out = (["train", str(recipe), "--out", str(tmp_path / name)] for name in ("whole", "broken"))

    train_and_be_killed(out, "tiny", epoch=0, batches=5)
    before = position(tmp_path / "broken")
    assert before["epoch"] == 0 and 0 < before["batches"] <= 5

    with stopped_by_ctrl_c(lambda training: (training.state.epoch, training.state.batches) == (1, 3)):
        text = run(*out, code=130).stderr
    assert "resuming the run" in text
    assert "run it again" in text.lower()
    before = position(tmp_path / "broken")
    assert before["epoch"] == 1 and 3 <= before["batches"] < 8

    run(*out)
    run(*whole)
    assert_same_run(tmp_path / "whole", tmp_path / "broken")

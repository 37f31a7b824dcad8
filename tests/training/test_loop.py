from __future__ import annotations

import errno
import json
import math
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import refuses
from safetensors.torch import load_file
from tiny_training import CONFIG, tiny_recipe, write_data

from saywhere import files
from saywhere.configs.densecap import DenseCapConfig
from saywhere.errors import UserError
from saywhere.networks import checkpoint
from saywhere.options import from_dict
from saywhere.training import recipe as recipes
from saywhere.training import run
from saywhere.training.densecap import DenseCapSystem
from saywhere.training.loop import CsvLog, has_bfloat16, read_log, save_state, seed_step
from saywhere.training.recipe import Recipe

pytestmark = pytest.mark.usefixtures("plain_curves")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"), train=6, validation=3)


def make(root: Path, **training: Any) -> Recipe:
    return from_dict(Recipe, tiny_recipe(root, **training))


@pytest.fixture(scope="module")
def whole(root: Path, tmp_path_factory: pytest.TempPathFactory) -> run.Result:
    """A run of two epochs that nothing disturbs; nobody changes it."""
    return run.train(make(root, log_every=1), tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="module")
def short(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of one epoch; nobody changes it."""
    return run.train(make(root, epochs=1), tmp_path_factory.mktemp("short")).model.parent


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "model" / "model.safetensors")


def last_weights(out: Path) -> dict[str, torch.Tensor]:
    return torch.load(out / "last.ckpt", weights_only=False)["network"]  # in a fraction of the time that True takes


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_a_step_is_seeded_by_its_place_in_the_run() -> None:
    draws = []
    for place in ((0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)):
        generator = seed_step(*place)
        draws.append((torch.rand(3).tolist(), torch.rand(3, generator=generator).tolist()))
    assert draws[0] == draws[4]
    assert len({str(draw) for draw in draws}) == 4


def test_a_run_leaves_a_model_a_card_logs_and_curves(root: Path, whole: run.Result) -> None:
    out = whole.model.parent
    model = checkpoint.load_network(out / "model")
    assert model.config == CONFIG
    assert not model.training
    log = read_log(out / "metrics.csv")
    terms = ("rpn_score", "rpn_box", "score", "box", "caption")
    for kind, rows in (("train", 4), ("val", 2)):
        assert [len(log[f"{kind}/{term}"]) for term in ("loss", *terms)] == [rows] * 6
    for (_, loss), *parts in zip(log["val/loss"], *(log[f"val/{term}"] for term in terms), strict=True):
        assert loss == pytest.approx(sum(value for _, value in parts))
    assert whole.metrics["val/loss"] == min(value for _, value in log["val/loss"])
    assert [value for _, value in log["lr/rest"]] == pytest.approx([0.01, 0.01, 0.005, 0.0])
    card = (out / "model" / "README.md").read_text()
    for text in ("jsonl", "train: 6 images, 18 regions", "val: 3 images", f"{whole.metrics['val/loss']:.4f}"):
        assert text in card
    assert "torch" in card
    assert recipes.load(out / "model" / "recipe.yaml") == make(root, log_every=1)
    assert (out / "curves.png").read_text() == (out / "metrics.csv").read_text()


def test_the_same_seed_gives_the_same_weights_whatever_the_cache_and_the_logs(
    root: Path, short: Path, tmp_path: Path
) -> None:
    first = last_weights(short)
    run.train(make(root, epochs=1, log_every=3, save_every=1, workers=1), tmp_path / "same")
    assert same(first, last_weights(tmp_path / "same"))
    run.train(replace(make(root, epochs=1), seed=4), tmp_path / "other")
    assert not same(first, last_weights(tmp_path / "other"))
    run.train(make(root, epochs=1, cache=str(tmp_path / "cache")), tmp_path / "cached")
    cached = last_weights(tmp_path / "cached")  # half precision: near, not equal
    for key, value in first.items():
        torch.testing.assert_close(cached[key].float(), value.float(), atol=0.05, rtol=0.05, msg=key)


@pytest.mark.parametrize(("unfreeze_after", "moves"), [(None, False), (0, True), (1, True), (2, False)])
def test_the_backbone_moves_only_when_it_is_unfrozen(
    root: Path, tmp_path: Path, unfreeze_after: int | None, moves: bool
) -> None:
    recipe = make(root, unfreeze_after=unfreeze_after, warmup=0, cache=str(tmp_path / "c"), backbone={"lr": 0.01})
    run.train(recipe, tmp_path / "run")
    samples, _ = run.read_split(recipe.data, DenseCapSystem(), DenseCapConfig(), "train", None)
    before = run.build_network(recipe, samples).trunk.backbone.state_dict()
    after = {k.removeprefix("trunk.backbone."): v for k, v in last_weights(tmp_path / "run").items()}
    moved = [key for key, value in before.items() if not torch.equal(value, after[key])]
    assert bool(moved) == moves
    assert not [key for key in moved if "running" in key]


def test_a_warm_up_that_is_longer_than_the_run_is_said(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for warmup, told in ((2, 0), (3, 1)):
        run.train(make(root, epochs=1, warmup=warmup), tmp_path / str(warmup))
        assert capsys.readouterr().err.count("training.warmup is 3 steps and the run has 2: its rates stay") == told


def test_frozen_modules_stay_and_all_else_moves(root: Path, tmp_path: Path) -> None:
    frozen = ("trunk.pyramid", "trunk.localization")
    recipe = make(root, epochs=1, warmup=0, freeze=frozen)
    run.train(recipe, tmp_path / "run")
    samples, _ = run.read_split(recipe.data, DenseCapSystem(), DenseCapConfig(), "train", None)
    before = run.build_network(recipe, samples).state_dict()
    after = last_weights(tmp_path / "run")
    stayed = {key for key, value in before.items() if torch.equal(value, after[key])}
    assert {key for key in before if key.startswith(frozen)} <= stayed
    assert not [key for key in stayed if key.startswith("decoder") and key.endswith("weight")]
    with pytest.raises(UserError, match=r"training\.freeze: .*no module 'trunk\.pyramids', but trunk, .*decoder"):
        run.train(make(root, freeze=["trunk.pyramids"]), tmp_path / "other")
    with pytest.raises(UserError, match=r"^training\.freeze leaves nothing to train$"):
        run.train(make(root, freeze=["trunk", "region_head", "decoder"]), tmp_path / "nothing")


def test_a_run_shorter_than_the_logs_interval_and_without_validation(root: Path, tmp_path: Path) -> None:
    recipe, out = make(root, log_every=20), tmp_path / "run"
    result = run.train(replace(recipe, data=replace(recipe.data, validation=None)), out)
    assert (result.epoch, result.metrics) == (2, {})
    assert same({key.removeprefix("densecap."): value for key, value in weights(out).items()}, last_weights(out))
    log = read_log(out / "metrics.csv")
    assert [step for step, _ in log["train/loss"]] == [step for step, _ in log["lr/rest"]] == [2, 4]
    assert (out / "curves.png").exists()
    card = (out / "model" / "README.md").read_text()
    assert "Weights after epoch 2 of 2, the last. No validation data." in card and "picked" not in card


def test_best_weights_are_those_of_the_best_epoch_and_patience_stops(root: Path, tmp_path: Path) -> None:
    recipe = make(root, epochs=20, patience=2, rest={"lr": 0.1}, schedule="constant")
    result = run.train(recipe, tmp_path / "run")
    values = [value for _, value in read_log(tmp_path / "run" / "metrics.csv")["val/loss"]]
    best = min(range(len(values)), key=values.__getitem__)
    assert result.epoch == best + 1
    assert len(values) == best + 3 < 20
    assert result.metrics["val/loss"] == values[best]
    kept = weights(tmp_path / "run")
    again = run.train(recipe, tmp_path / "run")  # nothing is left to do
    assert (again.epoch, again.metrics) == (result.epoch, result.metrics)
    assert same(kept, weights(tmp_path / "run"))


def test_mixed_precision_is_near_full_precision_and_not_equal(root: Path, tmp_path: Path) -> None:
    losses = []
    for precision in ("32", "bf16-mixed"):
        run.train(make(root, epochs=1, precision=precision, flip=False), tmp_path / precision)
        losses.append(read_log(tmp_path / precision / "metrics.csv")["val/loss"][0][1])
        dtypes = {value.dtype for value in weights(tmp_path / precision).values() if value.is_floating_point()}
        assert dtypes == {torch.float32}
    assert (losses[0] != losses[1]) == has_bfloat16()
    assert losses[0] == pytest.approx(losses[1], rel=0.1)


def test_a_processor_without_bfloat16_trains_in_single_precision_and_says_so(
    root: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("could not create a primitive descriptor")

    has_bfloat16.cache_clear()
    with monkeypatch.context() as patched:
        patched.setattr("saywhere.training.loop.skip_init", refuse)
        assert not has_bfloat16()
    run.train(make(root, epochs=1, precision="bf16-mixed"), tmp_path / "mixed")
    has_bfloat16.cache_clear()
    assert capsys.readouterr().err.count("no bfloat16: it trains in single precision") == 1
    assert same(weights(tmp_path / "mixed"), weights(short))


@pytest.mark.skipif(torch.cuda.is_available() or torch.backends.mps.is_available(), reason="there is an accelerator")
@pytest.mark.parametrize(
    ("accelerator", "message"),
    [("gpu", "training.accelerator is gpu, and there is none here"), ("abacus", "device abacus cannot be used here")],
)
def test_a_device_that_is_not_there_is_a_user_error(root: Path, tmp_path: Path, accelerator: str, message: str) -> None:
    refuses(message, run.train, make(root, accelerator=accelerator), tmp_path / "run")


def test_another_monitor_and_an_unknown_one(root: Path, tmp_path: Path) -> None:
    result = run.train(make(root, epochs=3, monitor="val/rpn_box"), tmp_path / "a")
    values = [value for _, value in read_log(tmp_path / "a" / "metrics.csv")["val/rpn_box"]]
    assert result.metrics["val/rpn_box"] == min(values)
    with pytest.raises(UserError, match=r"training.monitor is 'val/lose', but there are val/loss, val/rpn_score"):
        run.train(make(root, epochs=1, monitor="val/lose"), tmp_path / "b")
    assert not (tmp_path / "b").exists()  # the right one is no other recipe


def test_the_mean_of_the_last_epochs_is_validated_and_kept_and_training_goes_on_without_it(
    root: Path, tmp_path: Path
) -> None:
    after = []
    for epochs in (1, 2, 3):  # with a constant rate a shorter run is the beginning of a longer one
        run.train(make(root, epochs=epochs, schedule="constant"), tmp_path / f"{epochs}")
        after.append({key: value.double() for key, value in last_weights(tmp_path / f"{epochs}").items()})
    recipe = make(root, epochs=3, schedule="constant", average=2)
    recipe = replace(recipe, data=replace(recipe.data, validation=None))  # the weights of the last epoch are kept
    run.train(replace(recipe, training=replace(recipe.training, epochs=2)), tmp_path / "mean")
    run.train(recipe, tmp_path / "mean")  # resumed: the weights of the epoch before are in the state
    assert same(last_weights(tmp_path / "mean"), last_weights(tmp_path / "3"))
    kept = {key.removeprefix("densecap."): value for key, value in weights(tmp_path / "mean").items()}
    for key, value in kept.items():
        if not value.is_floating_point():
            continue
        mean = (after[1][key] + after[2][key]) / 2
        torch.testing.assert_close(value.double(), mean, atol=1e-6, rtol=1e-6)
    assert not torch.equal(kept["decoder.words.weight"].double(), after[2]["decoder.words.weight"])


def test_validation_sees_the_mean(root: Path, whole: run.Result, tmp_path: Path) -> None:
    run.train(make(root, average=3), tmp_path)
    one, mean = (
        [value for _, value in read_log(out / "metrics.csv")["val/loss"]] for out in (whole.model.parent, tmp_path)
    )
    assert one[0] == mean[0] and one[1] != mean[1]  # after the first epoch there is nothing to average


class Broken(torch.nn.Module):
    """A criterion whose losses go through ``change`` in one call."""

    def __init__(self, inner: torch.nn.Module, call: int, change: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.inner, self.call, self.change, self.calls = inner, call, change, 0

    def forward(self, output: Any) -> dict[str, torch.Tensor]:
        self.calls += 1
        losses = self.inner(output)
        return {name: self.change(value) for name, value in losses.items()} if self.calls == self.call else losses


Break = Callable[[int, Callable[[torch.Tensor], torch.Tensor]], None]


@pytest.fixture
def break_loss(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Runs from now on have a criterion that is :class:`Broken` in the given call."""
    whole = DenseCapSystem.criterion

    def broken(call: int, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
        monkeypatch.setattr(DenseCapSystem, "criterion", lambda *given: Broken(whole(*given), call, change))

    return broken


@pytest.mark.parametrize(
    ("factor", "message"), [(math.nan, "is NaN"), (math.inf, "is infinite"), (1e4, "exploded"), (5.0, "")]
)
def test_a_broken_loss_stops_the_run_and_names_its_images(
    root: Path, tmp_path: Path, break_loss: Break, factor: float, message: str
) -> None:
    recipe = make(root, epochs=2, save_every=1, accumulate=1, log_every=3)
    break_loss(7, lambda loss: loss * factor)
    if not message:
        run.train(recipe, tmp_path / "run")
        return
    said = refuses(message, run.train, recipe, tmp_path / "run")
    # 3 steps, 2 batches of validation, then the second step of the second epoch
    assert "in step 4 " in said
    assert said.count(".jpg") == 2
    assert said.endswith("start over in another folder: --out DIR training.rest.lr=0.0025")
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["state"]
    assert (state["step"], state["epoch"], state["batches"]) == (4, 1, 1)
    assert all(torch.isfinite(value).all() for value in last_weights(tmp_path / "run").values())
    break_loss(0, torch.clone)
    assert run.train(recipe, tmp_path / "run").epoch >= 1
    if factor == math.inf:
        run.train(recipe, tmp_path / "whole")
        assert read_log(tmp_path / "run" / "metrics.csv") == read_log(tmp_path / "whole" / "metrics.csv")


def test_gradients_that_are_not_finite_do_not_reach_the_weights(root: Path, tmp_path: Path, break_loss: Break) -> None:
    # 3 batches in 2 steps, 2 batches of validation, then the first batch of the next step
    break_loss(6, lambda loss: loss + (loss * 0).abs().sqrt())
    with pytest.raises(UserError, match=r"the gradient is not finite \(its norm is nan\) in step 2") as caught:
        run.train(make(root, save_every=1, clip=None), tmp_path / "run")
    assert str(caught.value).count(".jpg") == 4  # of both batches of the step
    assert str(caught.value).endswith("--out DIR training.rest.lr=0.0025 training.clip=10")
    assert all(torch.isfinite(value).all() for value in last_weights(tmp_path / "run").values())


def test_a_validation_loss_that_is_not_finite_stops_the_run(root: Path, tmp_path: Path, break_loss: Break) -> None:
    break_loss(5, lambda loss: loss * math.nan)  # the second batch of validation
    said = refuses("validation loss is not finite after epoch 1 .*caption nan", run.train, make(root), tmp_path / "run")
    assert said.count(".jpg") == 1


@pytest.mark.parametrize(
    ("call", "said", "place"), [(2, "after this step", (1, 0, 2)), (4, "after the validation", (2, 1, 0))]
)
def test_ctrl_c_loses_neither_a_step_nor_a_row(
    root: Path,
    whole: run.Result,
    tmp_path: Path,
    break_loss: Break,
    capsys: pytest.CaptureFixture[str],
    call: int,
    said: str,
    place: tuple[int, int, int],
) -> None:
    def interrupt(loss: torch.Tensor) -> torch.Tensor:
        if not (tmp_path / "sent").exists():
            (tmp_path / "sent").touch()
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    recipe = make(root, save_every=1000, log_every=1)
    break_loss(call, interrupt)
    assert run.train(recipe, tmp_path / "run").interrupted
    assert f"stopping {said};" in capsys.readouterr().err
    state = torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["state"]
    assert (state["step"], state["epoch"], state["batches"]) == place
    break_loss(0, torch.clone)
    run.train(recipe, tmp_path / "run")
    assert same(last_weights(tmp_path / "run"), last_weights(whole.model.parent))
    assert read_log(tmp_path / "run" / "metrics.csv") == read_log(whole.model.parent / "metrics.csv")


def test_a_second_ctrl_c_stops_at_once_and_is_no_end_of_the_program(
    root: Path, whole: run.Result, tmp_path: Path, break_loss: Break
) -> None:
    before = signal.getsignal(signal.SIGINT)

    def interrupt(loss: torch.Tensor) -> torch.Tensor:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        return loss

    break_loss(3, interrupt)
    with pytest.raises(KeyboardInterrupt, match=r"^stopped$"):
        run.train(make(root, save_every=1000), tmp_path / "unsaved")
    assert signal.getsignal(signal.SIGINT) is before
    break_loss(3, interrupt)
    with pytest.raises(KeyboardInterrupt, match="stopped; run it again to continue from the last state"):
        run.train(make(root, save_every=1), tmp_path / "run")
    break_loss(0, torch.clone)
    run.train(make(root, save_every=1), tmp_path / "run")
    assert same(last_weights(tmp_path / "run"), last_weights(whole.model.parent))


def test_the_state_is_written_beside_its_place_and_not_where_temporary_files_are(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it is on the disk before it takes the place of the last one."""
    places, replace_file, fsync, waited = list[Path](), os.replace, os.fsync, set[int]()

    def renamed(old: Path, new: Path) -> None:
        if Path(new).name == "last.ckpt":
            places.append(Path(old).parent)
            assert os.stat(old).st_ino in waited
        replace_file(old, new)

    monkeypatch.setattr(os, "fsync", lambda file: waited.add(os.fstat(file).st_ino) or fsync(file))
    monkeypatch.setattr(os, "replace", renamed)
    run.train(make(root, epochs=1, save_every=1), tmp_path / "run")
    assert len(places) == 2 and set(places) == {tmp_path / "run"}


def test_a_state_that_the_disk_cannot_hold_is_an_error_of_the_disk(tmp_path: Path) -> None:
    """Torch itself speaks of positions in a file that it did not expect."""
    path = tmp_path / "last.ckpt"
    save_state({"a": torch.zeros(9)}, path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large") as error:
            save_state({name: torch.zeros(300_000) for name in "abc"}, path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert error.value.filename == str(path)
    assert torch.load(path, weights_only=True)["a"].tolist() == [0] * 9
    assert [file.name for file in tmp_path.iterdir()] == ["last.ckpt"]


def test_a_disk_that_fills_up_in_the_middle_is_one_line_and_what_was_saved_goes_on(
    root: Path, short: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file meets it: that of the recipe, of the state, of the weights, of the curves."""
    recipe = make(root, epochs=1, save_every=1)
    for last in (1, 5, 9, 14):
        calls, out = 0, tmp_path / str(last)

        def full(file: Path | int, last: int = last) -> None:
            nonlocal calls
            calls += 1
            if calls == last:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(files, "sync", full)
            refuses(f"^{out}: the disk is full; what is done stays. Free some space and", run.train, recipe, out)
        assert not [path for path in out.rglob("*") if ".part" in path.name or checkpoint.SAVING in path.name]
        run.train(recipe, out)
        assert same(last_weights(out), last_weights(short))
        assert same(weights(out), weights(short))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a device that is always full")
def test_a_log_that_the_disk_cannot_hold_is_an_error_where_it_is_written(tmp_path: Path) -> None:
    written = CsvLog(tmp_path / "log")
    written.path = Path("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        written.write(1, 0, {"train/loss": 1.0})


def test_half_weights_a_description_and_phrases_that_are_short_enough(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    recipe = make(root, epochs=1)
    recipe = replace(recipe, model={**recipe.model, "decoding": {"max_words": 3}})
    run.train(recipe, out)
    stored = out / "recipe.yaml"  # as an older version wrote it, without today's keys
    kept = [line for line in stored.read_text().splitlines() if not line.strip().startswith(("half:", "description:"))]
    stored.write_text("\n".join(kept))
    training = replace(recipe.training, half=True, epochs=2)
    run.train(replace(recipe, description="blocks and sky", training=training), out)
    assert "train: 12 of 30 texts not used: without a word, too long" in capsys.readouterr().err
    best = weights(out)
    assert {value.dtype for value in best.values() if value.is_floating_point()} == {torch.float16}
    last = last_weights(out)
    assert {value.dtype for value in last.values() if value.is_floating_point()} == {torch.float32}
    assert json.loads((out / "model" / "config.json").read_text())["description"] == "blocks and sky"
    card = (out / "model" / "README.md").read_text()
    assert "\nblocks and sky\n" in card
    assert "stored as float16" in card
    counts = checkpoint.load_network(out / "model").vocabulary.counts
    assert "sky" in counts
    assert "left" not in counts


def test_another_recipe_is_not_resumed_and_restart_starts_over(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    run.train(make(root, epochs=1), out)
    refuses(r"training.rest.lr=0.01, not 0.02.*--restart", run.train, make(root, epochs=1, rest={"lr": 0.02}), out)
    run.train(make(root, epochs=2), out)  # more epochs are welcome
    assert len(read_log(out / "metrics.csv")["val/loss"]) == 2
    (out / "my-notes.txt").write_text("stay")
    run.train(make(root, epochs=1, rest={"lr": 0.02}), out, restart=True)
    assert len(read_log(out / "metrics.csv")["val/loss"]) == 1
    assert (out / "my-notes.txt").exists()


def test_a_run_is_not_resumed_on_other_data_and_its_data_may_have_moved_back(whole: run.Result, tmp_path: Path) -> None:
    root, out = write_data(tmp_path / "data", train=6, validation=3), tmp_path / "run"
    lines = (root / "images.jsonl").read_text().splitlines()
    run.train(make(root, epochs=1), out)
    before = last_weights(out)
    (root / "images.jsonl").write_text("\n".join(lines[1:]))
    with pytest.raises(UserError, match=r"run whose data has changed: train has now 5 images, not 6\. .* --restart"):
        run.train(make(root, epochs=2), out)
    (root / "images.jsonl").write_text("\n".join(lines).replace("blue sky", "grey sky"))
    refuses("train has now other images, boxes or texts", run.train, make(root, epochs=2), out)
    (root / "images.jsonl").write_text("\n".join(lines))
    (root / "007.jpg").rename(root / "away.jpg")
    refuses("val has now 2 images, not 3", run.train, make(root, epochs=2), out)
    (root / "away.jpg").rename(root / "007.jpg")
    assert same(last_weights(out), before)
    run.train(make(root, epochs=2), out)
    assert same(last_weights(out), last_weights(whole.model.parent))


def test_images_that_vanish_while_a_run_goes_on_are_named_once_and_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], break_loss: Break
) -> None:
    root = write_data(tmp_path / "data", train=6, validation=3)

    def vanish(loss: torch.Tensor) -> torch.Tensor:
        for name in ("001.jpg", "002.jpg"):
            (root / name).unlink(missing_ok=True)
        return loss

    break_loss(1, vanish)
    run.train(make(root, epochs=3), tmp_path / "run")
    said = capsys.readouterr().err.splitlines()
    assert [sum(f"skipped: {root / name}" in line for line in said) for name in ("001.jpg", "002.jpg")] == [1, 1]
    assert "2 images could not be read; others took their place" in said
    with pytest.raises(UserError, match="holds a run whose data has changed: train has now 4 images, not 6"):
        run.train(make(root, epochs=4), tmp_path / "run")
    root = write_data(tmp_path / "more", train=6, validation=3)

    def vanish_all(loss: torch.Tensor) -> torch.Tensor:
        for path in root.glob("*.jpg"):
            path.unlink()
        return loss

    break_loss(1, vanish_all)
    refuses(r"^not one image can be read; the first: .*\.jpg", run.train, make(root, epochs=1), tmp_path / "other")


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_with_other_things_keeps_them(root: Path, tmp_path: Path, restart: bool) -> None:
    """A recipe that somebody wrote, and a model that no run made there."""
    (tmp_path / "recipe.yaml").write_text("# what we tried first\nname: x\n")
    with pytest.raises(UserError, match=r"recipe\.yaml was written by no run, and would be replaced: name another"):
        run.train(make(root, epochs=1), tmp_path, restart)
    assert (tmp_path / "recipe.yaml").read_text().startswith("# what")
    (tmp_path / "recipe.yaml").unlink()
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="has model, which is of no run: name another folder with --out"):
        run.train(make(root, epochs=1), tmp_path, restart)
    assert (tmp_path / "model").is_dir()


def test_a_state_that_cannot_be_read_is_named(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    (out / "last.ckpt").write_bytes(b"not a checkpoint")
    refuses(r"last\.ckpt cannot be read.*--restart", run.train, make(root, epochs=1), out)


def test_damaged_images_are_skipped_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_data(tmp_path / "data", train=5, validation=2)
    path = root / "001.jpg"
    path.write_bytes(path.read_bytes()[:-800])
    run.train(make(root, epochs=1, cache=str(tmp_path / "cache")), tmp_path / "run")
    assert "001.jpg" in capsys.readouterr().err
    assert "train: 4 images" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_wrong_data_and_model_keys_are_reported(root: Path, tmp_path: Path) -> None:
    recipe = make(root)
    nowhere = replace(recipe.data, root=str(tmp_path / "nowhere"))  # options are looked at before the data
    with pytest.raises(UserError, match=r"unknown key model.trunk.long_sid; did you mean model.trunk.long_side"):
        run.train(replace(recipe, data=nowhere, model={"trunk": {"long_sid": 96}}), tmp_path / "a")
    with pytest.raises(UserError, match=r"model.batch is 0, but must be at least 1"):
        run.train(replace(recipe, data=nowhere, model={"batch": 0}), tmp_path / "a")
    with pytest.raises(UserError, match=r"data.phrases.max_words must be a whole number, not 'ten'"):
        run.train(replace(recipe, data=replace(nowhere, phrases={"max_words": "ten"})), tmp_path / "a")
    refuses("preset", run.train, replace(recipe, model={"preset": "best"}), tmp_path / "b")
    with pytest.raises(UserError, match="system is 'dense', but must be one of densecap"):
        run.train(replace(recipe, system="dense"), tmp_path / "b")
    refuses("no split 'dev'", run.train, replace(recipe, data=replace(recipe.data, validation="dev")), tmp_path / "c")
    (tmp_path / "bare").mkdir()
    noise = json.dumps({"image": "a.jpg", "regions": []})
    (tmp_path / "bare" / "train.jsonl").write_text(noise + "\n")
    with pytest.raises(UserError, match="no image with regions"):
        run.train(replace(recipe, data=replace(recipe.data, root=str(tmp_path / "bare"))), tmp_path / "d")

"""All parts and the end of the backbone learn together: what changes, what stays, how a run is resumed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_densecap import tiny_model
from tiny_together import tiny_parts, write_texts
from typer.testing import CliRunner

from saywhere import cli
from saywhere.data import read
from saywhere.errors import UserError
from saywhere.networks import checkpoint
from saywhere.training.together import run as together
from saywhere.training.together.backbone import BackboneEnd, SharedMaps, last_stages
from saywhere.training.together.kinds import KindsTask
from saywhere.training.together.run import Options, Sources, train_together
from saywhere.training.together.tasks import View


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_texts(tmp_path_factory.mktemp("together"))


@pytest.fixture(scope="module")
def model(root: Path) -> Path:
    return checkpoint.save(tiny_parts(), root / "start")


@pytest.fixture(scope="module")
def sources(root: Path) -> Sources:
    data = (root / "all.jsonl",)
    return Sources(data, data, (*data, root / "names.jsonl"))


@pytest.fixture(scope="module")
def options(root: Path) -> Options:
    return Options(epochs=2, batch=4, validation="val", cache=root / "cache", seed=3)


@pytest.fixture(scope="module")
def trained(root: Path, model: Path, sources: Sources, options: Options) -> Path:
    return train_together(model, sources, root / "run", options)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    networks = checkpoint.load_networks(folder)
    return {f"{part}.{name}": t for part, network in networks.items() for name, t in network.state_dict().items()}


def test_the_front_stays_and_all_else_learns(model: Path, trained: Path) -> None:
    before, after = weights(model), weights(trained)
    assert set(checkpoint.load_networks(trained)) == {"densecap", "aligner", "captioner"}
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    front = {
        name
        for name in after
        if ".trunk.backbone." in name and "body.blocks.5" not in name and "body.blocks.6" not in name
    }
    assert front and not front & changed
    statistics = {name for name in after if ".trunk.backbone." in name and ".running_" in name}
    assert not statistics & changed
    for name in ("blocks.5.0.conv_pw.weight", "blocks.6.0.conv_pwl.weight"):
        assert f"aligner.trunk.backbone.body.{name}" in changed
    own = ("densecap.region_head.score.weight", "densecap.trunk.pyramid.network.inner_blocks.0.0.weight",
           "densecap.trunk.localization.head.conv.weight", "aligner.projects.0.weight",
           "captioner.narrow.weight", "captioner.trunk.head.conv.weight")  # fmt: skip
    assert changed.issuperset(own)
    card = (trained / "README.md").read_text()
    assert "after epoch" in card and "before)" in card


def test_a_run_that_was_interrupted_gives_the_same_weights(
    root: Path, model: Path, sources: Sources, options: Options, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = together.batches

    def stop(*given):
        if given[-1] == 1:
            raise KeyboardInterrupt
        return plan(*given)

    with monkeypatch.context() as patch:
        patch.setattr(together, "batches", stop)
        with pytest.raises(KeyboardInterrupt):
            train_together(model, sources, root / "interrupted", options)
    train_together(model, sources, root / "interrupted", options)
    one, two = (torch.load(root / name / "last.ckpt", weights_only=True) for name in ("run", "interrupted"))
    assert one["epoch"] == two["epoch"] == 2
    assert all(torch.equal(tensor, two["weights"][name]) for name, tensor in one["weights"].items())
    expected = weights(trained)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(root / "interrupted" / "model").items())


def test_other_options_are_refused_in_the_folder_of_a_run(
    root: Path, model: Path, sources: Sources, options: Options, trained: Path
) -> None:
    with pytest.raises(UserError, match="holds a run with seed=3, not 4"):
        train_together(model, sources, root / "run", dataclasses.replace(options, seed=4))


def test_every_option_of_the_command_reaches_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def keep(*arguments):
        given.extend(arguments)
        return Path("run/model")

    monkeypatch.setattr(together, "train_together", keep)
    words = "--sentences a --sentences b --boxes c --names d --out run --model m --split s --epochs 7 --batch 9"
    words += " --validation v --share 0.25 --cache maps --seed 5 --precision bf16 --device cuda"
    words += " --set captioner.word_weight=0.1"
    done = CliRunner().invoke(cli.app, ["train-together", *words.split()])
    assert done.exit_code == 0, done.output
    model, sources, out, options, changes = given
    assert (model, out, changes) == ("m", Path("run"), {"captioner.word_weight": 0.1})
    assert sources == Sources((Path("a"), Path("b")), (Path("c"),), (Path("d"),))
    assert options == Options("s", 7, 9, "v", share=0.25, cache=Path("maps"), seed=5, device="cuda", precision="bf16")


def test_a_damaged_state_of_a_run_is_one_line(root: Path, model: Path, sources: Sources, options: Options) -> None:
    (root / "damaged").mkdir()
    (root / "damaged" / "last.ckpt").write_bytes(b"no weights")
    with pytest.raises(UserError, match=r"last.ckpt cannot be read \(.*\); remove it to start over"):
        train_together(model, sources, root / "damaged", options)


def test_models_whose_end_cannot_be_trained_are_refused(root: Path, sources: Sources, options: Options) -> None:
    part = checkpoint.save(tiny_model(), root / "part")
    with pytest.raises(UserError, match="has no aligner"):
        train_together(part, sources, root / "none", options)
    with pytest.raises(UserError, match="with several maps and their last layer only"):
        last_stages(tiny_model().trunk)
    with pytest.raises(UserError, match="share is above 0 and at most 1, not 2"):
        train_together(part, sources, root / "none", dataclasses.replace(options, share=2.0))
    with pytest.raises(UserError, match="precision is 32 or bf16, not '8'"):
        train_together(part, sources, root / "none", dataclasses.replace(options, precision="8"))


def test_data_that_teach_nothing_and_losses_that_are_no_numbers_are_refused(
    root: Path, model: Path, sources: Sources, options: Options
) -> None:
    names, plain = (root / "names.jsonl",), dataclasses.replace(options, validation=None)
    with pytest.raises(UserError, match="no image of the split train teaches the aligner"):
        train_together(model, dataclasses.replace(sources, sentences=names), root / "none", plain)
    parts = tiny_parts()
    with torch.no_grad():
        parts["aligner"].projects[0].bias.fill_(torch.nan)
    broken = checkpoint.save(parts, root / "broken")
    with pytest.raises(UserError, match="the loss of the aligner is nan in epoch 1"):
        train_together(broken, sources, root / "none", plain)
    assert not (root / "none").exists()


def test_a_task_counts_by_its_weight_whatever_the_size_of_its_gradient() -> None:
    end = BackboneEnd(tiny_parts()["densecap"].trunk)
    channels = end.trunk.backbone.channels[1]
    maps = [(torch.rand(40, 12, 8), torch.rand(channels, 6, 4)), (torch.rand(40, 8, 12), torch.rand(channels, 4, 6))]
    shared = SharedMaps(end, maps, [(64, 96), (96, 64)])
    images = shared.images([0, 1])
    assert [image.maps[2].shape[1:] for image in images] == [(3, 2), (2, 3)]
    (1e4 * images[0].maps[2].sum()).backward()
    assert shared.collect("large", 2.0) == pytest.approx(1e4 * images[0].maps[2].numel() ** 0.5)
    (1e-4 * images[1].head.sum()).backward()
    shared.collect("small", 3.0)
    (images[0].maps[2].sum() * float("nan")).backward()
    assert np.isnan(shared.collect("broken"))
    before = end.parameters()[0].grad
    assert before is None
    shared.backward()
    found = [parameter.grad.clone() for parameter in end.parameters() if parameter.grad is not None]
    for parameter in end.parameters():
        parameter.grad = None
    (one, _), (_, two) = end.run([levels[-1] for levels in maps])
    (2.0 * one.sum() / one.numel() ** 0.5 + 3.0 * two.sum() / two.numel() ** 0.5).backward()
    expected = [parameter.grad for parameter in end.parameters() if parameter.grad is not None]
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_kinds_are_named_and_imagenet_is_kept(root: Path) -> None:
    parts = tiny_parts()
    end = BackboneEnd(parts["densecap"].trunk)
    samples = [dataclasses.replace(s, image=s.image.resolve()) for s in read(root / "names.jsonl")]
    task = KindsTask(parts["classes"], end, samples)
    channels = end.trunk.backbone.channels[1]
    sizes = [(96, 64) if s.width > s.height else (64, 96) for s in samples]
    views = [View(s.image, size, False, torch.zeros(0, 4)) for s, size in zip(samples, sizes, strict=True)]
    maps = [(torch.rand(40, h // 8, w // 8), torch.rand(channels, h // 16, w // 16)) for w, h in sizes]

    def losses() -> dict[str, torch.Tensor]:
        images = SharedMaps(end, maps, sizes).images(range(len(maps)))
        return task.losses(images, views, np.random.default_rng(0), torch.Generator())

    first = losses()
    assert first["imagenet"].item() == pytest.approx(0, abs=1e-6)
    optimizer = torch.optim.Adam(task.parameters(), 0.05)
    for _ in range(20):
        optimizer.zero_grad()
        losses()["kinds"].backward()
        optimizer.step()
    assert losses()["kinds"].item() < first["kinds"].item() / 2
    with torch.no_grad():
        for parameter in end.parameters():
            parameter.mul_(1.1)
    assert losses()["imagenet"].item() > 1e-6

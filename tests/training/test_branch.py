"""The training of the trunk's second branch by a made-up teacher."""

from __future__ import annotations

import csv
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import numpy_helper
from photographs import noise
from refusals import refuses
from safetensors.torch import load_file
from tiny_captioner import VOCABULARY, tiny_captioner, tiny_maps
from tiny_stages import write_teacher
from tiny_training import write_data

from saywhere import data
from saywhere.configs.parts import TrunkConfig
from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.vision.trunk import build_trunk
from saywhere.options import from_dict
from saywhere.training import run
from saywhere.training.branch import FILE, Teacher, find_teacher, load_branch, make_views, teacher_weights
from saywhere.training.finetuning import average_models, keep_scale, start_from
from saywhere.training.recipe import DataConfig, Recipe
from saywhere.training.run import find_system

TRUNK = {"backbone": "efficientnet_lite0", "long_side": 64}
pytestmark = pytest.mark.usefixtures("plain_curves")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_teacher(tmp_path_factory.mktemp("teacher") / "models" / "clip_encoder.int8.onnx")


def test_the_teacher_is_the_image_tower_of_the_file(teacher: Path) -> None:
    assert find_teacher(str(teacher)) == find_teacher(str(teacher.parents[1])) == teacher
    tower = Teacher(teacher_weights(teacher))
    assert (tower.size, tower.side, tower.dim) == (64, 4, 24)
    graph = onnx.load(str(teacher)).graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    (name,) = (node.input[1] for node in graph.node if "layers.1/mlp/fc1" in node.name)
    fc1 = torch.from_numpy(stored[name].astype(np.float32).T * 0.002).bfloat16()
    assert torch.equal(tower.tower.blocks[1].mlp.fc1.weight, fc1)
    pixels = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    values, embeddings = tower(pixels)
    assert values.shape == (2, 24, 4, 4) and values.std() > 0.1
    mean, std = (torch.tensor(levels)[:, None, None] for levels in ((0.4815, 0.4578, 0.4082), (0.2686, 0.2613, 0.2758)))
    with torch.no_grad():
        expected = tower.tower(((pixels - mean) / std).bfloat16()).float()  # timm's own way to the class token's output
    torch.testing.assert_close(embeddings, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere", "nowhere is neither an ONNX file"),
        ("", "nothing is neither"),
        ("text.onnx", "is no image tower of CLIP"),
    ],
)
def test_what_is_no_teacher_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "text.onnx").write_text("not a graph")
    place = str(tmp_path / name) if name.endswith("onnx") else name
    refuses(message, lambda: teacher_weights(find_teacher(place)))


def test_views_are_the_whole_and_parts_that_the_name_decides() -> None:
    sample = Sample(Path("a.jpg"), 300, 200, np.zeros((0, 4)), ())
    whole, *parts = make_views(sample, 40)
    assert whole.crop == (0, 0, 300, 200) and [view.crop for view in make_views(sample, 40)][1:] == [
        p.crop for p in parts
    ]
    for part in parts:
        left, top, right, bottom = part.crop
        assert 0 <= left < right <= 300 and 0 <= top < bottom <= 200
        assert (right - left, bottom - top) == (part.width, part.height)
    assert len({part.crop for part in parts}) > 30 and min(p.width * p.height for p in parts) > 0.15 * 300 * 200
    assert next(make_views(replace(sample, image=Path("b.jpg")), 2)).crop == whole.crop


def recipe(root: Path, teacher: Path) -> Recipe:
    settings = {"epochs": 8, "batch_size": 8, "rest": {"lr": 3e-3}, "backbone": {"lr": 1.5e-3}, "accelerator": "cpu",
                "cache": str(root.parent / "cache"), "flip": False, "log_every": 1}  # fmt: skip
    model = {"trunk": TRUNK, "teacher": str(teacher), "views": 2}
    return from_dict(Recipe, {"name": "b", "system": "branch", "data": {"root": str(root)}, "model": model,
                              "training": settings})  # fmt: skip


def test_a_branch_learns_and_trunks_take_it(tmp_path: Path, teacher: Path) -> None:
    root = write_data(tmp_path / "data", train=8, validation=0)
    result = run.train(recipe(root, teacher), tmp_path / "run")
    with (tmp_path / "run" / "metrics.csv").open() as file:
        losses = [float(row["value"]) for row in csv.DictReader(file) if row["name"] == "train/values"]
    assert len(losses) == 8 * 2 and losses[0] > 0.97 and np.mean(losses[-2:]) < 0.94  # .87 to .91 by processor
    assert "16 images, 16 views" in (result.model / "README.md").read_text()
    trunk = build_trunk(from_dict(TrunkConfig, {**TRUNK, "branch": True}))
    before = {name: value.clone() for name, value in trunk.branch.state_dict().items()}
    load_branch(trunk, result.model / FILE)
    after, stored = trunk.branch.state_dict(), load_file(result.model / FILE)
    assert after.keys() == stored.keys() and all(torch.equal(after[name], stored[name]) for name in after)
    for name, value in after.items():  # statistics of normalisation stay, weights do not
        assert torch.equal(value, before[name]) == ("running" in name or "num_batches" in name), name


def test_a_branch_that_nothing_has_taught_is_refused(tmp_path: Path, teacher: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    bare = Recipe("x", DataConfig("data"), model={"trunk": {**TRUNK, "branch": True}})
    refuses(r"model\.trunk\.branch needs training\.branch, or a model", run.build_network, bare, samples)
    with pytest.raises(UserError, match=r"training\.branch needs model\.trunk\.branch=true"):
        load_branch(build_trunk(from_dict(TrunkConfig, TRUNK)), tmp_path / FILE)
    refuses("cannot be loaded", load_branch, build_trunk(from_dict(TrunkConfig, {**TRUNK, "branch": True})), teacher)


def test_images_that_calibration_holds_out_do_not_teach(tmp_path: Path) -> None:
    root = write_data(tmp_path / "data", train=40, validation=4)
    held = {f"{number:03}.jpg" for number in range(40) if zlib.crc32(f"{number:03}.jpg".encode()) % 10 == 0}
    config, system = DataConfig(str(root), validation="val", hold_out=True), find_system("densecap")
    model = system.presets["default"]()
    found = {sample.image.name for sample in run.read_training(config, system, model)[0]}
    assert held and found == {f"{number:03}.jpg" for number in range(40)} - held
    assert len(run.read_split(config, system, model, "val", None)[0]) == 4


def test_a_captioner_says_what_it_said_although_it_sees_more(tmp_path: Path) -> None:
    trunk = {**TRUNK, "branch": True}
    old = tiny_captioner(trunk=trunk, head=True)
    checkpoint.save(old, tmp_path / "old")
    images = []
    for number in range(6):
        noise(64, 48, seed=number).save(tmp_path / f"{number}.png")
        images.append(Sample(tmp_path / f"{number}.png", 64, 48, np.zeros((0, 4)), (), ("a dog",)))
    new = checkpoint.new_network(Captioner, replace(old.config, branch=True), VOCABULARY).eval()

    def off() -> float:
        paths = [image.image for image in images]
        with torch.no_grad():
            one, two = old.attend(tiny_maps(old, *paths)), new.attend(tiny_maps(new, *paths))
            pairs = (one.features, two.features), (old.decoder.begin(one.embeddings), new.decoder.begin(two.embeddings))
        return sum(float((a - b).norm() / a.norm()) for a, b in pairs)

    start = start_from(new, str(tmp_path / "old"))
    raw = off()
    keep_scale(new, start, images)
    assert off() < 0.25 * raw and off() < 0.1
    checkpoint.save(new, tmp_path / "new")
    average_models({str(tmp_path / "old"): 0.5}, tmp_path / "new", tmp_path / "mean", images)
    mean = checkpoint.load_network(tmp_path / "mean").state_dict()
    for name, value in new.state_dict().items():
        torch.testing.assert_close(mean[name], value, rtol=1e-5, atol=1e-6, msg=name)


def test_a_mean_of_three_models_has_their_shares(tmp_path: Path) -> None:
    networks = [tiny_captioner(seed, trunk=TRUNK) for seed in range(3)]
    for name, network in zip("abc", networks, strict=True):
        checkpoint.save(network, tmp_path / name)
    shares = {str(tmp_path / "a"): 0.2, str(tmp_path / "b"): 0.5}
    average_models(shares, tmp_path / "c", tmp_path / "mean")
    mean = checkpoint.load_network(tmp_path / "mean").state_dict()
    a, b, c = (network.state_dict() for network in networks)
    for name, value in mean.items():
        if value.is_floating_point():
            expected = 0.2 * a[name] + 0.5 * b[name] + 0.3 * c[name]
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6, msg=name)
    assert "0.2 of those of another model" in (tmp_path / "mean" / "README.md").read_text()

"""The image tower of the large model: its graph, made from a made-up CLIP in int8, and a model that looks with it."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import scripts
import torch
from albums import write_noise
from photographs import noise
from refusals import refuses
from safetensors.numpy import load_file, save_file
from tiny_bundle import exported_bundle
from tiny_tower import tower_model, write_clip, write_tower

from saywhere.configs.parts import SUMMARY, TOWER
from saywhere.data import Sample
from saywhere.engines.export import export
from saywhere.engines.onnx import session_options
from saywhere.engines.tower import MEAN, SMALLEST, STD, build_tower, reduce
from saywhere.errors import UserError
from saywhere.images import Preprocess, open_image
from saywhere.loading import load
from saywhere.models import bundle
from saywhere.models.bundle import GRAPH, GRAPH_TOWER, WEIGHTS
from saywhere.networks import checkpoint
from saywhere.training.branch import make_tower
from saywhere.web.site import write_site

HALF = np.full(3, 0.5, np.float32)
SIDE, WIDTH, SIZE = 4, 64, 24
"""Patches in a row, numbers of a token, and of an embedding."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> tuple[torch.nn.Module, Path]:
    """A small image tower of transformers, and its graph."""
    return write_clip(tmp_path_factory.mktemp("clip"), SIDE, WIDTH, SIZE)


def run(graph: bytes, pixels: np.ndarray, level: str = "ORT_ENABLE_ALL") -> list[np.ndarray]:
    options = session_options(1)
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(graph, options).run([TOWER, SUMMARY], {"pixels": pixels})


def alike(one: np.ndarray, other: np.ndarray) -> float:
    return float((one * other).sum() / np.linalg.norm(one) / np.linalg.norm(other))


def test_the_graph_gives_values_tokens_and_the_embedding(clip: tuple[torch.nn.Module, Path]) -> None:
    network, source = clip
    generator = np.random.default_rng(0)
    levels = np.stack((generator.normal(0, 1, SIZE + WIDTH + SIZE), generator.uniform(0.5, 2, SIZE + WIDTH + SIZE)))
    graph = build_tower(source, HALF, HALF, levels.astype(np.float32))
    # blocks of one colour: squeezing to the tower's square changes nothing but at their borders
    image = np.kron(generator.uniform(-1, 1, (1, 3, SIDE, SIDE)), np.ones((1, 1, 40, 24))).astype(np.float32)
    tower, summary = run(graph, image)
    assert tower.shape == (1, SIZE + WIDTH, SIDE, SIDE) and summary.shape == (1, SIZE)
    squeezed = torch.nn.functional.interpolate(
        torch.from_numpy(image), (16 * SIDE, 16 * SIDE), mode="bilinear", antialias=True
    )
    mean, std = (torch.from_numpy(values).view(1, 3, 1, 1) for values in (MEAN, STD))
    with torch.no_grad():
        seen = network.vision_model((squeezed * 0.5 + 0.5 - mean) / std, output_hidden_states=True)
        last, norm = network.vision_model.encoder.layers[-1], network.vision_model.post_layernorm
        before = last.layer_norm1(seen.hidden_states[-2])
        values = network.visual_projection(norm(last.self_attn.out_proj(last.self_attn.v_proj(before))))[0, 1:]
        tokens, embedding = norm(seen.last_hidden_state)[0, 1:], network.visual_projection(seen.pooler_output)[0]
    found = tower[0].reshape(SIZE + WIDTH, -1).T * levels[1, :-SIZE] + levels[0, :-SIZE]
    assert alike(found[:, :SIZE], values.numpy()) > 0.99
    assert alike(found[:, SIZE:], tokens.numpy()) > 0.99
    assert alike(summary[0] * levels[1, -SIZE:] + levels[0, -SIZE:], embedding.numpy()) > 0.99


def test_what_the_runtime_fuses_stays_right(clip: tuple[torch.nn.Module, Path]) -> None:
    levels = np.stack((np.zeros(2 * SIZE + WIDTH), np.ones(2 * SIZE + WIDTH))).astype(np.float32)
    graph = build_tower(clip[1], HALF, HALF, levels)
    pixels = np.random.default_rng(1).uniform(-1, 1, (1, 3, 96, 64)).astype(np.float32)
    for one, other in zip(run(graph, pixels), run(graph, pixels, "ORT_DISABLE_ALL"), strict=True):
        assert alike(one, other) > 0.999


def test_tuning_is_added_to_the_weights_and_positions_say_how_many_patches(clip: tuple[torch.nn.Module, Path]) -> None:
    network, source = clip
    generator = np.random.default_rng(2)
    sizes = {"qkv": (3 * WIDTH, WIDTH), "o": (WIDTH, WIDTH), "fc1": (2 * WIDTH, WIDTH), "fc2": (WIDTH, 2 * WIDTH)}
    tuning = {
        f"{layer}.{kind}.{part}": generator.normal(0, 0.1, (out, 4) if part == "up" else (4, size)).astype(np.float16)
        for layer in range(2) for kind, (out, size) in sizes.items() for part in ("up", "down")
    }  # fmt: skip
    side = SIDE + 2
    tuning["position"] = generator.normal(0, 0.5, (1 + side * side, WIDTH)).astype(np.float16)
    tuned = copy.deepcopy(network)
    with torch.no_grad():
        for layer, block in enumerate(tuned.vision_model.encoder.layers):
            attention, mlp = block.self_attn, block.mlp
            added = {k: torch.from_numpy(tuning[f"{layer}.{k}.up"].astype(np.float32) @ tuning[f"{layer}.{k}.down"])
                     for k in sizes}  # fmt: skip
            for part, own in zip(
                (attention.q_proj, attention.k_proj, attention.v_proj), added["qkv"].split(WIDTH), strict=True
            ):
                part.weight.add_(own)
            for part, kind in ((attention.out_proj, "o"), (mlp.fc1, "fc1"), (mlp.fc2, "fc2")):
                part.weight.add_(added[kind])
        embeddings = tuned.vision_model.embeddings
        embeddings.position_embedding = torch.nn.Embedding.from_pretrained(torch.from_numpy(tuning["position"]).float())
        embeddings.position_ids = torch.arange(1 + side * side)[None]
        embeddings.image_size = 16 * side
        pixels = np.random.default_rng(3).uniform(-1, 1, (1, 3, 16 * side, 16 * side)).astype(np.float32)
        mean, std = (torch.from_numpy(values).view(1, 3, 1, 1) for values in (MEAN, STD))
        seen = tuned.vision_model((torch.from_numpy(pixels) * 0.5 + 0.5 - mean) / std)
        tokens = tuned.vision_model.post_layernorm(seen.last_hidden_state)[0, 1:].numpy()
        embedding = tuned.visual_projection(seen.pooler_output)[0].numpy()
    levels = np.stack((np.zeros(2 * SIZE + WIDTH), np.ones(2 * SIZE + WIDTH))).astype(np.float32)
    tower, summary = run(build_tower(source, HALF, HALF, levels, tuning), pixels)
    assert tower.shape == (1, SIZE + WIDTH, side, side)
    assert alike(tower[0, SIZE:].reshape(WIDTH, -1).T, tokens) > 0.99
    assert alike(summary[0], embedding) > 0.99


def test_another_graph_is_refused(tmp_path: Path) -> None:
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "none", [], [])), str(tmp_path / "none.onnx"))
    (tmp_path / "text.onnx").write_text("no graph")
    for name in ("none.onnx", "text.onnx"):
        with pytest.raises(UserError, match=rf"{name} is no image tower of CLIP in int8"):
            build_tower(tmp_path / name, HALF, HALF, np.ones((2, 8), np.float32))


@pytest.fixture(scope="module")
def folder() -> Path:
    return tower_model()


def test_a_model_without_its_tower_is_not_exported(folder: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(folder.parent / "trained", tmp_path / "trained")
    (trained / GRAPH_TOWER).unlink()
    with pytest.raises(UserError, match=r"trained has no tower\.onnx, the image tower that .*trained looks with"):
        export([trained], tmp_path / "model")


def test_both_engines_look_with_the_tower(folder: Path) -> None:
    ours, theirs = load(folder, engine="onnx"), load(folder, engine="torch")
    image = noise(96, 64)
    one, other = ours.encode(image), theirs.encode(image)
    np.testing.assert_allclose(ours.embed(one).vectors, theirs.embed(other).vectors, atol=1e-4)
    assert ours.caption(one).sentence == theirs.caption(other).sentence
    assert len(ours.ground(one, "a dog")) == len(theirs.ground(other, "a dog"))


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_another_tower_is_another_model(folder: Path, tmp_path: Path, engine: str) -> None:
    def digests(place: Path) -> tuple[str, str]:
        found = load(place, engine=engine).engine
        return found.digest(), found.vectors_digest()

    changed = shutil.copytree(folder, tmp_path / "changed")
    before = digests(folder)
    assert digests(changed) == before
    model = onnx.load(str(changed / GRAPH_TOWER))
    model.graph.initializer[1].raw_data = bytes(len(model.graph.initializer[1].raw_data))
    onnx.save(model, str(changed / GRAPH_TOWER))
    assert not set(digests(changed)) & set(before)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"has no tower\.onnx, the image tower that it looks with"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), r"tower\.onnx cannot be loaded"),
        (lambda path: shutil.copy(path.with_name(GRAPH), path), r"is another graph: it does not give summary"),
    ],
)
def test_a_damaged_tower_is_one_line(
    folder: Path, tmp_path: Path, damage: Callable[[Path], object], message: str
) -> None:
    changed = shutil.copytree(folder, tmp_path / "changed")
    damage(changed / GRAPH_TOWER)
    refuses(message, lambda: load(changed, engine="onnx").encode(noise(96, 64)))


def test_a_tower_that_is_named_and_not_there_is_one_line(folder: Path, tmp_path: Path) -> None:
    trained = shutil.copytree(folder.parent / "trained", tmp_path / "trained")
    (trained / GRAPH_TOWER).unlink()
    network = checkpoint.load_network(trained, "aligner")
    with pytest.raises(UserError, match=r"trunk\.tower needs training\.branch, or a model to start from that has its"):
        network.extractor([torch.zeros(3, 64, 96)])


def test_models_with_different_towers_are_not_merged(folder: Path, tmp_path: Path) -> None:
    networks = checkpoint.load_networks(folder.parent / "trained")
    places = [checkpoint.save({part: networks[part]}, tmp_path / part) for part in ("densecap", "aligner")]
    merged = checkpoint.merge(places, tmp_path / "merged")
    assert (merged / GRAPH_TOWER).read_bytes() == (folder / GRAPH_TOWER).read_bytes()
    model = onnx.load(str(places[1] / GRAPH_TOWER))
    (places[1] / GRAPH_TOWER).unlink()
    model.graph.initializer[1].raw_data = bytes(len(model.graph.initializer[1].raw_data))
    onnx.save(model, str(places[1] / GRAPH_TOWER))
    with pytest.raises(
        UserError, match=r"aligner.tower\.onnx and .*tower\.onnx differ: the models have different trunks"
    ):
        checkpoint.merge(places, tmp_path / "merged")


def test_outputs_are_standardised_over_images_and_tuned(clip: tuple[torch.nn.Module, Path], tmp_path: Path) -> None:
    files = sorted(write_noise(tmp_path, 12).iterdir())
    images = [Sample(file, 96, 64, np.zeros((0, 4)), ()) for file in files]
    (tmp_path / "broken.png").write_text("no image")
    images.append(replace(images[0], image=tmp_path / "broken.png"))
    generator, preprocess = np.random.default_rng(0), Preprocess(96, 32, (0.5,) * 3, (0.5,) * 3)
    tuning = {"1.o.down": generator.normal(0, 0.2, (4, WIDTH)), "1.o.up": generator.normal(0, 0.2, (WIDTH, 4))}
    save_file(reduce({name: value.astype(np.float32) for name, value in tuning.items()}), tmp_path / "tuning")
    pixels = [preprocess(open_image(image.image))[None] for image in images[:-1]]
    found = []
    for added in (None, str(tmp_path / "tuning")):
        made = make_tower(clip[1], added, images, preprocess, tmp_path / "made" / "tower.onnx")
        assert made == "levels of 12 images"
        outputs = [run((tmp_path / "made" / "tower.onnx").read_bytes(), each) for each in pixels]
        rows = [np.stack([part[number][0].reshape(len(part[number][0]), -1) for part in outputs]) for number in (0, 1)]
        for row in rows:
            np.testing.assert_allclose(row.mean(axis=(0, 2)), 0, atol=1e-3)
            np.testing.assert_allclose(row.std(axis=(0, 2)), 1, atol=1e-2)
        found.append(rows[0])
    assert np.abs(found[0] - found[1]).mean() > 0.01
    with pytest.raises(UserError, match=r"tuning: .*broken\.png cannot be loaded"):
        make_tower(clip[1], str(tmp_path / "broken.png"), images, preprocess, tmp_path / "tower.onnx")


def test_what_is_kept_of_large_fits_the_bundled_model(tmp_path: Path) -> None:
    """What both had in common is stored once, until the bundled model changes."""
    build, packed = scripts.load("large-model/build.py"), Path(__file__).parents[2] / "large-model"
    build.unpack(packed, tmp_path, bundle.find_folder("flickr-coco"))
    networks = checkpoint.load_networks(tmp_path)
    assert networks.keys() == bundle.Bundle.read(tmp_path).configs.keys()


def test_the_large_model_is_a_package(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(bundle.PACKAGES, "large", "saywhere_large_for_tests")
    refuses("'large' is a package of its own, saywhere-large-for-tests", load, "large")
    refuses("revision is only for models of the hub", load, "large", revision="main")
    package = shutil.copytree(folder, tmp_path / "saywhere_large_for_tests")
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert load("large").encode(noise(96, 64)).maps.summary.shape == (512,)
    assert bundle.list_models()["large"] == "a model with a tower"


def test_it_is_no_model_for_a_browser(folder: Path, tmp_path: Path) -> None:
    refuses("a model with an image tower does not run in a browser", write_site, folder, tmp_path / "site")


def test_a_packed_model_is_built_again(folder: Path, tmp_path: Path) -> None:
    build = scripts.load("large-model/build.py")
    model, levels = shutil.copytree(folder, tmp_path / "model"), np.ones((2, 1792), np.float32)
    np.save(model / "levels.npy", levels)
    wide = np.random.default_rng(0).normal(size=(400, 200))
    save_file({"position": wide, "0.fc1.up": wide, "0.fc1.down": wide[:8]}, model / build.TUNING)
    (model / "calibration.json").write_text("{}")
    checkpoint.write_information(model, np.eye(9))
    build.pack(model, tmp_path / "packed", exported_bundle())
    found, tuning = build.unpack(tmp_path / "packed", tmp_path / "built", exported_bundle())
    assert (found == levels).all() and set(tuning) == {"position", "0.fc1.up", "0.fc1.down"}
    assert (tuning["position"] == wide).all() and (tuning["0.fc1.down"] == wide[:8]).all()
    np.testing.assert_allclose(tuning["0.fc1.up"], wide, atol=0.05)
    one, other = (load_file(place / WEIGHTS) for place in (model, tmp_path / "built"))
    assert set(one) <= set(other)
    for name, value in one.items():
        wide = value.astype(np.float32)
        atol = np.abs(wide).max(initial=0) / 127 if value.size >= SMALLEST else 0
        np.testing.assert_allclose(other[name].astype(np.float32), wide, atol=atol)
    write_tower(tmp_path / "clip_encoder.int8.onnx")
    refuses("has another clip_encoder", build.read_tower, tmp_path / "clip_encoder.int8.onnx")

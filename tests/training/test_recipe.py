from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from hatchling.builders.wheel import WheelBuilder
from photographs import noise
from refusals import refuses
from tiny_training import BOXES, CONFIG, plain, tiny_recipe, write_data, write_recipe

from saywhere.configs.aligner import AlignerConfig
from saywhere.configs.parts import DecodingConfig, ProposalConfig
from saywhere.data import FORMATS, PhraseOptions
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.networks.aligner.network import Aligner
from saywhere.networks.checkpoint import load_network
from saywhere.options import from_dict
from saywhere.text import Vocabulary
from saywhere.training import recipe as recipes
from saywhere.training.densecap import PhraseTargets, usable
from saywhere.training.recipe import OptimizerConfig, Recipe
from saywhere.training.run import build_vocabulary, find_system, model_config, read_training, require_monitor

RECIPES = Path(__file__).parents[2] / "recipes"
OTHERS = {
    "aligner-everyday", "captions-everyday", "table1", "saywhere", "saywhere-large", "saywhere-smoke",
}  # of several models; see tests/papers/table1 and tests/stages  # fmt: skip
SHIPPED = sorted(path for path in RECIPES.glob("*.yaml") if path.stem not in OTHERS)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return write_recipe(tmp_path / "recipe.yaml", tmp_path / "data")


def test_a_recipe_is_read_with_its_defaults(file: Path) -> None:
    recipe = recipes.load(file)
    assert (recipe.name, recipe.seed, recipe.training.batch_size, recipe.training.clip) == ("tiny", 3, 2, 5.0)
    assert recipe.training.rest == OptimizerConfig(kind="adamw", lr=0.01, betas=(0.9, 0.999))
    assert recipe.training.backbone.lr == 1e-5
    assert recipe.training.unfreeze_after is None


def test_changes_are_yaml_and_reach_any_depth(file: Path) -> None:
    changes = [
        "training.epochs=7", "training.rest.betas=[0.5, 0.9]", "training.rest.lr=3e-4", "training.cache=null",
        "training.precision=32", "training.flip=false", "data.phrases.max_words=9", "model.trunk.long_side=320",
        "model.decoding.beam_size=3",
    ]  # fmt: skip
    recipe = recipes.load(file, changes)
    assert recipe.training.epochs == 7
    assert recipe.training.rest.betas == (0.5, 0.9)
    assert recipe.training.rest.lr == 3e-4
    assert recipe.training.precision == "32"
    assert recipe.training.flip is False
    assert recipe.data.phrases == {"max_words": 9}
    assert recipe.model["trunk"]["long_side"] == 320
    config = model_config(recipe)
    assert config == replace(CONFIG, trunk=replace(CONFIG.trunk, long_side=320), decoding=DecodingConfig(beam_size=3))


def test_further_data_sets_are_trained_on_after_the_first(tmp_path: Path) -> None:
    first, second = write_data(tmp_path / "first", train=3), write_data(tmp_path / "second", train=4)
    also = [f"data.also.more.root={second}", "data.also.more.train_limit=2", "data.also.more.phrases.max_words=2"]
    recipe = recipes.load(write_recipe(tmp_path / "recipe.yaml", first), also)
    samples, name = read_training(recipe.data, find_system("densecap"), CONFIG)
    assert [s.image for s in samples] == [
        *(first / f"00{i}.jpg" for i in range(3)),
        *(second / f"00{i}.jpg" for i in (0, 2)),
    ]
    assert name == "jsonl first and jsonl second"
    assert samples[0].phrases[0] == ("a red block", "the block on the left")
    assert samples[4].phrases == (("blue sky",), ("two people",))
    assert recipes.load(write_recipe(tmp_path / "again.yaml", first), also).to_dict() == recipe.to_dict()


def test_names_of_classes_join_the_boxes_of_images_with_phrases(tmp_path: Path) -> None:
    first = write_data(tmp_path / "first", train=2, validation=1)
    noise(96, 64, 9).save(tmp_path / "other.jpg")
    names = [{"box": box, "phrase": f"a thing {n}"} for n, box in enumerate([BOXES[0], [0.0, 30.0, 20.0, 60.0]])]
    (tmp_path / "names").mkdir()
    lines = [{"image": str(path), "regions": names} for path in (first / "001.jpg", tmp_path / "other.jpg")]
    (tmp_path / "names" / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    also = [f"data.also.names.root={tmp_path / 'names'}", "data.also.names.names=true", "data.also.names.words=0.25"]
    recipe = recipes.load(write_recipe(tmp_path / "recipe.yaml", first), also)
    system = find_system("densecap")
    plain_sample, joined, rest = read_training(recipe.data, system, CONFIG)[0]
    assert (plain_sample.phrase_weights, joined.image, rest.image.name) == (None, first / "001.jpg", "other.jpg")
    assert joined.phrases[3:] == (("a thing 1",),) and joined.boxes[3].tolist() == [0, 30, 20, 60]
    assert joined.phrase_weights is not None and joined.phrase_weights.tolist() == [1, 1, 1, 0.25]
    assert rest.phrase_weights is not None and rest.phrase_weights.tolist() == [0.25, 0.25]
    kept = usable([replace(joined, phrase_weights=np.array([1, 0.5, 0.25, 0]))], longest=2)[0]
    assert [len(kept.boxes), *kept.phrase_weights.tolist()] == [2, 0.5, 0.25]
    vocabulary = build_vocabulary(system, [kept], 1)
    target = PhraseTargets(vocabulary)(kept, (96, 64), False, np.random.default_rng(0))
    assert target.phrase_weights is not None and target.phrase_weights.tolist() == [0.5, 0.25]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.also.more={root: x, words: -1}", "words must be not negative, not -1"),
        ("training.epoch=2", "did you mean training.epochs"),
        ("training.epochs=0", "training.epochs must be at least 1, not 0"),
        ("training.rest.kind=adagrad", "one of adamw, adam, original_adam, sgd, rmsprop"),
        ("training.epochs", "key=value"),
        ("name.first=2", "holds a value"),
        ("training.clip=[", "not YAML"),
        ('description="a\\nb"', "description must be one line"),
        ("seed=-1", "seed must be not negative"),
        ("seed=99999999999999999999", "seed must be below 2**63"),
        ("name=''", "name must be the name of a folder, not ''"),
        ("name=../x", "name must be the name of a folder, not '../x'"),
        ("data.root=''", "data.root must be a folder or a file, not ''"),
        ("data.train=''", "data.train must be the name of a split"),
        ("data.train_limit=0", "data.train_limit must be at least 1, not 0"),
        ("data.validation_limit=-1", "data.validation_limit must be at least 1, not -1"),
        ("data.min_count=0", "data.min_count must be at least 1, not 0"),
        ("training.cache=''", "training.cache must be a name, not ''"),
        ("training.freeze=['']", "training.freeze must be names of modules"),
        ("training.rest.eps=-1", "training.rest.eps must be not negative"),
        ("training.rest.momentum=-1", "training.rest.momentum must be not negative"),
    ],
)
def test_a_wrong_change_is_reported_in_one_line(file: Path, change: str, message: str) -> None:
    assert message in refuses("", recipes.load, file, [change])


def test_a_missing_key_and_a_file_that_is_no_recipe(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\n")
    refuses("data is missing", recipes.load, tmp_path / "a.yaml")
    (tmp_path / "b.yaml").write_text("a: [")
    refuses("not a YAML recipe", recipes.load, tmp_path / "b.yaml")
    (tmp_path / "c.yaml").write_text("just text")
    refuses("not a recipe", recipes.load, tmp_path / "c.yaml")
    refuses("no such recipe", recipes.load, tmp_path / "d.yaml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("training:\n  epochs: 3\nname: b\ntraining:\n  seed: 1\n", "the key 'training' is there twice: line 4"),
        ("model:\n  decoding: {beam_size: 3,\n    beam_size: 4}\n", "the key 'beam_size' is there twice: line 3"),
        ("model: " + "[" * 5000, "it is nested too deeply"),
    ],
)
def test_a_recipe_in_which_something_would_be_lost_is_refused(file: Path, text: str, message: str) -> None:
    wrong = file.with_name("wrong.yaml")
    wrong.write_text(text)
    refuses(f"wrong.yaml is not a YAML recipe: {message}", recipes.load, wrong)


@pytest.mark.parametrize(
    ("change", "message"),
    [("model={a: 1, a: 2}", "the key 'a' is there twice: line 1"), ("model=" + "[" * 5000, "it is nested too deeply")],
    ids=["twice", "deep"],
)
def test_a_change_in_which_something_would_be_lost_is_refused(file: Path, change: str, message: str) -> None:
    refuses(f"is not YAML: {message}", recipes.load, file, [change])


def test_a_mark_before_a_recipe_is_passed_over(file: Path) -> None:
    marked = file.with_name("marked.yaml")
    marked.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert recipes.load(marked) == recipes.load(file)


def test_yaml_round_trip(tmp_path: Path) -> None:
    recipe = replace(from_dict(Recipe, tiny_recipe(tmp_path)), description="caf\u00e9: one line")
    (tmp_path / "again.yaml").write_text(recipe.text)
    assert recipes.load(tmp_path / "again.yaml") == recipe


def test_the_backbone_is_frozen_until_it_is_not(file: Path) -> None:
    frozen = recipes.load(file).training
    late = recipes.load(file, ["training.unfreeze_after=2"]).training
    assert [frozen.frozen(epoch) for epoch in (0, 99)] == [True, True]
    assert [late.frozen(epoch) for epoch in (0, 1, 2)] == [True, True, False]


def test_recipes_that_ship_are_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert recipes.shipped() == {path.stem: path for path in sorted(RECIPES.glob("*.yaml"))}
    for name in ("densecap-flickr8k", "densecap-flickr8k.yaml", "recipes/densecap-flickr8k.yaml"):
        assert recipes.load(name) == recipes.load(RECIPES / "densecap-flickr8k.yaml")
    write_recipe(tmp_path / "densecap-flickr8k.yaml", tmp_path)
    assert recipes.find("densecap-flickr8k.yaml") == Path("densecap-flickr8k.yaml")
    refuses(r"^dense: no such recipe; with saywhere come aligner-everyday, .*, table1$", recipes.load, "dense")
    listed = run("train", "--list")
    assert listed.output.count("\n") == len(recipes.shipped())
    assert "captioner-cider\t" in listed.output
    assert "as the reward (Rennie et al. 2017)\n" in listed.output and "BRNN, Eq. 8, Eq. 9" in listed.output
    assert "densecap-your-own\tA model for your own images\n" in listed.output


def test_ones_own_images_start_from_the_anchors_and_the_size_of_the_bundled_model() -> None:
    recipe, bundle = recipes.load("densecap-your-own"), Bundle.read("flickr-coco")
    assert recipe.training.start == "flickr-coco" and recipe.training.warmup < 10
    assert model_config(recipe).proposals.anchors == bundle.configs["densecap"].proposals.anchors
    assert model_config(recipe).trunk.long_side == bundle.trunk.long_side


def test_recipes_are_in_the_wheel() -> None:
    builder = WheelBuilder(str(RECIPES.parent))
    names = {file.distribution_path for file in builder.recurse_included_files()}
    assert {f"saywhere/recipes/{path.name}" for path in RECIPES.glob("*.yaml")} <= names


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_recipes_fit_the_models_and_the_data_readers(path: Path) -> None:
    recipe = recipes.load(path)
    assert recipe.name == path.stem
    assert recipe.data.format in FORMATS
    PhraseOptions.from_dict(recipe.data.phrases)
    changed = {key: value for key, value in recipe.model.items() if key != "preset"}
    config = model_config(recipe)
    assert_changed(plain(config.to_dict()), changed)
    if getattr(config, "localizer", None) and config.uses_proposals:  # they come from that model, and fit it
        network = find_system(recipe.system).build(replace(config, parses=None), Vocabulary({"dog": 9}), True)
        theirs = load_network(config.localizer, "densecap").trunk
        for name, weights in theirs.localization.state_dict().items():
            assert torch.equal(network.trunk.localization.state_dict()[name], weights)


def test_a_recipe_names_proposals_only_where_they_differ_from_the_localizers(file: Path) -> None:
    recipe = recipes.load(RECIPES / "captioner-flickr8k.yaml", ["model.attend_to=proposals"])
    found, theirs = model_config(recipe).proposals, Bundle.read("flickr-coco").configs["densecap"].proposals
    assert found.anchors == theirs.anchors != type(found)().anchors
    anchors = [[[40, 40]]] * 3
    recipe = replace(recipe, model=recipe.model | {"proposals": {"anchors": anchors, "post_nms_top_n": 7}})
    assert plain(model_config(recipe).proposals.to_dict()["anchors"]) == anchors
    nowhere = replace(recipe, model={"attend_to": "proposals", "localizer": "runs/not-yet"})
    assert model_config(nowhere).proposals.anchors == type(found)().anchors


def assert_changed(options: dict[str, Any], changed: dict[str, Any]) -> None:
    for key, value in changed.items():
        if isinstance(value, dict):
            assert_changed(options[key], value)
        else:
            assert options[key] == value


def test_a_captioner_by_reward_is_judged_by_it(file: Path) -> None:
    words = recipes.load(RECIPES / "captioner-flickr8k.yaml", ["training.monitor=val/caption"])
    require_monitor(words)
    reward = recipes.load(RECIPES / "captioner-cider.yaml", ["training.monitor=val/cider"])
    require_monitor(reward)
    for recipe, wrong in ((words, "val/cider"), (reward, "val/caption")):
        with pytest.raises(UserError, match=f"training.monitor is '{wrong}', but there are val/loss, val/"):
            require_monitor(replace(recipe, training=replace(recipe.training, monitor=wrong)))


def test_proposals_are_those_of_the_start_before_those_of_the_localizer(tmp_path: Path) -> None:
    own = ProposalConfig(anchors=(((40.0, 40.0),),) * 3)
    config = AlignerConfig(proposals=own, embed_dim=8, hidden_size=8)
    checkpoint.save(checkpoint.new_network(Aligner, config, Vocabulary({"dog": 9})), tmp_path / "start")
    recipe = recipes.load(RECIPES / "aligner-flickr8k.yaml", [f"training.start={tmp_path / 'start'}"])
    assert model_config(recipe).proposals.anchors == own.anchors
    theirs = Bundle.read("flickr-coco").configs["densecap"].proposals
    captioner = recipes.load(RECIPES / "captioner-flickr8k.yaml", ["model.attend_to=proposals"])
    captioner = replace(captioner, training=replace(captioner.training, start=str(tmp_path / "start")))
    assert model_config(captioner).proposals.anchors == theirs.anchors  # the start has no such captioner

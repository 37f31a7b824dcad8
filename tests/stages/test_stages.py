"""Recipes of stages: what is done once, what is done anew and why, what is left out, and what is refused before."""

from __future__ import annotations

import errno
import gzip
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from commands import error_of, run
from flickr_entities import write_flickr
from refusals import refuses
from safetensors.torch import load_file, save_file
from server_process import START
from tiny_captioner import tiny_captioner
from tiny_stages import write_data, write_teacher
from tiny_tower import write_clip
from tiny_training import CONFIG, plain, stopped_by_ctrl_c, train_and_be_killed
from tiny_training import write_data as write_boxes

import saywhere
from saywhere import options
from saywhere.configs.aligner import AlignerConfig
from saywhere.engines import export as exporting
from saywhere.inference.claims import locked
from saywhere.models.bundle import Bundle
from saywhere.networks import checkpoint
from saywhere.stages import run as stages
from saywhere.stages.kinds import Card
from saywhere.training import recipe as recipes
from saywhere.training.loop import read_log
from saywhere.training.run import find_system, train

RECIPES = Path(__file__).parents[2] / "recipes"
SMOKE, TEACHER = RECIPES / "saywhere-smoke.yaml", "data/clip_encoder.onnx"
pytestmark = pytest.mark.usefixtures("plain_curves")


def tree(root: Path, **stages: Any) -> dict[str, Any]:
    """A recipe of a dense captioner and its phrases on a tiny network."""
    data = {"root": "$boxes", "validation": "val"}
    training = {"epochs": 1, "batch_size": 2, "rest": {"lr": 0.01}, "pretrained": False, "accelerator": "cpu",
                }  # fmt: skip
    model = plain(CONFIG.to_dict())
    then = {**training, "start": "$densecap", "freeze": ["trunk", "region_head"]}
    both = {
        "densecap": {"data": data, "model": model, "training": training},
        "phrases": {"data": data, "model": model, "training": then, "keep": {"$densecap": 0.25}},
    }
    return json.loads(json.dumps({"name": "tiny", "data": {"boxes": str(root)}, "stages": {**both, **stages}}))


class Run:
    """A recipe that is run in a folder, and what it says."""

    def __init__(self, folder: Path) -> None:
        self.out, self.data = folder / "run", write_boxes(folder / "data", train=4, validation=2)
        self.recipe = tree(self.data)

    def __call__(self, *without: str, restart: bool = False) -> list[str]:
        lines: list[str] = []
        stages.train(stages.load("tiny.yaml", self.recipe), self.out, restart, without, lines.append)
        return [line.partition("; done in")[0].partition(": done in")[0].partition(", weights")[0] for line in lines]

    def weights(self, *place: str) -> dict[str, torch.Tensor]:
        return load_file(self.out.joinpath(*place, "model.safetensors"))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of both stages."""
    folder = tmp_path_factory.mktemp("tiny")
    assert Run(folder)() == ["[1/2] densecap", "[2/2] phrases"]
    return folder


@pytest.fixture
def tiny(done: Path, tmp_path: Path) -> Run:
    """The same, to be changed."""
    shutil.copytree(done, tmp_path / "tiny")
    return Run(tmp_path / "tiny")


BEFORE = ["[1/2] densecap: done before", "[2/2] phrases: done before"]


def test_what_is_done_is_not_done_again_wherever_the_data_are(tiny: Run) -> None:
    before = (tiny.out / "model" / "model.safetensors").read_bytes()
    moved = tiny.data.rename(tiny.data.with_name("elsewhere"))
    tiny.recipe["data"]["boxes"] = str(moved)
    tiny.recipe["stages"]["phrases"]["training"] |= {"cache": str(moved / "cache"), "workers": 1}
    assert tiny() == BEFORE
    assert (tiny.out / "model" / "model.safetensors").read_bytes() == before
    assert not list(tiny.out.rglob("last.ckpt"))


def test_shares_of_stages_that_become_one_model_are_added(tiny: Run) -> None:
    first = tiny.recipe["stages"]["densecap"]
    second = {**first, "kind": "densecap", "training": {**first["training"], "start": "$densecap"}}
    phrases = {**tiny.recipe["stages"]["phrases"], "keep": {"$densecap": 0.25, "$more": 0.5}}
    tiny.recipe["stages"] = {"densecap": first, "more": second, "phrases": phrases}
    assert tiny("more") == [BEFORE[0], "[2/2] phrases: anew, keep.$densecap is 0.75 and was 0.25"]


def test_a_mean_with_a_model_that_does_not_fit_is_refused(tiny: Run, tmp_path: Path) -> None:
    keep = tiny.recipe["stages"]["phrases"]["keep"] = {"flickr-coco": 0.5}
    refuses("keep: few weights of flickr-coco fit this model", tiny)
    keep[str(checkpoint.save(tiny_captioner(), tmp_path / "captioner"))] = keep.pop("flickr-coco")
    refuses(r"stage phrases: keep: .*captioner has no densecap", tiny)


def test_an_option_that_changes_brings_its_stage_and_what_follows_anew(tiny: Run) -> None:
    tiny.recipe["stages"]["phrases"]["keep"] = {"$densecap": 0.5}
    assert tiny() == [BEFORE[0], "[2/2] phrases: anew, keep.$densecap is 0.5 and was 0.25"]
    tiny.recipe["seed"] = 1
    assert tiny() == [f"[{n}/2] {name}: anew, seed is 1 and was 0" for n, name in ((1, "densecap"), (2, "phrases"))]
    tiny.recipe["stages"]["densecap"]["training"]["rest"]["lr"] = 0.02
    assert tiny() == [
        "[1/2] densecap: anew, training.rest.lr is 0.02 and was 0.01",
        "[2/2] phrases: anew, densecap is another than before",
    ]


def test_data_that_change_bring_what_reads_them_anew(tiny: Run) -> None:
    lines = (tiny.data / "images.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    row["regions"][1]["phrases"] = ["grey sky"]
    (tiny.data / "images.jsonl").write_text("\n".join([*lines[:-1], json.dumps(row)]))
    assert tiny()[0] == "[1/2] densecap: anew, $boxes val is another than before"


def test_the_mean_of_weights_is_that_of_before_and_after(tiny: Run) -> None:
    before, after = tiny.weights("stages", "densecap", "model"), tiny.weights("stages", "phrases", "run", "model")
    name = "densecap.decoder.output.weight"
    assert not torch.equal(before[name], after[name])
    mean = tiny.weights("model")
    torch.testing.assert_close(mean[name], 0.25 * before[name] + 0.75 * after[name])
    trunk = [name for name in mean if name.startswith("trunk.")]
    assert trunk and all(torch.equal(mean[name], before[name]) for name in trunk)


def test_without_a_stage_others_get_what_it_started_from(tiny: Run) -> None:
    tiny.recipe["stages"]["card"] = {"model": "$phrases"}
    assert tiny("phrases") == ["[1/2] densecap: done before", "[2/2] card"]
    before, now = tiny.weights("stages", "densecap", "model"), tiny.weights("model")
    assert before.keys() == now.keys() and all(torch.equal(before[name], now[name]) for name in now)
    card = (tiny.out / "model" / "README.md").read_text()
    assert "`densecap`" in card and "| `phrases` |" not in card and "4 images of train, 2 images of val" in card
    assert str(tiny.data.parent) not in card


def test_without_a_stage_that_nothing_stands_for_those_that_need_it_are_refused(tiny: Run) -> None:
    tiny.recipe["stages"]["card"] = {"model": "$densecap"}
    refuses(r"stage card needs \$densecap \(model\): leave it out too", tiny, "densecap")
    refuses("--without nothing: the stages of the recipe are densecap, phrases", tiny, "nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages.phrases.training.epoch=1", "unknown key stages.phrases.training.epoch; did you mean"),
        ("stages.phrases.kind=densecaps", "stages.phrases.kind is 'densecaps', but must be one of start, branch"),
        ("stages.phrases.data.root=$box", "$box names neither a data set nor a stage; known are boxes, densecap"),
        ("stages.densecap.training.start=$phrases", "stages.densecap names $phrases, which must come before it"),
        ("stages.phrases.training.freeze=[trunks]", "stage phrases: training.freeze: the network has no module"),
        ("stages.phrases.model.decoding.beam_size=0", "stage phrases: model.decoding.beam_size is 0, but must be"),
        ("stages.phrases.data.validation=test", "no split 'test'; it has train, val"),
        ("stages.phrases.training.start=nowhere", "stage phrases: no model 'nowhere'"),
        ("stages.phrases.training.monitor=val/lose", "stage phrases: training.monitor is 'val/lose', but there are"),
        ("stages.phrases.keep.$densecap=1", "stages.phrases.keep: its shares must be above 0, and together below 1"),
        ("data.boxes=nowhere", "stage densecap: nowhere: no such file or folder"),
        ("data=[1]", "data must be a mapping, not [1]"),
        ("data.boxs=a", "data.boxs: no stage reads $boxs; did you mean data.boxes?"),
        ("data.boxes=null", "say where the data set boxes is: data.boxes=PATH"),
        ("stages.card.model=$densecap", None),
    ],
)
def test_all_is_checked_before_anything_begins(done: Path, tmp_path: Path, change: str, message: str | None) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tree(done / "data")))
    if message is None:  # a recipe with this change is right
        chosen = stages.load(recipe, recipes.read(recipe, [change]))
        assert [each.name for each in stages.plan(chosen, out, (), "")] == ["densecap", "phrases", "card"]
        return
    assert message in error_of(run("train", recipe, change, "--out", out, code=2))
    assert not out.exists()


def test_a_disk_that_fills_up_stops_a_stage_with_one_line_and_what_is_done_stays(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    tiny.recipe["stages"]["card"] = {"model": "$phrases"}
    with monkeypatch.context() as patched:
        patched.setattr(Card, "run", full)
        refuses(r"^stage card: \S+card: the disk is full; what is done stays. Free", tiny)
    assert tiny() == [line.replace("/2", "/3") for line in BEFORE] + ["[3/3] card"]


def test_a_disk_that_is_full_for_the_model_leaves_none_that_is_half_another(
    tiny: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where files cannot be linked they are copied; while some are of one model and some of another there is none."""

    def unlinked(*_: object) -> None:
        raise OSError(errno.EMLINK, "Too many links")

    def full(source: Path, target: Path) -> None:
        if "model.safetensors" in target.name:
            target.write_bytes(source.read_bytes()[:100])
            raise OSError(errno.ENOSPC, "No space left on device")
        shutil.copyfile(source, target)

    tiny.recipe["stages"]["phrases"]["keep"] = {"$densecap": 0.5}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "hardlink_to", unlinked)
        patched.setattr(shutil, "copy2", full)
        refuses(rf"^{tiny.out}/model: the disk is full; what is done stays\. Free", tiny)
    assert not list((tiny.out / "model").glob(".*"))
    refuses(r"is not a saywhere model: config\.json is missing", saywhere.load, tiny.out / "model")
    assert tiny() == BEFORE
    made = tiny.out / "stages" / "phrases" / "model"
    assert {p.name: p.read_bytes() for p in (tiny.out / "model").iterdir()} == {
        p.name: p.read_bytes() for p in made.iterdir()
    }


@pytest.mark.parametrize("there", ["recipe.yaml", "model/notes.txt", "stages/densecap/notes.txt"])
def test_what_no_run_has_written_is_not_replaced(done: Path, tmp_path: Path, there: str) -> None:
    mine = tmp_path / "run" / there
    mine.parent.mkdir(parents=True)
    mine.write_text("name: mine  # what we tried first\n")
    run, message = Run(tmp_path), "written by no run" if there == "recipe.yaml" else "which is of no run"
    for restart in (False, True):
        refuses(f"{message}.*: name another folder with --out", run, restart=restart)
    assert mine.read_text() == "name: mine  # what we tried first\n"
    assert sorted(path.name for path in run.out.iterdir()) == sorted({mine.relative_to(run.out).parts[0], "lock"})


def test_two_runs_do_not_work_in_one_folder(tiny: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in that of stages nor in that of one of them, also where a file system has no locks."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("saywhere.inference.claims.LOCK_WAIT", 0.0)
    config = {**tiny.recipe["stages"]["densecap"], "name": "one", "data": {"root": str(tiny.data)}}
    one = options.from_dict(recipes.Recipe, config)
    busy = "another run is writing to it; wait for it, or name another folder with --out"

    def refused() -> None:
        refuses(busy, tiny)
        refuses(busy, train, one, tiny.out)

    with (tiny.out / "lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        refused()

    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with locked(tiny.out):
        refused()
    assert tiny() == BEFORE


def test_a_recipe_without_stages_leaves_none_out(tmp_path: Path) -> None:
    (tmp_path / "one.yaml").write_text("name: one\ndata: {root: x}\n")
    result = run("train", tmp_path / "one.yaml", "--without", "x", code=2)
    assert "one.yaml has no stages" in result.stderr


def test_a_run_that_was_stopped_by_ctrl_c_goes_on_and_makes_the_same(done: Path, tmp_path: Path) -> None:
    recipe, out = tmp_path / "recipe.yaml", tmp_path / "run"
    recipe.write_text(yaml.safe_dump(tree(done / "data")))
    arguments = ["train", str(recipe), "--out", str(out)]
    with stopped_by_ctrl_c(lambda training: (training.recipe.name, training.state.batches) == ("phrases", 1)):
        first = run(*arguments, code=130)
    assert first.stderr.splitlines()[-1].startswith("stopped in the stage phrases; run it again to continue there")
    again = run(*arguments)
    assert again.stdout.startswith("[1/2] densecap: done before") and "[2/2] phrases: resumed" in again.stderr
    one, two = (load_file(folder / "model" / "model.safetensors") for folder in (out, done / "run"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def test_a_stage_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    run = Run(tmp_path)
    stopped = pytest.raises(KeyboardInterrupt, match="stopped in the stage densecap")
    with stopped_by_ctrl_c(lambda training: training.state.batches == 1), stopped:
        run()
    assert (run.out / "stages" / "densecap" / "last.ckpt").exists()
    lines = (run.data / "images.jsonl").read_text().splitlines()
    (run.data / "images.jsonl").write_text("\n".join(lines[1:]))
    assert run() == ["[1/2] densecap: anew, $boxes train is another than before", "[2/2] phrases"]
    other = Run(tmp_path)
    (other.data / "images.jsonl").write_text("\n".join(lines[1:]))
    other.out = tmp_path / "other"
    other()
    one, two = run.weights("model"), other.weights("model")
    assert all(torch.equal(one[name], two[name]) for name in two)


def plan_of(file: str, tmp_path: Path, **more: Path) -> tuple[Any, dict[str, Any]]:
    """A recipe that ships, and its stages as they are planned on made-up data."""
    flickr, wider = write_flickr(tmp_path / "flickr8k"), tmp_path / "wider"
    shutil.copy(flickr / "Flickr_8k.devImages.txt", flickr / "Flickr_8k.trainImages.txt")
    images, text = write_data(wider, train=2, validation=1)
    for name in ("coco", "kinds", "one-word"):
        shutil.copy(images, wider / f"{name}.jsonl")
    images.unlink()
    sentences = tmp_path / "text" / "flickr30k-sentences.txt.gz"
    sentences.parent.mkdir()
    sentences.write_bytes(gzip.compress(text.read_bytes()))
    everyday = shutil.copytree(wider, tmp_path / "everyday")
    places = {"flickr8k": flickr, "wider": wider, "everyday": everyday, **more}
    changes = [f"data.{name}={places[name]}" for name in recipes.read(RECIPES / file)["data"]]
    recipe = stages.load(RECIPES / file, recipes.read(RECIPES / file, changes))
    return recipe, {each.name: each for each in stages.plan(recipe, tmp_path / "run", (), "")}


def test_the_recipe_of_large_is_right(tmp_path: Path) -> None:
    _, clip = write_clip(tmp_path / "clip", 4, 64, 24)
    save_file({f"0.o.{name}": torch.zeros(64, 64) for name in ("up", "down")}, tmp_path / "tuning.safetensors")
    recipe, plans = plan_of("saywhere-large.yaml", tmp_path, clip=clip, tuning=tmp_path / "tuning.safetensors")
    assert list(plans) == list(recipe.stages)
    for name in ("phrases", "aligner-tower", "aligner", "captioner"):
        stage = plans[name].stage
        assert stage.training.branch == str(tmp_path / "run" / "stages" / "tower" / "model" / "tower.onnx")
        assert stage.model["trunk"]["tower"] and not stage.model["trunk"]["branch"]
    assert {"$clip file", "$tuning file", "$wider train"} <= plans["tower"].inputs.keys()
    assert plans["aligner"].stage.training.freeze == ("projects",) and plans["aligner"].stage.model["region_phrases"]
    assert {"$flickr8k train", "$everyday train"} <= plans["captioner"].inputs.keys()


def test_the_recipe_of_everyday_sentences_is_right(tmp_path: Path) -> None:
    recipe, plans = plan_of("captions-everyday.yaml", tmp_path)
    assert list(plans) == list(recipe.stages) == ["start", "captioner-words", "captioner", "ngrams"]
    words, reward = plans["captioner-words"].stage, plans["captioner"].stage
    assert "reward" not in words.model and (reward.model["reward"], [*reward.keep.values()]) == ("cider", [0.5])
    assert words.model["people_threshold"] == Bundle.read("flickr-coco").configs["captioner"].people_threshold
    assert {"$flickr8k train", "$everyday train"} <= plans["captioner"].inputs.keys()


def test_the_recipe_of_everyday_words_is_right(tmp_path: Path) -> None:
    recipe, plans = plan_of("aligner-everyday.yaml", tmp_path)
    assert list(plans) == list(recipe.stages) == ["start", "aligner"]
    stage, bundled = plans["aligner"].stage, Bundle.read("flickr-coco").configs["aligner"]
    assert (stage.training.freeze, [*stage.keep.values()]) == (("projects",), [0.3])
    assert {"$flickr8k train", "$wider train", "$everyday train", "$everyday val"} <= plans["aligner"].inputs.keys()
    made = AlignerConfig().merge(stage.model, prefix="model.")
    assert replace(made, trunk=bundled.trunk, localizer=bundled.localizer, proposals=bundled.proposals) == bundled
    assert made.proposals.anchors == bundled.proposals.anchors


def test_the_recipe_of_the_bundled_model_is_right(tmp_path: Path) -> None:
    clip, text = write_teacher(tmp_path / TEACHER), tmp_path / "text"
    recipe, plans = plan_of("saywhere.yaml", tmp_path, clip=clip, text=text)
    assert list(plans) == list(recipe.stages)
    assert plans.keys() >= {"phrases", "phrase-ngrams", "nouns", "ngrams", "chunker", "card"}
    assert plans["aligner"].stage.model["trunk"]["long_side"] == 416
    assert plans["chunker"].inputs.keys() == {"$flickr8k train", "$text/flickr30k-sentences.txt.gz train"}
    assert {"$everyday train", "$wider/coco.jsonl train"} <= plans["densecap"].inputs.keys()
    assert {"$clip teacher", "$wider train"} <= plans["branch"].inputs.keys()
    assert {"branch", "densecap"} <= plans["phrases"].inputs.keys()
    assert "branch" not in plans["densecap"].inputs


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of recipes/saywhere-smoke.yaml that was killed on its way."""
    folder = tmp_path_factory.mktemp("smoke")
    images, text = write_data(folder / "data")
    places = [f"data.images={images}", f"data.text={text}", f"data.teacher={write_teacher(folder / TEACHER)}"]
    arguments = ["train", str(SMOKE), *places, "--out", str(folder / "run")]
    killed = train_and_be_killed(arguments, "branch", epoch=1, batches=2, folder=folder)
    assert killed.stdout.count("done in") == 2, killed.stderr
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        made = run(*arguments)
    names = [line.split()[1] for line in made.stdout.splitlines()]
    assert names[:-1] == [f"{name}:" for name in recipes.read(SMOKE)["stages"]]
    assert [" done before" in line for line in made.stdout.splitlines()[:15]] == [True] * 2 + [False] * 13
    assert "[3/15] branch: resumed" in made.stderr and "resuming the run" in made.stderr
    return folder


def test_parts_learn_on_a_tower_and_go_on_from_those_without(smoke: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stages of recipes/saywhere-large.yaml, from models of the stages above.

    The graph is left out: it takes longer than all stages, and tests/engines/test_tower.py has one of such a model.
    """
    for name in ("write_graph", "OnnxEngine", "compare_engines"):
        monkeypatch.setattr(exporting, name, lambda *_: 0.0)
    made, folder = smoke / "run" / "stages", smoke / "large"
    small = recipes.read(SMOKE)["stages"]
    _, clip = write_clip(folder, 4, 768, 512)
    trees = {name: json.loads(json.dumps(small[name])) for name in ("phrases", "nouns", "aligner", "captioner")}
    trees["nouns"] |= {"data": [{"root": "$images", "limit": 16}], "epochs": 1}
    for name, before in (("phrases", "densecap"), ("aligner", "aligner-words"), ("captioner", "captioner-words")):
        start = str(made / before / "model")
        trees[name]["training"] |= {"start": start, "cache": str(folder / "cache"), "epochs": 1}
        trees[name]["data"]["train_limit"] = 8
        if trees[name].pop("keep", None):
            trees[name]["keep"] = {start: 0.5}
    chosen = {
        "start": {"model": str(made / "densecap" / "model")},
        "tower": {"data": [{"root": "$images", "limit": 6}], "model": "$start", "teacher": str(clip)},
        **trees,
        "export": {"parts": ["$phrases", "$aligner", "$captioner", "$nouns"]},
    }
    images = str(smoke / "data" / "images.jsonl")
    recipe = {"name": "large", "data": {"images": images}, "stages": json.loads(json.dumps(chosen))}
    lines: list[str] = []
    stages.train(stages.load("large.yaml", recipe), folder / "run", say=lines.append)
    assert [line.split()[1] for line in lines] == [f"{name}:" for name in chosen]
    bundle = Bundle.read(folder / "run" / "model")
    assert bundle.trunk.tower and not bundle.trunk.branch
    assert all(bundle.configs[part].branch for part in ("aligner", "captioner", "nouns"))
    tower = (folder / "run" / "stages" / "tower" / "model" / "tower.onnx").read_bytes()
    assert (folder / "run" / "model" / "tower.onnx").read_bytes() == tower
    model = saywhere.load(folder / "run" / "model", "cpu", engine="torch")
    seen = model.encode(smoke / "data" / "042.png")
    assert len(model.describe(seen)) and str(model.caption(seen)) and model.embed(seen).vectors.any()
    weights = load_file(folder / "run" / "model" / "model.safetensors")
    assert weights["aligner.projects.0.weight"][:, -512:].any()  # the embedding of the image counts
    assert weights["nouns.kinds.weight"].shape[1] > 1280 + 512


def test_all_stages_make_a_model_with_its_card(smoke: Path) -> None:
    model = saywhere.load(smoke / "run" / "model")
    assert type(model.engine).__module__ == "saywhere.engines.onnx"
    seen = model.encode(smoke / "data" / "042.png")
    assert len(model.describe(seen)) and str(model.caption(seen)) and model.embed(seen).vectors.any()
    logs = {path.parent.name: read_log(path) for path in smoke.glob("run/stages/*/metrics.csv")}
    parts = {"branch": "branch", "densecap": "densecap", "aligner": "aligner", "captioner-words": "captioner"}
    for name, part in parts.items():
        made = smoke / "run" / "stages" / name / "model"
        config = None if name == "branch" else Bundle.read(made).configs[part]
        known = {"val/loss", *(f"val/{loss}" for loss in find_system(part).losses(config))}
        assert known == {column for column in logs[name] if column.startswith("val/")}
    learnt = load_file(smoke / "run" / "stages" / "branch" / "model" / "branch.safetensors")
    stored = load_file(smoke / "run" / "model" / "model.safetensors")
    assert all(torch.equal(stored[f"trunk.branch.{name}"], value) for name, value in learnt.items())
    configs = Bundle.read(smoke / "run" / "model").configs
    assert configs["densecap"].trunk.branch and all(configs[p].branch for p in ("aligner", "captioner", "nouns"))
    assert model.calibration.box is not None and model.calibration.phrase is not None
    assert {path.name for path in (smoke / "run" / "model").iterdir()} == {
        "README.md", "calibration.json", "config.json", "information.safetensors", "model.safetensors",
        "trunk-int8.onnx", "trunk.json", "trunk.onnx", "vocabulary.json",
    }  # fmt: skip
    command = [sys.executable, "-c", START, "describe", "data/042.png", "--threshold", "0", "--model", "run/model"]
    core = subprocess.run(command, capture_output=True, text=True, cwd=smoke)
    assert core.returncode == 0 and core.stdout, core.stderr  # without torch
    card = (smoke / "run" / "model" / "README.md").read_text()
    rank = "| `saywhere evaluate rank --data images.jsonl --split val` | annotation R@1"
    data = "24 images of train, 8 images of val"  # of the branch, which counts views
    for text in (data, rank, "- box: logit", "## Limits", "keep:", "4 kinds from 48 boxes"):
        assert text in card, text


def smoke_recipe(smoke: Path, *changes: str) -> stages.StagedRecipe:
    data = smoke / "data"
    names = {"images": "images.jsonl", "text": "sentences.txt", "teacher": "clip_encoder.onnx"}
    places = [f"data.{name}={data / file}" for name, file in names.items()]
    return stages.load(SMOKE, recipes.read(SMOKE, [*places, *changes]))


def test_a_measurement_that_changes_costs_no_training(smoke: Path) -> None:
    lines: list[str] = []
    changed = smoke_recipe(smoke, "stages.evaluation.tasks={rank: {data: {root: $images, split: val}}}")
    stages.train(changed, smoke / "run", say=lines.append)
    assert [" done before" in line for line in lines] == [True] * 13 + [False] * 2
    assert "card: anew, evaluation is another than before" in lines[14]
    assert (smoke / "run" / "model" / "README.md").read_text().count("| `saywhere evaluate") == 1


def test_data_of_stages_that_are_left_out_needs_no_place() -> None:
    tree = recipes.read(SMOKE, ["data.images=a.jsonl", "data.text=t"])
    refuses("say where the data set teacher is: data.teacher=PATH", stages.load, SMOKE, tree, ["ngrams"])
    assert stages.load(SMOKE, tree, ["branch"]).data == {"images": "a.jsonl", "text": "t"}


def test_the_stages_of_the_smoke_recipe_do_without_each_other(smoke: Path) -> None:
    recipe, out = smoke_recipe(smoke), smoke / "run"

    def planned(*without: str) -> dict[str, Any]:
        return {each.name: each for each in stages.plan(recipe, out, without, "smoke")}

    whole, few = planned(), planned("phrases", "ngrams", "nouns", "chunker")
    assert few["aligner"].stage.model["localizer"] == str(out / "stages" / "densecap" / "model")
    parts = [str(out / "stages" / name / "model") for name in ("densecap", "aligner", "captioner")]
    assert list(few["export"].stage.parts) == parts
    same = {name for name in few if few[name].key == whole[name].key}
    assert same == {"start", "densecap", "branch", "captioner-words", "captioner"}
    plain = planned("branch")
    assert {name for name in plain if plain[name].key == whole[name].key} == {"start", "densecap", "chunker"}
    models = [plain[name].stage.model for name in ("phrases", "aligner", "captioner")]
    assert not any(model["trunk"].get("branch") or model.get("branch") for model in models)
    assert whole["phrases"].stage.training.branch == str(out / "stages" / "branch" / "model" / "branch.safetensors")
    assert whole["densecap"].stage.training.branch is None and whole["captioner"].stage.model["branch"]
    refuses(r"stage calibration needs \$export", planned, "export")

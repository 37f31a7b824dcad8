from __future__ import annotations

import copy
import dataclasses
import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from commands import error_of, run
from photographs import noise
from refusals import refuses
from safetensors.torch import save_file
from tiny_bundle import exported_bundle, tiny_networks
from tiny_stages import write_data
from tiny_tower import tower_model
from typer.testing import Result

import saywhere
from saywhere import UserError, files
from saywhere.formats import cvat, xmp
from saywhere.models.bundle import CARD, CONFIG, GRAPH, GRAPH_TOWER, VOCABULARY, Bundle
from saywhere.networks import checkpoint
from saywhere.regions import Regions
from saywhere.stages import finetune as finetune_stage
from saywhere.stages.finetune import Finetuned, same_words
from saywhere.stages.kinds import copy_model
from saywhere.training import heads


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("own"), train=8, validation=0)[0]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose scores of boxes may change."""
    folder = tmp_path_factory.mktemp("base")
    copy_model(exported_bundle(), folder)
    size = checkpoint.load_network(folder, "densecap").region_head.score.in_features + 1
    checkpoint.write_information(folder, 1e-3 * np.eye(size))
    return folder


@pytest.fixture(scope="module")
def counted(images: Path, base: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Finetuned, int]:
    """A run, and how often it waited for the disk."""
    sync, synced = files.sync, list[object]()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(files, "sync", lambda file: synced.append(file) or sync(file))
        made = saywhere.finetune(images, tmp_path_factory.mktemp("made") / "mine", model=base, epochs=6)
    return made, len(synced)


@pytest.fixture(scope="module")
def done(counted: tuple[Finetuned, int]) -> Finetuned:
    return counted[0]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return checkpoint.read_weights(folder)


def same_weights(one: Path, two: Path) -> bool:
    ours, theirs = weights(one), weights(two)
    return ours.keys() == theirs.keys() and all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_the_new_model_has_all_parts_and_only_the_last_layers_differ(done: Finetuned, base: Path) -> None:
    before, after = weights(Bundle.read(exported_bundle()).folder), weights(done.model)
    kept = {name: value for name, value in after.items() if name.startswith("densecap.start.")}
    assert (done.learnt, done.held_out) == (6, 2) and bool(kept) == bool(done.share)
    assert before.keys() == after.keys() - kept.keys()
    for name, value in kept.items():  # rows of new words follow
        old = before[name.replace("start.score", "region_head.score").replace("start.", "")]
        assert torch.equal(value[: len(old)] if value.ndim else value, old), name
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    scores = {name for name in changed if name.startswith("densecap.region_head.score.")}
    assert all(name.startswith(("densecap.phrase_head", "densecap.decoder")) for name in changed - scores)
    assert len(scores) == (2 if done.share else 0)
    assert bool(changed) == bool(done.share) and (done.losses[1] < done.losses[0]) == bool(done.share)
    assert not [path for path in done.model.iterdir() if path.is_dir()]
    model = saywhere.load(done.model)
    image = next(done.model.parent.parent.glob("own*/000.png"))
    assert model.parts == ("densecap", "aligner", "captioner") and (done.model / GRAPH).is_file()
    assert not done.share or {*done.words} <= {*model.require("densecap", "").config.own_words}
    assert len(model.describe(image, top=2)) == 2 and model.caption(image) and model.embed(image)
    card = (done.model / CARD).read_text()
    title = f"# mine\n\nThe model {base.name}, [fine-tuned](#fine-tuning). What follows was written about {base.name}."
    assert card.startswith(title)
    again = finetune_stage.retitled(card, "other", "mine")
    assert again.startswith("# other\n\nThe model mine, [fine-tuned]") and title not in again
    assert "## Fine-tuning" in card and "6 images of jsonl images.jsonl, seed 0" in card


@pytest.mark.parametrize("engine", ["onnx", "torch"])
def test_phrases_are_found_as_before_fine_tuning(done: Finetuned, engine: Literal["onnx", "torch"]) -> None:
    assert done.share
    image, texts = next(done.model.parent.parent.glob("own*/000.png")), ["the blue sky", "a cloud"]
    start, made = (saywhere.load(folder, engine=engine) for folder in (exported_bundle(), done.model))
    old, new = (model.ground(image, texts) for model in (start, made))
    assert new.boxes.tolist() == old.boxes.tolist()
    assert new.scores == pytest.approx(old.scores, rel=0.2), "the four new words take a little from all others"
    old, new = (model.score(image, texts, boxes=[[0, 0, 40, 40]]).log_probs for model in (start, made))
    assert not np.allclose(new, old, atol=0.05), "how probable phrases are is what was learnt"


def regions_of(seed: int, count: int = 60) -> heads.Regions:
    """Regions of an image, of which those whose first number is high match a true box."""
    random = np.random.default_rng(seed)
    embeddings = random.normal(size=(count, 4)).astype(np.float16)
    overlaps = np.where(embeddings[:, 0] > 0.8, 0.9, np.where(embeddings[:, 0] > 0.5, 0.3, 0.0))
    none = np.zeros((0, 4), np.float16)
    return heads.Regions(none, np.zeros(0, int), none, embeddings, embeddings[:, 1].astype(np.float32) - 2, overlaps)


def test_box_scores_rise_where_the_user_annotated_and_little_where_the_information_says_so() -> None:
    images, zero = [regions_of(0), regions_of(1)], np.zeros(5)
    matches, free = images[0].overlaps >= 0.5, images[0].overlaps < heads.NEAR
    prior = 1e-6 * np.eye(5)
    change = heads.fit_scores(images, prior)
    assert heads.score_loss(change, [regions_of(2)]) < heads.score_loss(zero, [regions_of(2)])
    raised = heads.score_inputs(images[0].embeddings) @ change
    assert raised[matches].min() > 1 and abs(raised[free].mean()) < 1 and change[0] > 4 * abs(change[2:4]).max()
    for row in range(5):  # it is the minimum
        for step in (-1e-3, 1e-3):
            other = change + step * np.eye(5)[row]
            values = [heads.score_loss(c, images) + 0.5 * heads.PRIOR * c @ prior @ c for c in (change, other)]
            assert values[0] < values[1]
    kept = heads.fit_scores(images, np.diag([1e3, 1e-6, 1e-6, 1e-6, 1e-6]))
    assert abs(kept[0]) < 1e-3 < np.abs(kept[1:]).max()


def test_targets_of_scores_are_kept_where_nothing_is_annotated() -> None:
    overlaps = np.array([0.0, 0.19, 0.2, 0.49, 0.5, 1.0])
    some = dataclasses.replace(regions_of(0, 6), logits=np.array([0.0, 0.0, 0.0, 0.0, 0.0, 4.0]), overlaps=overlaps)
    assert heads.score_targets(some) == pytest.approx([0.5, 0.5, 0.25, 0.25, 0.8, 1 / (1 + np.exp(-4))])


def test_information_is_stored_up_to_its_largest_eigenvalues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    basis = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    matrix = basis @ np.diag([9.0, 4.0, 1.0, 0.3, 0.2, 0.1]) @ basis.T
    assert checkpoint.read_information(tmp_path, 6) is None
    checkpoint.write_information(tmp_path, matrix)
    np.testing.assert_allclose(checkpoint.read_information(tmp_path, 6), matrix, atol=5e-3)
    monkeypatch.setattr(checkpoint, "INFORMATION_RANK", 3)
    checkpoint.write_information(tmp_path, matrix)
    found = checkpoint.read_information(tmp_path, 6)
    assert found is not None
    values = np.linalg.eigvalsh(found)[::-1]
    assert values == pytest.approx([9.2, 4.2, 1.2, 0.2, 0.2, 0.2], rel=2e-3)
    refuses("does not fit the model: calibrate its boxes again", checkpoint.read_information, tmp_path, 7)
    for factor, rest in ((np.nan, 0.1), (1.0, -0.1), (1.0, np.inf), (np.inf, 0.1)):
        tensors = {"factor": torch.full((3, 6), factor), "rest": torch.tensor([rest])}
        save_file(tensors, tmp_path / "information.safetensors")
        refuses("has values that are no information: calibrate", checkpoint.read_information, tmp_path, 6)
    (tmp_path / "information.safetensors").write_bytes(b"no tensors")
    refuses("cannot be loaded", checkpoint.read_information, tmp_path, 6)


def test_a_damaged_file_of_information_is_refused_before_any_work(base: Path, images: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    copy_model(base, broken)
    checkpoint.write_information(broken, np.eye(3))
    with pytest.raises(UserError, match=r"information\.safetensors does not fit the model: calibrate its boxes again"):
        saywhere.finetune(images, tmp_path / "mine", model=broken, tell=lambda line: pytest.fail(line))
    told: list[str] = []
    saywhere.finetune(images, tmp_path / "mine", model=exported_bundle(), epochs=1, tell=told.append)
    assert any(line.startswith("scores of boxes stay: ") for line in told), told


def test_scores_stay_if_they_are_no_better_on_held_out_images(
    base: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "score_loss", lambda change, _: float(bool(np.any(change))))
    monkeypatch.setattr(heads, "fit_scores", lambda _, information: np.ones(len(information)))
    made = saywhere.finetune(images, tmp_path / "mine", model=base, epochs=6)
    name = "densecap.region_head.score.weight"
    assert made.share and torch.equal(weights(made.model)[name], weights(base)[name])
    assert len(made.found) == 2 and made.lines()[2].startswith("boxes found")


def test_new_words_are_in_the_vocabulary_behind_the_old_ones(images: Path) -> None:
    network = checkpoint.load_network(exported_bundle(), "densecap")
    wider, new = heads.with_words(network, ["a zeppelin", "a dog", "a zeppelin"])
    assert "zeppelin" in new and wider.vocabulary.tokens[: len(network.vocabulary)] == network.vocabulary.tokens
    row = wider.vocabulary.tokens.index("zeppelin")
    known = slice(4, len(network.vocabulary))
    torch.testing.assert_close(wider.decoder.words.weight[row], network.decoder.words.weight[known].mean(dim=0))
    assert wider.decoder.output.bias[row] < network.decoder.output.bias[known].mean()
    torch.testing.assert_close(wider.decoder.output.weight[: len(network.vocabulary)], network.decoder.output.weight)


def test_n_grams_have_the_same_words_in_the_new_vocabulary() -> None:
    network = tiny_networks({"densecap": {"ngrams": {"count": 9, "words": 18, "size": 4}}})["densecap"]
    wider, _ = heads.with_words(network, ["a zeppelin beside an aardvark"])
    for before, after in zip(network.ngrams.token_ids.tolist(), wider.ngrams.token_ids.tolist(), strict=True):
        assert network.vocabulary.tokens[before] == wider.vocabulary.tokens[after]
    assert torch.equal(network.ngrams.keys, wider.ngrams.keys)
    torch.testing.assert_close(network.ngrams.query.weight, wider.ngrams.query.weight)


def test_new_words_move_ten_times_as_far_and_are_not_averaged(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = Bundle.read(exported_bundle())
    own = finetune_stage._read(lines(images, tmp_path, 8, "a zeppelin"), None, "train", None, bundle, 0, print)
    run = finetune_stage._Run(tmp_path / "made", bundle, own, None, 0, print)
    layers = heads.Heads(run.network).eval()
    before = copy.deepcopy(layers)
    lessons = run._lessons(before, own.learnt, "learnt")
    (new,) = run.new
    assert run.network.vocabulary.tokens[new] == "zeppelin"
    start = before.state_dict()["decoder.output.weight"]
    moved: list[torch.Tensor] = []
    for faster in (1.0, heads.FASTER):
        monkeypatch.setattr(heads, "FASTER", faster)
        layers.load_state_dict(before.state_dict())
        heads.train(layers, lessons, lessons, 1, 0, run.new)
        moved.append(layers.decoder.output.weight.detach() - start)
    layers.load_state_dict(before.state_dict())
    heads.train(layers, lessons, lessons, 1, 0)
    torch.testing.assert_close(layers.decoder.output.weight.detach() - start, moved[0], msg="without new words")
    layers.load_state_dict(before.state_dict())
    heads.train(layers, lessons, lessons, 1, 0, run.new)
    assert heads.FASTER == 10 and moved[0][new].abs().max() > 0
    torch.testing.assert_close(moved[1][new], 10 * moved[0][new], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(moved[1][:new], moved[0][:new])
    trained = copy.deepcopy(layers.state_dict())
    run._mix(layers, before, trained, 0.25)
    mixed = layers.decoder.output.weight.detach() - start
    torch.testing.assert_close(mixed[new], moved[1][new])
    torch.testing.assert_close(mixed[:new], 0.25 * moved[1][:new], rtol=1e-3, atol=1e-6)


def test_an_image_that_has_gone_since_it_was_looked_at_is_left_out(images: Path, tmp_path: Path) -> None:
    bundle = Bundle.read(exported_bundle())
    own = finetune_stage._read(images, None, "train", None, bundle, 0, print)
    own.held_out[:] = [dataclasses.replace(own.held_out[0], image=tmp_path / "gone.png")]
    run = finetune_stage._Run(tmp_path / "made", bundle, own, None, 0, print)
    assert run._word_f1(saywhere.load(bundle.folder)) == 0


@pytest.mark.parametrize(
    ("kept", "own_kind", "f1", "share", "loss", "reason"),
    [
        (0.0, False, {}, 0.375, 4.0, ""),
        (1.1, False, {}, 0.0, 9.0, "already 0.25 of the new weights change too many phrases"),
        (1.0, True, {}, 0.375, 4.0, ""),  # all other regions show the user's things too
        (0.0, False, {0.375: 0.4}, 0.25, 5.0, ""),  # fewer words are right than before
        (0.0, False, {0.375: 0.4, 0.25: 0.49}, 0.5, 6.0, ""),
        (0.0, False, dict.fromkeys((0.25, 0.375, 0.5), 0.4), 0.0, 9.0, "F1 0.500 before, 0.400 after"),
    ],
)
def test_the_share_with_the_likeliest_phrases_of_those_that_keep_the_rest(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    kept: float, own_kind: bool, f1: dict[float, float], share: float, loss: float, reason: str,
) -> None:  # fmt: skip
    bundle = Bundle.read(exported_bundle())
    own = finetune_stage._read(images, None, "train", None, bundle, 0, print)
    run = finetune_stage._Run(tmp_path / "made", bundle, own, None, 0, print)
    layers = heads.Heads(run.network).eval()
    before = copy.deepcopy(layers)
    trained = {name: value + 1 if value.is_floating_point() else value for name, value in layers.state_dict().items()}
    lessons = run._lessons(before, own.held_out, "held-out")
    monkeypatch.setattr(finetune_stage, "kind_of", lambda phrase: "dog" if own_kind else "")
    found = iter([9.0, 5.0, 4.0, 6.0])
    monkeypatch.setattr(heads, "measure", lambda *arguments: (next(found), 0.0))
    monkeypatch.setattr(finetune_stage, "SHARES", dict.fromkeys(finetune_stage.SHARES, kept))
    start, *tried = run._try(layers, before, trained, (lessons, lessons), {"dog"})
    monkeypatch.setattr(run, "_word_f1", lambda made: f1.get(made, 0.5))
    chosen, made, measured, why = run._choose(start, tried, lambda share: share)  # pyright: ignore[reportArgumentType]
    assert (start.loss, chosen.loss, chosen.share, made) == (9.0, loss, share, share)
    assert measured == (0.5, 0.5) and reason in why and bool(reason) == bool(why)
    run._mix(layers, before, trained, share)
    old = slice(min(run.new))  # rows of words that are not new
    torch.testing.assert_close(layers.decoder.output.weight[old], before.decoder.output.weight[old] + share)


def test_a_run_that_is_stopped_goes_on_and_makes_the_same(
    done: Finetuned, base: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = heads._train_epoch

    def stop(*arguments: object) -> None:
        if arguments[4] == 3:
            raise KeyboardInterrupt
        whole(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(heads, "_train_epoch", stop)
    with pytest.raises(KeyboardInterrupt, match="run it again to continue"):
        saywhere.finetune(images, tmp_path / "mine", model=base, epochs=6)
    monkeypatch.setattr(heads, "_train_epoch", whole)
    regions = min((tmp_path / "mine" / "run" / "learnt").iterdir())
    regions.write_bytes(regions.read_bytes()[:-9])  # damaged: they are found again
    again = saywhere.finetune(images, tmp_path / "mine", model=base, epochs=6)
    assert (again.start, again.end, again.share, again.found) == (done.start, done.end, done.share, done.found)
    assert same_weights(again.model, done.model)


def test_what_is_done_is_not_done_again_and_another_run_is_refused(done: Finetuned, base: Path, images: Path) -> None:
    (done.model / "run" / "regions").mkdir(parents=True)  # as a run leaves it that is killed at its very end
    again = saywhere.finetune(images, done.model, model=base, epochs=6)
    assert again == done and not [path for path in done.model.iterdir() if path.is_dir()]
    with pytest.raises(UserError, match="has a run that differs in seed: name another folder with --out, or add"):
        saywhere.finetune(images, done.model, model=base, epochs=6, seed=1)


def test_a_model_that_looks_with_a_tower_learns_too(images: Path, tmp_path: Path) -> None:
    start = tower_model()
    made = saywhere.finetune(images, tmp_path / "mine", model=start, epochs=1)
    assert (made.model / GRAPH_TOWER).read_bytes() == (start / GRAPH_TOWER).read_bytes()
    assert saywhere.load(made.model).encode(images.parent / "000.png").maps.summary.any()


def test_a_folder_with_another_model_is_refused(images: Path, tmp_path: Path) -> None:
    shutil.copytree(Bundle.read(exported_bundle()).folder, tmp_path / "other")
    with pytest.raises(UserError, match="other has another model: name another folder with --out"):
        saywhere.finetune(images, tmp_path / "other", model=exported_bundle())
    assert not [path for path in (tmp_path / "other").iterdir() if path.is_dir()]


@pytest.mark.parametrize("restart", [False, True])
def test_a_folder_with_other_files_is_refused(images: Path, tmp_path: Path, restart: bool) -> None:
    (photos := tmp_path / "photos").mkdir()
    (photos / "a.jpg").touch()
    with pytest.raises(
        UserError, match=r"photos has a\.jpg, which does not belong to a model: name another folder with --out"
    ):
        saywhere.finetune(images, photos, model=exported_bundle(), restart=restart)
    assert [path.name for path in photos.iterdir()] == ["a.jpg"]


def test_images_that_are_measured_on_teach_nothing(images: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--split and --validation are both train"):
        saywhere.finetune(images, tmp_path / "mine", model=exported_bundle(), split="train", validation="train")
    rows = [json.loads(line) for line in images.read_text().splitlines()]
    rows = [row | {"image": str(images.parent / row["image"])} for row in rows]
    rows += [row | {"split": "val"} for row in rows[:2]]
    (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, rows)))
    told = list[str]()
    saywhere.finetune(tmp_path / "both.jsonl", tmp_path / "mine", model=exported_bundle(), epochs=1, tell=told.append)
    assert "train: 2 images left out, which val has, too: they are measured on" in told
    assert any(f": {len(rows) - 4} images to learn from, 2 held out" in line for line in told), told
    (tmp_path / "val.jsonl").write_text("\n".join(json.dumps(row | {"split": "val"}) for row in rows[: len(rows) - 2]))
    told.clear()
    saywhere.finetune(
        tmp_path / "val.jsonl", tmp_path / "other", model=exported_bundle(), split="val", epochs=1, tell=told.append
    )
    assert any(f": {len(rows) - 4} images to learn from, 2 held out" in line for line in told), told  # a fifth of 8


def test_images_without_a_box_left_are_told_why(tmp_path: Path) -> None:
    noise(96, 64).save(tmp_path / "a.png")
    line = {"image": "a.png", "regions": [{"box": [40, 2, 10, 30], "phrase": "a dog"}]}
    (tmp_path / "regions.jsonl").write_text(json.dumps(line))
    with pytest.raises(UserError, match=r"train has 0; train: broken region: 1 \(.* 10, 30\] is inside out"):
        saywhere.finetune(tmp_path, tmp_path / "mine", model=exported_bundle())


def lines(images: Path, folder: Path, count: int, phrase: str | None = None) -> Path:
    rows = [json.loads(line) for line in images.read_text().splitlines()[:count]]
    for row in rows:
        row["image"] = str(images.parent / row["image"])
        for region in row["regions"]:
            region["phrase"] = region["phrase"] if phrase is None else phrase
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder / "few.jsonl"


def test_an_image_in_several_lines_is_not_learnt_and_held_out_at_once(images: Path, tmp_path: Path) -> None:
    few = lines(images, tmp_path, 8)
    few.write_text(few.read_text() * 3)
    own = finetune_stage._read(few, None, "train", None, Bundle.read(exported_bundle()), 0, print)
    learnt, held_out = ([sample.image for sample in part] for part in (own.learnt, own.held_out))
    assert (len(learnt), len(held_out)) == (6, 2) and not {*learnt} & {*held_out}


def test_drafts_that_nobody_has_corrected_are_told(images: Path, tmp_path: Path) -> None:
    told = list[str]()
    for number in range(3):
        shutil.copy(images.parent / f"{number:03}.png", image := tmp_path / f"{number}.png")
        draft = Regions(96, 64, [[4, 4, 40, 40]], captions=["a dog"], image=str(image))
        assert xmp.beside(draft) is None
    place = tmp_path / "0.png.xmp"
    place.write_text(place.read_text().replace("a dog", "a cat"))
    finetune_stage._read(tmp_path, None, "train", None, Bundle.read(exported_bundle()), 0, told.append)
    assert told == ["warning: the regions of 2 images are drafts of a program that nobody has corrected"]


def test_what_reading_changes_is_told(images: Path, tmp_path: Path) -> None:
    boxes = [[0, 0, 30, 30], [30, 30, 60, 60]]
    drafts = [Regions(96, 64, boxes, [0.5] * 2, ("a cat", "a dog"), image=f"{number:03}.png") for number in range(3)]
    cvat.write(tmp_path / "annotations.xml", drafts)
    for number in range(3):
        shutil.copy(images.parent / f"{number:03}.png", tmp_path)
    text = (tmp_path / "annotations.xml").read_text()
    (tmp_path / "annotations.xml").write_text(text.replace('label="cat"', 'label="gizmo"'))
    told = list[str]()
    finetune_stage._read(
        tmp_path / "annotations.xml", None, "train", None, Bundle.read(exported_bundle()), 0, told.append
    )
    kind = "drafted phrases whose region has got another class, which is the text now"
    assert told == [f"train: left out or changed: {kind}: 3"]


@pytest.mark.parametrize(("count", "phrase", "message"), [(1, None, "train has 1"), (4, "!", "train has 0")])
def test_too_little_is_refused_in_one_line(
    count: int, phrase: str | None, message: str, images: Path, tmp_path: Path
) -> None:
    few = lines(images, tmp_path, count, phrase)
    error = error_of(run("finetune", few, "--out", tmp_path / "x", "--model", exported_bundle(), code=2))
    assert "needs images with boxes and words to learn from, and another to measure on" in error
    assert message in error


def test_two_images_with_one_class_and_a_broken_third(images: Path, tmp_path: Path) -> None:
    few = lines(images, tmp_path, 2, "gizmo")
    few.write_text(few.read_text() + json.dumps({"image": "gone.png", "regions": []}) + "\n")
    result = run("finetune", few, "--out", tmp_path / "x", "--model", exported_bundle(), "--epochs", "1", code=1)
    assert "missing image: 1 (gone.png)" in result.stderr and "new words: gizmo" in result.stdout
    assert "1 held-out image" in result.stdout and "x: the model; next: saywhere describe IMAGE" in result.stdout
    assert "gizmo" in json.loads((tmp_path / "x" / VOCABULARY).read_text())["densecap"]["counts"] or (
        "has the weights that it started from" in result.stderr
    )


@pytest.mark.parametrize(
    ("share", "found", "line"),
    [
        (0.25, 0.5, None),
        (0.25, 0.4, "warning: fewer of the held-out boxes are found than before: use more images"),
        (0.0, 0.5, "has the weights that it started from: too few images"),
    ],
)
def test_what_is_not_better_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: float, found: float, line: str | None
) -> None:
    done = Finetuned(
        tmp_path, 0.5, 0.6, (9.0, 8.0), 5, 1, (), share, (0.5, found), 0.9, (), "" if share else "too few images"
    )
    monkeypatch.setattr(finetune_stage, "finetune", lambda *_, **__: done)
    result = run("finetune", tmp_path)
    assert line in result.stderr if line else "warning" not in result.stderr


def finetune(data: Path, out: Path | str, model: Path | str = "", code: int = 0) -> Result:
    return run("finetune", data, "--out", out, "--model", model or exported_bundle(), "--epochs", 6, code=code)


def test_an_image_that_cannot_be_read_is_named_also_when_all_is_done(images: Path, tmp_path: Path) -> None:
    own = shutil.copytree(images.parent, tmp_path / "own")
    (own / "003.png").write_bytes((own / "003.png").read_bytes()[:-900])
    for done in ("2 held out", "done before"):
        result = finetune(own, tmp_path / "mine", code=1)
        assert done in result.stdout, result.output
        assert result.stderr.count(f"{own / '003.png'}: ") == 1


def test_a_disk_that_fills_up_is_one_line_and_the_same_command_goes_on(
    counted: tuple[Finetuned, int], base: Path, images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever file meets it: that of the run, of regions, of the model."""
    (done, writes), sync, written, room = counted, files.sync, 0, sys.maxsize

    def full(file: Path | int) -> None:
        nonlocal written
        written += 1
        if written > room:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(files, "sync", full)
    for number in (0, 4, writes // 2, writes - 5):
        out, written, room = tmp_path / str(number), 0, number
        result = finetune(images, out, base, code=2)
        error = result.stderr.splitlines()[-1]
        assert error.startswith(f"error: {out}: the disk is full; what is done stays. Free some space and run"), error
        assert not (out / CONFIG).exists() and not [path for path in out.rglob("*") if ".part" in path.name]
        room = sys.maxsize
        finetune(images, out, base)
        assert same_weights(out, done.model)


def test_any_names_will_do_and_nothing_is_written_but_the_model(
    done: Finetuned, base: Path, images: Path, tmp_path: Path
) -> None:
    """Names that are not UTF-8, of images, of their folder, of the model and of the new one; and read-only places."""
    own, start, out = (tmp_path / os.fsdecode(name) for name in (b"own \xff", b"start \xff", b"new \xff"))
    own.mkdir()
    lines = images.read_text().splitlines()
    for number, line in enumerate(lines):
        row = json.loads(line)
        name = os.fsdecode(b"%03d \xff.png" % number)
        shutil.copy(images.parent / row["image"], own / name)
        lines[number] = json.dumps(row | {"image": name})
    (own / "images.jsonl").write_text("\n".join(lines))
    shutil.copytree(base, start)
    before = {path: path.stat().st_mtime_ns for folder in (own, start) for path in (folder, *folder.iterdir())}
    for path in before:
        path.chmod(0o555 if path.is_dir() else 0o444)
    result = saywhere.finetune(own, out, model=start, epochs=6)
    assert (result.learnt, result.held_out, result.problems) == (6, 2, ())
    assert same_weights(out, done.model)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len(saywhere.load(out).describe(next(own.glob("*.png")), top=2)) == 2
    refused = finetune(own, "/proc/mine", start, code=2)
    assert refused.stderr.startswith("error: /proc/mine: "), refused.output


def test_words_of_two_phrases() -> None:
    assert same_words([("a red car", ["car", "a bus"]), ("a dog", ["the sky"]), ("a dog", ["a dog"])]) == [
        0.5,
        0.0,
        1.0,
    ]

"""A whole comparison on tiny models: every cell is there, goes on where it was, and has what its caption says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tiny_comparison import StubMeteor, write_comparison

import saywhere
from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.evaluation.region_lines import RegionLines
from saywhere.images import open_image
from saywhere.networks import checkpoint
from saywhere.papers.table1 import plan as plans
from saywhere.papers.table1 import region_rnn
from saywhere.papers.table1 import run as runs
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.papers.table1.run import Run, compare
from saywhere.papers.table1.systems import Cell
from saywhere.papers.table1.table import COLUMNS, Results

ALL_ROWS = {
    "full-image-rnn",
    "region-rnn",
    "fcln",
    "frequent-phrase",
    "nearest-region",
    "frequent-phrase-refined",
    "nearest-region-refined",
}
METEOR: Any = StubMeteor()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Path:
    return write_comparison(folder)


@pytest.fixture(scope="module")
def results(recipe: Path, folder: Path) -> Results:
    return compare(plans.load(recipe), folder / "out", METEOR)


def cell(folder: Path, row: str, column: str, seed: int = 0) -> RegionLines:
    (path,) = (folder / "out" / "cells").glob(f"{row}-{column}-{seed}-*.jsonl")
    return RegionLines(path, needs=("scores", "captions"))


def proposed(folder: Path, column: str) -> RegionLines:
    (path,) = (folder / "out" / "boxes").glob(f"{column}-*.jsonl")
    return RegionLines(path, needs=("scores",))


def test_every_cell_of_every_seed_is_scored(results: Results) -> None:
    assert set(results.scores) == {(row, column, seed) for row in ALL_ROWS for column in COLUMNS for seed in (0, 1)}
    assert results.images == 3
    for scores in results.scores.values():
        assert set(scores) == {"map", "detection_map", "language_meteor"}
        assert all(0 <= value <= 1 for value in scores.values())


def test_baselines_and_controls_have_the_proposals_as_they_stand(results: Results, folder: Path) -> None:
    for column in ("external", "rpn"):
        boxes = proposed(folder, column)
        for row in ("full-image-rnn", "region-rnn", "frequent-phrase", "nearest-region"):
            for seed in (0, 1):
                lines = cell(folder, row, column, seed)
                for name in lines.names:
                    assert_allclose(lines[name].boxes, boxes[name].boxes, atol=6e-3, rtol=0)
                    assert_allclose(lines[name].scores, boxes[name].scores, rtol=1e-7)


def test_proposals_are_suppressed_and_limited(results: Results, folder: Path) -> None:
    for column in ("external", "rpn"):
        lines = proposed(folder, column)
        for name in lines.names:
            boxes = lines[name].boxes
            overlap = geometry.iou(boxes, boxes) - np.eye(len(boxes))
            assert 0 < len(boxes) <= 6 and float(overlap.max()) <= 0.5
            assert lines[name].scores.tolist() == sorted(lines[name].scores.tolist(), reverse=True)


def test_fcln_on_its_own_proposals_is_the_model_as_it_describes(results: Results, folder: Path) -> None:
    for seed in (0, 1):
        model = saywhere.load(folder / f"fcln-{seed}", options={"proposals.post_nms_top_n": 6})
        lines = cell(folder, "fcln", "rpn", seed)
        for name in lines.names:
            regions = model.describe(folder / "data" / name)
            assert lines[name].captions == regions.captions
            assert_allclose(lines[name].boxes, regions.boxes, atol=6e-3, rtol=0)


def test_fcln_refines_external_boxes_and_leaves_true_ones(results: Results, folder: Path) -> None:
    external, given = cell(folder, "fcln", "external"), proposed(folder, "external")
    name = external.names[0]
    assert float(geometry.iou(external[name].boxes, given[name].boxes).max(axis=1).min()) < 0.99
    truth = RegionLines(folder / "out" / "truth.jsonl", several=True)
    assert sorted(cell(folder, "fcln", "gt")[name].boxes.tolist()) == sorted(
        {tuple(box): list(box) for box in truth[name].boxes.tolist()}.values()
    )


def test_the_region_rnn_captions_the_crops(results: Results, folder: Path) -> None:
    (place,) = (folder / "out" / "baselines").glob("region-rnn-1-*")
    network, lines = checkpoint.load_network(place), cell(folder, "region-rnn", "rpn", 1)
    assert isinstance(network, RegionRnn)
    name = lines.names[1]
    boxes = torch.tensor(proposed(folder, "rpn")[name].boxes).float()
    features = network.features(open_image(folder / "data" / name), boxes)
    assert lines[name].captions == tuple(network.caption(features.half().float()))


def test_controls_say_training_phrases_and_one_of_them_always_the_same(results: Results, folder: Path) -> None:
    training = {"a red block", "the block on the left", "blue sky", "two people", "a man and a dog"}
    for column in COLUMNS:
        for suffix in ("", "-refined"):
            same = cell(folder, f"frequent-phrase{suffix}", column)
            assert {text for name in same.names for text in same[name].captions or ()} == {"a man and a dog"}
            near = cell(folder, f"nearest-region{suffix}", column)
            assert {text for name in near.names for text in near[name].captions or ()} <= training
    refined, fcln = cell(folder, "frequent-phrase-refined", "rpn"), cell(folder, "fcln", "rpn")
    for name in fcln.names:
        assert refined[name].boxes.tolist() == fcln[name].boxes.tolist()
        assert refined[name].scores.tolist() == fcln[name].scores.tolist()


def test_the_second_time_only_time_is_taken(
    results: Results, recipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Cell, "write", lambda *_: pytest.fail("a cell was made again"))
    monkeypatch.setattr(region_rnn, "_compute", lambda *_: pytest.fail("crops were computed again"))
    monkeypatch.setattr(StubMeteor, "score", lambda *_: pytest.fail("scored again"))
    again = compare(plans.load(recipe), folder / "out", METEOR)
    assert again.scores == results.scores


def test_a_missing_cell_is_made_again_the_same(results: Results, recipe: Path, folder: Path) -> None:
    (path,) = (folder / "out" / "cells").glob("region-rnn-rpn-0-*.jsonl")
    before = path.read_text()
    path.unlink()
    compare(plans.load(recipe, ["seeds=[0]"]), folder / "out", METEOR)
    assert path.read_text() == before


@pytest.mark.parametrize(
    "change",
    [
        "proposals=3",
        "nms=0.2",
        "external=selective-search:quality",
        "crops=1",
        "sentence_words=8",
        "neighbours=1",
        "half=true",
        "training.epochs=1",
        "model.grid=2",
        "data.validation_limit=2",
    ],
)
def test_every_option_changes_some_cell(
    change: str, results: Results, recipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "take_times", lambda *_: {})
    cells = folder / "out" / "cells"
    before = set(cells.glob("*-0-*.jsonl"))
    try:
        compare(plans.load(recipe, ["seeds=[0]", change]), folder / "out", METEOR)
    except UserError as error:
        assert change == "half=true" and "half=false" in str(error)
        pytest.skip("this processor has no bfloat16")
    assert set(cells.glob("*-0-*.jsonl")) > before


def test_cached_features_of_the_backbone_give_the_same_embeddings(recipe: Path, folder: Path, tmp_path: Path) -> None:
    plain = Run(plans.load(recipe, ["seeds=[0]"]), tmp_path / "plain")
    cached = Run(plans.load(recipe, ["seeds=[0]", f"features={tmp_path / 'maps'}"]), tmp_path / "cached")
    numbers = list(range(len(plain.train)))
    model = saywhere.load(folder / "fcln-0", device="cpu")
    one, other = (np.concatenate(run.region_embeddings(model, numbers)) for run in (plain, cached))
    assert one.shape == (12, 32)
    assert_allclose(one, other, atol=5e-3, rtol=5e-3)
    assert list((tmp_path / "maps").rglob("features.bin"))


def test_a_seed_without_fcln_is_named(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fcln-7: no FCLN of seed 7; train it first .*seeds=\[\.\.\.\]"):
        compare(plans.load(recipe, ["seeds=[7]"]), tmp_path, METEOR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seeds=[]", "seeds must be different numbers"),
        ("seeds=[1,1]", "seeds must be different numbers"),
        ("fcln=model", r"with several seeds needs \{seed\}"),
        ("data.validation=null", "data.validation is missing"),
        ("proposals=0", "proposals must be at least 1"),
        ("nms=2", "nms must be between 0 and 1"),
        ("model.grids=3", r"unknown key model\.grids; did you mean model\.grid"),
        ("timing.rounds=0", "rounds must be at least 1"),
        ("speed=1", "unknown key speed"),
    ],
)
def test_wrong_recipes_are_named(recipe: Path, change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        plans.load(recipe, [change])


def test_the_shipped_recipe_can_be_read() -> None:
    plan = plans.load(Path(__file__).parents[3] / "recipes" / "table1.yaml")
    assert plan.seeds == (0, 1, 2) and plan.fcln_folder(2) == Path("runs/table1-fcln-2/model")
    fcln = json.dumps(plan.baseline(0).to_dict())
    assert '"embed_dim": 512' in fcln and '"hidden_size": 384' in fcln

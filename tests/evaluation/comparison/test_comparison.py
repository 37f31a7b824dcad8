"""A whole comparison on tiny models: every cell is there, goes on where it was, and has what its caption says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_comparison import StubMeteor, write_comparison
from torch.testing import assert_close

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.evaluation.comparison import plan as plans
from saywhere.evaluation.comparison import run as runs
from saywhere.evaluation.comparison.cells import Cell
from saywhere.evaluation.comparison.run import Run, compare
from saywhere.evaluation.comparison.table import COLUMNS, Results
from saywhere.evaluation.region_lines import RegionLines
from saywhere.images import open_picture
from saywhere.models import checkpoint
from saywhere.models.region_rnn import RegionRnn
from saywhere.training import region_rnn

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
                    assert_close(torch.tensor(lines[name].boxes), torch.tensor(boxes[name].boxes), atol=6e-3, rtol=0)
                    assert_close(torch.tensor(lines[name].scores), torch.tensor(boxes[name].scores))


def test_proposals_are_suppressed_and_limited(results: Results, folder: Path) -> None:
    for column in ("external", "rpn"):
        lines = proposed(folder, column)
        for name in lines.names:
            boxes = torch.tensor(lines[name].boxes)
            overlap = geometry.iou(boxes, boxes) - torch.eye(len(boxes))
            assert 0 < len(boxes) <= 6 and float(overlap.max()) <= 0.5
            assert lines[name].scores.tolist() == sorted(lines[name].scores.tolist(), reverse=True)


def test_fcln_on_its_own_proposals_is_the_model_as_it_describes(results: Results, folder: Path) -> None:
    for seed in (0, 1):
        model, lines = checkpoint.load(folder / f"fcln-{seed}", proposals=6), cell(folder, "fcln", "rpn", seed)
        for name in lines.names:
            regions = model.describe(folder / "data" / name)
            assert lines[name].captions == regions.captions
            assert_close(torch.tensor(lines[name].boxes).float(), regions.boxes, atol=6e-3, rtol=0)


def test_fcln_refines_external_boxes_and_leaves_true_ones(results: Results, folder: Path) -> None:
    external, given = cell(folder, "fcln", "external"), proposed(folder, "external")
    name = external.names[0]
    known = torch.tensor(given[name].boxes)
    assert float(geometry.iou(torch.tensor(external[name].boxes), known).max(dim=1).values.min()) < 0.99
    truth = RegionLines(folder / "out" / "truth.jsonl", several=True)
    assert sorted(cell(folder, "fcln", "gt")[name].boxes.tolist()) == sorted(
        {tuple(box): list(box) for box in truth[name].boxes.tolist()}.values()
    )


def test_the_region_rnn_says_what_it_says_of_the_crops(results: Results, folder: Path) -> None:
    (place,) = (folder / "out" / "baselines").glob("region-rnn-1-*")
    model, lines = checkpoint.load(place), cell(folder, "region-rnn", "rpn", 1)
    assert isinstance(model, RegionRnn)
    name = lines.names[1]
    boxes = torch.tensor(proposed(folder, "rpn")[name].boxes).float()
    features = model.features(open_picture(folder / "data" / name), boxes)
    assert lines[name].captions == tuple(model.speak(features.half().float()))


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
    compare(plans.load(recipe, ["seeds=[0]", change]), folder / "out", METEOR)
    assert set(cells.glob("*-0-*.jsonl")) > before


def test_cached_features_of_the_backbone_give_the_same_codes(recipe: Path, folder: Path, tmp_path: Path) -> None:
    plain = Run(plans.load(recipe, ["seeds=[0]"]), tmp_path / "plain")
    cached = Run(plans.load(recipe, ["seeds=[0]", f"features={tmp_path / 'maps'}"]), tmp_path / "cached")
    numbers = list(range(len(plain.train)))
    one, other = (torch.cat(run._codes(run._fcln(0), numbers)) for run in (plain, cached))
    assert one.shape == (12, 32)
    assert_close(one, other, atol=5e-3, rtol=5e-3)
    assert list((tmp_path / "maps").rglob("features.bin"))


def test_a_seed_without_fcln_is_named(recipe: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"fcln-7: no FCLN of seed 7; train it first .*seeds=\[\.\.\.\]"):
        compare(plans.load(recipe, ["seeds=[7]"]), tmp_path, METEOR)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seeds=[]", "seeds are different numbers"),
        ("seeds=[1,1]", "seeds are different numbers"),
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
    assert '"code_size": 512' in fcln and '"hidden_size": 384' in fcln

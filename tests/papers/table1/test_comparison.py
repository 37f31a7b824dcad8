"""A whole comparison on tiny models: every cell is there, goes on where it was, and has what its caption says."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from tiny_comparison import StubMeteor, write_comparison
from typer.testing import CliRunner, Result

import saywhere
from saywhere import boxes as geometry
from saywhere import cli
from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.region_lines import RegionLines
from saywhere.images import open_image
from saywhere.networks import checkpoint
from saywhere.papers.table1 import plan as plans
from saywhere.papers.table1 import region_rnn
from saywhere.papers.table1 import run as runs
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.papers.table1.run import COLUMNS, ROWS, Results, Run, compare, markdown, write_table
from saywhere.papers.table1.systems import Cell

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


@pytest.fixture(autouse=True)
def no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)


def table1(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["papers", "table1", *map(str, arguments)], catch_exceptions=False)


def test_the_table_is_printed_and_written(tmp_path: Path) -> None:
    recipe = write_comparison(tmp_path, seeds=(0,))
    done = table1(recipe, "data.validation_limit=2", "--out", tmp_path / "out")
    assert done.exit_code == 0, done.output
    table = json.loads((tmp_path / "out" / "table.json").read_text())
    assert table["images"] == 2 and table["seeds"] == [0]
    assert (tmp_path / "out" / "table.md").read_text() in done.output
    assert "control: most frequent phrase" in done.output


def test_wrong_recipes_end_with_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ((tmp_path / "none.yaml",), "no such recipe"),
        ((write_comparison(tmp_path), "seed=[0]"), "unknown key seed; did you mean seeds?"),
        ((tmp_path / "recipe.yaml", "seeds=[9]"), "no FCLN of seed 9"),
    ):
        done = table1(*arguments, "--out", tmp_path / "out")
        assert done.exit_code == 2 and message in done.stderr and len(done.stderr.strip().splitlines()) == 1


AP = {
    "full-image-rnn": (0.02, 0.03),
    "region-rnn": (0.04, 0.05),
    "fcln": (0.08, 0.08),
    "frequent-phrase": (0.01, 0.01),
    "nearest-region": (0.03, 0.02),
    "frequent-phrase-refined": (0.05, 0.05),
    "nearest-region-refined": (0.02, 0.04),
}
"""With RPN proposals, of the seeds 0 and 1."""


def stages(proposals: float, network: float, language: float) -> dict[str, dict[str, float]]:
    values = {"proposals": proposals, "network": network, "language": language}
    wall = {**values, "total": sum(values.values())}
    return {"wall": wall, "processor": {stage: value * 0.9 for stage, value in wall.items()}}


@pytest.fixture
def plan(tmp_path: Path) -> Comparison:
    return plans.load(write_comparison(tmp_path))


@pytest.fixture
def made_results(plan: Comparison) -> Results:
    scores = {
        (row, column, seed): {"map": values[seed] * factor, "detection_map": 0.2, "language_meteor": values[seed] * 3}
        for row, values in AP.items()
        for column, factor in (("external", 0.5), ("rpn", 1.0), ("gt", 4.0))
        for seed in (0, 1)
    }
    systems = {
        "fcln/rpn": stages(10, 80, 10),
        "fcln/external": stages(300, 80, 10),
        "region-rnn/rpn": stages(60, 1240, 20),
        "region-rnn/external": stages(300, 900, 20),
    }
    times: dict[str, Any] = {"about": {"threads": 1, "images": 2, "rounds": 3}, "systems": systems}
    return Results(plan, "jsonl data", 3, "stub", scores, times, {"external": 5.0, "rpn": 6.0, "gt": 2.0})


def test_means_and_spreads_over_the_seeds(made_results: Results) -> None:
    cell = made_results.to_dict()["rows"]["region-rnn"]["cells"]["rpn"]["map"]
    assert cell == {"mean": pytest.approx(0.045), "spread": pytest.approx(stdev((0.04, 0.05))), "each": [0.04, 0.05]}


def test_aims_by_hand(made_results: Results) -> None:
    aims = {aim["aim"]: aim for aim in made_results.aims()}
    best = aims["AP of FCLN over the best baseline's"]
    assert best["each"] == pytest.approx([2.0, 1.6]) and best["mean"] == pytest.approx(1.8) and best["reached"]
    control = aims["AP of FCLN over the better control's"]
    assert control["each"] == pytest.approx([8 / 3, 4.0]) and control["reached"]
    refined = aims["AP of FCLN over the better control's on FCLN's boxes"]
    assert refined["each"] == pytest.approx([1.6, 1.6]) and not refined["reached"]
    assert aims["AP of FCLN over the Region RNN's"]["reached"]
    times = [aim for name, aim in aims.items() if name.startswith("time")]
    assert [aim["each"] for aim in times] == [pytest.approx([13.2, 13.2]), pytest.approx([12.2, 12.2])]
    assert [aim["reached"] for aim in times] == [True, False]


def test_an_aim_that_is_just_missed_is_not_reached(made_results: Results) -> None:
    scores = {key: dict(value) for key, value in made_results.scores.items()}
    for seed in (0, 1):
        scores["region-rnn", "rpn", seed]["map"] = 0.08 / 1.29
    missed = Results(**{**vars(made_results), "scores": scores}).aims()[1]
    assert missed["mean"] == pytest.approx(1.29) and not missed["reached"]


def test_the_markdown_has_every_figure(made_results: Results) -> None:
    lines = markdown(made_results, "saywhere papers table1 x").splitlines()
    rows = {line.split(" | ")[0].strip("| "): [part.strip(" |") for part in line.split(" | ")[1:]] for line in lines}
    assert rows["Region source"][:3] == ["METEOR, selective-search", "METEOR, RPN", "METEOR, truth"]
    assert rows["Region RNN"][3:6] == ["2.25 ± 0.35", "4.50 ± 0.71", "18.00 ± 2.83"]
    assert rows["Region RNN"][0] == "0.135 ± 0.021"
    assert rows["Region RNN"][6:] == rows["Full image RNN"][6:] == ["300", "900", "20", "1220"]
    assert rows["FCLN"][6:] == ["10", "80", "10", "100"]
    assert rows["FCLN on external"][3:] == ["4.00 ± 0.00", "", "", "300", "80", "10", "390"]
    assert {ROWS[row] for row in ROWS} <= rows.keys()
    text = "\n".join(lines)
    assert "3 images" in text and "seeds 0, 1" in text and "`saywhere papers table1 x`" in text


def test_one_seed_has_no_spread(made_results: Results, plan: Comparison) -> None:
    alone = Results(**{**vars(made_results), "plan": Comparison(**{**vars(plan), "seeds": (1,)})})
    assert alone.to_dict()["rows"]["fcln"]["cells"]["gt"]["map"]["spread"] is None
    assert "±" not in markdown(alone, "x").split("aim |")[0].replace("mean ±", "")


def test_files_are_written(made_results: Results, tmp_path: Path) -> None:
    paths = write_table(made_results, tmp_path / "out", "saywhere papers table1 x")
    table = json.loads(paths[0].read_text())
    assert table["command"] == "saywhere papers table1 x" and table["protocol"] == "clean"
    assert set(table["rows"]) == set(ROWS) and set(table["rows"]["fcln"]["cells"]) == set(COLUMNS)
    assert paths[1].read_text() == markdown(made_results, "saywhere papers table1 x")

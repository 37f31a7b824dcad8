"""A whole comparison on tiny models: every cell is there, goes on where it was, and has what its caption says."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np
import pytest
import tiny_densecap
import tiny_training
import torch
import yaml
from commands import rows
from commands import run as command
from numpy.testing import assert_allclose, assert_array_equal
from photographs import noise
from refusals import refuses
from stubs import StubMeteor

import saywhere
from saywhere import boxes as geometry
from saywhere.evaluation import meteor
from saywhere.images import open_image
from saywhere.networks import checkpoint
from saywhere.papers.table1 import plan as plans
from saywhere.papers.table1 import region_rnn, systems
from saywhere.papers.table1.plan import Comparison
from saywhere.papers.table1.region_rnn import RegionRnn
from saywhere.papers.table1.run import COLUMNS, ROWS, Results, Run, markdown, write_table
from saywhere.papers.table1.systems import Watch, take_times

SENTENCES = ("Two people stand on a green field.", "A red block and a dog under the blue sky.")
METEOR: Any = StubMeteor()


def write_comparison(folder: Path, seeds: tuple[int, ...] = (0, 1), **options: Any) -> Path:
    """Images of noise, an FCLN a seed, and the recipe; its file."""
    root = tiny_training.write_data(folder / "data", train=4, validation=3)
    lines = [json.dumps({**row, "sentences": list(SENTENCES)}) for row in rows(root / "images.jsonl")]
    (root / "images.jsonl").write_text("\n".join(lines) + "\n")
    for seed in seeds:
        checkpoint.save(tiny_densecap.tiny_model(seed), folder / f"fcln-{seed}")
    trunk = {"backbone": "test_efficientnet", "long_side": 64, "multiple": 64}
    recipe = {
        "name": "tiny",
        "data": {"format": "jsonl", "root": str(root), "train": "train", "validation": "val"},
        "fcln": str(folder / "fcln-{seed}"),
        "seeds": list(seeds),
        "proposals": 6,
        "pretrained": False,
        "model": {"trunk": trunk, "grid": 1, "embed_dim": 16, "hidden_size": 16},
        "training": {"epochs": 2, "batch_size": 4},
        "cache": str(folder / "crops"),
        **options,
    }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("comparison")


@pytest.fixture(scope="module")
def recipe(folder: Path) -> Path:
    return write_comparison(folder)


@pytest.fixture(scope="module")
def run(recipe: Path, folder: Path) -> Run:
    return Run(plans.load(recipe), folder / "out")


@pytest.fixture(scope="module")
def results(run: Run) -> Results:
    return run.results(METEOR)


def test_every_cell_of_every_seed_is_scored(results: Results) -> None:
    rows = ("full-image-rnn", "region-rnn", "fcln")
    assert set(results.scores) == {(row, column, seed) for row in rows for column in COLUMNS for seed in (0, 1)}
    assert results.images == 3
    for scores in results.scores.values():
        assert set(scores) == {"map", "detection_map", "language_meteor"}
        assert all(0 <= value <= 1 for value in scores.values())


def test_baselines_have_the_proposals_suppressed_and_limited_as_they_stand(run: Run) -> None:
    for column in ("external", "rpn"):
        for name, given in run.boxes[column].items():
            overlap = geometry.iou(given.boxes, given.boxes) - np.eye(len(given))
            scores = given.scores.tolist()
            assert 0 < len(given) <= 6 and float(overlap.max()) <= 0.5 and scores == sorted(scores, reverse=True)
            for row in ("full-image-rnn", "region-rnn"):
                for seed in (0, 1):
                    found = run.cells[row, column, seed][name]
                    assert_array_equal(found.boxes, given.boxes)
                    assert_array_equal(found.scores, given.scores)


def test_fcln_on_its_own_proposals_is_the_model_as_it_describes(run: Run, folder: Path) -> None:
    for seed in (0, 1):
        model = saywhere.load(folder / f"fcln-{seed}", options={"proposals.post_nms_top_n": 6})
        for name, found in run.cells["fcln", "rpn", seed].items():
            regions = model.describe(folder / "data" / name)
            assert found.captions == regions.captions
            assert_allclose(found.boxes, regions.boxes, atol=1e-3, rtol=0)


def test_fcln_refines_external_boxes_and_leaves_true_ones(run: Run) -> None:
    name, sample = next(iter(run.images.items()))
    refined = run.cells["fcln", "external", 0][name].boxes
    assert float(geometry.iou(refined, run.boxes["external"][name].boxes).max(axis=1).min()) < 0.99
    found = run.cells["fcln", "gt", 0][name].boxes.tolist()
    assert sorted(found) == sorted({tuple(box): list(box) for box in sample.boxes.tolist()}.values())


def test_the_region_rnn_captions_the_crops(run: Run, results: Results, folder: Path) -> None:
    (place,) = (folder / "out" / "baselines").glob("region-rnn-1-*")
    network = checkpoint.load_network(place)
    assert isinstance(network, RegionRnn)
    name = list(run.images)[1]
    boxes = torch.from_numpy(run.boxes["rpn"][name].boxes).float()
    features = network.features(open_image(folder / "data" / name), boxes)
    assert run.cells["region-rnn", "rpn", 1][name].captions == tuple(network.caption(features.half().float()))


def test_the_second_time_nothing_is_trained_and_the_table_is_printed_and_written(
    results: Results, recipe: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(systems, "fit", lambda *_: pytest.fail("a baseline was trained again"))
    monkeypatch.setattr(region_rnn, "_compute", lambda *_: pytest.fail("crops were computed again"))
    done = command("papers", "table1", recipe, "--out", folder / "out")
    table = json.loads((folder / "out" / "table.json").read_text())
    assert table["images"] == 3 and table["seeds"] == [0, 1]
    for row, column, seed in results.scores:
        assert table["rows"][row]["cells"][column]["map"]["each"][seed] == results.scores[row, column, seed]["map"]
    assert (folder / "out" / "table.md").read_text() in done.output


@pytest.mark.parametrize("change", ["crops=1", "half=true", "training.epochs=1", "model.grid=2"])
def test_every_option_of_training_trains_other_baselines(
    change: str, results: Results, recipe: Path, folder: Path
) -> None:
    baselines = folder / "out" / "baselines"
    before = set(baselines.glob("*-0-*"))
    run = Run(plans.load(recipe, ["seeds=[0]", change]), folder / "out")
    run.baselines.network("region-rnn", 0)
    assert set(baselines.glob("*-0-*")) > before


def test_options_of_what_is_measured_reach_it(results: Results, recipe: Path, folder: Path) -> None:
    run = Run(plans.load(recipe, ["seeds=[0]", "proposals=3", "data.validation_limit=2"]), folder / "out")
    assert len(run.images) == 2 and max(map(len, run.boxes["rpn"].values())) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("seeds=[]", "seeds must be different numbers"),
        ("seeds=[1,1]", "seeds must be different numbers"),
        ("fcln=model", r"with several seeds needs \{seed\}"),
        ("data.validation=null", "data.validation is missing"),
        ("proposals=0", "proposals must be at least 1"),
        ("model.grids=3", r"unknown key model\.grids; did you mean model\.grid"),
        ("training.lr=0", r"lr is 0(\.0)?, but must be above 0"),
        ("training.epochs=0", "epochs is 0, but must be at least 1"),
        ("speed=1", "unknown key speed"),
    ],
)
def test_wrong_recipes_are_named(recipe: Path, change: str, message: str) -> None:
    refuses(message, plans.load, recipe, [change])


def test_the_shipped_recipe_can_be_read() -> None:
    plan = plans.load(Path(__file__).parents[3] / "recipes" / "table1.yaml")
    assert plan.seeds == (0, 1, 2) and plan.fcln_folder(2) == Path("runs/table1-fcln-2/model")
    assert (plan.baseline().embed_dim, plan.baseline().hidden_size, plan.baseline(9).decoding.max_words) == (
        512,
        384,
        9,
    )


AP = {"full-image-rnn": (0.02, 0.03), "region-rnn": (0.04, 0.05), "fcln": (0.08, 0.08)}
"""With RPN proposals, of the seeds 0 and 1."""


def stages(proposals: float, network: float, language: float) -> dict[str, float]:
    values = {"proposals": proposals, "network": network, "language": language}
    return {**values, "total": sum(values.values())}


@pytest.fixture
def made_results(recipe: Path) -> Results:
    scores = {
        (row, column, seed): {"map": values[seed] * factor, "detection_map": 0.2, "language_meteor": values[seed] * 3}
        for row, values in AP.items()
        for column, factor in (("external", 0.5), ("rpn", 1.0), ("gt", 4.0))
        for seed in (0, 1)
    }
    times = {"fcln": stages(10, 80, 10), "fcln-external": stages(300, 80, 10), "region-rnn": stages(300, 900, 20)}
    boxes = {"external": 5.0, "rpn": 6.0, "gt": 2.0}
    return Results(plans.load(recipe), "jsonl data", 3, "stub", scores, times, boxes)


def test_the_table_has_every_figure(made_results: Results, tmp_path: Path) -> None:
    paths = write_table(made_results, tmp_path / "out", "saywhere papers table1 x")
    table, text = json.loads(paths[0].read_text()), paths[1].read_text()
    assert table["command"] == "saywhere papers table1 x" and table["protocol"] == "clean"
    assert set(table["rows"]) == set(ROWS) and set(table["rows"]["fcln"]["cells"]) == set(COLUMNS)
    found = table["rows"]["region-rnn"]["cells"]["rpn"]["map"]
    assert found == {"mean": pytest.approx(0.045), "spread": pytest.approx(stdev((0.04, 0.05))), "each": [0.04, 0.05]}
    lines = text.splitlines()
    rows = {line.split(" | ")[0].strip("| "): [part.strip(" |") for part in line.split(" | ")[1:]] for line in lines}
    assert rows["Region source"][:3] == ["METEOR, selective-search", "METEOR, RPN", "METEOR, truth"]
    assert rows["Region RNN"][3:6] == ["2.25 ± 0.35", "4.50 ± 0.71", "18.00 ± 2.83"]
    assert rows["Region RNN"][0] == "0.135 ± 0.021"
    assert rows["Region RNN"][6:] == rows["Full image RNN"][6:] == ["300", "900", "20", "1220"]
    assert rows["FCLN"][6:] == ["10", "80", "10", "100"]
    assert rows["FCLN on external"][3:] == ["4.00 ± 0.00", "", "", "300", "80", "10", "390"]
    assert "3 images" in text and "seeds 0, 1" in text and "`saywhere papers table1 x`" in text


def test_one_seed_has_no_spread(made_results: Results) -> None:
    plan = Comparison(**{**vars(made_results.plan), "seeds": (1,)})
    alone = Results(**{**vars(made_results), "plan": plan})
    assert alone.to_dict()["rows"]["fcln"]["cells"]["gt"]["map"]["spread"] is None
    assert "±" not in markdown(alone, "x")


def test_the_median_of_rounds_then_the_mean_of_images(tmp_path: Path) -> None:
    calls: list[str | None] = []
    cost = iter([5.0, 1, 9, 2, 30, 10, 20])

    def describe(image: Any, watch: Watch) -> None:
        calls.append(image.name)
        watch.stages = {"proposals": 0.0, "network": next(cost), "language": 1.0}

    for name in "ab":
        noise(8, 8).save(tmp_path / f"{name}.png")
    timed: Any = type("Timed", (), {"systems": lambda self: {"it": describe}})()
    found = take_times(timed, [tmp_path / "a.png", tmp_path / "b.png"], lambda: None)
    assert [Path(str(name)).stem for name in calls] == ["a", "a", "a", "a", "b", "b", "b"]  # once to warm up
    assert found["it"] == {"proposals": 0.0, "network": 11.0, "language": 1.0, "total": 12.0}

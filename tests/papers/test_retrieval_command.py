"""``saywhere papers retrieval`` as it is typed, on an untrained tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from photographs import noise
from tiny_aligner import tiny_aligner
from tiny_densecap import PHRASES, tiny_model
from typer.testing import CliRunner, Result

import saywhere
from saywhere import cli
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.papers import retrieval as module


@pytest.fixture
def model(monkeypatch, tmp_path) -> Model:
    checkpoint.save(tiny_model(), tmp_path / "m")
    monkeypatch.chdir(tmp_path)
    return saywhere.load("m", device="cpu")


def retrieval(*arguments: object) -> Result:
    command = ["papers", "retrieval", "--model", "m", "--device", "cpu", *map(str, arguments)]
    return CliRunner().invoke(cli.app, command, catch_exceptions=False)


def album(count: int = 4) -> Path:
    folder = Path("album")
    (folder / "p").mkdir(parents=True)
    rows = []
    for number in range(count):
        noise(96, 64, number).save(folder / "p" / f"{number}.png")
        regions = [{"box": [8 * i, 0, 48 + 8 * i, 60], "phrase": phrase} for i, phrase in enumerate(PHRASES)]
        regions.append({"box": [0, 0, 96, 64], "phrase": f"a zebra {number}"})
        rows.append({"image": f"p/{number}.png", "split": "dev", "regions": regions})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def report(folder: str = "out") -> dict:
    return json.loads(Path(folder, "report.json").read_text())


def queries(folder: str = "out") -> list[dict]:
    return json.loads(Path(folder, "queries.json").read_text())


def test_a_model_on_a_data_set(model):
    root = album()
    done = retrieval("--data", root, "--out", "out", "--queries", 6, "--regions", 5, "--batch", 3)
    assert (done.exit_code, done.stderr) == (0, "")
    row = report()
    assert (row["task"], row["protocol"], row["data"], row["split"]) == ("retrieval", "clean", "jsonl album", "dev")
    assert (row["images"], row["queries"], row["regions"], row["seed"], row["skipped"]) == (4, 6, 5, 0, {})
    assert list(row["iou_recall"]) == ["0.1", "0.3", "0.5"] and row["r5"] == row["r10"] == 1
    # Ranks and overlaps by model.score itself, of the five best regions.
    names = [f"p/{number}.png" for number in range(4)]
    best = []
    ranks = [query["rank"] for query in queries()]
    for query in queries():
        tables = [model.score(root / name, query["phrases"]) for name in names]
        means = np.array([table.log_probs[:5].max(axis=0).astype(np.float64).mean() for table in tables])
        own = names.index(query["image"])
        assert query["rank"] == 1 + int((means > means[own]).sum())
        best += [tables[own].regions.boxes[i].tolist() for i in tables[own].log_probs[:5].argmax(axis=0).tolist()]
    assert len(best) == 24 and row["r1"] == pytest.approx(ranks.count(1) / 6)
    unknown = {p for query in queries() for p in query["phrases"] if "zebra" in p}
    assert row["phrases_with_unknown_words"] == len(unknown) > 0
    page = Path("out/examples.html").read_text()
    assert "the query&#x27;s image" in page and page.count("<img") == len(list(Path("out/examples").iterdir())) > 12
    assert "| paper: FCLN | 0.27 |" in Path("out/report.md").read_text()
    assert done.stdout.startswith("6 queries to 4 images, protocol clean: R@1 ")


def test_a_run_goes_on_and_another_question_costs_no_image(model, monkeypatch):
    root, described = album(), []
    usual = Model.describe

    def describe(self, images, *arguments, **options):
        described.append(len(images))
        return usual(self, images, *arguments, **options)

    monkeypatch.setattr(Model, "describe", describe)
    assert retrieval("--data", root, "--out", "out", "--limit", 2, "--queries", 3).exit_code == 0
    assert (report()["images"], described) == (2, [2])
    assert retrieval("--data", root, "--out", "out", "--queries", 3).exit_code == 0
    assert (report()["images"], described) == (4, [2, 2])
    first, asked = report(), queries()
    scored = []
    usual_score = module.phrase_log_probs
    monkeypatch.setattr(module, "phrase_log_probs", lambda *a: (scored.append(1), usual_score(*a))[1])
    assert retrieval("--data", root, "--out", "out", "--queries", 3, "--protocol", "original").exit_code == 0
    assert (report()["protocol"], scored, described) == ("original", [], [2, 2])
    assert [q["phrases"] for q in queries()] == [q["phrases"] for q in asked]
    assert report()["median_iou"] == first["median_iou"]
    assert retrieval("--data", root, "--out", "out", "--queries", 3, "--seed", 1).exit_code == 0
    assert scored == [1] and described == [2, 2]
    assert [q["phrases"] for q in queries()] != [q["phrases"] for q in asked]


def test_other_regions_do_not_go_on(model):
    root = album(1)
    assert retrieval("--data", root, "--out", "out", "--regions", 5).exit_code == 0
    done = retrieval("--data", root, "--out", "out", "--regions", 6)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "out/regions: was made with another regions; remove it, or give another --out" in done.stderr


def test_images_that_fail_are_left_out_and_named(model):
    root = album()
    cut = root / "p" / "1.png"
    cut.write_bytes(cut.read_bytes()[:60])
    done = retrieval("--data", root, "--out", "out", "--queries", 3)
    assert done.exit_code == 1 and "skipped: p/1.png: " in done.stderr
    assert report()["images"] == 3 and list(report()["skipped"]) == ["p/1.png"]
    assert "p/1.png" not in {query["image"] for query in queries()}


def test_interrupted(model, monkeypatch):
    root, usual = album(), Model.describe

    def stop(self, images, *arguments, **options):
        if len(list(Path("out/regions").glob("*"))) >= 2:
            raise KeyboardInterrupt
        return usual(self, images, *arguments, **options)

    monkeypatch.setattr(Model, "describe", stop)
    done = retrieval("--data", root, "--out", "out", "--batch", 2)
    assert (done.exit_code, done.stderr) == (
        130,
        "interrupted after 2 of 4 images; the same command goes on from here\n",
    )


def test_a_model_without_a_dense_captioner_is_refused(model):
    checkpoint.save(tiny_aligner(), "aligner")
    done = retrieval("--data", album(1), "--out", "out", "--model", "aligner")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "aligner cannot score phrases of regions: that needs a model with the part densecap" in done.stderr
    assert not Path("out").exists()


def test_options_of_the_model_can_be_changed(model):
    arguments = ("--data", album(2), "--out", "out", "--queries", 2, "--set", "proposals.post_nms_top_n=1")
    assert retrieval(*arguments).exit_code == 0
    assert report()["set"] == ["proposals.post_nms_top_n=1"]

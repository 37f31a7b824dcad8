"""The benchmarks: their arithmetic, and whole runs on tiny models, whose times are not judged."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scripts
import skimage.data
import tiny_graphs
from albums import write_noise
from tiny_bundle import exported_bundle
from tiny_densecap import tiny_model

import saywhere
from saywhere.models import densecap, encoding, model, phrases
from saywhere.networks.checkpoint import save
from saywhere.search.store import Store

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


# hub.py


def test_florence2_is_measured_as_graphs_and_by_transformers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub, graphs = scripts.load("benchmarks/hub.py"), tiny_graphs.tiny_graphs("florence2")
    monkeypatch.setattr(tiny_graphs, "export_florence2", lambda folder, _: shutil.copytree(graphs, folder))
    hub.make(tmp_path, "tiny")
    rows = {kind: hub.measure(tmp_path, kind, 4, 1, 1) for kind in hub.KINDS}
    assert {row["tokens"] for row in rows.values()} == {4}
    assert all(min(row["first"], row["seconds"], row["peak_mb"]) > 0 for row in rows.values())
    assert len({hub.megabytes(tmp_path, kind) for kind in hub.KINDS}) == 3


# describe.py


STAGES = ["decode + resize", "trunk", "proposals", "region head", "final NMS", "decoder"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, str(BENCHMARKS / "describe.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_run_reports_every_configuration(tmp_path: Path) -> None:
    options = ["--size", 64, "--batch", 1, 2, "--repeats", 2, "--no-peer", "--proposals", 5, "--engines", "onnx"]
    done = run("--model", exported_bundle(), *options, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    what = [*STAGES, "peak MB", "images a second and core", "one by one / in batches, trunk"]
    assert all(name in done.stdout for name in what)
    report = json.loads((tmp_path / "out.json").read_text())
    rows = [(row["subject"], row["size"], row["batch"]) for row in report["configurations"]]
    assert rows == [("onnx", 64, 1), ("onnx", 64, 2)]
    for row in report["configurations"]:
        assert list(row["stages"]) == STAGES
        for figures in (*row["stages"].values(), row["total"]):
            assert 0 < figures["lower"] <= figures["median"] <= figures["upper"]
        assert row["rest"]["lower"] >= 0
        assert 0 < row["boxes"] <= 5
        assert 0 < row["loaded_mb"] <= row["peak_mb"]
        assert row["images_a_second_and_core"] == pytest.approx(1000 / row["total"]["median"])
    assert len(report["images"]) == 2


def test_torch_is_timed_beside_onnx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    describe, worker = (scripts.load(f"benchmarks/{name}.py") for name in ("describe", "describe_worker"))
    for module, name in ((model, "open_image"), (encoding, "propose"), (densecap, "select"), (phrases, "search_each")):
        monkeypatch.setattr(module, name, getattr(module, name))  # which a worker replaces for good
    (image,) = write_noise(tmp_path, 1).iterdir()
    shared = {"model": str(exported_bundle()), "size": 64, "proposals": 5, "batch": 1, "threads": 1}
    measured: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    for engine in ("onnx", "torch"):
        answers: list[dict[str, Any]] = []
        task = {**shared, "subject": engine, "images": [str(image)]}
        worker.work(task, iter(["\n", "\n"]), answers.append)
        assert 0 < answers[0]["loaded_mb"] <= answers[0]["peak_mb"]
        measured.append((task, answers[1:]))
        assert len(answers) == 3 and all(list(row["stages"]) == STAGES and row["boxes"] > 0 for row in answers[1:])
    what = [row["what"] for row in describe.ratios(measured)]
    assert what == [f"{pair}, {stage}" for pair in ("onnx / torch", "torch / onnx") for stage in ("describe", "trunk")]


def test_the_onnx_runtime_that_ran_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a package of its name: others, such as that with OpenVINO, take its place."""
    monkeypatch.setattr("onnxruntime.__version__", "1.2.3")
    assert scripts.load("benchmarks/describe.py").machine(1)["onnxruntime"] == "1.2.3"


def test_an_unknown_model_is_named() -> None:
    done = run("--model", "nowhere", "--engines", "onnx", "--size", 64, "--batch", 1, "--repeats", 1, "--no-peer")
    assert done.returncode == 2
    assert "error: no model 'nowhere'" in done.stderr
    assert "Traceback" not in done.stderr


# areas.py


TINY = (
    "trunk.backbone=test_efficientnet", "trunk.long_side=96", "head=false", "proposals.pyramid_channels=16",
    "proposals.hidden_size=16", "region_size=12",
)  # fmt: skip


def test_a_run_reports_every_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = skimage.data.astronaut()[::4, ::4]  # selective search takes seconds for a whole one
    monkeypatch.setattr(skimage.data, "astronaut", lambda: small)
    save(tiny_model(), tmp_path / "densecap")
    options = ["--localizer", tmp_path / "densecap", "--repeats", 1, "--threads", 1, "--json", tmp_path / "out.json"]
    scripts.call("benchmarks/areas.py", *options, *(word for option in TINY for word in ("--set", option)))
    rows = json.loads((tmp_path / "out.json").read_text())["kinds"]
    searched = ["selective search"] if find_spec("cv2") else []
    assert list(rows) == ["no regions", "grid", "transformer", "proposals", *searched]
    assert rows["grid"]["ratio"] == rows["grid"]["cpu_ratio"] == 1
    assert all(row["wall"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert f"{rows['transformer']['ratio']:5.2f} x grid" in capsys.readouterr().out


# rank.py


def test_a_whole_run(tmp_path: Path) -> None:
    out = tmp_path / "rank.json"
    sizes = ["--images", "12", "--sentences", "9", "--size", "16", "--loop", "20", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / "rank.py"), *sizes], capture_output=True, text=True, check=True
    )
    rows = {row["way"]: row for row in json.loads(out.read_text())["rows"]}
    assert {way: row["pairs"] for way, row in rows.items()} == {"blocks": 108, "one piece": 108, "double loop": 20}
    assert done.stdout.count("\n") == 5 and "| one piece |" in done.stdout


# scale.py


def test_the_table_of_the_document_is_that_of_the_script(capsys) -> None:
    scripts.load("benchmarks/scale.py").main(["table"])
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in text
    measured = json.loads(scripts.load("benchmarks/scale.py").RECORD.read_text())
    for number in (measured["ms"]["embed"], measured["ms"]["describe"]):
        assert f"{number:.0f} ms to " in text


def test_a_whole_measurement(tmp_path) -> None:
    write_noise(tmp_path, 5, 64, 48)
    scripts.load("benchmarks/scale.py").main(
        ["measure", str(tmp_path), "--images", "4", "--out", str(tmp_path / "out.json")]
    )
    measured = json.loads((tmp_path / "out.json").read_text())
    assert measured["count"] == 4 and all(value > 0 for part in ("ms", "bytes") for value in measured[part].values())


# score.py


def test_a_run_reports_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(tiny_model(), tmp_path / "model")
    options = ["--regions", 7, "--phrases", 5, "--repeats", 2, "--threads", 1, "--json", tmp_path / "out.json"]
    scripts.call("benchmarks/score.py", "--model", tmp_path / "model", *options)
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["regions"], report["phrases"]) == (7, 5) and report["largest_difference"] < 1e-4
    times = report["milliseconds"]
    assert list(times) == ["one call", "a call a phrase", "describe alone"]
    assert all(figure > 0 for row in times.values() for figure in row.values())
    assert f"a call a phrase / one call: {report['ratio']['wall']:.1f}" in capsys.readouterr().out


# search.py


def test_a_whole_run_on_an_enlarged_index(tmp_path) -> None:
    write_noise(tmp_path, 3)
    model = exported_bundle()
    with saywhere.Index(tmp_path / "real", str(model)) as index:
        index.add(sorted(tmp_path.glob("*.png")))
        real = index.store.snapshot()
        out, folder = tmp_path / "out.json", tmp_path / "made"
        sizes = ["--sizes", "3", "7", "--exact", "3", "--components", "8"]
        often = ["--queries", "3", "--rounds", "1", "--threads", "1"]
        often += ["--qdrant", ":memory:"] if find_spec("qdrant_client") else []
        where = ["--index", str(tmp_path / "real"), "--folder", str(folder), "--model", str(model), "--out", str(out)]
        scripts.load("benchmarks/search.py").main([*sizes, *often, *where])
    rows = json.loads(out.read_text())["rows"]
    assert [row["images"] for row in rows] == [3, 7] and [row["overlap"] for row in rows] == [1.0, 1.0]
    assert all(row["qdrant"]["overlap"] == 1.0 for row in rows if find_spec("qdrant_client"))
    assert rows[0]["exact"]["wall"]["median"] > 0 and "exact" not in rows[1]
    assert all(row["codes"]["wall"]["median"] > 0 for row in rows)
    with Store(folder / "7-8") as made:
        snapshot = made.snapshot()
        assert len(made) == 7
        np.testing.assert_array_equal(snapshot.vectors[: len(real.vectors)], real.vectors)
        copied = snapshot.vectors[snapshot.rows(3)].astype(np.float32)
        images = [real.vectors[real.rows(number)].astype(np.float32) for number in range(3)]
        largest = np.abs(images[0]).max()
        for row, vector in enumerate(copied):  # every other region is another image's
            away = [np.abs(vector - image[row]).max() for image in images if row < len(image)]
            assert 0 < (min(away) if row % 2 else away[0]) < largest, row


# finetune.py


def test_what_finetuning_gains_is_measured_on_images_that_it_has_not_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    finetune = scripts.load("benchmarks/finetune.py")
    box = {"box": [0, 0, 9, 9], "phrase": "a zebra"}
    rows = [
        {"image": f"{n}.jpg", "set": "african_wildlife", "split": "val" if n % 10 == 0 else "train", "regions": [box]}
        for n in range(100)
    ]
    others = [{**rows[1], "image": "dog.jpg", "set": "pets"}, {**rows[2], "image": "bare.jpg", "regions": []}]
    (tmp_path / "wider").mkdir()
    (tmp_path / "wider" / "kinds.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, *others]))

    def command(*arguments: object) -> float:
        given = dict(zip(map(str, arguments), arguments[1:], strict=False))
        out = Path(str(given["--out"]))
        out.mkdir(parents=True)
        result = {"learnt": 24, "held_out": 6, "share": 0.5}
        better = 0.1 * (Path(str(given.get("--model"))).name == "model")
        report = {"map": 0.2 + better, "detection_map": 0.4, "meteor": 0.1 + better}
        name, text = ("finetune", {"result": result}) if "finetune" in arguments else ("report", report)
        (out / f"{name}.json").write_text(json.dumps(text))
        return 12.3

    monkeypatch.setattr(finetune, "command", command)
    where = ["--folder", str(tmp_path / "kept"), "--json", str(tmp_path / "out.json")]
    finetune.main([str(tmp_path), "--sets", "wildlife", "--images", "30", *where])
    read = {
        split: [
            json.loads(line)
            for line in (tmp_path / "kept" / "wildlife-30" / split / f"{split}.jsonl").read_text().splitlines()
        ]
        for split in ("train", "test")
    }
    assert {split: len(lines) for split, lines in read.items()} == {"train": 30, "test": 60}
    names = {split: {Path(line["image"]).name for line in lines} for split, lines in read.items()}
    assert not names["train"] & names["test"]
    assert {row["image"] for row in rows if row["split"] == "val"} <= names["test"]
    assert "| 30 wildlife | 60 | 0.200, 0.300 | 0.100, 0.200 | 0.100, 0.200 | 0.200, 0.300 | 0.5 | 12 s |" in (
        capsys.readouterr().out
    )
    assert [row["images"] for row in json.loads((tmp_path / "out.json").read_text())] == [30]

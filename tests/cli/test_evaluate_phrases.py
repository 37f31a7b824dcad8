"""``saywhere evaluate phrases`` as it is typed, on a tiny captioner of regions and without Java."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pictures import noise
from tiny_captioner import tiny_captioner
from typer.testing import CliRunner, Result

import saywhere
from saywhere import cli
from saywhere.evaluation import captioning, meteor
from saywhere.evaluation.captioning import CaptionScores
from saywhere.models import checkpoint

BOXES = ([0, 0, 40, 60], [50, 5, 90, 60])


class StubMeteor:
    def __enter__(self) -> StubMeteor:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def lengths(said, true, scorer) -> CaptionScores:
    """The mean number of words, as every metric."""
    each = {name: float(len(text.split())) for name, text in said.items()}
    assert set(said) == set(true) and all(true.values())
    return CaptionScores(dict.fromkeys(captioning.ORDER, sum(each.values()) / len(each)), each)


@pytest.fixture
def files(monkeypatch, tmp_path: Path) -> tuple[Path, str]:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(captioning, "score_captions", lengths)
    lines = []
    for number in range(3):
        noise(96, 64, number).save(tmp_path / f"{number}.png")
        regions = [{"box": box, "phrase": "a dog"} for box in BOXES]
        lines.append(json.dumps({"image": f"{number}.png", "split": "dev", "regions": regions}))
    (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
    return tmp_path / "data.jsonl", str(checkpoint.save(tiny_captioner(speaker="rnn", regions=True), tmp_path / "m"))


def phrases(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, ["evaluate", "phrases", *map(str, arguments), "--device", "cpu"])


def test_each_true_box_is_described(files, tmp_path):
    data, model = files
    result = phrases("--model", model, "--data", data, "--out", tmp_path / "out", "--limit", 2)
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert (row["task"], row["boxes"], row["merge"], "set" in row) == ("phrases", 4, 0.7, False)
    said = [r.captions for r in saywhere.load(model).describe([tmp_path / f"{n}.png" for n in (0, 1)], [BOXES] * 2)]
    assert row["bleu_1"] == sum(len(text.split()) for texts in said for text in texts) / 4


def test_options_of_the_model_can_be_changed(files, tmp_path):
    data, model = files
    result = phrases("--model", model, "--data", data, "--out", tmp_path / "out", "--set", "max_words=1")
    assert result.exit_code == 0, result.output
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert row["set"] == ["max_words=1"] and row["bleu_1"] <= 1.0
    wrong = phrases("--model", model, "--data", data, "--out", tmp_path / "other", "--set", "max_word=1")
    assert wrong.exit_code == 2 and "max_word" in wrong.output


def test_pictures_that_cannot_be_read_are_named(files, tmp_path):
    data, model = files
    (tmp_path / "1.png").write_bytes(b"broken")
    result = phrases("--model", model, "--data", data, "--out", tmp_path / "out")
    assert result.exit_code == 1 and "1.png" in result.output
    assert json.loads((tmp_path / "out/report.json").read_text())["boxes"] == 4

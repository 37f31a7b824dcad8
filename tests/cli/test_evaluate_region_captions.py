"""``saywhere evaluate region-captions`` as it is typed, on a tiny captioner of boxes and without Java."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from albums import write_album
from commands import run
from stubs import StubMeteor
from tiny_captioner import tiny_captioner
from tiny_densecap import tiny_model

import saywhere
from saywhere.evaluation import captions as captioning
from saywhere.evaluation import meteor
from saywhere.evaluation.captions import CaptionScores
from saywhere.evaluation.region_captions import word_facts
from saywhere.networks import checkpoint

BOXES = ([0, 0, 40, 60], [50, 5, 90, 60])


def lengths(said, true, scorer) -> CaptionScores:
    """The mean number of words, as every metric."""
    each = {name: float(len(text.split())) for name, text in said.items()}
    assert set(said) == set(true) and all(true.values())
    return CaptionScores(dict.fromkeys(captioning.ORDER, sum(each.values()) / len(each)), each)


@pytest.fixture
def files(monkeypatch, tmp_path: Path) -> tuple[Path, str]:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(captioning, "score_captions", lengths)
    data = write_album(tmp_path, [{"regions": [{"box": box, "phrase": "a dog"} for box in BOXES]}] * 3)
    return data, str(checkpoint.save(tiny_captioner(decoder="rnn", describe_boxes=True), tmp_path / "m"))


region_captions = partial(run, "evaluate", "region-captions", "--device", "cpu")


def test_each_true_box_is_described(files, tmp_path):
    data, model = files
    result = region_captions("--model", model, "--data", data, "--out", tmp_path / "out", "--limit", 2)
    row = json.loads((tmp_path / "out/report.json").read_text())
    assert (row["task"], row["boxes"], row["merge"], "set" in row) == ("region-captions", 4, 0.7, False)
    said = [
        r.captions for r in saywhere.load(model).describe([str(tmp_path / f"{n}.png") for n in (0, 1)], [BOXES] * 2)
    ]
    assert row["bleu_1"] == sum(len(text.split()) for texts in said for text in texts) / 4
    assert (row["words"], row["distinct_true"], row["sex_boxes"], row["sex_right"]) == (row["bleu_1"], 1, 0, None)
    assert f"{row['words']:.2f} words per phrase, {row['distinct']} different phrases (truth: 1)" in result.output
    assert "colour: 0 boxes\n" in result.output


def test_words_for_sex_and_colour_are_right_or_wrong_where_the_truth_names_them():
    cases = [
        ("a man's hand beside a woman", ["a woman with a red bag", "a man in grey"]),
        ("a lady in a gray and blue coat", ["a boy in a grey coat"]),
        ("a person in an orange vest", ["two girls in orange vests"]),
        ("a black dog", ["a dog with a white man"]),
        ("an orange on a green plate", ["a glass of orange juice", "an orange"]),
    ]
    facts = word_facts(
        {str(i): said for i, (said, _) in enumerate(cases)}, {str(i): true for i, (_, true) in enumerate(cases)}
    )
    assert (facts.sex_boxes, facts.sex_said, facts.sex_right) == (4, 0.5, 0.5)
    assert (facts.colour_boxes, facts.colour_said, facts.colour_right) == (4, 0.75, 0.5)
    assert (facts.words, facts.distinct, facts.distinct_true) == (5.8, 5, 5)
    nothing = word_facts({"0": "a dog", "1": "A dog."}, {"0": ["a dog"], "1": ["a cat"]})
    assert (nothing.distinct, nothing.sex_right, nothing.colour_said) == (1, None, None)


def test_a_dense_captioner_describes_boxes_too(files, tmp_path):
    data, _ = files
    densecap = checkpoint.save(tiny_model(), tmp_path / "densecap")
    region_captions("--model", densecap, "--data", data, "--out", tmp_path / "out", "--limit", 1)
    assert json.loads((tmp_path / "out/report.json").read_text())["boxes"] == 2

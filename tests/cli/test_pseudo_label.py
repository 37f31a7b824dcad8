from __future__ import annotations

import json
import os
from pathlib import Path

from photographs import noise
from tiny_aligner import SENTENCES, tiny_aligner
from tiny_densecap import tiny_model
from typer.testing import CliRunner, Result

import saywhere
import saywhere.data
from saywhere.cli import app
from saywhere.models.nouns import fuller_phrase, noun_tree
from saywhere.networks import checkpoint


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["pseudo-label", *map(str, arguments), "--device", "cpu"])


def write(root: Path) -> Path:
    root.mkdir()
    lines = []
    for number, sentence in enumerate(SENTENCES):
        noise(96, 64, number).save(root / f"{number}.png")
        row = {"image": f"{number}.png", "sentences": [sentence, "a dog"], "split": "train" if number else "val"}
        lines.append(json.dumps(row))
    (root / "images.jsonl").write_text("\n".join(lines) + "\n")
    return root


def test_sentences_become_regions_of_a_data_set(tmp_path: Path):
    root, model = write(tmp_path / "data"), checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    first = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 0, "--limit", 1)
    assert first.exit_code == 0 and "snippets of 2 images" in first.output, first.output
    (root / "3.png").write_bytes(b"broken")
    result = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 0)
    assert result.exit_code == 1 and "3.png" in result.stderr
    loaded = saywhere.load(model)
    train = saywhere.data.read(tmp_path / "new", split="train")
    assert [sample.image.resolve() for sample in train] == [(root / f"{n}.png").resolve() for n in (1, 2)]
    for sample, sentence in zip(train, SENTENCES[1:], strict=False):
        aligned = [loaded.align(sample.image, text, beta=0.0) for text in (sentence, "a dog")]
        phrases = {phrase for references in sample.phrases for phrase in references}
        assert phrases == {words for alignment in aligned for _, words in alignment.snippets()}
    assert len(saywhere.data.read(tmp_path / "new", split="val")) == 1


def test_another_beta_is_not_mixed_in(tmp_path: Path):
    root, model = write(tmp_path / "data"), checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    assert run(root, "--model", model, "--out", tmp_path / "new", "--limit", 1).exit_code == 0
    result = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 5)
    assert result.exit_code == 2 and "another beta" in result.stderr


def test_boxes_with_classes_get_fuller_phrases(tmp_path: Path):
    noise(96, 64, 0).save(tmp_path / "0.png")
    regions = [{"box": [8, 8, 60, 40], "phrase": "a chair"}, {"box": [0, 0, 96, 64], "phrase": "a zyzzyva"}]
    line = json.dumps({"image": "0.png", "regions": regions, "split": "train"})
    (tmp_path / "data.jsonl").write_text(line + "\n")
    model = checkpoint.save(tiny_model(), tmp_path / "densecap")
    odd = tmp_path / os.fsdecode(b"odd \xff.png")
    noise(96, 64, 0).save(odd)
    (tmp_path / "odd.jsonl").write_text(json.dumps({"image": odd.name, "regions": regions, "split": "train"}))
    named = run(tmp_path / "odd.jsonl", "--model", model, "--boxes", "--out", tmp_path / "odd")
    assert named.exit_code == 0, named.output
    assert [sample.image.resolve() for sample in saywhere.data.read(tmp_path / "odd")] == [odd]
    result = run(tmp_path / "data.jsonl", "--model", model, "--boxes", "--out", tmp_path / "new")
    assert result.exit_code == 0, result.output
    (sample,) = saywhere.data.read(tmp_path / "new")
    assert sample.boxes.tolist() == [[8, 8, 60, 40], [0, 0, 96, 64]]
    said = saywhere.load(model).describe(tmp_path / "0.png", sample.boxes).captions
    assert said is not None
    assert sample.phrases == ((fuller_phrase(noun_tree(), said[0], "a chair"),), ("a zyzzyva",))
    assert noun_tree().find(sample.phrases[0][0]) == noun_tree().find("a chair")
    again = run(tmp_path / "data.jsonl", "--model", model, "--out", tmp_path / "new")
    assert again.exit_code == 2

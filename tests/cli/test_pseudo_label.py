from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import commands
from photographs import noise
from tiny_aligner import SENTENCES, tiny_aligner

import saywhere
import saywhere.data
from saywhere.networks import checkpoint

run = partial(commands.run, "pseudo-label", "--device", "cpu")


def write(root: Path) -> Path:
    root.mkdir()
    lines = []
    for number, sentence in enumerate(SENTENCES):
        name = os.fsdecode(b"2 \xff.png") if number == 2 else f"{number}.png"
        noise(96, 64, number).save(root / name)
        row = {"image": name, "sentences": [sentence, "a dog"], "split": "train" if number else "val"}
        lines.append(json.dumps(row))
    (root / "images.jsonl").write_text("\n".join(lines) + "\n")
    return root


def test_sentences_become_regions_of_a_data_set(tmp_path: Path):
    root, model = write(tmp_path / "data"), checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    (root / "3.png").write_bytes(b"broken")
    first = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 0, "--limit", 1, code=1)
    assert "snippets of 2 images" in first.output, first.output
    result = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 0, code=1)
    assert "3.png" in result.stderr
    loaded = saywhere.load(model)
    train = saywhere.data.read(tmp_path / "new", split="train")
    assert [sample.image.resolve() for sample in train] == [root / "1.png", root / os.fsdecode(b"2 \xff.png")]
    for sample, sentence in zip(train, SENTENCES[1:], strict=False):
        aligned = [loaded.align(sample.image, text, beta=0.0) for text in (sentence, "a dog")]
        phrases = {phrase for references in sample.phrases for phrase in references}
        assert phrases == {words for alignment in aligned for _, words in alignment.snippets()}
    assert len(saywhere.data.read(tmp_path / "new", split="val")) == 1


def test_without_a_sentence_the_reason_is_told_and_nothing_is_written(tmp_path: Path):
    noise(96, 64, 0).save(tmp_path / "a.png")
    regions = [{"box": [0, 0, 9, 9], "phrase": "a dog"}]
    row = {"image": "a.png", "split": "train", "width": 96, "height": 64, "regions": regions}
    (tmp_path / "images.jsonl").write_text(json.dumps(row) + "\n")
    result = run(tmp_path, "--out", tmp_path / "new", code=2)
    assert commands.error_of(result).endswith(": no image of split train has a sentence to cut into snippets\n")
    assert not (tmp_path / "new").exists()


def test_another_beta_is_not_mixed_in(tmp_path: Path):
    root, model = write(tmp_path / "data"), checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    run(root, "--model", model, "--out", tmp_path / "new", "--limit", 1)
    result = run(root, "--model", model, "--out", tmp_path / "new", "--beta", 5, code=2)
    assert "another beta" in result.stderr

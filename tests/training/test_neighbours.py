"""Sentences of training images: which are kept, whether they are found, and what the command leaves."""

from __future__ import annotations

import json

import pytest
import torch
from tiny_aligner import tiny_aligner
from tiny_captioned import KINDS, captioned, data
from tiny_captioner import SENTENCES, VOCABULARY, tiny_captioner
from typer.testing import CliRunner

import saywhere
from saywhere import UserError
from saywhere.cli import app
from saywhere.networks import checkpoint
from saywhere.networks.language.cider import Cider
from saywhere.training import neighbours
from saywhere.training.neighbours import central, judge, learn, store


def test_the_central_sentence_is_the_one_that_the_others_are_like():
    sentences = [[4, 5], [6, 7, 8], [6, 7, 9], [6, 7, 8]]
    assert central(sentences, Cider([sentences, [[10, 11]]])) == [6, 7, 8]
    assert central([[4, 5]], Cider([[[4, 5]]])) == [4, 5]


def test_images_find_sentences_of_their_kind(monkeypatch):
    monkeypatch.setattr(neighbours, "BATCH", 32)
    data = captioned()
    cider = Cider(data.sentences)
    space = learn(data, 20, 6, epochs=60)
    stored = store(space, data, cider)
    worth = judge(stored, data, cider, 20, 5)
    assert worth.images == 10 and worth.nearest > 2 * worth.random > 0
    assert stored.keys.abs().max() == neighbours.LARGEST and stored.keys.dtype == torch.int8
    assert stored.token_ids.tolist() == [t for rows in data.sentences for t in central(rows, cider)]
    with torch.no_grad():
        embeddings = torch.from_numpy(data.embeddings)
        expected = space.of_images(embeddings)
        found = torch.nn.functional.normalize(stored.query(embeddings), dim=1)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
    again = store(learn(data, 20, 6, epochs=60), data, cider)
    assert torch.equal(again.keys, stored.keys)  # of the same seed


def test_training_leaves_torchs_own_numbers_alone(monkeypatch):
    monkeypatch.setattr(neighbours, "BATCH", 32)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    learn(captioned(60), 20, 6, epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_the_command_stores_them_beside_the_captioner(tmp_path, monkeypatch):
    monkeypatch.setattr(neighbours, "BATCH", 16)
    monkeypatch.setattr(neighbours, "EPOCHS", 30)
    model = tmp_path / "model"
    checkpoint.save(tiny_captioner(), model)
    source = data(tmp_path, 60)
    (tmp_path / "7.png").write_bytes((tmp_path / "7.png").read_bytes()[:200])
    images = [tmp_path / f"{number}.png" for number in (8, 9, 10, 11)]
    before = saywhere.load(model, device="cpu").caption(images)
    asked = ["train-neighbours", str(model), "--data", str(source)]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    assert f"left out: {tmp_path / '7.png'}" in result.output
    stored = checkpoint.read_weights(model)
    assert stored["captioner.neighbours.keys"].shape == (58, 48)
    assert stored["captioner.neighbours.token_ids"].dtype == torch.int16
    config = json.loads((model / "config.json").read_text())["parts"]["captioner"]["neighbours"]
    assert config["sentences"] == 58 and config["words"] == len(stored["captioner.neighbours.token_ids"])
    assert "58 sentences of jsonl data.jsonl, split train" in " ".join((model / "README.md").read_text().split())
    strong = saywhere.load(model, device="cpu", options={"captioner.neighbours.weight": 50.0})
    assert [str(caption) for caption in strong.caption(images)] == [SENTENCES[n % KINDS] for n in (8, 9, 10, 11)]
    without = saywhere.load(model, device="cpu", options={"captioner.neighbours.weight": 0.0})
    assert [str(caption) for caption in without.caption(images)] == [str(caption) for caption in before]
    assert CliRunner().invoke(app, asked).exit_code == 0  # it can be done anew


def test_what_is_worth_nothing_is_not_stored(tmp_path):
    checkpoint.save(tiny_captioner(), tmp_path / "model")
    source = data(tmp_path, 44)
    samples = list(saywhere.data.read(source, None, "train"))
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    same = [sample.__class__(**{**vars(sample), "sentences": ("a man",)}) for sample in samples]
    with pytest.raises(UserError, match="nothing was learnt: of 3 images the nearest sentences have a CIDEr-D of"):
        neighbours.train(tmp_path / "model", [same], "the same", "cpu")
    with pytest.raises(UserError, match="40 images with sentences are needed, and 30 can be used"):
        neighbours.train(tmp_path / "model", [same[:30]], "thirty", "cpu")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_models_that_caption_no_images_are_refused(tmp_path):
    checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    checkpoint.save(tiny_captioner(decoder="gru", describe_boxes=True), tmp_path / "boxes")
    for name in ("aligner", "boxes"):
        with pytest.raises(UserError, match=f"{name} has no captioner of images, but"):
            neighbours.train(tmp_path / name, [], "nothing", "cpu")
    with pytest.raises(UserError, match="flickr-coco comes with saywhere; copy"):
        neighbours.train("flickr-coco", [], "nothing", "cpu")
    assert len(VOCABULARY) < torch.iinfo(torch.int16).max

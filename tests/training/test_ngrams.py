"""N-grams that people would say: which are kept, whether they are learnt, and what the command leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from tiny_bundle import tiny_networks
from tiny_captioned import KINDS, captioned, data, regions
from tiny_captioner import VOCABULARY, tiny_captioner

import saywhere
from saywhere import UserError
from saywhere.configs.parts import NgramsConfig
from saywhere.data.sample import is_held_out
from saywhere.engines.arrays.layers import STORED, Ngrams
from saywhere.models.captioner import bind
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.text import END, START, UNKNOWN
from saywhere.training import ngrams
from saywhere.training.ngrams import Said, judge, learn, store


def few(monkeypatch: pytest.MonkeyPatch, least: int = 3, **others: Any) -> None:
    for part, settings in ngrams.SETTINGS.items():
        changed = replace(settings, least=(least,) * len(settings.least), **others)
        monkeypatch.setitem(ngrams.SETTINGS, part, changed)
    monkeypatch.setattr(ngrams, "BATCH", 32)


def test_frequent_n_grams_are_kept_with_the_share_of_sentences_that_have_them():
    said = Said.of([[[4, 5], [4, 4, 6]], [[4, UNKNOWN]], [[7]]], (2,) * 4)
    assert said.ngrams == [(START, 4), (4,)]
    torch.testing.assert_close(said.targets([1, 0, 2]), torch.tensor([[1.0, 1], [1, 1], [0, 0]]))
    torch.testing.assert_close(said.mean([0, 1, 2]), torch.tensor([2 / 3, 2 / 3]))
    said = Said.of([[[4, 5], [4, 4, 6]], [[7]]], (1,) * 4)
    assert (START, 4, 5, END) in said.ngrams and (4, 4, 6, END) in said.ngrams and (4, 5, END) in said.ngrams
    five = said.ngrams.index((5,))
    assert said.targets([0])[0, five] == 0.5 and said.mean([0, 1])[five] == 0.25
    assert said.mean([0, 1], any_sentence=True)[five] == 0.5


@pytest.mark.parametrize("hidden", [0, 16])
def test_images_tell_what_is_said_of_their_kind(monkeypatch, hidden: int):
    few(monkeypatch, epochs=60, dropout=0.5)
    settings, config = ngrams.SETTINGS["captioner"], NgramsConfig(size=6, hidden=hidden)
    images = captioned()
    said = Said.of(images.sentences, settings.least)
    predictor = learn(images, said, config, settings)
    worth = judge(predictor, images, said)
    assert worth.count == 10 and worth.known < 0.9 * worth.unknown
    stored = store(predictor, said)
    assert stored.keys.abs().max() == ngrams.LARGEST and stored.keys.dtype == torch.int8
    arrays = {name: stored.get_buffer(name).numpy() for name in STORED}
    layers = [layer for layer in (stored.hidden, stored.query) if layer is not None]
    assert len(layers) == 1 + bool(hidden)
    known = Ngrams.unpack(tuple((a.weight.numpy().T, a.bias.numpy()) for a in layers), arrays, 20)
    with torch.no_grad():
        expected = torch.sigmoid(predictor(torch.from_numpy(images.features)))
    found = known.probabilities(images.features)
    np.testing.assert_allclose(found, expected.numpy(), atol=0.03)  # keys are whole numbers
    kinds = found[:, [known.rows[4 + kind,][0] for kind in range(KINDS)]]
    assert (kinds.argmax(axis=1) == np.arange(len(kinds)) % KINDS).mean() > 0.9
    assert known.rows[4,][1] == pytest.approx(np.log(KINDS))
    assert torch.equal(store(learn(images, said, config, settings), said).keys, stored.keys)  # of the same seed


def stop_at_image(monkeypatch: pytest.MonkeyPatch, number: int) -> list[Path]:
    """Interrupt the program when the image of a number is encoded; return the images, of later runs too."""
    encoded, encode = list[Path](), Model.encode

    def stopped(model: Model, image: Path) -> Any:
        encoded.append(image)
        if len(encoded) == number:
            raise KeyboardInterrupt
        return encode(model, image)

    monkeypatch.setattr(Model, "encode", stopped)
    return encoded


def agreement(folder: Path, images: list[Path], sentences: list[str]) -> float:
    """How well sentences agree with what people would say of their images, on the average."""
    model = saywhere.load(folder, device="cpu")
    captioner = model.require("captioner", "")
    weighed = [captioner.ngrams.weigh([captioner.vocabulary.encode(sentence)]) for sentence in sentences]
    embeddings = bind(captioner, model.encode(images)).embeddings
    return float(np.mean(captioner.ngrams.agreement(captioner.ngrams.probabilities(embeddings), weighed)))


def test_a_stage_stores_them_beside_the_captioner(tmp_path, monkeypatch):
    few(monkeypatch)
    given, model = tmp_path / "given", tmp_path / "run" / "model"
    checkpoint.save(tiny_captioner(decoder="lstm"), given)
    source = data(tmp_path, 60)
    (tmp_path / "7.png").write_bytes((tmp_path / "7.png").read_bytes()[:200])
    images = [tmp_path / f"{number}.png" for number in (8, 9, 10, 11)]
    before = [str(caption) for caption in saywhere.load(given, device="cpu").caption(images)]
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(f"name: ngrams\nstages: {{ngrams: {{model: {given}, data: [{{root: {source}}}]}}}}\n")
    asked = ["train", str(recipe), "--out", str(tmp_path / "run")]
    encoded = stop_at_image(monkeypatch, 30)
    run(*asked, code=130)
    cache = tmp_path / "run" / "stages" / "ngrams" / "cache"
    stored = sorted(cache.iterdir())
    assert len(stored) == len(encoded) - 2 == 28  # all but the unreadable image, and that of the interrupt
    stored[3].write_bytes(b"PK damaged")
    stored[4].write_bytes(b"")
    result = run(*asked, code=1)
    assert len(encoded) == 30 + (59 - 28) + 2 and not cache.exists()
    assert f"skipped: {tmp_path / '7.png'}" in result.stderr
    assert f"left out: {tmp_path / '0.png'}: no sentence has 1 to " in result.output
    stored = checkpoint.read_weights(model)
    config = json.loads((model / "config.json").read_text())["parts"]["captioner"]["ngrams"]
    assert config["words"] == len(stored["captioner.ngrams.token_ids"])
    assert stored["captioner.ngrams.keys"].shape == (config["count"], config["size"])
    card = " ".join((model / "README.md").read_text().split())
    assert f"{config['count']} n-grams, learned from jsonl data.jsonl, split train" in card
    strong = {"captioner.ngrams.weight": 500.0, "captioner.decoding.beam_size": 8}
    chosen = [str(caption) for caption in saywhere.load(model, device="cpu", options=strong).caption(images)]
    assert chosen != before and agreement(model, images, chosen) > agreement(model, images, before)
    unasked = {"captioner.ngrams.weight": 0.0, "captioner.ngrams.least_probability": 0.0}
    without = saywhere.load(model, device="cpu", options=unasked)
    assert [str(caption) for caption in without.caption(images)] == before
    again = {"model.safetensors": None, "vocabulary.json": None} | {p.name: p.read_bytes() for p in model.iterdir()}
    for option, done in ([], "done before"), (["--restart"], "done in"):  # which says it again
        other = run(*asked, *option, code=1)
        assert done in other.stdout, other.output
        assert other.stderr.count(f"skipped: {tmp_path / '7.png'}") == 1
    assert {path.name: path.read_bytes() for path in model.iterdir()} == again


def test_a_stage_stores_those_of_phrases_beside_the_dense_captioner(tmp_path, monkeypatch):
    few(monkeypatch, dropout=0.2, epochs=60, rate=3e-3)
    given, model = tmp_path / "given", tmp_path / "run" / "model"
    checkpoint.save(tiny_networks({"densecap": {"ngrams": {"hidden": 8, "size": 6, "weight": 500.0}}}), given)
    source = regions(tmp_path, 80)
    recipe = tmp_path / "recipe.yaml"
    stage = f"{{model: {given}, part: densecap, data: [{{root: {source}}}]}}"
    recipe.write_text(f"name: ngrams\nstages: {{ngrams: {stage}}}\n")
    run("train", str(recipe), "--out", str(tmp_path / "run"))
    stored = checkpoint.read_weights(model)
    config = json.loads((model / "config.json").read_text())["parts"]["densecap"]["ngrams"]
    assert stored["densecap.ngrams.keys"].shape == (config["count"], 6) and config["count"] > 4
    assert stored["densecap.ngrams.hidden.weight"].shape[0] == 8
    assert set(stored["densecap.ngrams.lengths"].tolist()) == {1, 2}
    card = " ".join((model / "README.md").read_text().split())
    held_out = [row for row in range(80) if is_held_out(Path(f"{row}.png"))]
    assert f"of {2 * len(held_out)} of its boxes, which did not teach them" in card.lower()
    assert "N-gram probabilities of phrases" in card
    recipe.write_text(f"name: ngrams\nstages: {{ngrams: {stage.replace('densecap', 'aligner')}}}\n")
    assert "part is 'aligner', but must be one of captioner, densecap" in run("train", str(recipe), code=2).stderr


def test_what_is_worth_nothing_is_not_stored(tmp_path, monkeypatch):
    checkpoint.save(tiny_captioner(), tmp_path / "model")
    samples = list(saywhere.data.read(data(tmp_path, 44), None, "train"))
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    few(monkeypatch, 1000)
    with pytest.raises(UserError, match="no word is in 1000 texts, and no run of words in 1000"):
        ngrams.train(tmp_path / "model", [samples], "the same", tmp_path / "cache", "cpu")
    few(monkeypatch, epochs=1, rate=10.0)
    with pytest.raises(UserError, match="nothing was learnt: the texts of 3 images have a cross-entropy of"):
        ngrams.train(tmp_path / "model", [samples], "the same", tmp_path / "cache", "cpu")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    assert len(VOCABULARY) < torch.iinfo(torch.int16).max

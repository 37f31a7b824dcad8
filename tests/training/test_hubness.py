"""Typical texts and images that say what a bank says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from albums import write_album
from commands import run
from photographs import noise
from refusals import refuses
from tiny_aligner import SENTENCES, tiny_aligner

import saywhere
from saywhere import UserError
from saywhere.engines.engine import Typical
from saywhere.models.aligner import similarity_matrix
from saywhere.networks import checkpoint
from saywhere.training import hubness
from saywhere.training.hubness import Embedded, fit, fit_hubness, prepare, soft_maximum


def test_the_soft_maximum_leaves_out_what_is_of_the_same_image():
    similarity = np.array([[1.0, 2, 900], [5, 5, 5]])
    same = np.array([[False, False, True], [False, True, False]])
    expected = [2 * np.log((np.exp(0.5) + np.exp(1)) / 2), 5]
    np.testing.assert_allclose(soft_maximum(similarity, same, 2.0), expected)


def embedded(count: int, seed: int = 0) -> Embedded:
    generator = np.random.default_rng(seed)
    lengths = generator.uniform(0.2, 2, count)
    images = [generator.standard_normal((3, 8), np.float32) * np.float32(length) for length in lengths]
    texts = [generator.standard_normal((2, 8), np.float32) for _ in range(2 * count)]
    return Embedded(images, texts, np.repeat(np.arange(count), 2), [0, count // 2])


def test_the_bank_is_asked_but_for_an_images_own(monkeypatch):
    monkeypatch.setattr(hubness, "TOGETHER", 7)
    data = embedded(20)
    images, texts = prepare(data, 3.0)
    everything = similarity_matrix(data.images, data.texts)
    own = data.owner[None] == np.arange(20)[:, None]
    np.testing.assert_allclose(images.hubness, soft_maximum(everything, own, 3.0), rtol=1e-5)
    of_texts = soft_maximum(everything.T, own.T, 3.0)
    np.testing.assert_allclose(texts.hubness, of_texts - of_texts.mean(), rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(hubness, "BANK_IMAGES", 4)
    monkeypatch.setattr(hubness, "BANK_TEXTS", 5)
    small, other = prepare(data, 3.0)
    assert (len(small.bank), len(other.bank)) == (10, 8)  # of each of the two data sets as many
    assert np.corrcoef(small.hubness, images.hubness)[0, 1] > 0.5


@pytest.mark.parametrize("size", [100.0, 1.0, 0.01])
def test_typical_vectors_learn_what_the_bank_says_at_any_scale(size):
    data = embedded(400)
    data = replace(data, images=[image * np.float32(size) for image in data.images])
    lesson, _ = prepare(data, 3 * size)
    found = fit(lesson, 3 * size, 64, "typical texts")
    layer = found.layer
    known = Typical(layer.weight.detach().numpy(), layer.bias.detach().numpy(), found.temperature)
    said = [known.hubness((image @ known.vectors.T).max(axis=0)) for image in lesson.items]
    assert np.corrcoef(said, lesson.hubness)[0, 1] > 0.98
    assert np.mean(said) == pytest.approx(lesson.hubness.mean(), abs=0.3 * size)
    assert found.temperature > 0 and found.error < 0.3 * found.spread
    assert found.spread == pytest.approx(lesson.hubness[::10].std(ddof=1), rel=1e-4)


def data(folder: Path, count: int) -> Path:
    said = [["...", SENTENCES[n % 4]] if n % 2 else [SENTENCES[n % 4]] for n in range(1, count)]
    return write_album(folder, [{"sentences": each, "split": "train"} for each in (["..."], *said)])


def test_the_command_stores_it_beside_the_aligner(tmp_path, monkeypatch):
    monkeypatch.setattr(hubness, "EPOCHS", 60)
    checkpoint.save(tiny_aligner(), tmp_path / "model")
    source = data(tmp_path, 50)
    (tmp_path / "7.png").write_bytes((tmp_path / "7.png").read_bytes()[:200])
    before = saywhere.load(tmp_path / "model", device="cpu")
    text = before.embed_text(SENTENCES[0])
    asked = ["calibrate", str(tmp_path / "model"), "--what", "similarity", "--data", str(source)]
    result = run(*asked, code=1)
    assert f"skipped: {tmp_path / '7.png'}" in result.stderr
    after = saywhere.load(tmp_path / "model", device="cpu")
    assert after.aligner.config.hubs == hubness.HUBS and text.hubness == 0.0
    again = after.embed_text(SENTENCES[0])
    assert again.hubness != 0.0
    np.testing.assert_array_equal(again.vectors, text.vectors)
    assert "48 images and 48 sentences" in " ".join((tmp_path / "model" / "README.md").read_text().split())
    noise(96, 64).save(tmp_path / "7.png")
    run(*asked)  # it can be done anew


def test_what_is_worth_nothing_is_not_stored(tmp_path, monkeypatch):
    monkeypatch.setattr(hubness, "RATE", 1e4)
    checkpoint.save(tiny_aligner(), tmp_path / "model")
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    samples = list(saywhere.data.read(data(tmp_path, 40), None, "train"))
    with pytest.raises(UserError, match=r"the hubness of \w+ could not be learnt: off by"):
        fit_hubness(saywhere.load(tmp_path / "model", "cpu"), [samples], "forty")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(UserError, match="too large for half precision, or no numbers"):
        checkpoint.change_weights(tmp_path / "model", "aligner.hubs", {"x": torch.tensor([1e9])}, {})


def test_too_few_images_and_models_without_an_aligner_are_refused(tmp_path):
    checkpoint.save(tiny_aligner(score="fragments"), tmp_path / "other")
    checkpoint.save(tiny_aligner(), tmp_path / "model")
    samples = list(saywhere.data.read(data(tmp_path, 3), None, "train"))
    with pytest.raises(UserError, match="needs 32 images with sentences, and 2 can be read"):
        fit_hubness(saywhere.load(tmp_path / "model", "cpu"), [samples], "three")
    refuses("has the score fragments", fit_hubness, saywhere.load(tmp_path / "other", "cpu"), [samples], "three")

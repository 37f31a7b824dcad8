from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_captioner import VOCABULARY, tiny_config
from tiny_densecap import tiny_model
from tiny_training import write_data

from saywhere import data
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.models.detection import detect
from saywhere.models.model import Model
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.training.calibration import Evidence, calibrate, collect, fit


def test_the_fit_finds_the_weights_that_made_the_matches() -> None:
    random = np.random.default_rng(0)
    logits, confidence = random.normal(size=40_000) * 2, -random.random(40_000) * 3
    chance = 1 / (1 + np.exp(-(0.8 * logits + 0.6 * confidence - 0.5)))
    found = fit(Evidence(logits, confidence, random.random(40_000) < chance))
    assert found == pytest.approx((0.8, 0.6, -0.5), abs=0.06)


def test_without_evidence_in_the_inputs_the_score_is_the_rate() -> None:
    matches = np.arange(100) < 20
    of_logit, of_confidence, constant = fit(Evidence(np.zeros(100), np.zeros(100), matches))
    assert (of_logit, of_confidence) == (0, 0)
    assert constant == pytest.approx(math.log(0.2 / 0.8), abs=1e-3)


def test_matches_are_boxes_with_half_overlap_and_broken_images_are_passed_over(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path), "jsonl", "train"))[:3]
    model = Model(TorchEngine({"densecap": tiny_model(repeat_nms=None)}))
    assert model.detector is not None
    found = detect(model.detector, [model.encode(samples[0].image)])[0]
    right = replace(samples[0], boxes=found.boxes[:1], phrases=samples[0].phrases[:1])
    samples[1].image.write_bytes(b"no image")
    evidence = collect(model, [right, samples[1]])
    assert len(evidence.matches) == len(found.boxes)
    assert evidence.matches[0] and not evidence.matches.all()
    np.testing.assert_allclose(evidence.logits, found.logits, rtol=1e-5)
    np.testing.assert_allclose(evidence.confidence, found.confidence, rtol=1e-5)
    with pytest.raises(UserError, match="not one can be read"):
        collect(model, [samples[1]])
    bare = replace(samples[0], boxes=np.zeros((0, 4)), phrases=())
    with pytest.raises(UserError, match="right and wrong"):
        collect(model, [bare])


def test_a_checkpoint_is_calibrated_in_place_and_its_weights_stay(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    folder = checkpoint.save(tiny_model(), tmp_path / "model", "# A card\n", "a model", torch.float16)
    weights = (folder / "model.safetensors").read_bytes()
    found = calibrate(folder, samples, "the test's images")
    assert (folder / "model.safetensors").read_bytes() == weights
    assert checkpoint.load_network(folder).config.calibration == found != (1.0, 0.0, 0.0)
    assert json.loads((folder / "config.json").read_text())["description"] == "a model"
    card = (folder / "README.md").read_text()
    assert card.startswith("# A card\n") and f"{len(samples)} images of the test's images" in card
    calibrate(folder, samples, "the test's images")
    assert (folder / "README.md").read_text() == card  # the section is replaced, and the fit does not drift


def test_only_the_dense_captioner_of_a_model_is_calibrated(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    densecap = tiny_model()
    captioner = Captioner(tiny_config(), VOCABULARY, trunk=densecap.trunk)
    folder = checkpoint.save({"densecap": densecap, "captioner": captioner}, tmp_path / "both")
    before = Bundle.read(folder).configs
    found = calibrate(folder, samples, "the test's images", "cpu")
    assert Bundle.read(folder).configs == {**before, "densecap": replace(before["densecap"], calibration=found)}
    alone = checkpoint.save(captioner, tmp_path / "alone")
    with pytest.raises(UserError, match="alone has no dense captioner"):
        calibrate(alone, samples, "the test's images", "cpu")

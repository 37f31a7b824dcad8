from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_densecap import tiny_model
from tiny_training import write_data

from saywhere import data
from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.training.calibration import Evidence, calibrate, collect, fit


def test_the_fit_finds_the_weights_that_made_the_matches() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, confidence = torch.randn(40_000, generator=generator) * 2, -torch.rand(40_000, generator=generator) * 3
    chance = torch.sigmoid(0.8 * logits + 0.6 * confidence - 0.5)
    found = fit(Evidence(logits, confidence, torch.rand(40_000, generator=generator) < chance))
    assert found == pytest.approx((0.8, 0.6, -0.5), abs=0.06)


def test_without_evidence_in_the_inputs_the_score_is_the_rate() -> None:
    matches = torch.arange(100) < 20
    of_logit, of_confidence, constant = fit(Evidence(torch.zeros(100), torch.zeros(100), matches))
    assert (of_logit, of_confidence) == (0, 0)
    assert constant == pytest.approx(math.log(0.2 / 0.8), abs=1e-3)


def test_matches_are_boxes_with_half_overlap_and_broken_pictures_are_passed_over(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path), "jsonl", "train"))[:3]
    model = tiny_model(repeat_nms=None)
    found = model.find([model.encode(samples[0].image)])[0]
    right = replace(samples[0], boxes=found.boxes[:1].clone(), phrases=samples[0].phrases[:1])
    samples[1].image.write_bytes(b"no picture")
    evidence = collect(model, [right, samples[1]])
    assert len(evidence.matches) == len(found.boxes)
    assert evidence.matches[0] and not evidence.matches.all()
    torch.testing.assert_close(evidence.logits, found.logits)
    torch.testing.assert_close(evidence.confidence, found.confidence)
    with pytest.raises(UserError, match="not one can be read"):
        collect(model, [samples[1]])
    bare = replace(samples[0], boxes=torch.zeros(0, 4), phrases=())
    with pytest.raises(UserError, match="right and wrong"):
        collect(model, [bare])


def test_a_checkpoint_is_calibrated_in_place_and_its_weights_stay(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    folder = checkpoint.save(tiny_model(), tmp_path / "model", "# A card\n", "a model", torch.float16)
    weights = (folder / "model.safetensors").read_bytes()
    found = calibrate(folder, samples, "the test's pictures")
    assert (folder / "model.safetensors").read_bytes() == weights
    assert checkpoint.load(folder).config.calibration == found != (1.0, 0.0, 0.0)
    assert json.loads((folder / "config.json").read_text())["description"] == "a model"
    card = (folder / "README.md").read_text()
    assert card.startswith("# A card\n") and f"{len(samples)} pictures of the test's pictures" in card
    calibrate(folder, samples, "the test's pictures")
    assert (folder / "README.md").read_text() == card  # the section is replaced, and the fit does not drift

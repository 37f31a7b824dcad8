"""Phrases found or not: drawing those that an image does not show, and the fit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from photographs import noise
from tiny_bundle import exported_bundle
from tiny_densecap import tiny_model
from typer.testing import CliRunner

from saywhere import cli
from saywhere.configs.aligner import GroundingConfig
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.models.placing import Evidence
from saywhere.networks import checkpoint
from saywhere.regions import Regions
from saywhere.training.card import replace_section
from saywhere.training.presence import Collected, absent, choose, fit

OWN = (["a red shirt", "a dog"], ["two dogs", "a horse"], ["the sky"])
WORDS = ({"a", "red", "shirt", "dog"}, {"two", "dogs", "a", "horse"}, {"the", "sky", "horse"})


def test_phrases_of_other_images_are_not_said_of_this_one():
    found = list(absent(OWN, WORDS))
    assert [len(phrases) for phrases in found] == [2, 2, 1]
    for phrases, said in zip(found, WORDS, strict=True):
        assert not said.intersection(phrase.split()[-1] for phrase in phrases)
    assert found == list(absent(OWN, WORDS)) != list(absent(OWN, WORDS, seed=1))
    assert list(absent([["a dog"]], [{"a", "dog"}])) == [[]]


def test_a_logistic_regression_finds_the_weights():
    generator = np.random.default_rng(0)
    inputs = np.concatenate((generator.standard_normal((20000, 3)) * [1, 5, 0], np.ones((20000, 1))), axis=1)
    there = generator.random(20000) < 1 / (1 + np.exp(-inputs @ [2, -0.4, 0, 0.5]))
    assert fit(inputs, there) == pytest.approx([2, -0.4, 0, 0.5], abs=0.1)
    with pytest.raises(UserError, match="all 5 are of one kind"):
        fit(inputs[:5], np.ones(5, bool))


def collected(rare: bool, seed: int) -> Collected:
    """An image with 30 phrases of its own and 30 others: the classes know the place, the decoder does not."""
    generator = np.random.default_rng(seed)
    place, count = generator.integers(0, 3, 60), 60
    kinds = np.where(np.arange(3)[:, None] == place, -0.1, -8.0).astype(np.float32)
    there = np.arange(count) < 30
    similarity = (generator.standard_normal(count) + there).astype(np.float32)
    regions = Regions(50, 50, [[0, 0, 9, 9], [0, 0, 20, 20], [5, 5, 40, 40]])
    fits = generator.standard_normal((3, count)).astype(np.float32)
    evidence = Evidence(regions, fits, kinds, np.ones(count, bool), np.full(count, rare), similarity, "densecap")
    return Collected(evidence, (np.arange(3)[:, None] == place)[:, :30])


def test_the_weights_that_place_most_phrases_right_are_chosen():
    common = choose([collected(False, 0)], GroundingConfig())
    assert common.kind_weight > 0 and common.rare_kind_weight == 0
    assert common.presence is not None and common.presence[0] > 0.3 and common.rare_presence is None
    both = choose([collected(False, 0), collected(True, 1)], GroundingConfig())
    assert both.rare_kind_weight > 0 and both.presence == common.presence
    assert common.similarity_kind_weight == 0
    by_aligner = collected(False, 2)
    by_aligner = replace(by_aligner, evidence=replace(by_aligner.evidence, by="aligner"))
    assert choose([collected(False, 0)], GroundingConfig(), [by_aligner]).similarity_kind_weight > 0
    assert both.rare_presence is not None and both.rare_presence != both.presence


def test_a_bundle_is_calibrated_by_the_command(tmp_path):
    folder = tmp_path / "bundle"
    folder.mkdir()
    for path in exported_bundle().iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    rows = []
    for number, phrases in enumerate([("a red shirt", "a dog"), ("two dogs", "a horse"), ("the sky", "a white house")]):
        noise(96, 64, number).save(tmp_path / f"{number}.png")
        regions = [{"box": [10.0 * i, 0, 50 + 10 * i, 60], "phrase": phrase} for i, phrase in enumerate(phrases)]
        rows.append(json.dumps({"image": f"{number}.png", "split": "train", "regions": regions}))
    (tmp_path / "data.jsonl").write_text("\n".join(rows))
    (folder / "README.md").write_text("# Card\n\n## Grounding\n\nold\n\n## Limits\n\nmany\n")
    command = ["calibrate", str(folder), "--part", "aligner", "--data", str(tmp_path / "data.jsonl"), "--device", "cpu"]
    result = CliRunner().invoke(cli.app, command)
    assert result.exit_code == 0, result.output
    assert "of rare nouns" in result.output
    config = Bundle.read(folder).configs["aligner"].grounding
    assert config.presence is not None and len(config.presence) == 4
    card = (folder / "README.md").read_text()
    assert "old" not in card and "## Limits\n\nmany" in card and card.count("## Grounding") == 1
    shown = CliRunner().invoke(
        cli.app, ["ground", str(tmp_path / "0.png"), "a red shirt and a xylophone", "--model", str(folder), "--json"]
    )
    assert shown.exit_code == 0, shown.output
    phrases = json.loads(shown.stdout)["phrases"]
    assert [phrase["words"] for phrase in phrases] == ["a red shirt", "a xylophone"]
    assert all(("box" in phrase) == phrase["found"] == (phrase["score"] >= 0.5) for phrase in phrases)
    out = tmp_path / "out"
    measured = CliRunner().invoke(
        cli.app, ["evaluate", "ground", "--model", str(folder), "--data", str(tmp_path / "data.jsonl"),
                  "--split", "train", "--out", str(out)]
    )  # fmt: skip
    assert measured.exit_code == 0, measured.output
    assert "with the decision: accuracy" in measured.output and "rare nouns: accuracy" in measured.output
    row = json.loads((out / "report.json").read_text())
    assert row["phrases"] == 6 and row["presence"]["phrases"] == 6 and row["presence"]["others"] > 0


def test_a_model_without_an_aligner_is_refused(tmp_path):
    folder = checkpoint.save(tiny_model(), tmp_path / "densecap")
    (tmp_path / "data.jsonl").write_text(json.dumps({"image": "a.png", "width": 9, "height": 9, "regions": []}))
    noise(9, 9, 0).save(tmp_path / "a.png")
    result = CliRunner().invoke(
        cli.app, ["calibrate", str(folder), "--part", "aligner", "--data", str(tmp_path / "data.jsonl")]
    )
    assert result.exit_code == 2 and "has no aligner" in result.output


def test_a_section_of_a_card_is_replaced(tmp_path):
    card = tmp_path / "README.md"
    replace_section(card, "## A", "one\n")
    replace_section(card, "## B", "two\n")
    replace_section(card, "## A", "three\n")
    assert card.read_text() == "## B\n\ntwo\n\n## A\n\nthree\n"

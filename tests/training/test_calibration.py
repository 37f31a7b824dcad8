"""What is fitted to images: boxes that are right, and phrases that are there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refuses
from skimage import data as skimage_data
from tiny_captioner import VOCABULARY, tiny_config
from tiny_densecap import tiny_model
from tiny_training import write_data

import saywhere
from saywhere import data
from saywhere.calibration import QUESTIONS, Calibration
from saywhere.configs.aligner import GroundingConfig
from saywhere.data import Sample
from saywhere.engines.torch import TorchEngine
from saywhere.errors import UserError
from saywhere.models.bundle import Bundle
from saywhere.models.densecap import detect
from saywhere.models.model import Model
from saywhere.models.nouns import COLOUR_NAMES
from saywhere.models.placing import Evidence
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.regions import Regions
from saywhere.stages import calibration
from saywhere.training.calibration import (
    FEW,
    Collected,
    absent,
    choose_weights,
    collect_boxes,
    fit_numbers,
    fit_pairs,
    fit_phrases,
    fit_unnamed,
    numbered,
    recoloured,
)
from saywhere.training.card import replace_section


def test_matches_are_boxes_with_half_overlap_and_broken_images_are_passed_over(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path), "jsonl", "train"))[:3]
    model = Model(TorchEngine({"densecap": tiny_model(repeat_nms=None)}))
    assert model.densecap is not None
    found = detect(model.densecap, [model.encode(samples[0].image)])[0]
    right = replace(samples[0], boxes=found.boxes[:1], phrases=samples[0].phrases[:1])
    samples[1].image.write_bytes(b"no image")
    collected, information = collect_boxes(model, [right, samples[1]])
    assert len(collected.right) == len(found.boxes)
    assert collected.right[0] and not collected.right.all()
    for name, values in found.evidence.items():
        np.testing.assert_allclose(collected.evidence[name], values, rtol=1e-5)
    scores, inputs = 1 / (1 + np.exp(-found.logits)), np.c_[found.embeddings, np.ones(len(found.logits))]
    expected = np.einsum("n,ni,nj->ij", scores * (1 - scores), inputs, inputs) / len(scores)
    np.testing.assert_allclose(information, expected, rtol=1e-4, atol=1e-6)
    refuses("not one can be read", collect_boxes, model, [samples[1]])


def test_a_checkpoint_is_calibrated_in_place_and_its_weights_stay(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    folder = checkpoint.save(tiny_model(), tmp_path / "model", "# A card\n", "a model", torch.float16)
    weights = (folder / "model.safetensors").read_bytes()
    found = calibration.fit("box", folder, [samples], "the test's images", [None])
    assert (folder / "model.safetensors").read_bytes() == weights
    assert Bundle.read(folder).calibration.box == found.fits["box"] != Calibration().box
    assert checkpoint.read_information(folder, tiny_model().config.embed_dim + 1) is not None
    assert json.loads((folder / "config.json").read_text())["description"] == "a model"
    card = (folder / "README.md").read_text()
    assert card.startswith("# A card\n") and f"{len(samples)} images of the test's images" in card
    calibration.fit("box", folder, [samples], "the test's images", [None])
    assert (folder / "README.md").read_text() == card  # the section is replaced, and the fit does not drift


def test_only_the_dense_captioner_of_a_model_is_calibrated(tmp_path: Path) -> None:
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    densecap = tiny_model()
    captioner = Captioner(tiny_config(), VOCABULARY, trunk=densecap.trunk)
    folder = checkpoint.save({"densecap": densecap, "captioner": captioner}, tmp_path / "both")
    before = Bundle.read(folder).configs
    found = calibration.fit("box", folder, [samples], "the test's images", [None], "cpu")
    after = Bundle.read(folder)
    assert after.configs == before and after.calibration == replace(Calibration(), **found.fits)
    alone = checkpoint.save(captioner, tmp_path / "alone")
    with pytest.raises(UserError, match="alone has no part densecap, which is needed for that; it has captioner"):
        Bundle.read_own(alone, "densecap")
    bare = [replace(sample, boxes=np.zeros((0, 4)), phrases=()) for sample in samples]
    refuses("right and wrong boxes", calibration.fit, "box", folder, [bare], "the test's images", [None], "cpu")


# Phrases

OWN = (["a red shirt", "a dog"], ["two dogs", "a horse"], ["the sky"])
WORDS = ({"a", "red", "shirt", "dog"}, {"two", "dogs", "a", "horse"}, {"the", "sky", "horse"})


def test_phrases_of_other_images_are_not_said_of_this_one():
    found = list(absent(OWN, WORDS))
    assert [len(phrases) for phrases in found] == [2, 2, 1]
    for phrases, said in zip(found, WORDS, strict=True):
        assert not said.intersection(phrase.split()[-1] for phrase in phrases)
    assert found == list(absent(OWN, WORDS))
    assert list(absent([["a dog"]], [{"a", "dog"}])) == [[]]


@pytest.mark.parametrize(
    ("said", "other", "missing"),
    [("a man", "a person", False), ("some people", "a woman", False), ("a dog", "two puppies", False),
     ("a dog", "an animal", False), ("a dog", "a cat", True), ("a man", "a woman", True), ("a man", "xyzzy", True)],
)  # fmt: skip
def test_what_an_image_may_show_by_another_name_is_not_missing(said: str, other: str, missing: bool):
    words = [set(said.split()), set(other.split())]
    assert next(iter(absent([[said], [other]], words))) == [other] * missing


def collected(seed: int, rare: bool = False, bare: bool = False) -> Collected:
    """An image with 30 phrases of its own and 30 others: the classes know the place, the decoder does not."""
    generator = np.random.default_rng(seed)
    place, count = generator.integers(0, 3, 60), 60
    kinds = np.where(np.arange(3)[:, None] == place, -0.1, -8.0).astype(np.float32)
    there = np.arange(count) < 30
    similarity = (generator.standard_normal(count) + there).astype(np.float32)
    regions = Regions(50, 50, [[0, 0, 9, 9], [0, 0, 20, 20], [5, 5, 40, 40]])
    fits = generator.standard_normal((3, count)).astype(np.float32)
    which = np.full(count, rare), similarity, "densecap"
    evidence = Evidence(regions, fits, kinds, np.ones(count, bool), *which, bare=np.full(count, bare))
    return Collected(evidence, (np.arange(3)[:, None] == place)[:, :30])


def test_the_weights_that_place_most_phrases_right_are_chosen():
    common = choose_weights([collected(0)], GroundingConfig())
    assert common.kind_weight > 0 and common.bare_kind_share == 0
    both = choose_weights([collected(0), collected(1, bare=True)], GroundingConfig())
    assert both.bare_kind_share > 0 and both.kind_weight == common.kind_weight
    assert common.similarity_kind_weight == 0
    by_aligner = collected(2)
    by_aligner = replace(by_aligner, evidence=replace(by_aligner.evidence, by="aligner"))
    assert choose_weights([collected(0)], GroundingConfig(), [by_aligner]).similarity_kind_weight > 0


def test_rare_nouns_have_weights_of_their_own_if_there_are_enough():
    phrase, of_rare = fit_phrases([collected(0)])
    assert phrase.weights["similarity"] > 0.3 and of_rare is None
    same, of_rare = fit_phrases([collected(0), collected(1, rare=True)])
    assert same == phrase and of_rare is not None and of_rare != phrase
    one = collected(0)
    refuses("right and wrong phrases", fit_phrases, [replace(one, right=np.ones((3, 60), bool))])


def test_nouns_outside_the_tree_have_weights_of_their_own_if_there_are_enough():
    named = collected(0)
    others = replace(named, evidence=replace(named.evidence, named=np.zeros(60, bool)))
    for question in ("unnamed_phrase", "unwanted_phrase"):
        fit = fit_unnamed([named, others], question)
        assert fit is not None and fit.weights["similarity"] > 0.3 and fit == fit_unnamed([others], question)
        assert {*fit.weights} == {*QUESTIONS[question]} and fit_unnamed([named], question) is None


@pytest.mark.parametrize(
    ("phrase", "other"),
    [
        ("a red car", "a green car"),
        ("a dog", None),
        ("a man in red", None),
        ("a black and white dog", None),  # either of them may be right
    ],
)
def test_a_phrase_with_one_colour_is_paired_with_another_that_nobody_names(phrase: str, other: str | None):
    said = {word for word in COLOUR_NAMES if word != "green"}
    assert recoloured(phrase, said) == (None if other is None else (phrase, other))
    assert recoloured(phrase, {*said, "green"}) is None


def test_colours_are_fitted_to_right_and_wrong_ones_if_there_are_enough():
    right, wrong = ({"words": np.float32(2 * sign), "pixels": np.float32(sign - 3.0)} for sign in (1, -1))
    rows = [replace(collected(0), colours=[(right, number > 1), (wrong, number < 1)]) for number in range(FEW)]
    fit = fit_pairs([pair for row in rows for pair in row.colours], "placed_colour")
    assert fit is not None and fit.apply(right) > 0.8 > 0.2 > fit.apply(wrong)
    assert fit_pairs([pair for row in rows[: FEW // 2] for pair in row.colours], "placed_colour") is None


def test_a_section_of_a_card_is_replaced(tmp_path):
    card = tmp_path / "README.md"
    replace_section(card, "## A", "one\n")
    replace_section(card, "## B", "two\n")
    replace_section(card, "## A", "three\n")
    assert card.read_text() == "## B\n\ntwo\n\n## A\n\nthree\n"


def test_numbers_are_fitted_to_boxes_with_names(tmp_path: Path) -> None:
    """Of three cups, the third is too small to count."""
    model, person, cups = saywhere.load(), tmp_path / "person.png", tmp_path / "cups.png"
    for path, pixels in ((person, skimage_data.astronaut()), (cups, skimage_data.coffee())):
        Image.fromarray(pixels).save(path)
    boxes = np.array([[0, 0, 200, 300], [200, 0, 400, 300], [0, 0, 10, 10]])
    two = Sample(cups, 600, 400, boxes, (("a cup",), ("cup",), ("the cup", "a cup")))
    samples = [Sample(person, 512, 512, boxes[:1], (("a person",),)), two]
    assert [*numbered(samples[0])] == [(f"{word} people", False) for word in ("two", "three", "four", "five")]
    assert [*numbered(two)] == [(f"{word} cups", word == "two") for word in ("two", "three", "four", "five")]
    assert not [*numbered(Sample(cups, 600, 400, boxes, (("a white cup",), ("some coffee",), ("wood",))))]
    fits = fit_numbers(model, [samples] * FEW, "cups").fits
    assert {*fits} == {"placed_number", "asked_number"}
    assert all(fit.weights["number"] < 0 for fit in fits.values())  # no cup is one of five
    with pytest.raises(UserError, match="every thing of a kind has a box with its name.* too few: 4 cases"):
        fit_numbers(model, [samples[:1]], "cups")

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_aligner import SENTENCES, VOCABULARY, tiny_aligner, tiny_aligner_config
from tiny_densecap import tiny_model
from tiny_training import aligner_recipe

from saywhere.configs.aligner import AlignerConfig
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.loading import load
from saywhere.networks import checkpoint
from saywhere.networks.vision.trunk import Trunk
from saywhere.text import END, PAD
from saywhere.training import recipe as recipes
from saywhere.training.aligner import AlignerSystem, SentenceTargets
from saywhere.training.finetuning import freeze
from saywhere.training.run import find_system, train

pytestmark = pytest.mark.usefixtures("plain_curves")


def sample(*sentences: str) -> Sample:
    return Sample(Path("a.jpg"), 96, 64, np.zeros((0, 4)), (), sentences)


def choose(maker: SentenceTargets, one: Sample, seed: int = 0, flipped: bool = False) -> list[str]:
    token_ids = maker(one, (96, 64), flipped, np.random.default_rng(seed)).token_ids
    assert all((row != PAD).any() for row in token_ids)
    assert all((END in row.tolist()) == maker.end for row in token_ids)
    return [VOCABULARY.decode(row) for row in token_ids.tolist()]


def test_sentences_are_chosen_anew_without_one_twice():
    maker, one = SentenceTargets(VOCABULARY, 2, end=True), sample("a man", "a dog", "the beach", "white house")
    pairs = [choose(maker, one, seed) for seed in range(30)]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert len({text for pair in pairs for text in pair}) == 4
    assert choose(maker, one, 3) == choose(maker, one, 3)
    assert sorted(choose(maker, sample("a man"))) == ["a man"]


def test_phrases_of_regions_are_texts_as_often_as_sentences():
    boxes = np.array([[0, 0, 20, 20], [30, 0, 60, 40]])
    both = Sample(Path("a.jpg"), 96, 64, boxes, (("a man",), ("a house", "...")), ("the beach", "white house"))
    (kept,) = AlignerSystem().usable([both], AlignerConfig(region_phrases=True))
    assert list(AlignerSystem().texts(kept)) == ["the beach", "white house", "a man", "a house"]
    (plain,) = AlignerSystem().usable([both], AlignerConfig())
    assert list(AlignerSystem().texts(plain)) == ["the beach", "white house"]
    pairs = [choose(SentenceTargets(VOCABULARY, 2, end=True), kept, seed) for seed in range(400)]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert 0.45 < np.mean([text in {"a man", "a house"} for pair in pairs for text in pair]) < 0.55
    some = replace(kept, phrase_weights=np.array([0.0, 0.5], np.float32))
    assert list(AlignerSystem().texts(some)) == ["the beach", "white house", "a house"]
    assert {text for seed in range(30) for text in choose(SentenceTargets(VOCABULARY, 2, end=True), some, seed)} == {
        "the beach", "white house", "a house",
    }  # fmt: skip
    alone = replace(both, sentences=())
    (kept,) = AlignerSystem().usable([alone], AlignerConfig(region_phrases=True))
    assert sorted(choose(SentenceTargets(VOCABULARY, 2, end=True), kept)) == ["a house", "a man"]
    assert AlignerSystem().usable([alone], AlignerConfig()) == []


def test_frozen_projections_keep_the_vectors_of_regions():
    network = tiny_aligner()
    rows = [torch.randn(5, network.projects[0].in_features) for _ in range(4)]
    freeze(network, ["projects"])
    network.eval()
    before = network.embed_regions(rows)[0]
    network.train()
    network.embed_regions(rows)
    network.eval()
    assert torch.equal(network.embed_regions(rows)[0], before)
    network.projects.requires_grad_(True)
    network.train()
    network.embed_regions(rows)
    network.eval()
    assert not torch.equal(network.embed_regions(rows)[0], before)


def learn(folder: Path, **model: object) -> Path:
    """Train on the images of the folder, and return the folder."""
    train(aligner_recipe(folder, **model), folder / "run")
    return folder


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn(tmp_path_factory.mktemp("learnt"))


def test_text_encoders_learn_alone(learnt: Path, tmp_path: Path):
    model = learnt / "run" / "model"
    recipe, before = recipes.load(model / "recipe.yaml"), checkpoint.load_network(model, "aligner")
    training = replace(recipe.training, start=str(model), freeze=("projects",), epochs=1)
    tuned = replace(recipe, training=training, model={**recipe.model, "region_phrases": True})
    after = checkpoint.load_network(train(tuned, tmp_path).model, "aligner")
    same = {name for name, value in before.state_dict().items() if torch.equal(value, after.state_dict()[name])}
    assert {name for name in before.state_dict() if name.startswith(("projects.", "standardise.", "trunk."))} <= same
    assert "encoders.0.decode.weight" not in same


def test_mirrored_images_have_left_and_right_exchanged():
    maker = SentenceTargets(VOCABULARY, 1, end=False)
    assert choose(maker, sample("on the left")) == ["on the left"]
    assert choose(maker, sample("on the right"), flipped=True) == ["on the left"]


def test_sentences_without_words_are_not_learnt():
    system = AlignerSystem()
    kept = system.usable([sample("a man", "..."), sample("!"), sample()], AlignerConfig())
    assert [s.sentences for s in kept] == [("a man",)]
    assert list(system.texts(kept[0])) == ["a man"] and system.count(kept[0]) == 1


@pytest.mark.parametrize("encoders", [1, 2])
def test_a_recipe_trains_an_aligner_that_finds_each_image_s_sentence(learnt, tmp_path, encoders):
    folder = learnt if encoders == 1 else learn(tmp_path, encoders=encoders)
    model = load(folder / "run" / "model", "cpu")
    images = [folder / f"{number}.png" for number in range(4)]
    similarity = model.similarity(model.embed(images), model.embed_text(SENTENCES))
    assert similarity.argmax(axis=1).tolist() == [0, 1, 2, 3]
    card = (folder / "run" / "model" / "README.md").read_text()
    assert "which words of a sentence belong to which region" in card and "4 sentences" in card


def test_published_weights_are_those_of_the_localizer(tmp_path):
    folder = checkpoint.save(tiny_model(seed=5), tmp_path / "densecap")
    config, theirs = tiny_aligner_config(localizer=str(folder)), tiny_model(seed=5).trunk
    trunk = AlignerSystem().build(config, VOCABULARY, pretrained=True).trunk
    assert torch.equal(score_weight(trunk), score_weight(theirs))
    for name, value in theirs.state_dict().items():
        assert torch.equal(trunk.state_dict()[name], value), name
    fresh = AlignerSystem().build(config, VOCABULARY, pretrained=False).trunk
    assert not torch.equal(score_weight(fresh), score_weight(theirs))


def test_a_localizer_is_a_model_with_a_dense_captioner(tmp_path):
    folder = checkpoint.save(tiny_aligner(), tmp_path / "aligner")
    with pytest.raises(UserError, match="has no densecap; its parts are aligner"):
        AlignerSystem().build(tiny_aligner_config(localizer=str(folder)), VOCABULARY, pretrained=True)


def score_weight(trunk: Trunk) -> torch.Tensor:
    return trunk.localization.head.score.weight


def test_the_system_has_the_paper_s_preset():
    system = find_system("aligner")
    assert system.presets["original"]() == AlignerConfig.original()
    assert system.presets["default"]() == AlignerConfig()

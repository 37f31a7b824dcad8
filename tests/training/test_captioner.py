from __future__ import annotations

import json
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_captioner import tiny_captioner, tiny_config
from tiny_training import write_data

from saywhere import data
from saywhere.configs.captioner import CaptionerConfig
from saywhere.data import Sample
from saywhere.errors import UserError
from saywhere.loading import load
from saywhere.networks import checkpoint
from saywhere.networks.captioner.loss import Cider, RewardCriterion
from saywhere.text import END, Vocabulary
from saywhere.training import recipe as recipes
from saywhere.training.captioner import BoxTargets, CaptionerSystem, CaptionTargets
from saywhere.training.run import train

TEXTS = ("a dog on the left", "two dogs", "a long dog with a stick in its mouth", "!")
pytestmark = pytest.mark.usefixtures("plain_curves")


def sample(*sentences: str) -> Sample:
    boxes = np.array([[0.0, 0, 20, 10], [10.0, 0, 40, 20]])
    return Sample(Path("a.jpg"), 40, 20, boxes, (("a dog",), ("the stick", "a stick on the right")), sentences)


VOCABULARY = Vocabulary.build([*TEXTS, "a dog", "the stick", "a stick on the right"])


def decoded(target) -> list[str]:
    return [VOCABULARY.decode(row) for row in target.token_ids.tolist()]


def test_sentences_are_chosen_without_repeats_until_there_are_no_more():
    make = CaptionTargets(VOCABULARY, 2)
    pairs = [decoded(make(sample(*TEXTS[:3]), (80, 40), False, np.random.default_rng(seed))) for seed in range(20)]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert {text for pair in pairs for text in pair} == set(TEXTS[:3])
    few = CaptionTargets(VOCABULARY, 3)(sample(TEXTS[1]), (80, 40), False, np.random.default_rng(0))
    assert decoded(few) == [TEXTS[1]] * 3
    assert (few.width, few.height, few.boxes) == (80, 40, None)


def test_in_a_mirrored_image_left_is_right():
    make = CaptionTargets(VOCABULARY, 1)
    assert decoded(make(sample(TEXTS[0]), (80, 40), True, np.random.default_rng(0))) == ["a dog on the right"]


def test_boxes_come_with_one_phrase_each_in_pixels_of_the_network():
    make = BoxTargets(VOCABULARY)
    targets = [make(sample(), (80, 40), False, np.random.default_rng(seed)) for seed in range(10)]
    assert targets[0].boxes.tolist() == [[0, 0, 40, 20], [20, 0, 80, 40]]
    assert {decoded(target)[1] for target in targets} == {"the stick", "a stick on the right"}
    mirrored = make(sample(), (80, 40), True, np.random.default_rng(0))
    assert mirrored.boxes is not None and mirrored.boxes[0].tolist() == [40, 0, 80, 20]


def test_only_what_can_be_learnt_is_kept():
    system = CaptionerSystem()
    (kept,) = system.usable([sample(*TEXTS), sample("!")], tiny_config(decoding={"max_words": 5}))
    assert kept.sentences == TEXTS[:2] and len(kept.boxes) == 0
    assert list(system.texts(kept)) == list(TEXTS[:2]) and system.count(kept) == 2
    config = tiny_config(decoder="rnn", describe_boxes=True, decoding={"max_words": 3})
    (kept,) = system.usable([sample(*TEXTS)], config)
    assert kept.sentences == () and kept.phrases == (("a dog",), ("the stick",))
    assert list(system.texts(kept)) == ["a dog", "the stick"]
    assert list(system.texts(sample(*TEXTS))) == list(TEXTS)


def test_the_system_builds_what_the_configuration_says():
    system = CaptionerSystem()
    model = system.build(tiny_config(decoder="lstm", smoothing=0.25, sentences=3), VOCABULARY, pretrained=False)
    assert system.criterion(model, []).smoothing == 0.25
    assert system.targets(model) == CaptionTargets(VOCABULARY, 3)
    rewarded = tiny_captioner(decoder="lstm", reward="cider")
    samples, encode = [sample(*TEXTS[:2]), sample(TEXTS[2])], rewarded.vocabulary.encode
    reward = system.criterion(rewarded, samples)
    assert isinstance(reward, RewardCriterion) and reward.invented is None
    fined = system.criterion(tiny_captioner(decoder="lstm", reward="cider", invented_weight=0.5), samples)
    assert isinstance(fined, RewardCriterion) and fined.invented is not None and fined.invented_weight == 0.5
    ended = [[[*encode(text), END] for text in each.sentences] for each in samples]
    assert reward.cider.score(ended[0][0], ended[0]) == Cider(ended).score(ended[0][0], ended[0]) > 0
    assert len(system.targets(rewarded)(sample(*TEXTS[:3]), (80, 40), False, np.random.default_rng(0)).token_ids) == 3
    of_boxes = tiny_captioner(decoder="rnn", describe_boxes=True)
    assert system.targets(of_boxes) == BoxTargets(of_boxes.vocabulary)


def test_n_grams_are_no_option_of_a_recipe():
    config = tiny_config(ngrams={"count": 3, "words": 9})
    with pytest.raises(UserError, match=r"model\.ngrams\.count must be 0 in a recipe"):
        CaptionerSystem().build(config, VOCABULARY, pretrained=False)


def tiny_recipe(folder: Path, config: CaptionerConfig, repeats: int = 1, **training: object) -> recipes.Recipe:
    """Two epochs on six images, each with two sentences; an epoch has each ``repeats`` times."""
    root = folder / "data"
    if not root.exists():
        write_data(root, train=6, validation=2)
        text = (root / "images.jsonl").read_text()
        text = text.replace('"regions"', '"sentences": ["a red block", "two people and a dog"], "regions"')
        train = [row for row in map(json.loads, text.splitlines()) if row["split"] == "train"]
        for copy, row in product(range(1, repeats), train):
            shutil.copy(root / row["image"], root / f"{copy}-{row['image']}")
            text += json.dumps(row | {"image": f"{copy}-{row['image']}"}) + "\n"
        (root / "images.jsonl").write_text(text)
        assert len(data.read(root)) == 6 * repeats
    tree = {
        "name": "tiny",
        "system": "captioner",
        "data": {"root": str(root), "validation": "val"},
        "model": config.to_dict(),
        "training": {
            "epochs": 2,
            "batch_size": 3,
            "rest": {"kind": "rmsprop", "lr": 0.01, "alpha": 0.9},
            "clip": 0.1,
            "clip_by": "value",
            "cache": str(folder / "cache"),
            "pretrained": False,
            "accelerator": "cpu",
            **training,
        },
    }
    path = folder / "recipe.yaml"
    path.write_text(json.dumps(tree))
    return recipes.load(path)


@pytest.mark.parametrize("describe_boxes", [False, True])
def test_a_recipe_trains_a_captioner(tmp_path: Path, describe_boxes: bool):
    config = tiny_config(decoder="rnn", describe_boxes=describe_boxes)
    result = train(tiny_recipe(tmp_path, config), tmp_path / "run")
    assert set(result.metrics) == {"val/loss", "val/caption"}
    model = load(result.model, "cpu")
    assert model.captioner is not None and model.captioner.config == config
    assert model.caption(tmp_path / "data" / "000.jpg").words
    assert "texts" in (result.model / "README.md").read_text()


def test_a_trained_captioner_continues_with_a_reward(tmp_path: Path):
    first = train(tiny_recipe(tmp_path, tiny_config(), repeats=10, epochs=3), tmp_path / "first")
    config = tiny_config(reward="cider", word_weight=0.1)
    result = train(tiny_recipe(tmp_path, config, start=str(first.model)), tmp_path / "second")
    assert set(result.metrics) == {"val/loss", "val/cider"}
    assert 0 <= result.metrics["val/cider"] <= 10
    before, after = checkpoint.load_network(first.model), checkpoint.load_network(result.model)
    assert after.config == config
    assert not torch.equal(before.decoder.words.weight, after.decoder.words.weight)
    assert torch.allclose(before.decoder.words.weight, after.decoder.words.weight, atol=0.2)  # it began there

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy
import pytest
import torch
from pictures import noise
from tiny_aligner import SENTENCES, VOCABULARY, tiny_aligner_config
from tiny_densecap import tiny_model

from saywhere import options
from saywhere.data.sample import Sample
from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.models.aligner_config import AlignerConfig
from saywhere.text import END, PAD, UNKNOWN
from saywhere.training.alignment import AlignerSystem, SentenceTargets
from saywhere.training.recipe import Recipe
from saywhere.training.run import train
from saywhere.training.systems import find_system


def sample(*sentences: str) -> Sample:
    return Sample(Path("a.jpg"), 96, 64, torch.zeros(0, 4), (), sentences)


def draw(maker: SentenceTargets, said: Sample, seed: int = 0, flipped: bool = False) -> list[str]:
    words = maker(said, (96, 64), flipped, numpy.random.default_rng(seed)).words
    assert all((row != PAD).any() for row in words)
    assert all((END in row.tolist()) == maker.end for row in words)
    return [VOCABULARY.decode(row) for row in words.tolist()]


def test_sentences_are_drawn_anew_without_one_twice():
    maker, said = SentenceTargets(VOCABULARY, 2, end=True), sample("a man", "a dog", "the beach", "white house")
    pairs = [draw(maker, said, seed) for seed in range(30)]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert len({text for pair in pairs for text in pair}) == 4
    assert draw(maker, said, 3) == draw(maker, said, 3)
    assert sorted(draw(maker, sample("a man"))) == ["a man"]


def test_mirrored_pictures_have_left_and_right_exchanged():
    maker = SentenceTargets(VOCABULARY, 1, end=False)
    assert draw(maker, sample("on the left")) == ["on the left"]
    assert draw(maker, sample("on the right"), flipped=True) == ["on the left"]


def test_sentences_without_words_are_not_learnt():
    system = AlignerSystem()
    kept = system.usable([sample("a man", "..."), sample("!"), sample()], AlignerConfig())
    assert [s.sentences for s in kept] == [("a man",)]
    assert list(system.texts(kept[0])) == ["a man"] and system.count(kept[0]) == 1


XML = """<annotation><size><width>192</width><height>128</height><depth>3</depth></size>
<object><name>7</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>40</xmax><ymax>64</ymax></bndbox></object></annotation>"""


def marked(root: Path) -> Sample:
    for folder in ("Images", "Entities/Annotations", "Entities/Sentences"):
        (root / folder).mkdir(parents=True)
    noise(96, 64, 0).save(root / "Images/5_x.png")
    (root / "Entities/Annotations/5.xml").write_text(XML)
    (root / "Entities/Sentences/5.txt").write_text("[/EN#7/people A man] on the left of [/EN#0/scene the beach] .\n")
    return Sample(root / "Images/5_x.png", 96, 64, torch.zeros(0, 4), (), ("unmarked",))


def test_phrases_with_boxes_come_from_entities(tmp_path):
    said, maker = marked(tmp_path), SentenceTargets(VOCABULARY, 3, end=True, phrases=True)
    target = maker(said, (192, 128), False, numpy.random.default_rng(0))
    assert [VOCABULARY.decode(row) for row in target.words.tolist()] == ["a man on the left of the beach"]
    assert target.spans.tolist() == [[0, 0, 2]] and target.boxes.tolist() == [[0, 0, 40, 64]]
    flipped = maker(said, (192, 128), True, numpy.random.default_rng(0))
    assert flipped.boxes.tolist() == [[152, 0, 192, 64]] and flipped.spans.tolist() == [[0, 0, 2]]
    assert "right" not in VOCABULARY and UNKNOWN in flipped.words[0].tolist()


def test_pictures_without_marks_are_left_out_where_boxes_are_learnt(tmp_path):
    said = marked(tmp_path)
    other = replace(said, image=said.image.with_name("6_x.png"))
    system = AlignerSystem()
    assert len(system.usable([said, other], AlignerConfig())) == 2
    assert [s.image for s in system.usable([said, other], AlignerConfig(phrase_weight=1.0))] == [said.image]


def recipe(root: Path, **model) -> Recipe:
    """Four pictures, each with its sentence, learnt from cached areas."""
    lines = []
    for number, sentence in enumerate(SENTENCES):
        noise(96, 64, number).save(root / f"{number}.png")
        for split in ("train", "val"):
            regions = [{"box": [0, 0, 9, 9], "phrases": ["a"]}]
            row = {"image": f"{number}.png", "split": split, "regions": regions, "sentences": [sentence]}
            lines.append(json.dumps(row) + "\n")
    (root / "pictures.jsonl").write_text("".join(lines))
    plain = json.loads(json.dumps(tiny_aligner_config(**{"root": False, **model}).to_dict()))
    settings = {
        "epochs": 80, "batch_size": 4, "rest": {"kind": "adamw", "lr": 0.01}, "pretrained": False,
        "accelerator": "cpu", "flip": False, "samples": 1, "cache": str(root / "cache"),
    }  # fmt: skip
    data = {"format": "jsonl", "root": str(root), "train": "train", "validation": "val"}
    tree = {"name": "tiny", "system": "aligner", "data": data, "model": plain, "training": settings}
    return options.from_dict(Recipe, tree)


@pytest.mark.parametrize("readers", [1, 2])
def test_a_recipe_trains_an_aligner_that_finds_each_picture_s_sentence(tmp_path, readers):
    result = train(recipe(tmp_path, readers=readers), tmp_path / "run")
    model = checkpoint.load(result.model)
    pictures = [tmp_path / f"{number}.png" for number in range(4)]
    scores = model.score(model.embed_pictures(pictures), model.embed_sentences(SENTENCES))
    assert scores.argmax(dim=1).tolist() == [0, 1, 2, 3]
    card = (result.model / "README.md").read_text()
    assert "says which words of a sentence belong to which area" in card and "4 sentences" in card


def test_published_weights_are_those_of_the_localizer(tmp_path):
    folder = checkpoint.save(tiny_model(seed=5), tmp_path / "densecap")
    model = AlignerSystem().build(tiny_aligner_config(localizer=str(folder)), VOCABULARY, pretrained=True)
    theirs = tiny_model(seed=5).localization.head.score.weight
    assert torch.equal(model.provider.get_submodule("localization.head").score.weight, theirs)
    fresh = AlignerSystem().build(tiny_aligner_config(localizer=str(folder)), VOCABULARY, pretrained=False)
    assert not torch.equal(fresh.provider.get_submodule("localization.head").score.weight, theirs)


def test_word_vectors_are_loaded_when_training_begins(tmp_path):
    (tmp_path / "glove.txt").write_text("horse " + " ".join(["0.25"] * 8) + "\n")
    config = tiny_aligner_config(word_vectors=str(tmp_path / "glove.txt"), readers=2)
    model = AlignerSystem().build(config, VOCABULARY, pretrained=False)
    for reader in model.readers:
        assert reader.words.weight[VOCABULARY.encode("horse")[0]].tolist() == [0.25] * 8
    with pytest.raises(UserError, match="word_size"):
        AlignerSystem().build(tiny_aligner_config(**{**config.to_dict(), "word_size": 4}), VOCABULARY, False)


def test_the_system_has_the_paper_s_preset():
    system = find_system("aligner")
    assert system.presets["original"]() == AlignerConfig.original()
    assert system.presets["default"]() == AlignerConfig()

"""An aligner whose fragments are relations of parsed sentences: its network, its training, its use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import report, run
from flickr_entities import backwards, write_flickr
from parsed_sentences import write_parses
from photographs import noise
from refusals import refuses
from tiny_aligner import SENTENCES, VOCABULARY, aligner_model, tiny_aligner_config, tiny_pixels
from tiny_training import aligner_recipe
from typer.testing import Result

from saywhere import UserError
from saywhere.data.sample import Sample
from saywhere.engines.onnx import refused_options
from saywhere.loading import load
from saywhere.networks import checkpoint
from saywhere.networks.aligner.loss import SentenceTarget
from saywhere.networks.aligner.network import Aligner
from saywhere.papers.relations import RelationEncoder, read_parses
from saywhere.text import END, START, UNKNOWN
from saywhere.training.aligner import AlignerSystem, SentenceTargets
from saywhere.training.run import train

KINDS = ("det", "root")


@pytest.fixture(scope="module")
def parses(tmp_path_factory: pytest.TempPathFactory) -> str:
    texts = [text for sentence in SENTENCES for text in (sentence, backwards(sentence))]
    return str(write_parses(tmp_path_factory.mktemp("parses") / "tiny.conllu", texts))


def relation_aligner(parses: str, seed: int = 0, **changes: Any) -> Aligner:
    torch.manual_seed(seed)
    config = tiny_aligner_config(parses=parses, relations=KINDS, sentence_token=False, **changes)
    network = checkpoint.new_network(Aligner, config, VOCABULARY)
    with torch.no_grad():
        for encoder in network.encoders:
            encoder.get_parameter("words.weight").mul_(6)
    return network.eval()


def targets(network: Aligner, texts: Sequence[str] = SENTENCES) -> list[SentenceTarget]:
    assert network.config.parses is not None
    read, kinds = read_parses(network.config.parses), network.config.relations
    return [SentenceTarget(torch.from_numpy(read.encode([text], kinds, network.vocabulary))) for text in texts]


def sample(*sentences: str) -> Sample:
    return Sample(Path("a.jpg"), 96, 64, np.zeros((0, 4)), (), sentences)


@pytest.mark.parametrize("changes", [{}, {"score": "fragments"}, {"mean_over_words": False}, {"encoders": 2}])
@torch.no_grad()
def test_training_scores_are_those_that_a_user_gets(parses: str, changes: dict[str, Any]) -> None:
    network, images = relation_aligner(parses, **changes), [noise(96, 64, number) for number in range(4)]
    features = network.extractor([tiny_pixels(network, image) for image in images])
    (output,) = network(features, targets(network))
    model = aligner_model(network)
    texts = model.embed_text(list(SENTENCES))
    found = model.similarity(model.embed(images), texts)
    assert [len(text) for text in texts] == [9, 7, 9, 6] and np.ptp(found) > 0
    torch.testing.assert_close(output.scores * network.config.temperature, torch.from_numpy(found))
    alone = np.concatenate([model.embed_text(text).vectors for text in SENTENCES])
    np.testing.assert_allclose(np.concatenate([text.vectors for text in texts]), alone, atol=1e-6)


def test_each_encoder_has_a_map_for_each_kind_and_one_for_all_others(parses: str) -> None:
    for encoder in relation_aligner(parses, encoders=2).encoders:
        assert isinstance(encoder, RelationEncoder) and len(encoder.maps) == len(KINDS) + 1
    network = relation_aligner(parses, dropout=0.0)
    vectors = network.encode_text(torch.tensor([[[5, 6, 0], [5, 6, 1], [6, 5, 1], [5, START, 1]]])).vectors[0]
    assert torch.cdist(vectors, vectors).fill_diagonal_(1).min() > 1e-3  # kind, order and root tell them apart


def test_words_become_unknown_but_not_kinds_nor_the_root(parses: str) -> None:
    network = relation_aligner(parses, word_dropout=1.0).train()
    dropped = network.drop_words(torch.tensor([[[5, 6, 4], [6, START, 5], [0, 0, 0]]]))
    assert dropped.tolist() == [[[UNKNOWN, UNKNOWN, 4], [UNKNOWN, START, 5], [0, 0, 0]]]
    assert END not in dropped


def test_targets_are_the_relations_with_left_and_right_exchanged_in_mirrored_images(tmp_path: Path) -> None:
    read = read_parses(write_parses(tmp_path / "some.conllu", ["the left beach", "a dog"]))
    maker = SentenceTargets(VOCABULARY, 1, end=False, parses=read, kinds=KINDS)
    the, left, beach = VOCABULARY.encode("the left beach")
    plain_target, mirrored = (
        maker(sample("The left beach."), (96, 64), flipped, np.random.default_rng(0)).token_ids.tolist()
        for flipped in (False, True)
    )
    assert plain_target == [[[the, left, 1], [left, beach, 0], [beach, START, 2]]]
    assert mirrored == [[[the, UNKNOWN, 1], [UNKNOWN, beach, 0], [beach, START, 2]]]  # "right" is not in the vocabulary


def test_sentences_without_a_parse_are_refused_before_training(parses: str) -> None:
    system, config = AlignerSystem(), tiny_aligner_config(parses=parses, sentence_token=False)
    assert [s.sentences for s in system.usable([sample(SENTENCES[0], "..."), sample("!")], config)] == [SENTENCES[:1]]
    with pytest.raises(UserError, match=r"tiny.conllu has no parse of 'a cat': parse it too, or name its file"):
        system.usable([sample(SENTENCES[0], "a cat")], config)


def test_a_recipe_trains_one_that_finds_each_image_s_sentence(tmp_path: Path, parses: str) -> None:
    result = train(aligner_recipe(tmp_path, parses=parses, sentence_token=False), tmp_path / "run")
    model = load(result.model, "cpu")
    images = [tmp_path / f"{number}.png" for number in range(4)]
    similarity = model.similarity(model.embed(images), model.embed_text(SENTENCES))
    assert similarity.argmax(axis=1).tolist() == [0, 1, 2, 3]
    assert model.require("aligner", "rank").config.relations == ("det", "amod", "root")  # all of them are frequent


def rank(model: Path, data: Path, out: Path, *arguments: str, code: int = 0) -> Result:
    command = ["evaluate", "rank", "--model", model, "--data", data, "--out", out, "--device", "cpu"]
    return run(*command, *arguments, code=code)


def test_evaluate_rank_takes_the_parses_of_the_model_or_of_a_file(parses: str, tmp_path: Path) -> None:
    network, flickr = relation_aligner(parses), write_flickr(tmp_path / "flickr8k")
    model = checkpoint.save(network, tmp_path / "model")
    done = rank(model, flickr, tmp_path / "out")
    assert done.stderr == ""
    row = report(tmp_path / "out")
    assert row["sentences"] == 8 and row["text_to_image"]["r5"] == 1.0
    few = write_parses(tmp_path / "few.conllu", SENTENCES)
    refused = rank(model, flickr, tmp_path / "out", "--set", f"parses={few}", code=2)
    line = f"{few} has no parse of '{backwards(SENTENCES[0])}': parse it too, or name its file with parses=FILE"
    assert line in " ".join(refused.stderr.split())
    gone = rank(model, flickr, tmp_path / "out", "--set", f"parses={tmp_path / 'gone.conllu'}", code=2)
    assert "gone.conllu cannot be read as CoNLL-U" in " ".join(gone.stderr.split())


def test_what_needs_single_words_is_refused(parses: str) -> None:
    model = aligner_model(relation_aligner(parses))
    with pytest.raises(UserError, match=r"embeds relations between words \(its option parses\): it aligns no single"):
        model.align(noise(96, 64, 0), SENTENCES[0])
    assert model.ground(noise(96, 64, 0), [SENTENCES[0]]).captions == (SENTENCES[0],)  # a phrase that was parsed
    refuses("has no parse of 'a cat'", model.ground, noise(96, 64, 0), ["a cat"])


def test_only_the_engine_torch_runs_it(parses: str) -> None:
    config = tiny_aligner_config(parses=parses, sentence_token=False, trunk={"multiple": 32})
    assert refused_options(config.trunk, {"aligner": config}) == [f"parses={parses} (relations in the place of words)"]
    assert refused_options(config.trunk, {"aligner": replace(config, parses=None)}) == []

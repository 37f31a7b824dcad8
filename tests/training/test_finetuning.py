from __future__ import annotations

from pathlib import Path

import pytest
import torch
from refusals import refuses
from tiny_aligner import tiny_aligner
from tiny_captioner import VOCABULARY, tiny_captioner
from tiny_captioner import tiny_config as tiny_captioner_config
from tiny_densecap import tiny_config, tiny_model
from tiny_training import tiny_recipe, write_data

from saywhere import data
from saywhere.networks import checkpoint
from saywhere.networks.captioner.network import Captioner
from saywhere.networks.densecap.network import DenseCap
from saywhere.options import from_dict
from saywhere.text import RESERVED, Vocabulary
from saywhere.training import run
from saywhere.training.finetuning import common_rows, start_from, take_over
from saywhere.training.recipe import Recipe


def test_common_words_and_reserved_tokens_are_paired() -> None:
    rows = common_rows(Vocabulary({"dog": 2, "cat": 1}), Vocabulary({"cat": 9, "sky": 5, "dog": 1}))
    assert rows.tolist() == [[0, 1, 2, 3, 5, 4], [0, 1, 2, 3, 4, 6]]


@pytest.fixture
def old(tmp_path: Path) -> DenseCap:
    """A network, and the model in ``tmp_path``."""
    made = tiny_model(seed=1)
    checkpoint.save(made, tmp_path)
    return made


def test_weights_that_fit_are_taken_over_and_word_rows_follow_the_words(old: DenseCap, tmp_path: Path) -> None:
    vocabulary = Vocabulary({"sky": 3, "zebra": 2, "dog": 1})
    config = tiny_config(embed_dim=32, proposals={"hidden_size": 8}, fc_size=12)
    new = checkpoint.new_network(DenseCap, config, vocabulary)
    made = {name: value.clone() for name, value in new.state_dict().items()}
    start = start_from(new, str(tmp_path))
    now, before = new.state_dict(), old.state_dict()
    assert start.words == (2, 3)
    assert torch.equal(now["region_head.score.weight"], before["region_head.score.weight"])
    tokens = old.vocabulary.tokens
    for name in ("decoder.words.weight", "decoder.output.weight", "decoder.output.bias"):
        for number in (*range(len(RESERVED)), 4, 6):
            assert torch.equal(now[name][number], before[name][tokens.index(vocabulary.tokens[number])]), name
        assert torch.equal(now[name][5], made[name][5]), name  # nobody knows the zebra
    assert {"region_head.layers.1.weight", "trunk.localization.head.score.weight"} <= set(start.new)
    assert all(torch.equal(now[name], made[name]) for name in start.new)
    assert "2 of 3 words known; new: " in str(start)


def test_a_localization_layer_with_more_anchors_takes_over_those_of_the_first(old: DenseCap, tmp_path: Path) -> None:
    shapes = [[*level, (9.0, 9.0)] for level in old.config.proposals.anchors]
    new = tiny_model(seed=2, proposals={"anchors": shapes})
    made = {name: value.clone() for name, value in new.state_dict().items()}
    assert start_from(new, str(tmp_path)).new == ()
    for name, value in old.state_dict().items():
        now, count = new.state_dict()[name], len(value) if value.ndim else None
        assert torch.equal(now[:count] if count else now, value), name
        if count and len(now) > count:
            assert ".localization.head." in name and torch.equal(now[count:], made[name][count:]), name
    before = old.trunk.localization.head.per_cell
    assert new.trunk.localization.head.per_cell == before + 1


@pytest.mark.parametrize("more", [[], [(9.0, 9.0)]])
def test_a_localization_layer_whose_first_anchors_differ_is_refused(
    old: DenseCap, tmp_path: Path, more: list[tuple[float, float]]
) -> None:
    shapes = [[*level, *more] for level in old.config.proposals.anchors]
    first, *rest = shapes[-1]
    shapes[-1] = [(first[0] * 1.25, first[1]), *rest]
    stride, (width, height) = old.config.trunk.strides[-1], first
    message = refuses("", start_from, tiny_model(seed=2, proposals={"anchors": shapes}), str(tmp_path))
    assert f"has the anchors {width:g} x {height:g}" in message and f"at stride {stride}, but" in message
    assert f"model.proposals.anchors begins with {width * 1.25:g} x {height:g}" in message


def test_anchors_may_be_rounded_and_others_where_their_weights_are_new(old: DenseCap, tmp_path: Path) -> None:
    shapes = [[(w * 1.001, h) for w, h in level] for level in old.config.proposals.anchors]
    assert start_from(tiny_model(seed=2, proposals={"anchors": shapes}), str(tmp_path)).new == ()
    shapes = [[(w + 1, h) for w, h in level] for level in old.config.proposals.anchors]
    start = start_from(tiny_model(seed=2, proposals={"anchors": shapes, "hidden_size": 8}), str(tmp_path))
    assert "trunk.localization.head.score.weight" in start.new


def test_a_model_of_several_parts_gives_the_part_of_the_same_kind(tmp_path: Path) -> None:
    old = tiny_model(seed=1)
    captioner = Captioner(tiny_captioner_config(), VOCABULARY, trunk=old.trunk)
    checkpoint.save({"densecap": old, "captioner": captioner}, tmp_path / "both")
    new = tiny_model(seed=2)
    assert start_from(new, str(tmp_path / "both")).new == ()
    assert all(torch.equal(value, old.state_dict()[name]) for name, value in new.state_dict().items())
    other = tiny_captioner(seed=3)
    start_from(other, str(tmp_path / "both"))
    assert torch.equal(other.decoder.words.weight, captioner.decoder.words.weight)
    refuses("has no aligner; its parts are densecap, captioner", start_from, tiny_aligner(), str(tmp_path / "both"))


def test_a_recipe_begins_with_another_model(tmp_path: Path) -> None:
    sizes = {"pyramid_channels": 8, "hidden_size": 8}
    checkpoint.save(tiny_model(seed=1, embed_dim=16, proposals=sizes), tmp_path / "model")
    samples = list(data.read(write_data(tmp_path / "data"), "jsonl", "train"))
    recipe = from_dict(Recipe, tiny_recipe(tmp_path / "data", start=str(tmp_path / "model")))
    weights = [run.build_network(r, samples).region_head.score.weight for r in (recipe, recipe)]
    assert torch.equal(weights[0], checkpoint.load_network(tmp_path / "model").region_head.score.weight)
    other = from_dict(Recipe, tiny_recipe(tmp_path / "data"))
    assert not torch.equal(weights[0], run.build_network(other, samples).region_head.score.weight)
    nothing = from_dict(Recipe, tiny_recipe(tmp_path / "data", start=str(tmp_path / "nothing")))
    refuses("nothing", run.build_network, nothing, samples)


def test_what_a_second_branch_shows_begins_without_weight(tmp_path: Path) -> None:
    """An aligner that reads it says at first of regions what the other says, whatever the new features are."""
    trunk = {"backbone": "efficientnet_lite0", "long_side": 64}
    old = tiny_aligner(regions="whole", trunk={**trunk, "branch": True}, head=True)
    checkpoint.save(old, tmp_path)
    new = tiny_aligner(seed=1, regions="whole", trunk={**trunk, "branch": True}, head=True, branch=True)
    assert start_from(new, str(tmp_path)).new == ()
    features = torch.randn(3, old.standardise.num_features, generator=torch.Generator().manual_seed(0))
    more = torch.cat((features[:, :-5], torch.randn(3, 128 + 1280), features[:, -5:]), dim=1)
    with torch.no_grad():
        expected, found = old.embed_regions([features])[0], new.eval().embed_regions([more])[0]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3)


def test_n_grams_are_not_taken_over() -> None:
    old, new = (tiny_captioner(seed=seed, ngrams={"count": 3, "words": 5}) for seed in (1, 2))
    old.ngrams.token_ids.fill_(1)
    start = take_over(new, old)
    assert start.new and all(name.startswith("ngrams.") for name in start.new)
    assert not new.ngrams.token_ids.any()
    assert torch.equal(new.decoder.begin.weight, old.decoder.begin.weight)

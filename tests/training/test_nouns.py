"""Everyday kinds are learnt from boxes with names, and what the decoder's nouns are worth beside them."""

from pathlib import Path

import numpy as np
import pytest
from refusals import refuses
from tiny_classes import KINDS, tiny_networks

from saywhere.configs.nouns import NounsConfig
from saywhere.data.sample import is_held_out
from saywhere.models.nouns import NounEvidence, noun_tree
from saywhere.networks import checkpoint
from saywhere.training import nouns
from saywhere.training.nouns import NamedBoxes, allowed_groups, choose_kinds

TREE = noun_tree()
SIZE = 112 + 1280 + 5 + 1280


def row_of(name: str) -> int:
    noun = TREE.named(name)
    return noun.row


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint.save(tiny_networks(), tmp_path_factory.mktemp("tiny") / "model")


def boxes(count: int = 40, more: int = 0) -> NamedBoxes:
    """Dogs, where the first feature is large; grass, where the second is; things without a name."""
    random = np.random.default_rng(0)
    nouns = np.repeat([row_of("dog"), row_of("grass"), -1], count)
    features = random.normal(size=(len(nouns), SIZE + more)).astype(np.float16) * np.float16(0.1)
    for number in range(3):
        features[number * count : (number + 1) * count, number * 7 : number * 7 + 7] += np.float16(3)
    return NamedBoxes(features, nouns, np.arange(len(nouns)) % 5 == 0)


@pytest.mark.parametrize("embed_dim", [0, 32])
def test_kinds_are_learnt_from_boxes(folder: Path, embed_dim: int) -> None:
    given = boxes(more=embed_dim)
    network = nouns.fit(given, folder, NounsConfig(embed_dim=embed_dim), epochs=30)
    assert set(network.vocabulary.counts) == {"dog", "grass"}
    assert network.vocabulary.counts["dog"] == 40
    weight, bias = network.kinds.weight.detach().numpy(), network.kinds.bias.detach().numpy()
    logits = given.features.astype(np.float32) @ weight.T + bias
    kinds = [list(network.vocabulary.counts).index(name) for name in ("dog", "grass")]
    held = given.held_out[:80]
    assert (logits[:80, :2][held].argmax(axis=1) == np.repeat(kinds, 40)[held]).mean() > 0.8
    saved = checkpoint.load_network(checkpoint.save({"nouns": network}, folder.parent / "classes"))
    assert saved.config == network.config
    with_both = checkpoint.merge([folder.parent / "classes"], folder.parent / "merged")
    assert "nouns" in checkpoint.load_networks(with_both)


def test_too_few_boxes_are_refused(folder: Path) -> None:
    refuses("no kind has 8 boxes", nouns.fit, boxes(5), folder, NounsConfig())


def test_which_kinds_are_taught() -> None:
    nouns = np.array([row_of("dog")] * 8 + [row_of("standard poodle")] * 2 + [row_of("kite")] * 7 + [-1] * 9)
    assert choose_kinds(TREE, nouns) == {"dog": 10}


def test_what_a_name_leaves_open() -> None:
    class Stub:
        vocabulary = KINDS
        config = NounsConfig()

    evidence = NounEvidence(Stub())  # pyright: ignore[reportArgumentType]
    names = [kind.name for kind in evidence.kinds]
    allowed = allowed_groups(TREE, evidence.kinds, evidence.groups)

    def groups(row: int) -> set[str]:
        return {[*names, "other class", "nothing"][i] for i in np.flatnonzero(allowed[row])}

    assert groups(row_of("dog")) == groups(row_of("standard poodle")) == {"dog"}
    assert groups(row_of("man")) == {"person"}
    assert groups(row_of("animal")) == {"dog", "other class"}
    assert groups(row_of("zebra")) == {"other class"}
    assert groups(row_of("kite")) == groups(-1) == {"nothing"}


def test_one_image_of_ten_is_held_out_whatever_its_folder() -> None:
    held = [is_held_out(Path(f"a/{number}.jpg")) for number in range(1000)]
    assert 60 < sum(held) < 140
    assert held == [is_held_out(Path(f"b/c/{number}.jpg")) for number in range(1000)]

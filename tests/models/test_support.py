from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest

from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.parts import DecodingConfig, ProposalConfig
from saywhere.engines.engine import RpnOutput
from saywhere.models.decoding import decode
from saywhere.models.encoding import Encoding
from saywhere.models.nouns import NounTree
from saywhere.models.support import BiasedDecoder, NounSupport
from saywhere.text import END, PAD, RESERVED, START, Vocabulary

TREE = NounTree(
    [
        "n1\tclass\tdog\tcount\tdog\tn9",
        "n2\tclass\tteddy bear\tcount\tteddy bear\t",
        "n3\tclass\tbear\tcount\tbear\tn9",
        "n9\tgroup\tanimal\tcount\tanimal\t",
    ]
)
VOCABULARY = Vocabulary({"a": 9, "dog": 5, "bear": 4, "animal": 3, "runs": 2})
PROPOSALS = ProposalConfig(nms_iou=0.5, pre_nms_top_n=10, post_nms_top_n=5)


@dataclass
class Classes:
    """Give the same probabilities of the leaves for each region of an image, but for the first."""

    first: list[float]
    others: list[float]
    tree: NounTree = TREE
    seen: list[np.ndarray] = field(default_factory=list)

    def posteriors(self, encodings, boxes):
        self.seen += boxes
        return [np.array([self.first] + [self.others] * (len(rows) - 1), np.float32) for rows in boxes]


class Trunk:
    def propose(self, maps):
        anchors = np.array([[8, 8, 24, 24], [32, 32, 48, 48]], np.float32)
        return RpnOutput(anchors, np.array([1, 2], np.float32), np.zeros((2, 4), np.float32))


def encoding() -> Encoding:
    return Encoding(None, 128, 128, 64, 64, "photo", Trunk())  # pyright: ignore[reportArgumentType]


def biases(classes: Classes, **options: float) -> dict[str, float]:
    support = NounSupport(classes, VOCABULARY)  # pyright: ignore[reportArgumentType]
    row = support.bias([encoding()], PROPOSALS, CaptionerConfig(**options))[0]  # pyright: ignore[reportArgumentType]
    return dict(zip(VOCABULARY.tokens, row.tolist(), strict=True))


def test_a_noun_is_as_probable_as_in_the_region_that_shows_it_best():
    found = biases(Classes([0.4, 0, 0.001], [0.1, 0, 0.02]), support_weight=2.0, support_floor=0.1)
    assert found.pop("bear") == pytest.approx(2 * np.log(0.02 / 0.1), rel=1e-5)
    assert set(found.values()) == {0.0}, "dogs and animals are there, and other words name nothing"


def test_a_word_stands_for_names_of_several_words_that_end_with_it():
    assert biases(Classes([0, 0.5, 0], [0, 0, 0]), support_weight=1.0)["bear"] == 0


def test_no_noun_is_less_probable_than_a_thousandth():
    found = biases(Classes([0, 0, 0], [0, 0, 0]), support_weight=1.0, support_floor=0.05)
    assert found["dog"] == found["animal"] == pytest.approx(np.log(0.001 / 0.05), rel=1e-5)


def test_regions_are_the_whole_image_and_its_proposals_in_its_pixels():
    classes = Classes([1, 0, 0], [1, 0, 0])
    biases(classes, support_weight=1.0)
    assert classes.seen[0].tolist() == [[0, 0, 128, 128], [64, 64, 96, 96], [16, 16, 48, 48]]


class Table(SimpleNamespace):
    """A decoder with the same probabilities of words at each step."""

    never, unknown, independent = (PAD, START), "<unk>", True

    def start(self, embeddings):
        return (embeddings,)

    def step(self, token_ids, state):
        return np.log(np.tile(np.array(self.shares, np.float32), (len(token_ids), 1))), state

    def select(self, state, rows):
        return (state[0][rows],)

    def join(self, states):
        return (np.concatenate([state[0] for state in states]),)


@pytest.mark.parametrize("beam_size", [1, 2])
def test_each_item_is_decoded_with_its_own_bias(beam_size):
    shares = [1e-9] * len(RESERVED) + [0.5, 0.3]
    shares[END] = 0.2
    one, other, no_more = len(RESERVED), len(RESERVED) + 1, END
    bias = np.zeros((3, len(shares)), np.float32)
    bias[1, one] = -5
    bias[2, [one, other]] = -5
    decoder = BiasedDecoder(Table(shares=shares), bias)  # pyright: ignore[reportArgumentType]
    decoded = decode(decoder, np.zeros((3, 1), np.float32), DecodingConfig(2, beam_size, 1.0))
    assert decoded.token_ids[:, 0].tolist() == [one, other, no_more]

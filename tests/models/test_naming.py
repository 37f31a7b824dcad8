"""What the classes say of regions, and phrases with another noun."""

import noun_evidence
import numpy as np
import pytest
from noun_evidence import TREE, posteriors

from saywhere.models.nouns import NounEvidence, with_noun
from saywhere.models.phrases import caption_evidence, noun_log_probs
from saywhere.text import Vocabulary, tokenize

KINDS = ("person", "dog", "airplane", "cow", "grass", "ski")


def evidence(**options: float) -> NounEvidence:
    return noun_evidence.evidence(KINDS, **options)


@pytest.mark.parametrize(
    ("phrase", "noun", "wanted"),
    [
        ("a black dog on the grass", "cow", "a black cow on the grass"),
        ("two brown dogs", "cow", "two brown cows"),
        ("a black dog", "airplane", "a black airplane"),
        ("a black and white dog", "grass", "black and white grass"),
        ("a laptop with keys", "oven", "an oven"),
        ("a black laptop on a desk", "oven", "a black oven on a desk"),
        ("dogs", "airplane", "airplanes"),
        ("the xyzzy", "dog", "the dog"),
        ("red", "dog", "a dog"),
        ("", "dog", "a dog"),
        ("a red shirt", "shorts", "red shorts"),
        ("its mouth", "dog", "a dog"),
    ],
)
def test_the_noun_of_a_phrase_is_replaced(phrase: str, noun: str, wanted: str) -> None:
    node, words = TREE.named(noun), tokenize(phrase)
    assert node is not None
    assert with_noun(TREE.head(words), words, node) == wanted


def test_probabilities_of_a_kind_are_divided_among_its_classes() -> None:
    classes = evidence(rest=0.1, trust=0.0)
    logits = np.zeros((1, 1000), np.float32)
    dog = TREE.named("dog")
    logits[0, dog.leaves[0]] = 20.0
    kinds = np.log(np.array([[0.1, 0.6, 0.1, 0.05, 0.05, 0.05, 0.04, 0.01]], np.float32))
    found = classes.combine(logits, kinds)
    assert classes.probability(found, dog)[0] == pytest.approx(0.6, abs=1e-4)
    assert found[0, dog.leaves[0]] == pytest.approx(0.6 / 1.1, abs=1e-3)
    assert found.sum() == pytest.approx(0.95, abs=1e-4)  # all but "none", and what no other class of ImageNet gets


def test_the_most_probable_kind_is_the_name() -> None:
    ((noun, probability),) = evidence().name(posteriors({"dog": 0.25, "cow": 0.3, "horse": 0.25, "airplane": 0.1}))
    assert noun.name == "cow" and probability == pytest.approx(0.3)


def test_evidence_of_imagenet_joins_what_was_learnt() -> None:
    classes = evidence(trust=1.0)
    logits = np.zeros((1, 1000), np.float32)
    airliner = TREE.named("airplane")
    logits[0, airliner.leaves[airliner.leaves < 1000]] = 12.0
    found = classes.combine(logits, np.zeros((1, len(KINDS) + 2), np.float32))
    flat = evidence(trust=0.0).combine(logits, np.zeros((1, len(KINDS) + 2), np.float32))
    assert classes.probability(found, airliner)[0] > classes.probability(flat, airliner)[0] > 0.1


def test_the_noun_of_a_hypothesis_counts_as_far_as_the_classes_know_it() -> None:
    shown = posteriors({"dog": 0.8, "airplane": 0.001})[0]
    found = noun_log_probs(evidence(), shown, ["a small dog", "two airplanes", "a wheel", "the xyzzy"])
    np.testing.assert_allclose(np.exp(found), [0.8, 0.01, 0.1, 0.1], rtol=1e-5)


def test_the_evidence_for_a_phrase_is_its_confidence_and_what_the_classes_say_of_its_noun() -> None:
    rows = posteriors({"dog": 0.5}, {"dog": 0.5}, {"cow": 1.0})
    found = caption_evidence(
        evidence(), rows, ["a black dog", "a xyzzy", "a dog"], np.array([-1.0, -2.0, -3.0]), np.zeros(3)
    )
    np.testing.assert_allclose(found["noun"], np.log([0.5, 0.1, 0.01]), rtol=1e-5)
    assert found["known"].tolist() == [1, 0, 1] and found["confidence"].tolist() == [-1, -2, -3]
    alone = caption_evidence(None, None, ["a dog"], np.array([-1.0]), np.array([-4.0]))
    assert (alone["noun"].tolist(), alone["known"].tolist(), alone["confidence"].tolist()) == ([0], [0], [-1])
    assert alone["expected"].tolist() == [-4]


def test_words_of_a_vocabulary_lead_to_what_the_classes_know_alone_or_in_a_longer_name() -> None:
    vocabulary = Vocabulary(dict.fromkeys(["a", "dogs", "person", "xyzzy", "hot", "the", "dog", "plane"], 1))
    mask, members = evidence().words(vocabulary)
    known = [word for word, noun in zip(vocabulary.tokens, mask, strict=True) if noun]
    assert sorted(known) == ["dog", "dogs", "person", "plane"]
    leaves = dict(zip(known, members.T, strict=True))
    dog, cow = TREE.named("dog"), TREE.named("cow")
    assert (
        leaves["dog"][dog.leaves].all() and leaves["dogs"][dog.leaves].all() and not leaves["person"][dog.leaves].any()
    )
    assert not leaves["dog"][cow.leaves].any()
    assert leaves["person"].sum() > 1, "kinds of people count as people"
    both = noun_evidence.evidence((*KINDS, "hot dog")).words(vocabulary)[1]
    hot_dog = TREE.named("hot dog")
    assert both[hot_dog.row].sum() == 2, "the word dog is said of a hot dog, in the singular and the plural"

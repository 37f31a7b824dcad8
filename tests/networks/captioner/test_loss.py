from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from photographs import noise, quarters
from pycocoevalcap.cider.cider_scorer import CiderScorer
from tiny_captioner import DECODERS, SENTENCES, VOCABULARY, captioner_model, tiny_captioner, tiny_maps, tiny_target

from saywhere.configs.captioner import TERMS
from saywhere.models.nouns import noun_tree
from saywhere.networks.captioner.loss import (
    CaptionCriterion,
    CaptionOutput,
    Cider,
    InventedNouns,
    RewardCriterion,
    SampledOutput,
)
from saywhere.text import END, PAD, Vocabulary

CORPUS = [[[*VOCABULARY.encode(sentence), END]] for sentence in SENTENCES]


def maps_of(network, *images):
    return [image.maps for image in tiny_maps(network, *images)]


def test_the_loss_is_what_lacks_to_ten_and_its_gradient_follows_the_advantage():
    right, wrong = [*VOCABULARY.encode(SENTENCES[0]), END], [*VOCABULARY.encode(SENTENCES[1]), END]
    length = max(len(right), len(wrong))
    token_ids = torch.tensor([[row + [PAD] * (length - len(row)) for row in (right, wrong)]])
    log_probs = torch.zeros(token_ids.shape, requires_grad=True)
    criterion = RewardCriterion(Cider(CORPUS))
    output = SampledOutput(token_ids, log_probs, (torch.tensor([right[:-1]]),))
    ((best, worst),) = criterion.rewards(output)
    assert best > worst
    loss = criterion(output)["cider"]
    assert loss.item() == pytest.approx(10 - (best + worst) / 2, abs=1e-5)
    loss.backward()
    count = len(right) + len(wrong)
    expected = torch.tensor([[worst - best], [best - worst]]).expand(2, length) / count  # the other one is the baseline
    torch.testing.assert_close(log_probs.grad[0], expected)


def test_the_cross_entropy_of_people_s_words_stands_beside_the_reward():
    model = tiny_captioner(decoder="attention", reward="cider", num_samples=2, word_weight=0.25).train()
    target = tiny_target(SENTENCES[0])  # one sentence, and two are learnt: it comes twice
    out = model(maps_of(model, noise(96, 64)), [target])
    plain = tiny_captioner(decoder="attention").train()
    expected = CaptionCriterion()(plain(maps_of(plain, noise(96, 64)), [tiny_target(SENTENCES[0], SENTENCES[0])]))
    losses = RewardCriterion(Cider(CORPUS), word_weight=0.25)(out)
    assert losses.keys() == {"cider", "caption"}
    assert losses["caption"].item() == pytest.approx(0.25 * expected["caption"].item(), rel=1e-5)
    assert model.eval()(maps_of(model, noise(96, 64)), [target]).supervised is None
    smooth = RewardCriterion(Cider(CORPUS), 1.0, smoothing=0.5)
    output = CaptionOutput(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([0]))
    assert smooth.words(output)["caption"].item() == CaptionCriterion(0.5)(output)["caption"].item()


def test_one_sentence_an_image_has_a_loss_and_no_gradient():
    token_ids = torch.tensor([[[*VOCABULARY.encode(SENTENCES[0]), END]]])
    log_probs = torch.zeros(token_ids.shape, requires_grad=True)
    loss = RewardCriterion(Cider(CORPUS))(SampledOutput(token_ids, log_probs, (token_ids[0, :, :-1],)))["cider"]
    loss.backward()
    assert loss.item() < 10 and log_probs.grad.abs().max() == 0


def test_END_counts():
    whole = VOCABULARY.encode(SENTENCES[0])
    criterion = RewardCriterion(Cider(CORPUS))
    token_ids = torch.tensor([[[*whole, END], [*whole, PAD]]])  # the second was cut off: it has no END
    ((ended, cut),) = criterion.rewards(
        SampledOutput(token_ids, torch.zeros(token_ids.shape), (torch.tensor([whole]),))
    )
    assert ended > cut


def test_nouns_that_nobody_mentions_are_taken_off_the_reward():
    vocabulary = Vocabulary(dict.fromkeys(["a", "dog", "cat", "man", "person", "on", "the", "grass", "and"], 1))
    encode = vocabulary.encode
    invented = InventedNouns(vocabulary, noun_tree())
    references = [[*encode("a dog on the grass"), END], [*encode("a person"), END]]
    assert invented.count([*encode("a man and a dog"), END], references) == 0  # a man is a person
    assert invented.count([*encode("a cat and a cat on the grass"), END], references) == 2
    sentences = [encode("a cat"), encode("a dog")]
    token_ids = torch.tensor([[[*row, END] for row in sentences]])
    truth = torch.tensor([encode("a dog on the grass")])
    output = SampledOutput(token_ids, torch.zeros(token_ids.shape), (truth,))
    cider = Cider([references])
    ((cat, dog),) = RewardCriterion(cider).rewards(output)
    ((fined, free),) = RewardCriterion(cider, invented=invented, invented_weight=0.5).rewards(output)
    assert fined == pytest.approx(cat - 0.5 - 0.5) and free == pytest.approx(dog - 0.5)  # nothing ends in "a dog"


def test_a_sentence_that_ends_as_none_of_the_corpus_costs_as_much_as_an_invented_noun():
    vocabulary = Vocabulary(dict.fromkeys(["a", "dog", "on", "the", "grass", "runs"], 1))
    ends = ["a dog on the grass", "a dog runs on the grass", "a dog on the", "a dog on a grass"]
    rows = [[*vocabulary.encode(text), END] for text in ends]
    token_ids = torch.tensor([[row + [PAD] * (7 - len(row)) for row in rows]])
    cut = torch.tensor([[[*vocabulary.encode("a dog on the grass"), PAD, PAD]]])  # no END: the longest sentence
    truth = (torch.tensor([vocabulary.encode("a dog on the grass")]),)
    cider = Cider([[rows[0]]])
    invented = InventedNouns(vocabulary, noun_tree())

    def costs(token_ids):
        output = SampledOutput(token_ids, torch.zeros(token_ids.shape), truth)
        ((*without,),) = RewardCriterion(cider).rewards(output)
        ((*fined,),) = RewardCriterion(cider, invented=invented, invented_weight=0.5).rewards(output)
        return [before - after for before, after in zip(without, fined, strict=True)]

    assert costs(token_ids) == pytest.approx([0, 0, 0.5, 0.5])
    assert costs(cut) == pytest.approx([0.5])


@pytest.mark.parametrize("decoder", DECODERS)
def test_sampled_sentences_have_the_probabilities_of_the_words_that_training_gives(decoder):
    model = tiny_captioner(decoder=decoder, reward="cider", num_samples=3, dropout=0.0, region_dropout=0.0).train()
    plain = tiny_captioner(decoder=decoder, dropout=0.0, region_dropout=0.0).train()
    plain.load_state_dict(model.state_dict())
    maps = maps_of(model, noise(96, 64))
    out = model(maps, [tiny_target(SENTENCES[0])], torch.Generator().manual_seed(3))
    assert out.token_ids.shape[:2] == out.log_probs.shape[:2] == (1, 3)
    assert out.references[0].tolist() == [VOCABULARY.encode(SENTENCES[0])]
    never, compared = torch.tensor([PAD, 1, 3]), 0
    for row, log_probs in zip(out.token_ids[0].tolist(), out.log_probs[0], strict=True):
        text = VOCABULARY.decode(row)
        if not text:
            continue
        supervised = plain(maps, [tiny_target(text)]).log_probs
        allowed = supervised.index_fill(1, never, -torch.inf).log_softmax(dim=1)
        chosen = [word for word in row if word != PAD]
        expected = allowed[torch.arange(len(chosen)), torch.tensor(chosen)]
        torch.testing.assert_close(log_probs[: len(chosen)], expected, atol=1e-3, rtol=1e-3)
        compared += 1
    assert compared
    assert out.log_probs.requires_grad


def test_validation_measures_the_greedy_sentence():
    model = tiny_captioner(decoder="attention", reward="cider").eval()
    image = noise(96, 64)
    out = model(maps_of(model, image), [tiny_target(*SENTENCES[:2])])
    assert out.token_ids.shape[:2] == (1, 1)
    assert (
        VOCABULARY.decode(out.token_ids[0, 0].tolist()) == captioner_model(model).caption(image, beam_size=1).sentence
    )
    assert len(out.references[0]) == 2


def test_rewards_change_the_captions():
    """A model that has learnt the wrong sentence of each image half the time unlearns it."""
    torch.manual_seed(0)
    options = {"terms": TERMS, "feedback": "marginal", "decoding": {"beam_size": 1}}
    model = tiny_captioner(**options)
    maps = maps_of(model, quarters(96, 64), noise(96, 64, 3))
    trained = [parameter for name, parameter in model.named_parameters() if not name.startswith("trunk")]
    optimizer, criterion = torch.optim.Adam(trained, lr=0.01), CaptionCriterion()
    both = [tiny_target(*SENTENCES[:2]), tiny_target(*SENTENCES[:2])]
    for _ in range(80):
        optimizer.zero_grad()
        criterion(model(maps, both))["caption"].backward()
        optimizer.step()
    learner = tiny_captioner(**options, reward="cider", num_samples=8).train()
    learner.load_state_dict(model.state_dict())
    trained = [parameter for name, parameter in learner.named_parameters() if not name.startswith("trunk")]
    optimizer, reward = torch.optim.Adam(trained, lr=0.005), RewardCriterion(Cider(CORPUS))
    targets, generator = [tiny_target(SENTENCES[1]), tiny_target(SENTENCES[0])], torch.Generator().manual_seed(0)
    before = reward.eval()(learner.eval()(maps, targets))["cider"].item()
    learner.train()
    for _ in range(120):
        optimizer.zero_grad()
        reward(learner(maps, targets, generator))["cider"].backward()
        optimizer.step()
    after = reward(learner.eval()(maps, targets))["cider"].item()
    assert before > 9 and after < 6  # how near it gets to 0 depends on the last digits, and so on the machine


# Cider


SENTENCE = st.lists(st.integers(4, 9), min_size=1, max_size=9)
IMAGE = st.tuples(SENTENCE, st.lists(SENTENCE, min_size=1, max_size=4))


def as_text(token_ids):
    return " ".join(map(str, token_ids))


@settings(deadline=None, max_examples=60)
@given(st.lists(IMAGE, min_size=1, max_size=6))
def test_cider_is_pycocoevalcap_s_on_its_own_corpus(images):
    theirs = CiderScorer()
    for candidate, references in images:
        theirs += (as_text(candidate), [as_text(reference) for reference in references])
    _, each = theirs.compute_score()
    cider = Cider([references for _, references in images])
    assert [cider.score(candidate, references) for candidate, references in images] == pytest.approx(
        list(each), abs=1e-9
    )


def test_a_sentence_of_words_that_only_its_image_has_is_worth_ten():
    cider = Cider([[[4, 5, 6, 7, 8]], [[9, 10, 11, 12]]])
    assert math.isclose(cider.score([4, 5, 6, 7, 8], [[4, 5, 6, 7, 8]]), 10)
    assert cider.score([9, 10, 11, 12], [[4, 5, 6, 7, 8]]) == 0
    assert 0 < cider.score([4, 5, 6, 7], [[4, 5, 6, 7, 8]]) < 10


def test_an_empty_sentence_and_no_references_have_no_cider():
    cider = Cider([[[4, 5]], [[6]]])
    assert cider.score([], [[4, 5]]) == 0
    assert cider.score([4, 5], []) == 0
    assert Cider([]).score([4], [[4]]) == 0

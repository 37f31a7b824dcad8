from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from pictures import noise, quarters
from tiny_aligner import SENTENCES, tiny_aligner, tiny_aligner_config
from tiny_densecap import tiny_model
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.models.aligner import stack
from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment_criterion import AlignmentCriterion
from saywhere.models.alignment_score import pair_scores
from saywhere.models.sentence_target import SentenceTarget
from saywhere.text import END, UNKNOWN, pad

PICTURES = [noise(96, 64, 0), noise(64, 96, 1), noise(96, 96, 2), noise(120, 64, 3)]


def features(model, pictures=PICTURES):
    from saywhere.images import open_picture

    with torch.no_grad():
        return model.extractor([model.preprocess(open_picture(picture)) for picture in pictures])


def targets(model, sentences=SENTENCES):
    return [SentenceTarget(model.numbers([text])) for text in sentences]


def losses(model, **options):
    output = model(features(model), targets(model), torch.Generator().manual_seed(0))
    return {name: float(value.detach()) for name, value in AlignmentCriterion(model.config)(output).items()}


def test_training_scores_are_those_that_a_user_gets():
    model = tiny_aligner()
    (output,) = model(features(model), targets(model))
    asked = model.score(model.embed_pictures(PICTURES), model.embed_sentences(SENTENCES))
    assert output.owner.tolist() == [0, 1, 2, 3]
    torch.testing.assert_close(output.scores.detach() * model.config.temperature, asked)


def test_the_score_is_the_sum_over_words_of_the_best_area():
    model = tiny_aligner()
    picture, sentence = model.embed_pictures(PICTURES[:1])[0], model.embed_sentences(SENTENCES[:1])[0]
    assert len(sentence) == len(sentence.words) + 1  # the END stands for the sentence
    expected = (sentence.vectors @ picture.vectors.T).amax(dim=1).sum()
    torch.testing.assert_close(model.score([picture], [sentence])[0, 0], expected)


def test_a_word_counts_by_its_share_and_the_sentence_as_much_as_its_words():
    model = tiny_aligner()
    read, found = model.read(["a dog runs"]).vectors[0], model.embed_sentences(["a dog runs"])[0]
    torch.testing.assert_close(found.vectors, read / torch.tensor([[3.0], [3], [3], [1]]))
    words = tiny_aligner(sentence=False)
    read = words.read(["a dog runs"]).vectors[0]
    torch.testing.assert_close(words.embed_sentences(["a dog runs"])[0].vectors, read / 3)
    total = tiny_aligner(mean=False)
    read = total.read(["a dog runs"]).vectors[0]
    torch.testing.assert_close(total.embed_sentences(["a dog runs"])[0].vectors, read)


def test_one_at_a_time_is_the_same_as_a_batch():
    model = tiny_aligner()
    together = model.embed_pictures(PICTURES)
    for picture, one in zip(PICTURES, together, strict=True):
        alone = model.embed(picture)
        torch.testing.assert_close(alone.vectors, one.vectors)
        torch.testing.assert_close(alone.boxes, one.boxes)
        assert (one.boxes[0].tolist()) == [0, 0, *picture.size]
    for text, one in zip(SENTENCES, model.embed_sentences(SENTENCES), strict=True):
        torch.testing.assert_close(model.embed(text).vectors, one.vectors)


def test_embed_knows_a_file_from_a_sentence(tmp_path):
    model = tiny_aligner()
    path = tmp_path / "a.png"
    quarters(96, 64).save(path)
    for picture in (str(path), path, quarters(96, 64)):
        assert model.embed(picture).boxes.shape[1] == 4
    assert model.embed(str(path)).name == str(path)
    assert model.embed("a red shirt").words == ("a", "red", "shirt")
    assert [len(each.words) for each in model.embed(["a dog", "the green grass"])] == [2, 3]
    with pytest.raises(UserError, match="'a dog' is no file"):
        model.embed([str(path), "a dog"])
    assert model.embed("x" * 5000).words == ("x" * 5000,)


def test_align_gives_every_word_to_one_phrase():
    model = tiny_aligner()
    for beta in (0.0, 0.1, 50.0):
        alignment = model.align(PICTURES[0], SENTENCES[0], beta=beta)
        assert " ".join(phrase.words for phrase in alignment.phrases) == "a man in a red shirt rides a horse"
        assert [p.start for p in alignment.phrases[1:]] == [p.stop for p in alignment.phrases[:-1]]
        for phrase in alignment.phrases:
            products = alignment.products[phrase.start : phrase.stop, phrase.area]
            assert phrase.score == pytest.approx(float(products.mean()), abs=1e-6)
            assert list(phrase.box) == alignment.boxes[phrase.area].tolist()
    assert len(alignment.phrases) == 1
    word_by_word = model.align(PICTURES[0], SENTENCES[0], beta=0.0)
    assert len(word_by_word.phrases) > 1
    assert alignment.with_beta(0.0).phrases == word_by_word.phrases


def test_align_works_on_lists_and_with_given_boxes():
    model = tiny_aligner()
    both = model.align(PICTURES[:2], SENTENCES[:2])
    assert both[1].to_dict() == model.align(PICTURES[1], SENTENCES[1]).to_dict()
    given = model.align(PICTURES[0], SENTENCES[0], torch.tensor([[3.0, 4, 50, 60]]), beta=0.0)
    assert given.boxes.tolist() == [[0, 0, 96, 64], [3, 4, 50, 60]]
    assert len(model.align(PICTURES[0], SENTENCES[0], limit=2).boxes) == 3


def test_align_chooses_beta_from_the_configuration():
    longest = tiny_aligner(beta=50.0).align(PICTURES[0], SENTENCES[0])
    assert len(longest.phrases) == 1 < len(tiny_aligner(beta=0.0).align(PICTURES[0], SENTENCES[0]).phrases)


def test_areas_may_earn_a_bonus_for_what_they_are():
    plain, words = tiny_aligner(), len(SENTENCES[0].split())
    picture = plain.embed_pictures(PICTURES[:1])[0]
    assert picture.scores is not None and float(picture.scores[0]) == 0 and picture.scores[1:].abs().min() > 0
    base = plain.align(PICTURES[0], SENTENCES[0]).products
    scored = tiny_aligner(score_bonus=0.3).align(PICTURES[0], SENTENCES[0]).products
    torch.testing.assert_close(scored - base, 0.3 * picture.scores.expand(words, -1), atol=1e-5, rtol=1e-4)
    sized = tiny_aligner(size_bonus=2.0).align(PICTURES[0], SENTENCES[0], torch.tensor([[0.0, 0, 48, 32]])).products
    given = plain.align(PICTURES[0], SENTENCES[0], torch.tensor([[0.0, 0, 48, 32]])).products
    expected = torch.tensor([0.0, 2 * math.log(0.25)]).expand(words, -1)
    torch.testing.assert_close(sized - given, expected, atol=1e-5, rtol=1e-4)


def test_phrases_leave_as_regions_snippets_and_json():
    alignment = tiny_aligner().align(PICTURES[0], SENTENCES[0], beta=0.0)
    regions = alignment.regions()
    assert regions.captions == tuple(p.words for p in alignment.phrases)
    assert (regions.width, regions.height) == (96, 64)
    assert [words for _, words in alignment.snippets()] == list(regions.captions)
    row = json.loads(json.dumps(alignment.to_dict()))
    assert row["sentence"] == "a man in a red shirt rides a horse" and row["width"] == 96
    assert row["phrases"][0]["words"] == regions.captions[0] and len(row["phrases"][0]["box"]) == 4


def test_a_phrase_is_located_by_the_sum_of_its_words():
    model = tiny_aligner()
    picture = model.embed_pictures(PICTURES[:1])[0]
    alignment = model.align_vectors(picture, SENTENCES[0], 0.0)
    boxes = model.ground_vectors(picture, SENTENCES[0], [(3, 6), (7, 9)])
    for box, (start, stop) in zip(boxes, [(3, 6), (7, 9)], strict=True):
        best = max(range(len(picture)), key=lambda r: float(alignment.products[start:stop, r].sum()))
        assert box.tolist() == alignment.boxes[best].tolist()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.align(PICTURES[0], "..."), "has no word"),
        (lambda m: m.align(PICTURES[0], "a dog", beta=-1), "beta is at least 0"),
        (lambda m: m.align(PICTURES[:2], "a dog"), "1 sentences for 2 pictures"),
        (lambda m: m.embed_pictures(PICTURES[:2], [torch.zeros(0, 4)]), "1 lists of boxes for 2 pictures"),
        (lambda m: m.align(PICTURES[0], "a dog", torch.tensor([[200.0, 0, 300, 10]])), "not inside the 96 x 64"),
        (lambda m: m.align(PICTURES[0], "a dog", torch.tensor([1.0, 2])), r"need four numbers each"),
    ],
)
def test_what_a_user_can_mend_is_told(call, message):
    with pytest.raises(UserError, match=message):
        call(tiny_aligner())


def test_it_learns_a_few_pictures_by_heart():
    model = tiny_aligner(root=False).train()
    seen, said = features(model), targets(model)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    criterion = AlignmentCriterion(model.config)
    for _ in range(60):
        loss = torch.stack(list(criterion(model(seen, said)).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 0.05
    scores = model.eval().score(model.embed_pictures(PICTURES), model.embed_sentences(SENTENCES))
    assert scores.argmax(dim=1).tolist() == scores.argmax(dim=0).tolist() == [0, 1, 2, 3]


def test_it_takes_over_the_localization_of_a_densecap():
    model, densecap = tiny_aligner(1), tiny_model(seed=3)
    before = model.align(PICTURES[0], SENTENCES[0]).boxes
    model.take_localization(densecap)
    encodings = densecap.encode([PICTURES[0]])
    densecap.localization.nms, densecap.localization.before_nms = model.config.proposal_nms, model.config.before_nms
    after = model.align(PICTURES[0], SENTENCES[0]).boxes
    torch.testing.assert_close(after[1:], densecap.propose(encodings, 6)[0])
    assert before.shape != after.shape or not torch.allclose(before, after)
    with pytest.raises(UserError, match="pyramid of that DenseCap does not fit"):
        tiny_aligner(pyramid=8).take_localization(densecap)


def test_a_checkpoint_holds_it(tmp_path: Path):
    model = tiny_aligner(readers=2)
    checkpoint.save(model, tmp_path)
    loaded = checkpoint.load(tmp_path)
    assert loaded.config == model.config and loaded.vocabulary == model.vocabulary
    assert loaded.align(PICTURES[0], SENTENCES[0]).to_dict() == model.align(PICTURES[0], SENTENCES[0]).to_dict()


@pytest.mark.parametrize(
    "option",
    [
        {"score": "fragments"}, {"mean": False}, {"sentence": False}, {"loss": "margin"}, {"temperature": 0.5},
        {"loss": "margin", "margin": 0.2}, {"loss": "margin", "hardest": True}, {"root": False},
        {"smoothing": 0.3}, {"unit": "areas"}, {"unit": "both"},
        {"cell": "relu"}, {"cell": "none"}, {"rectified": True}, {"skip": True}, {"size": 8}, {"word_size": 4},
        {"hidden_size": 6},
        {"feature_dropout": 0.5}, {"dropout": 0.5}, {"word_dropout": 0.5}, {"areas": "whole"}, {"levels": (32,)},
        {"proposals": 2}, {"proposal_nms": 0.1}, {"before_nms": 3}, {"rpn_hidden": 8}, {"pyramid": 8},
        {"long_side": 64}, {"multiple": 16}, {"strides": (16, 32), "anchors": (((40, 40),), ((90, 60),))},
    ],
)  # fmt: skip
def test_every_option_changes_the_losses(option):
    base = tiny_aligner(**({"loss": "margin"} if option.get("loss") and len(option) > 1 else {})).train()
    assert losses(base) != losses(tiny_aligner(**option).train())


def test_vectors_may_have_length_1():
    both, areas, none = (tiny_aligner(unit=unit, readers=2) for unit in ("both", "areas", "none"))
    for model, of_areas, of_words in ((both, True, True), (areas, True, False), (none, False, False)):
        vectors, words = model.embed_pictures(PICTURES[:1])[0].vectors, model.read(SENTENCES[:2])
        lengths = words.vectors[words.real].norm(dim=1)
        assert torch.allclose(vectors.norm(dim=1), torch.ones(len(vectors)), atol=1e-5) == of_areas
        assert torch.allclose(lengths, torch.ones(len(lengths)), atol=1e-5) == of_words
        assert words.vectors[~words.real].abs().max() == 0


def test_word_vectors_may_stay_as_they_are():
    for learnt in (False, True):
        model = tiny_aligner(train_words=learnt, readers=2)
        assert [reader.words.weight.requires_grad for reader in model.readers] == [learnt, learnt]


def test_words_are_not_heard_only_in_training():
    model = tiny_aligner(word_dropout=1.0)
    words = model.numbers(["a red shirt"])
    assert torch.equal(model._dropped(words, None), words)
    assert model.train()._dropped(words, torch.Generator()).tolist() == [[UNKNOWN, UNKNOWN, UNKNOWN, END]]


def test_several_sentences_a_picture_know_their_owner():
    model = tiny_aligner()
    said = [SentenceTarget(model.numbers(SENTENCES[:2])), SentenceTarget(model.numbers(SENTENCES[2:3]))]
    (output,) = model(features(model, PICTURES[:2]), said)
    assert output.scores.shape == (2, 3) and output.owner.tolist() == [0, 0, 1]
    assert pad([[1, 2], [3]]).tolist() == [[1, 2], [3, 0]]


def twins(**options):
    """Two readers that are the same, and each of them alone."""
    one, two = tiny_aligner(size=8, **options), tiny_aligner(size=16, readers=2, **options)
    weights = one.state_dict()
    for name in [name for name in weights if ".0." in name and name.startswith(("readers", "projects"))]:
        weights[name.replace(".0.", ".1.", 1)] = weights[name]
    two.load_state_dict(weights)
    return one, two


def test_each_of_several_readers_has_scores_and_a_loss_of_its_own():
    model = tiny_aligner(readers=2, temperature=2.0, root=False).train()
    seen, said = [(f.detach(), b) for f, b in features(model)], targets(model)
    outputs = model(seen, said)
    outputs[1].scores.sum().backward()
    first, second = (module.weight.grad for module in model.projects)
    assert not first.any() and second.any()
    assert not model.readers[0].encode.weight.grad.any() and model.readers[1].encode.weight.grad.any()
    counts, words = [row[0].shape[1] for row in seen], model.numbers(SENTENCES)
    flat = functional.batch_norm(torch.cat([row[0][0] for row in seen]), None, None, training=True)
    for number in range(2):
        areas, real = stack(model.projects[number](flat).split(counts))
        read = model.readers[number](words)
        expected = pair_scores(areas, real, model.weighed(read), read.real) / 2  # the temperature
        torch.testing.assert_close(outputs[number].scores, expected)
    of_each = [AlignmentCriterion(model.config)([output])["pictures"].detach() for output in outputs]
    of_all = AlignmentCriterion(model.config)(outputs)["pictures"].detach()
    assert abs(float(of_each[0] - of_each[1])) > 1e-3
    torch.testing.assert_close(of_all, (of_each[0] + of_each[1]) / 2)


def test_several_readers_answer_together_by_the_mean_of_their_products():
    model = tiny_aligner(readers=2, root=False)
    picture, sentence = model.embed_pictures(PICTURES[2:3])[0], model.read(SENTENCES[1:2]).vectors[0]
    flat = model.standardise(features(model, PICTURES[2:3])[0][0][0])
    products = [
        project(flat) @ reader(model.numbers(SENTENCES[1:2])).vectors[0].T
        for project, reader in zip(model.projects, model.readers, strict=True)
    ]
    torch.testing.assert_close(picture.vectors @ sentence.T, (products[0] + products[1]) / 2)


@pytest.mark.parametrize("options", [{}, {"unit": "both"}, {"score": "fragments"}, {"loss": "margin"}])
def test_two_equal_readers_are_as_good_as_one_of_them(options):
    one, two = twins(phrase_weight=1.0, temperature=2.0, **options)
    seen = [(f.detach(), b) for f, b in features(one)]
    said = [SentenceTarget(t.words, torch.tensor([[0, 0, 2]]), seen[k][1][0, 1:2]) for k, t in enumerate(targets(one))]
    expected = AlignmentCriterion(one.config)(one(seen, said))
    for training in (True, False):
        two.train(training).standardise.eval()
        found = AlignmentCriterion(two.config)(two(seen, said))
        assert len(two(seen, said)) == (2 if training else 1) and set(found) == {"pictures", "sentences", "phrases"}
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value)
    alone, together = (model.eval().align(PICTURES[0], SENTENCES[0], beta=0.5) for model in (one, two))
    torch.testing.assert_close(alone.products, together.products)


def test_dropout_takes_other_features_from_each_reader():
    _, model = twins(feature_dropout=0.5)
    model.train().standardise.eval()
    first, second = model.embed_areas([features(model)[0][0][0]])[0].chunk(2, dim=-1)
    assert not torch.allclose(first, second)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"cells": "gru"}, "unknown key cells"), ({"cell": "rnn"}, "cell"), ({"size": 0}, "size is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"), ({"levels": (4,)}, "levels"), ({"temperature": 0.0}, "temperature"),
        ({"beta": -1.0}, "beta"), ({"head": True}, "head is True, but must be false for test_efficientnet"),
        ({"strides": (16, 8)}, "strides"), ({"anchors": ()}, "anchors"), ({"proposals": -1}, "proposals"),
        ({"levels": ()}, "levels"), ({"pyramid": 12}, "pyramid"), ({"readers": 3}, "size is 16, .* the 3 readers"),
    ],
)  # fmt: skip
def test_wrong_options_are_refused(option, message):
    with pytest.raises(UserError, match=message):
        tiny_aligner_config(**option)


def test_phrases_with_boxes_are_compared_with_the_areas_of_their_own_picture():
    model = tiny_aligner(phrase_weight=1.0)
    seen = features(model, PICTURES[:2])
    said = [
        SentenceTarget(model.numbers(SENTENCES[:2]), torch.tensor([[1, 0, 2]]), torch.tensor([[4.0, 4, 50, 60]])),
        SentenceTarget(model.numbers(SENTENCES[2:3]), torch.tensor([[0, 3, 6], [0, 0, 2]]), seen[1][1][0, 2:4]),
    ]
    (output,) = model(seen, said)
    assert output.products is not None and output.overlaps is not None
    pictures = model.embed_pictures(PICTURES[:2])
    for row, (picture, text, start, stop) in enumerate([(0, 1, 0, 2), (1, 2, 3, 6), (1, 2, 0, 2)]):
        words = model.read([SENTENCES[text]]).vectors[0, start:stop].sum(dim=0)
        expected = pictures[picture].vectors @ words
        torch.testing.assert_close(output.products[row, : len(expected)], expected)
        assert torch.isinf(output.products[row, len(expected) :]).all()
    assert output.overlaps[1].argmax() == 2 and output.overlaps[2].argmax() == 3
    assert float(output.overlaps.max()) == pytest.approx(1.0)
    once = AlignmentCriterion(model.config)([output])["phrases"].detach()
    twice = AlignmentCriterion(tiny_aligner_config(phrase_weight=2.0))([output])["phrases"].detach()
    assert float(twice) == pytest.approx(2 * float(once)) and float(once) > 0
    assert "phrases" not in AlignmentCriterion(tiny_aligner_config())([output])


def test_the_original_is_the_paper_s():
    config = AlignerConfig.original()
    assert (config.cell, config.rectified, config.score, config.mean) == ("relu", True, "max", False)
    assert (config.loss, config.margin, config.hardest, config.proposals) == ("margin", 1.0, False, 19)
    assert 300 <= config.hidden_size <= 600 and 1000 <= config.size <= 1600

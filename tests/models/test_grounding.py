"""Words and regions as a user gets them: the verbs embed, align and ground of an aligner."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from photographs import noise, quarters
from tiny_aligner import SENTENCES, aligner_model, tiny_aligner

import saywhere
from saywhere import boxes as geometry
from saywhere.configs.aligner import GroundingConfig
from saywhere.errors import UserError
from saywhere.images import ImageError
from saywhere.models.model import Model
from saywhere.networks import checkpoint

IMAGES = [noise(96, 64, 0), noise(64, 96, 1), noise(96, 96, 2), noise(120, 64, 3)]


def tiny(**options) -> Model:
    return aligner_model(tiny_aligner(**options))


def test_the_similarity_is_the_sum_over_words_of_the_best_region():
    model = tiny()
    image, text = model.embed(IMAGES[0]), model.embed_text(SENTENCES[0])
    assert len(text) == len(text.words) + 1  # the END stands for the sentence
    expected = (text.vectors @ image.vectors.T).max(axis=1).sum()
    assert model.similarity([image], [text])[0, 0] == pytest.approx(expected, rel=1e-5)
    assert model.similarity([], [text]).shape == (0, 1)


def test_one_at_a_time_is_the_same_as_a_list():
    model = tiny()
    for image, one in zip(IMAGES, model.embed(IMAGES), strict=True):
        alone = model.embed(image)
        np.testing.assert_allclose(alone.vectors, one.vectors, atol=1e-5)
        np.testing.assert_allclose(alone.boxes, one.boxes, atol=1e-3)
        assert one.boxes[0].tolist() == [0, 0, *image.size] and one.logits[0] == 0
        assert one.logits[1:].tolist() == sorted(one.logits[1:].tolist(), reverse=True)
    for text, one in zip(SENTENCES, model.embed_text(list(SENTENCES)), strict=True):
        np.testing.assert_allclose(model.embed_text(text).vectors, one.vectors, atol=1e-5)


def test_images_are_files_and_texts_are_texts(tmp_path: Path):
    model = tiny()
    path = tmp_path / "a.png"
    quarters(96, 64).save(path)
    for image in (str(path), path, quarters(96, 64)):
        assert model.embed(image).boxes.shape[1] == 4
    assert model.embed(str(path)).image == str(path)
    assert model.embed_text("a red shirt").words == ("a", "red", "shirt")
    with pytest.raises(ImageError):
        model.embed("a red shirt")


def test_every_word_is_of_one_phrase():
    model = tiny()
    for beta in (0.0, 0.1, 50.0):
        alignment = model.align(IMAGES[0], SENTENCES[0], beta=beta)
        assert " ".join(phrase.words for phrase in alignment.phrases) == "a man in a red shirt rides a horse"
        assert [p.start for p in alignment.phrases[1:]] == [p.stop for p in alignment.phrases[:-1]]
        for phrase in alignment.phrases:
            products = alignment.products[phrase.start : phrase.stop, phrase.region]
            assert phrase.similarity == pytest.approx(float(products.mean()), abs=1e-6)
            assert list(phrase.box) == alignment.boxes[phrase.region].tolist()
    assert len(alignment.phrases) == 1
    word_by_word = model.align(IMAGES[0], SENTENCES[0], beta=0.0)
    assert len(word_by_word.phrases) > 1
    assert alignment.with_beta(0.0).phrases == word_by_word.phrases


def test_lists_of_images_and_given_boxes():
    model = tiny()
    both = model.align(IMAGES[:2], SENTENCES[:2])
    assert both[1].to_dict() == model.align(IMAGES[1], SENTENCES[1]).to_dict()
    given = model.align(IMAGES[0], SENTENCES[0], [[3.0, 4, 50, 60]], beta=0.0)
    np.testing.assert_allclose(given.boxes, [[0, 0, 96, 64], [3, 4, 50, 60]], atol=1e-4)
    assert len(model.align(IMAGES[0], SENTENCES[0], regions=2).boxes) == 3
    assert len(model.embed(IMAGES[0], regions=12)) > len(model.embed(IMAGES[0]))


def test_beta_comes_from_the_configuration():
    longest = tiny(beta=50.0).align(IMAGES[0], SENTENCES[0])
    assert len(longest.phrases) == 1 < len(tiny(beta=0.0).align(IMAGES[0], SENTENCES[0]).phrases)


def test_regions_may_earn_a_bonus_for_what_they_are():
    plain, words = tiny(), len(SENTENCES[0].split())
    image = plain.embed(IMAGES[0])
    assert np.abs(image.logits[1:]).min() > 0
    base = plain.align(IMAGES[0], SENTENCES[0]).products
    scored = tiny(score_bonus=0.3).align(IMAGES[0], SENTENCES[0]).products
    np.testing.assert_allclose(scored - base, 0.3 * np.tile(image.logits, (words, 1)), atol=1e-5, rtol=1e-4)
    box = [[0.0, 0, 48, 32]]
    sized = tiny(size_bonus=2.0).align(IMAGES[0], SENTENCES[0], box).products
    given = plain.align(IMAGES[0], SENTENCES[0], box).products
    np.testing.assert_allclose(sized - given, [[0.0, 2 * math.log(0.25)]] * words, atol=1e-5, rtol=1e-4)


def test_words_may_be_placed_in_regions_that_are_closer_together():
    usual = tiny()
    close = tiny(grounding={"nms_iou": 0.9})
    np.testing.assert_array_equal(close.embed(IMAGES[0]).boxes, usual.embed(IMAGES[0]).boxes)
    boxes = close.align(IMAGES[0], SENTENCES[0]).boxes
    assert len(boxes) == len(usual.align(IMAGES[0], SENTENCES[0]).boxes)
    overlaps = [
        geometry.iou(b[1:], b[1:])[np.triu_indices(len(b) - 1, 1)] for b in (boxes, usual.embed(IMAGES[0]).boxes)
    ]
    assert overlaps[0].max() > 0.5 >= overlaps[1].max() - 1e-3
    with pytest.raises(UserError, match="nms_iou is 1.5"):
        GroundingConfig(nms_iou=1.5)


def test_phrases_leave_as_regions_snippets_and_json():
    alignment = tiny().align(IMAGES[0], SENTENCES[0], beta=0.0)
    regions = alignment.regions()
    assert regions.captions == tuple(p.words for p in alignment.phrases)
    assert (regions.width, regions.height) == (96, 64)
    assert [words for _, words in alignment.snippets()] == list(regions.captions)
    row = json.loads(json.dumps(alignment.to_dict()))
    assert row["sentence"] == "a man in a red shirt rides a horse" and row["width"] == 96
    assert row["phrases"][0]["words"] == regions.captions[0] and len(row["phrases"][0]["box"]) == 4


def test_a_span_is_located_by_the_sum_of_its_words():
    alignment = tiny().align(IMAGES[0], SENTENCES[0])
    for start, stop in ((3, 6), (7, 9)):
        sums = [float(alignment.products[start:stop, r].sum()) for r in range(len(alignment.boxes))]
        assert alignment.locate(start, stop) == sums.index(max(sums))


def test_a_sentence_is_grounded_by_its_alignment_and_phrases_each_alone():
    model = tiny()
    assert model.ground(IMAGES[0], SENTENCES[0]).captions == ("a man", "a red shirt", "a horse")
    sentence = model.ground(IMAGES[0], SENTENCES[0], beta=2.0)
    alignment = model.align(IMAGES[0], SENTENCES[0], beta=2.0)
    assert sentence.captions == tuple(phrase.words for phrase in alignment.phrases)
    np.testing.assert_allclose(sentence.boxes, [phrase.box for phrase in alignment.phrases])
    phrases = model.ground(IMAGES[0], ["a red shirt", "a horse"])
    assert phrases.captions == ("a red shirt", "a horse") and phrases.scores is None
    alone = model.align(IMAGES[0], "a horse", beta=0.0)
    region = alone.locate(0, 2)
    np.testing.assert_allclose(phrases.boxes[1], alone.boxes[region])
    assert phrases.similarities[1] == pytest.approx(alone.products[:, region].mean(), abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: m.align(IMAGES[0], "..."), "has no word"),
        (lambda m: m.align(IMAGES[0], "a dog", beta=-1), "beta must be at least 0"),
        (lambda m: m.align(IMAGES[:2], ["a dog"]), "1 .* for 2 images"),
        (lambda m: m.embed(IMAGES[:2], [np.zeros((0, 4))]), "1 .* for 2 images"),
        (lambda m: m.align(IMAGES[0], "a dog", [[200.0, 0, 300, 10]]), "96 x 64"),
        (lambda m: m.align(IMAGES[0], "a dog", [1.0, 2]), r"\(N, 4\)"),
        (lambda m: m.caption(IMAGES[0]), "tiny cannot .* part captioner"),
    ],
)
def test_errors_that_a_user_can_fix_are_reported(call, message):
    with pytest.raises(UserError, match=message):
        call(tiny())


def test_a_checkpoint_holds_it(tmp_path: Path):
    network = tiny_aligner(encoders=2)
    checkpoint.save(network, tmp_path)
    loaded, model = saywhere.load(tmp_path, "cpu"), aligner_model(network)
    assert loaded.aligner.config == network.config and loaded.aligner.vocabulary == network.vocabulary
    assert loaded.align(IMAGES[0], SENTENCES[0]).to_dict() == model.align(IMAGES[0], SENTENCES[0]).to_dict()

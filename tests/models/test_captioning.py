"""Sentences of images as a user gets them: the verbs caption, attend and describe of a captioner."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise
from PIL import Image
from refusals import refuses
from tiny_bundle import tiny_networks
from tiny_captioner import VOCABULARY, captioner_model, tiny_captioner, tiny_maps

from saywhere import Caption
from saywhere.configs.captioner import TERMS, CaptionerConfig, CaptionNgramsConfig
from saywhere.drawing import draw_attention
from saywhere.engines.arrays.layers import Ngrams
from saywhere.engines.torch import TorchEngine
from saywhere.models.captioner import (
    bind,
    build_reranker,
    without_monochrome,
    without_unlikely_endings,
    without_unsure_sex,
)
from saywhere.models.decoding import Hypotheses, Reason, Reranker, search
from saywhere.models.model import Model
from saywhere.text import END, PAD, Vocabulary

BOXES = np.array([[0, 0, 40, 30], [10, 20, 96, 64], [50, 0, 96, 20]], np.float32)


def tiny(seed: int = 0, **options) -> Model:
    return captioner_model(tiny_captioner(seed, **options))


def sentences(captions) -> list[str]:
    return [caption.sentence for caption in captions]


@pytest.mark.parametrize("decoder", ["lstm", "attention"])
def test_the_aligner_helps_to_choose_among_the_hypotheses_of_the_beam(decoder, monkeypatch):
    monkeypatch.setattr("saywhere.models.captioner.SHORTLIST", 3)
    images = [noise(96, 64, seed) for seed in range(4)]
    options = {"decoder": decoder, "attend_to": "grid" if decoder == "attention" else "whole"}
    options |= {"terms": TERMS, "feedback": "marginal"}

    def model(weight: float) -> Model:
        parts = {"aligner": {}, "captioner": {**options, "decoding": {"beam_size": 5}, "similarity_weight": weight}}
        return Model(TorchEngine(tiny_networks(parts)))

    plain, mixed, alone = model(0.0), model(0.5), model(1e6)
    captioner = plain.require("captioner", "")
    bound = bind(captioner, plain.encode(images))
    found = search(bound.decoder, bound.embeddings, captioner.config.decoding)
    texts = [[captioner.vocabulary.decode(row) for row in rows] for rows in found.token_ids.tolist()]
    fits = np.full(found.ranks.shape, -np.inf, np.float32)
    for i, (image, of_image) in enumerate(zip(images, texts, strict=True)):
        said = [b for b in found.ranks[i].argsort()[-3:] if of_image[b]]
        fits[i, said] = plain.similarity([plain.embed(image)], plain.embed_text([of_image[b] for b in said]))[0]

    def chosen(ranks: np.ndarray) -> list[str]:
        return [of_image[b] for of_image, b in zip(texts, ranks.argmax(axis=1), strict=True)]

    assert np.isfinite(fits).sum() < fits.size  # the worst are not compared
    assert sentences(plain.caption(images)) == chosen(found.ranks)
    expected = found.ranks + 0.5 * fits
    assert sentences(mixed.caption(images)) == chosen(expected)
    fitting = sentences(alone.caption(images))
    pairs = [dict(zip(of_image, fit, strict=True)) for of_image, fit in zip(texts, fits.tolist(), strict=True)]
    fit_best = [fit_of[sentence] for fit_of, sentence in zip(pairs, fitting, strict=True)]
    np.testing.assert_allclose(fit_best, fits.max(axis=1), rtol=1e-5)  # of two that fit alike, rounding chooses
    assert fitting != chosen(found.ranks)
    assert mixed.caption(images[0]).sentence == chosen(expected)[0]  # one image at a time as many
    assert sentences(alone.caption(images, beam_size=1)) == sentences(plain.caption(images, beam_size=1))


@pytest.mark.parametrize(
    ("sentence", "of_coloured"),
    [
        ("a black and white photo of a man", "a photo of a man"),
        ("two old black and white pictures on a wall", "two old pictures on a wall"),
        ("a black and white dog in a photo", "a black and white dog in a photo"),
        ("a black and white photographer", "a black and white photographer"),
    ],
)
def test_an_image_with_colours_is_no_black_and_white_photo(sentence: str, of_coloured: str):
    grey = np.repeat(np.arange(0, 240, 12, dtype=np.uint8).reshape(4, 5, 1), 3, axis=2)
    coloured, tinted = grey.copy(), grey.copy()
    coloured[0, 1] = 200, 20, 20
    tinted[..., 2] += 12
    assert without_monochrome(sentence, coloured) == of_coloured
    assert without_monochrome(sentence, grey) == without_monochrome(sentence, tinted) == sentence


def test_captions_ask_the_pixels_of_their_image(monkeypatch: pytest.MonkeyPatch):
    model, image = tiny(), noise(96, 64)
    images = [image, image.convert("L")]
    coloured, grey = sentences(model.caption(images))
    monkeypatch.setattr("saywhere.models.captioner.MONOCHROME", re.compile(r"^\S+ "))
    assert sentences(model.caption(images)) == [coloured.partition(" ")[2], grey]


def test_a_model_without_an_aligner_takes_the_likeliest_hypothesis():
    image = noise(96, 64)
    weighted, plain = (tiny(decoder="lstm", similarity_weight=weight) for weight in (1e6, 0.0))
    assert weighted.caption(image).sentence == plain.caption(image).sentence


@pytest.mark.parametrize("feedback", ["none", "marginal", "conditional"])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_attention_is_that_of_the_network_at_each_word(feedback, beam_size):
    """The weights are p(r | w, h): of the joint distribution (Eq. 4), given the word that is said."""
    network = tiny_captioner(terms=TERMS, feedback=feedback)
    model, images = captioner_model(network), [noise(96, 64, 1), noise(192, 128, 2)]
    found = model.caption(images, beam_size=beam_size)
    assert sentences(found) == sentences(model.caption(images, beam_size=beam_size, attention=False))
    for image, caption in zip(images, found, strict=True):
        assert len(caption.words) > 1
        with torch.no_grad():
            regions = network.attend(tiny_maps(network, image))
            words = torch.tensor([VOCABULARY.encode(caption.sentence)])
            seen = regions.embeddings, regions.features, words, regions.mask
            weights = network.decoder.attention(*seen, conditional=True)
        np.testing.assert_allclose(caption.attention, weights[0, :-1], atol=1e-6)
        np.testing.assert_allclose(caption.attention.sum(axis=1), np.ones(len(caption.words)), rtol=1e-5)
        assert np.log(caption.attention).std(axis=0).max() > 0.1  # not the same at every word


def test_attention_comes_with_regions_in_pixels_of_the_image():
    caption = tiny().caption(noise(192, 128))
    assert (caption.width, caption.height, caption.corners) == (192, 128, None) and caption.outlines is caption.boxes
    assert caption.boxes.tolist() == [[0, 0, 96, 64], [96, 0, 192, 64], [0, 64, 96, 128], [96, 64, 192, 128]]
    row = caption.to_dict()
    assert row["caption"] == caption.sentence and len(row["attention"]) == len(caption.words)
    assert "attention" not in tiny().caption(noise(192, 128), attention=False).to_dict()


def test_corners_are_in_pixels_of_the_image():
    network, image = tiny_captioner(attend_to="transformer", zoom=1.0), noise(192, 192)
    with torch.no_grad():
        (regions,) = network.attend(tiny_maps(network, image)).regions
    caption = captioner_model(network).caption(image)
    assert caption.outlines is caption.corners and caption.corners is not None and regions.corners is not None
    np.testing.assert_allclose(caption.corners, 2 * regions.corners, rtol=1e-5)  # the network saw 96 x 96
    np.testing.assert_allclose(caption.boxes, (2 * regions.boxes).clamp(0, 192), rtol=1e-5)


def test_given_sentences_are_attended_to_word_by_word():
    model, image = tiny(), noise(96, 64)
    caption = model.caption(image)
    same, other, none = model.attend(image, [caption.sentence.upper() + ".", "A zebra, in red!", "..."])
    assert same.words == caption.words
    np.testing.assert_allclose(same.attention, caption.attention, atol=1e-6)
    assert other.words == ("a", "zebra", "in", "red") and other.attention.shape == (4, 4)
    assert (none.sentence, none.words, len(none.attention)) == ("", (), 0)
    unicorn = model.attend(image, ["a unicorn, in red"])[0]
    np.testing.assert_allclose(unicorn.attention, other.attention, atol=1e-6)  # both are the unknown word
    assert model.attend(image, []) == []
    refuses("decoder lstm attends to no regions", tiny(decoder="lstm").attend, image, ["a dog"])
    assert tiny(decoder="lstm").caption(image).attention is None


def test_boxes_may_be_given_instead_of_proposals():
    model, image = tiny(attend_to="proposals"), noise(192, 128)
    caption = model.caption(image)
    own = model.caption(image, boxes=caption.boxes)
    assert own.sentence == caption.sentence
    np.testing.assert_allclose(own.attention, caption.attention, atol=1e-4)
    given = model.caption([image, image], boxes=[2 * BOXES, 2 * BOXES[:1]])
    assert [one.boxes.tolist() for one in given] == [(2 * BOXES).tolist(), (2 * BOXES[:1]).tolist()]
    assert model.caption(image, boxes=2 * BOXES).sentence == given[0].sentence
    attended = model.attend(image, [given[0].sentence], 2 * BOXES)[0]
    np.testing.assert_allclose(attended.attention, given[0].attention, atol=1e-6)
    nothing = model.caption(image, boxes=BOXES[:0])
    assert nothing.attention.shape == (len(nothing.words), 0)


def test_a_box_is_described_by_what_is_in_it(monkeypatch):
    model, image = tiny(decoder="lstm", describe_boxes=True), noise(96, 64)
    regions = model.describe([image, image], [BOXES[:2], BOXES[1:2]])
    assert regions[0].boxes.tolist() == BOXES[:2].tolist() and len(regions[1]) == 1
    assert regions[1].captions == regions[0].captions[1:] and regions[0].scores is None
    whole = model.describe(image, [[0.0, 0, 96, 64]])
    assert whole.captions == (model.caption(image).sentence,)
    monkeypatch.setattr(Vocabulary, "decode", lambda *_: "a elephant")
    assert model.describe(image, BOXES[:1]).captions == ("an elephant",)


def test_wrong_use_is_reported_in_a_line():
    image = noise(96, 64)
    refuses("boxes need another model", tiny().describe, [image], [np.zeros((0, 4))])
    for model in (tiny(), tiny(decoder="lstm")):
        refuses("takes no boxes", model.caption, image, boxes=BOXES)
    refuses("96 x 64", tiny(attend_to="proposals").caption, image, boxes=2 * BOXES)
    refuses("1 .* for 2 images", tiny(attend_to="proposals").caption, [image] * 2, boxes=[BOXES])
    boxes = tiny(decoder="rnn", describe_boxes=True)
    refuses("96 x 64", boxes.describe, [image], [[[0.0, 0, 110, 10]]])
    refuses("top and threshold cannot choose among them", boxes.describe, image, BOXES, top=1)


# The choice among hypotheses

TEXTS = ("a dog runs", "a man", "the sky is blue")
"""Of two images the same, in this order of probability."""
RANKS = np.array([[-1.0, -1.1, -1.2]] * 2, np.float32)


def hypotheses(texts: tuple[str, ...] = TEXTS) -> Hypotheses:
    rows = [[*VOCABULARY.encode(text), END] for text in texts]
    token_ids = np.array([[row + [PAD] * (8 - len(row)) for row in rows]] * 2)
    return Hypotheses(token_ids, np.zeros(token_ids.shape, np.float32), RANKS[:, : len(texts)])


def expecting(said: tuple[str, ...], options: CaptionNgramsConfig) -> Any:
    """A captioner that expects every other of these words of the first image, and the rest of the next."""
    signs = np.where(np.arange(len(said)) % 2, -9, 9)[:, None]
    arrays = {"keys": signs, "offsets": np.zeros(len(said)), "rarity": np.ones(len(said))}
    arrays |= {"lengths": np.ones(len(said)), "token_ids": np.array([VOCABULARY.encode(word)[0] for word in said])}
    known = Ngrams.unpack(((np.ones((1, 1), np.float32), np.zeros(1, np.float32)),), arrays, len(VOCABULARY))
    return SimpleNamespace(config=CaptionerConfig(ngrams=options), ngrams=known, vocabulary=VOCABULARY)


IMAGES = np.array([[1.0], [-1.0]], np.float32)


def by_ngrams(said: tuple[str, ...], weight: float) -> Reason:
    (reason,) = build_reranker(expecting(said, CaptionNgramsConfig(weight=weight)), IMAGES, []).reasons
    return reason


def fits(*values: list[float], asked: list[Any] | None = None):
    """A score of each sentence of two images that is known, and remembers what it was asked."""

    def score(sentences):
        if asked is not None:
            asked.extend([one.text for one in of_image] for of_image in sentences)
        return [np.array(row) for row in values]

    return score


def ranks(*reasons: Reason, texts: tuple[str, ...] = TEXTS) -> np.ndarray:
    return Reranker(reasons).rank(hypotheses(texts), VOCABULARY)


def test_what_people_would_say_of_each_image_is_chosen():
    found = ranks(by_ngrams(("blue", "man"), 20.0))
    assert found.argmax(axis=1).tolist() == [2, 1]
    np.testing.assert_allclose(found[:, 0], -1)  # it has none of these words


def test_a_sentence_ends_after_the_last_part_that_the_image_probably_shows():
    texts = ["a dog runs in front of the sky", "a man is standing near a sky"]
    captioner = expecting(("man", "sky"), CaptionNgramsConfig(least_probability=0.4))  # no sky in the first image
    assert without_unlikely_endings(captioner, IMAGES, texts) == ["a dog runs", texts[1]]
    assert without_unlikely_endings(captioner, IMAGES[::-1], texts) == [texts[0], "a man"]
    without = ["a dog runs on the sky", "a dog that is wearing the sky"]
    assert without_unlikely_endings(captioner, IMAGES[[0, 0]], without) == ["a dog runs", "a dog"]
    for others in (["a dog runs in the snow"] * 2, ["", "sky"]):  # nothing is known of snow
        assert without_unlikely_endings(captioner, IMAGES, others) == others
    never = expecting(("man", "sky"), CaptionNgramsConfig(least_probability=0))
    assert without_unlikely_endings(never, IMAGES, texts) == texts
    captioner.ngrams = None
    assert without_unlikely_endings(captioner, IMAGES, texts) == texts


def test_a_word_for_somebodys_sex_stays_if_the_n_grams_are_sure_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    words, vocabulary = ("man", "woman", "girl"), Vocabulary.build(["a man and a woman in his red coat near a girl"])
    known = SimpleNamespace(rows={(vocabulary.number(word),): (row, 0) for row, word in enumerate(words)})
    ngrams = SimpleNamespace(
        probabilities=lambda embeddings: embeddings, word_probabilities=partial(Ngrams.word_probabilities, known)
    )
    part: Any = SimpleNamespace(vocabulary=vocabulary, ngrams=ngrams)
    monkeypatch.setattr("saywhere.models.captioner.bind", lambda _, rows: SimpleNamespace(embeddings=np.array(rows)))

    def told(sentence: str, *likely: float) -> str:
        image: Any = likely
        return without_unsure_sex(part, image, sentence, 0.8)

    assert told("a man in his red coat", 0.8, 0.1, 0.1) == "a man in his red coat"
    assert told("a man in his red coat", 0.7, 0.1, 0.2) == "a person in their red coat"
    assert told("two men near a boy", 0.1, 0.3, 0.1) == "two people near a child"
    assert told("a girl", 0.1, 0.2, 0.1) == "a child" and told("a girl", 0.1, 0.3, 0.1) == "a girl"
    for other in ("a man and a woman", "a dog"):
        assert told(other, 0.5, 0.5, 0.5) == other
    part.ngrams = None
    assert told("a girl", 1, 0, 0) == "a girl"


def test_reasons_are_added_by_their_weights():
    values, asked = ([0.0, 3.0, 1.0], [0.0, 1.0, 1.5]), list[Any]()
    found = ranks(Reason(fits(*values, asked=asked), 0.5), Reason(fits(*values, asked=asked), 0.1))
    assert asked == [list(TEXTS)] * 4
    np.testing.assert_allclose(found, RANKS + 0.6 * np.array(values, np.float32), rtol=1e-6)


def test_a_reason_may_score_only_the_best_by_those_before():
    asked, last = list[Any](), ([0.0, 5.0], [0.0, 5.0])
    words = by_ngrams(("blue", "man"), 20.0)
    found = ranks(words, Reason(fits(*last, asked=asked), 1.0, 2))
    assert [sorted(texts) for texts in asked] == [["a dog runs", "the sky is blue"], ["a dog runs", "a man"]]
    assert np.isneginf(found).tolist() == [[False, True, False], [False, False, True]]
    asked.clear()
    ranks(words, Reason(fits(*[[0.0, 9.0, 0.0]] * 2), 9.0), Reason(fits(*last, asked=asked), 1.0, 2))
    assert [sorted(texts) for texts in asked] == [["a man", "the sky is blue"], ["a dog runs", "a man"]]


def test_one_hypothesis_needs_no_reason_and_an_empty_one_is_not_scored():
    asked = list[Any]()
    reason = Reason(fits([2.0], [2.0], asked=asked), 1.0)
    np.testing.assert_array_equal(ranks(reason, texts=("a dog runs",)), RANKS[:, :1])
    assert not asked
    np.testing.assert_allclose(ranks(reason, texts=("", "a man")), RANKS[:, :2] + [0, 2])
    assert asked == [["a man"]] * 2


def test_a_caption_is_short_in_print_and_draws_its_attention(tmp_path):
    weights = np.array([[1.0, 0], [0, 1]], np.float32)
    path = str(tmp_path / "a.png")
    Image.new("RGB", (40, 20)).save(path)
    made = Caption("a dog", ("a", "dog"), 40, 20, path, np.array([[0, 0, 20, 20], [20, 0, 40, 20]]), weights)
    assert repr(made) == f"Caption('a dog', {path})" and str(made) == "a dog"
    expected = draw_attention(Image.new("RGB", (40, 20)), made.words, weights, made.boxes, (40, 20))
    assert made.draw().tobytes() == made.draw(Image.new("RGB", (40, 20))).tobytes() == expected.tobytes()
    refuses("this caption has no attention to draw", replace(made, attention=None).show)

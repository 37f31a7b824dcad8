"""Models that detect by name: boxes and scores beside those of transformers, and phrases that are not there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise
from tiny_adapters import tiny_adapted

from saywhere.adapters import owlv2
from saywhere.adapters.adapter import image_of
from saywhere.adapters.grounding_dino import token_spans

DETECTORS = ("grounding-dino", "owlv2")
IMAGES = [noise(96, 64, 0), noise(50, 70, 1), noise(96, 64, 2)]
PHRASES = [["a cat", "the red sky"], ["a dog"], ["it"]]


@pytest.fixture(params=DETECTORS)
def model(request: pytest.FixtureRequest) -> Any:
    return tiny_adapted(request.param)


def test_grounding_dino_scores_the_tokens_of_each_phrase():
    model = tiny_adapted("grounding-dino")
    adapter = model.adapter
    inputs = adapter.runner.processor(images=IMAGES[0], text="a cat. the red sky.", return_tensors="pt")
    with torch.inference_mode():
        out = adapter.runner.network(**inputs)
    # [CLS] a cat . the red sky . [SEP]
    scores = out.logits.sigmoid()[0].numpy()
    wanted = np.stack([scores[:, 1:3].mean(axis=1), scores[:, 4:7].mean(axis=1)], axis=1)
    theirs = adapter.runner.processor.post_process_grounded_object_detection(
        out, threshold=0.0, target_sizes=[(64, 96)]
    )[0]
    boxes = np.clip(theirs["boxes"].numpy()[wanted.argmax(axis=0)], 0, [96, 64, 96, 64])
    found = model.ground(IMAGES[0], ["A cat?", "the red. sky"], threshold=0)
    np.testing.assert_allclose(found.scores, wanted.max(axis=0), atol=1e-5)
    np.testing.assert_allclose(found.boxes, boxes, atol=1e-3)


def test_owlv2_scores_each_phrase():
    model = tiny_adapted("owlv2")
    adapter = model.adapter
    found = model.ground(IMAGES[1], PHRASES[0], threshold=0)
    for number, phrase in enumerate(PHRASES[0]):
        inputs = adapter.runner.processor(images=IMAGES[1], text=[[phrase]], return_tensors="pt", max_length=16)
        with torch.inference_mode():
            out = adapter.runner.network(**inputs)
        theirs = adapter.runner.processor.post_process_grounded_object_detection(
            out, threshold=0.0, target_sizes=[(70, 50)]
        )
        best = int(theirs[0]["scores"].argmax())
        np.testing.assert_allclose(found.scores[number], theirs[0]["scores"][best], atol=1e-5)
        box = np.clip(theirs[0]["boxes"][best].numpy(), 0, [50, 70, 50, 70])
        np.testing.assert_allclose(found.boxes[number], box, atol=1e-3)


def test_images_of_several_sizes_are_answered_as_one_by_one(model: Any):
    together = model.ground(IMAGES, PHRASES, threshold=0)
    for image, phrases, found in zip(IMAGES, PHRASES, together, strict=True):
        alone = model.ground(image, phrases, threshold=0)
        np.testing.assert_allclose(alone.boxes, found.boxes, atol=0.05)
        np.testing.assert_allclose(alone.scores, found.scores, atol=1e-3)
        assert alone.captions == found.captions == tuple(phrases)


def test_phrases_below_the_threshold_are_not_found(model: Any):
    everything = model.ground(IMAGES[0], PHRASES[0], threshold=0)
    least = float(everything.scores.max())
    found = model.ground(IMAGES[0], PHRASES[0], threshold=least)
    best = int(everything.scores.argmax())
    assert found.captions == (PHRASES[0][best],) and found.not_found == (PHRASES[0][1 - best],)
    assert model.placer().least() == model.adapter.threshold > 0
    none = model.ground(IMAGES[0], [])
    assert (len(none), none.not_found) == (0, ())


def test_many_phrases_are_read_in_groups_that_fit(monkeypatch: pytest.MonkeyPatch):
    phrases = ["a cat", "the red sky", "it", "a dog in the sky"] * 5
    adapter = tiny_adapted("grounding-dino").adapter
    groups = adapter.groups(phrases)
    assert [phrase for group in groups for phrase in group] == phrases and len(groups) > 1
    limit = adapter.runner.network.config.max_text_len
    assert all(2 + sum(len(phrase.split()) + 1 for phrase in group) <= limit for group in groups)
    monkeypatch.setattr(owlv2, "PHRASES", 3)
    for kind in DETECTORS:
        model = tiny_adapted(kind)
        found = model.ground(IMAGES[:2], [phrases, ["a cat"]], threshold=0)
        assert found[0].captions == tuple(phrases) and found[1].captions == ("a cat",)
    first = model.ground(IMAGES[0], phrases[:4], threshold=0)
    np.testing.assert_allclose(found[0].scores, np.tile(first.scores, 5), atol=1e-4)  # OWLv2 reads each by itself


def test_phrases_longer_than_the_network_reads_are_cut(model: Any):
    long = " ".join(["a cat in the sky"] * 20)
    found = model.ground(IMAGES[0], [long, "a dog"], threshold=0)
    assert found.captions == (long, "a dog") and np.isfinite(found.scores).all()


@pytest.mark.parametrize(
    ("tokens", "count", "wanted"),
    [
        ("[CLS] a cat . the sky . [SEP]", 2, [(1, 3), (4, 6)]),
        ("[CLS] a cat . the sky", 2, [(1, 3), (4, 6)]),
        ("[CLS] a cat .", 2, [(1, 3), (3, 4)]),
        ("[CLS] a . [SEP] [PAD] [PAD]", 1, [(1, 2)]),
        ("[CLS] . a . [SEP]", 2, [(1, 2), (2, 3)]),
    ],
)
def test_the_tokens_of_a_phrase_end_at_its_full_stop(tokens: str, count: int, wanted: list[tuple[int, int]]):
    assert token_spans(tokens.split(), count) == wanted


def test_an_encoding_is_the_upright_image(model: Any):
    turned = IMAGES[1].copy()
    turned.getexif()[0x0112] = 6
    seen = model.encode([turned, np.asarray(IMAGES[0])])
    assert [(one.width, one.height, image_of(one).size) for one in seen] == [(70, 50, (70, 50)), (96, 64, (96, 64))]
    np.testing.assert_array_equal(np.asarray(image_of(seen[1])), np.asarray(IMAGES[0]))

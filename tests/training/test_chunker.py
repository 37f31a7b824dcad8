"""The chunker's training on a handful of sentences, and the readers of its data."""

from __future__ import annotations

import gzip

import pytest
from commands import run
from refusals import refuses

from saywhere.evaluation.grounding import measure_chunks
from saywhere.models.chunker import BEGIN, BEGIN_HIDDEN, INSIDE, INSIDE_HIDDEN, OUTSIDE, Chunker
from saywhere.training.chunker import read_split, read_tagged, read_text, train

LINES = (
    "[/EN#1/people A man] in [/EN#2/clothing a red shirt] throws [/EN#3/other a ball] to [/EN#0/notvisual him] .",
    "[/EN#1/people Two men] , [/EN#2/people a boy] and [/EN#3/animals a dog] run .",
    "[/EN#1/animals Dogs] look at [/EN#0/notvisual each other] .",
)


def write_split(root, lines=LINES):
    (root / "Entities" / "Sentences").mkdir(parents=True)
    (root / "Flickr8k.token.txt").write_text("1_a.jpg#0\tA man .\n")
    (root / "Flickr_8k.trainImages.txt").write_text("1_a.jpg\n2_b.jpg\n")
    (root / "Entities" / "Sentences" / "1.txt").write_text("\n".join(lines) + "\n")
    return root


def test_markup_becomes_tags():
    sentence = read_tagged(LINES[2])
    assert sentence.text == "Dogs look at each other ."
    assert sentence.tags == (BEGIN, OUTSIDE, OUTSIDE, BEGIN_HIDDEN, INSIDE_HIDDEN)
    assert read_tagged(LINES[0]).tags[:5] == (BEGIN, INSIDE, OUTSIDE, BEGIN, INSIDE)
    cut = read_tagged("at [/EN#1/scene the water] 's edge")
    assert (cut.text, cut.tags) == ("at the water s edge", (OUTSIDE, BEGIN, INSIDE, OUTSIDE, OUTSIDE))


def test_a_handful_of_sentences_is_learnt_by_heart():
    sentences = [read_tagged(line) for line in LINES]
    chunker = train(sentences, epochs=20, buckets=1 << 12)
    scores = measure_chunks(chunker, sentences)
    assert (scores.f1, scores.visible_f1, scores.phrases, scores.sentences) == (1.0, 1.0, 9, 3)
    again = train(sentences, epochs=20, buckets=1 << 12)
    assert (again.weights == chunker.weights).all()
    assert (train(sentences, epochs=20, seed=1, buckets=1 << 12).weights != chunker.weights).any()


def test_what_is_cut_wrongly_counts():
    class Whole(Chunker):
        def tag(self, rows, words):
            return [BEGIN, *[INSIDE] * (len(words) - 1)], []

    scores = measure_chunks(
        Whole(train([], buckets=4).weights), [read_tagged(LINES[1]), read_tagged("[/EN#1/animals A dog]")]
    )
    assert (scores.precision, scores.recall) == (2 / 3, 1 / 2)  # the comma parts "Two men" from the rest
    assert scores.f1 == pytest.approx(4 / 7)


def test_data_are_read_from_entities_and_from_text(tmp_path):
    root = write_split(tmp_path / "flickr8k")
    assert [s.text for s in read_split(root, "train")][1] == "Two men , a boy and a dog run ."
    refuses("no split 'dev'", read_split, root, "dev")
    text = tmp_path / "text.txt.gz"
    text.write_bytes(gzip.compress("".join(f"7\t{line}\n" for line in LINES).encode()))
    assert [s.tags for s in read_text(text)] == [s.tags for s in read_split(root, "train")]
    text.write_bytes(gzip.compress("\ufeff7\t[/EN#1/people A\u2028man] runs .\r\n".encode()))
    assert [s.text for s in read_text(text)] == ["A\u2028man runs ."]
    text.write_bytes(b"no archive")
    refuses(r"text\.txt\.gz cannot be read as text", read_text, text)
    plain = tmp_path / "plain.txt"
    plain.write_text("7\tA dog runs .\n")
    refuses(r"plain\.txt has no line with a marked phrase", read_text, plain)


def test_a_stage_trains_it_and_a_command_measures_it(tmp_path):
    root, folder = write_split(tmp_path / "flickr8k"), tmp_path / "run"
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("name: phrases\nstages: {chunker: {data: [{root: $entities}], epochs: 20}}\n")
    made = run("train", recipe, f"data.entities={root}", "--out", folder)
    assert made.stdout.startswith("[1/1] chunker: done in "), made.output
    assert made.stdout.endswith(", 3 sentences\n")
    out = folder / "stages" / "chunker" / "chunker.npz"
    measured = run("evaluate", "chunks", "--data", root, "--split", "train", "--chunker", out)
    assert "F1 1.000" in measured.output and "(9 phrases)" in measured.output

"""Parses from CoNLL-U files, ordinary and odd ones."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from parsed_sentences import line, write_parses
from refusals import refuses

from saywhere.papers.relations import Parses, Relation, RelationEncoder, read_parses
from saywhere.text import PAD, START, UNKNOWN, Vocabulary


def parses(tmp_path: Path, *lines: str, newline: str = "\n") -> Parses:
    path = tmp_path / "some.conllu"
    path.write_text("".join(lines), encoding="utf-8", newline=newline)
    return read_parses(path)


DOG = (line(1, "A", 2, "det"), line(2, "dog", 3, "nsubj"), line(3, "runs", 0, "root"), line(4, ".", 3, "punct"))
RUNS = (Relation("det", "dog", "a"), Relation("nsubj", "runs", "dog"), Relation("root", "", "runs"))


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_each_word_gives_its_relation_to_its_head(tmp_path: Path, newline: str) -> None:
    read = parses(tmp_path, "# sent_id = 1\n# text = A dog runs.\n", *DOG, "\n", newline=newline)
    assert read.find("A dog runs.") == RUNS
    assert list(read.relations) == ["adogruns"]


def test_a_sentence_is_found_whatever_its_spaces_case_and_punctuation(tmp_path: Path) -> None:
    forms = ("The", "water", "'s", "edge", "do", "n't", "move")
    lines = [line(n, form, 0, "root") for n, form in enumerate(forms, start=1)]
    read = parses(tmp_path, "# text = The water 's edge don't move .\n", *lines)
    words = [relation.word for relation in read.find("the water's edge, don't MOVE")]
    assert words == ["the", "water", "s", "edge", "do", "n't", "move"]


def test_without_a_text_the_words_are_the_sentence(tmp_path: Path) -> None:
    read = parses(tmp_path, "# text_en = something else\n", *DOG, "\n\n\n", line(1, "Dogs", 0, "root"))
    assert read.find("a dog runs") == RUNS and read.find("dogs") == (Relation("root", "", "dogs"),)
    refuses("some.conllu has no parse of 'something else'", read.find, "something else")


def test_multiword_tokens_and_empty_nodes_are_skipped(tmp_path: Path) -> None:
    read = parses(
        tmp_path,
        "# text = Don't, he said, and she too.\n",
        line("0.1", "we", "_", "_"),
        line("1-2", "Don't", "_", "_"),
        line(1, "Do", 4, "aux"),
        line(2, "n't", 1, "neg"),
        line(3, "he", 4, "nsubj"),
        line(4, "said", 0, "root"),
        line(5, "she", 4, "conj"),
        line("5.1", "said", "_", "_"),
        line(6, "too", 5, "orphan"),
    )
    kinds = [(relation.kind, relation.head) for relation in read.find("don't he said and she too")]
    assert kinds == [
        ("aux", "said"),
        ("neg", "do"),
        ("nsubj", "said"),
        ("root", ""),
        ("conj", "said"),
        ("orphan", "she"),
    ]


def test_punctuation_gives_no_relation_and_what_depends_on_it_is_a_root(tmp_path: Path) -> None:
    read = parses(tmp_path, line(1, "--", 0, "root"), line(2, "T-shirt", 1, "dep"), line(3, "...", 2, "punct"))
    assert read.find("t-shirt") == (Relation("dep", "", "t shirt"),)


def test_the_first_parse_of_a_sentence_counts(tmp_path: Path) -> None:
    read = parses(tmp_path, line(1, "Dogs", 0, "root"), "\n", line(1, "dogs", 0, "dep"), "\n", line(1, "!", 0, "root"))
    assert read.relations == {"dogs": (Relation("root", "", "dogs"),)}


def test_frequent_kinds_are_those_of_a_hundredth_of_all_relations(tmp_path: Path) -> None:
    lines = [f"# text = {n}\n{line(1, 'x', 0, 'rare' if n == 0 else 'b' if n < 3 else 'a')}\n" for n in range(101)]
    assert parses(tmp_path, *lines).frequent_kinds() == ("a", "b")
    assert parses(tmp_path, *lines[:100]).frequent_kinds() == ("a", "b", "rare")
    assert parses(tmp_path).frequent_kinds() == ()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((DOG[0], "2\tdog\tdog\n"), "some.conllu:2: 3 columns with tabs between them; CoNLL-U has 10"),
        (("a dog runs\n",), "some.conllu:1: 1 columns with tabs"),
        ((DOG[0], "# a remark\n", DOG[2]), "some.conllu:3: a word is numbered '3' where 2 is expected"),
        ((line("one", "A", 0, "root"),), "some.conllu:1: a word is numbered 'one' where 1 is expected"),
        ((line("1-", "A", 0, "root"),), "some.conllu:1: a word is numbered '1-' where 1 is expected"),
        ((line(1, "A", "_", "root"),), "some.conllu:1: the head of word 1 is '_', but must be the number of another"),
        ((line(1, "A", 1, "root"),), "some.conllu:1: the head of word 1 is '1', but must be the number of another"),
        ((line(1, "A", -1, "root"),), "some.conllu:1: the head of word 1 is '-1'"),
        ((line(1, "A", "2" * 5000, "root"),), "some.conllu:1: the head of word 1 is '222"),
        ((line(1, "A", "\u0660", "root"),), "some.conllu:1: the head of word 1 is '\u0660'"),
        ((line(1, "A", 2, "det"), "\n", *DOG), "some.conllu:1: the head is word 2, but there are only 1"),
        (("# text = A dog\n", line(1, ".", 0, "root")), "some.conllu:2: no word of 'A dog' has a letter or a digit"),
    ],
)
def test_damaged_lines_are_named_by_their_number(tmp_path: Path, lines: tuple[str, ...], message: str) -> None:
    assert message in refuses("", parses, tmp_path, *lines)


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    refuses(r"missing.conllu cannot be read as CoNLL-U: No such file", read_parses, tmp_path / "missing.conllu")
    refuses("cannot be read as CoNLL-U", read_parses, tmp_path)
    (tmp_path / "latin.conllu").write_bytes(b"# text = caf\xe9\n")
    refuses("latin.conllu is not a UTF-8 text file", read_parses, tmp_path / "latin.conllu")


def test_a_file_is_read_again_only_if_it_changed(tmp_path: Path) -> None:
    path = write_parses(tmp_path / "a.conllu", ["a dog"])
    first = read_parses(path)
    assert read_parses(path) is first
    write_parses(path, ["a dog", "a cat"])
    os.utime(path, (0, 0))
    assert len(read_parses(path).relations) == 2


def test_relations_become_numbers_with_padding_as_words(tmp_path: Path) -> None:
    read = parses(
        tmp_path,
        *(line(1, "A", 2, "det"), line(2, "dog", 0, "root"), "\n"),
        *(line(1, "T-shirt", 0, "dep"), line(2, "dog", 1, "amod"), line(3, "a", 1, "det")),
    )
    vocabulary = Vocabulary({"dog": 2, "shirt": 1})
    dog, shirt = vocabulary.encode("dog shirt")
    rows = read.encode(["a dog", "t-shirt dog a"], ("root", "amod"), vocabulary)
    assert rows.dtype == np.int64
    assert rows.tolist() == [
        [[UNKNOWN, dog, 0], [dog, START, 1], [PAD, 0, 0]],
        [[shirt, START, 0], [dog, shirt, 2], [UNKNOWN, shirt, 0]],
    ]
    changed = read.encode(["A dog."], ("root",), vocabulary, lambda word: word.replace("dog", "shirt"))
    assert changed.tolist() == [[[UNKNOWN, shirt, 0], [shirt, START, 1]]]
    assert read.encode([], (), vocabulary).shape == (0, 0, 3)


SENTENCE = [[5, 7, 1], [7, START, 2], [4, 7, 1]]
"""Word, head and kind of each relation."""


def encoder(rectified: bool = True) -> RelationEncoder:
    torch.manual_seed(0)
    return RelationEncoder(9, word_size=3, out_size=5, kinds=4, rectified=rectified).double().eval()


@pytest.mark.parametrize("rectified", [True, False])
def test_it_maps_head_and_word_by_the_kind_of_their_relation(rectified: bool) -> None:
    model = encoder(rectified)
    x = model.words.weight
    expected = []
    for word, head, kind in SENTENCE:
        layer = model.maps[kind]
        assert isinstance(layer, torch.nn.Linear)
        s = layer.weight @ torch.cat((x[head], x[word])) + layer.bias
        expected.append(torch.relu(s) if rectified else s)
    out = model(torch.tensor([SENTENCE]))
    assert out.vectors.shape == (1, 3, 5) and out.mask.tolist() == [[True] * 3]
    assert bool((out.vectors < 0).any()) != rectified
    torch.testing.assert_close(out.vectors[0], torch.stack(expected))


def test_a_batch_gives_each_sentence_what_it_gets_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    sentences = [torch.randint(1, 9, (n, 3), generator=generator) for n in (4, 1, 7, 2)]
    sentences = [torch.cat((rows[:, :2], rows[:, 2:] % 4), dim=1) for rows in sentences]
    model = encoder()
    batch = model(torch.nn.utils.rnn.pad_sequence(sentences, batch_first=True))
    assert batch.mask.sum(dim=1).tolist() == [4, 1, 7, 2]
    for rows, vectors in zip(sentences, batch.vectors, strict=True):
        torch.testing.assert_close(vectors[: len(rows)], model(rows[None]).vectors[0], atol=1e-12, rtol=0)
        assert not vectors[len(rows) :].any()


def test_a_sentence_of_no_relations_has_no_vectors() -> None:
    model = encoder()
    none = model(torch.zeros(2, 3, 3, dtype=torch.long))
    assert none.vectors.shape == (2, 3, 5) and not none.vectors.any() and not none.mask.any()
    assert model(torch.zeros(2, 0, 3, dtype=torch.long)).vectors.shape == (2, 0, 5)
    assert model(torch.zeros(0, 0, 3, dtype=torch.long)).vectors.shape == (0, 0, 5)

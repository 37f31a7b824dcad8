from __future__ import annotations

import pytest
import torch

from saywhere.errors import UserError
from saywhere.text import UNKNOWN, Vocabulary
from saywhere.training.aligner import load_word_vectors, read_word_vectors

VOCABULARY = Vocabulary({"dog": 3, "cat": 2, "zebra": 1})
LINES = "the 0.1 0.2\ndog 1 -2\ncat 0.5 1e-1\n"


def write(folder, text):
    path = folder / "glove.txt"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("header", ["", "3 2\n"])
def test_the_words_of_the_vocabulary_are_found(tmp_path, header):
    found = read_word_vectors(write(tmp_path, header + LINES), VOCABULARY)
    assert {number: v.tolist() for number, v in found.items()} == {4: [1, -2], 5: pytest.approx([0.5, 0.1])}


def test_a_mark_before_the_file_is_passed_over_and_lines_end_at_newlines(tmp_path):
    text = "\ufeffdog 1 -2\r\na\rcat 9 9\n\x85 0 0\ncat 0.5 1e-1\n"
    (tmp_path / "v.txt").write_bytes(text.encode())
    found = read_word_vectors(tmp_path / "v.txt", VOCABULARY)
    assert {number: v.tolist() for number, v in found.items()} == {4: [1, -2], 5: pytest.approx([0.5, 0.1])}


def test_loaded_rows_are_the_file_s_and_the_others_have_their_spread(tmp_path):
    torch.manual_seed(0)
    vocabulary = Vocabulary({"dog": 3, "cat": 2} | {f"w{i}": 1 for i in range(500)})
    weight = torch.randn(len(vocabulary), 2) * 9
    weight[0] = 0
    load_word_vectors(weight, read_word_vectors(write(tmp_path, LINES), vocabulary))
    torch.testing.assert_close(weight[4:6], torch.tensor([[1, -2], [0.5, 0.1]]))
    assert weight[0].tolist() == [0, 0]
    spread = torch.tensor([[1, -2], [0.5, 0.1]]).std()
    assert weight[6:].std() == pytest.approx(float(spread), rel=0.1) and weight[UNKNOWN].abs().sum() > 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog one two\n", r"glove.txt:1 is not a word and its numbers"),
        ("dog 1 2\ncat 1\n", r"glove.txt:2: 1 numbers, where the lines before have 2"),
        ("dog 1 nan\n", r"glove.txt:1 has no vector, or one with a number that is not finite"),
        ("horse 1 2\n", r"not one of the 3 words"),
    ],
)
def test_a_wrong_file_is_named(tmp_path, text, message):
    with pytest.raises(UserError, match=message):
        read_word_vectors(write(tmp_path, text), VOCABULARY)


def test_a_missing_file_and_a_wrong_size_are_told(tmp_path):
    with pytest.raises(UserError, match="cannot be read as word vectors: No such file"):
        read_word_vectors(tmp_path / "none.txt", VOCABULARY)
    with pytest.raises(UserError, match="set model.word_size=2"):
        load_word_vectors(torch.zeros(7, 3), read_word_vectors(write(tmp_path, LINES), VOCABULARY))

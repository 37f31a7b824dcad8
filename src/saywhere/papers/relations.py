"""Relations between words as sentence fragments (Deep Visual-Semantic Alignments, section 4.1).

Any parser can find them and write them as CoNLL-U; they are read and encoded here.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.networks.aligner.network import EncodedText
from saywhere.options import dataclass
from saywhere.text import PAD, START, Vocabulary, tokenize

FREQUENT = 0.01
"""Minimum share of all relations for a kind to be frequent."""
_COLUMNS = 10
_TEXT = re.compile(r"#\s*text\s*=\s*(.*)")
_NO_WORD = re.compile(r"\d+[-.]\d+")


class Relation(NamedTuple):
    """A word and the ``head`` that it depends on, empty at the root; ``kind`` is, for example, ``nsubj``."""

    kind: str
    head: str
    word: str


@dataclass(frozen=True, eq=False)
class Parses:
    """The relations of sentences in word order, keyed by the letters and digits of each sentence."""

    path: Path
    relations: Mapping[str, tuple[Relation, ...]]

    def find(self, text: str) -> tuple[Relation, ...]:
        """Return the relations of a sentence (or ``UserError``); case, spaces and punctuation are ignored."""
        if (found := self.relations.get(_letters(text))) is None:
            raise UserError(f"{self.path} has no parse of {text!r}: parse it too, or name its file with parses=FILE")
        return found

    def encode(
        self,
        texts: Iterable[str],
        kinds: Sequence[str],
        vocabulary: Vocabulary,
        change: Callable[[str], str] = lambda word: word,
    ) -> np.ndarray:
        """Return the relations of sentences as int64 ``(S, T, 3)``: token id of the word, of the head, and kind.

        Words missing from the vocabulary become the unknown word; the head of the root is START. Forms of several words
        (``t-shirt``) use the last one. A kind is its position in ``kinds``, from 1; 0 is any other. Rows are padded
        with 0 on the right: PAD as a word. ``change`` maps each word, for example left to right. ``UserError`` if a
        sentence was not parsed.
        """
        numbers = {kind: number for number, kind in enumerate(kinds, start=1)}

        def number_of(words: str) -> int:
            return vocabulary.encode(change(words))[-1] if words else START

        sentences = [
            [[number_of(word), number_of(head), numbers.get(kind, 0)] for kind, head, word in self.find(text)]
            for text in texts
        ]
        padded = np.zeros((len(sentences), max((len(rows) for rows in sentences), default=0), 3), np.int64)
        for row, rows in zip(padded, sentences, strict=True):
            row[: len(rows)] = rows
        return padded

    def frequent_kinds(self) -> tuple[str, ...]:
        """Return the kinds with at least a hundredth of all relations, the most frequent first."""
        counts = Counter(relation.kind for relation in chain.from_iterable(self.relations.values()))
        least = FREQUENT * counts.total()
        return tuple(sorted((kind for kind, n in counts.items() if n >= least), key=lambda kind: (-counts[kind], kind)))


def read_parses(path: str | Path) -> Parses:
    """Read a CoNLL-U file; unchanged files are read only once.

    A parse belongs to the sentence in its ``# text =``, or to its words in order if there is none. The first parse of a
    sentence is used. Each word gives one relation, to its head. Punctuation gives none, and its dependents count as
    roots. Multiword tokens (``1-2``), whose words follow on separate lines, and empty nodes (``1.1``) are skipped.

    Raises:
        UserError: no such file, or a malformed line; the message has its number.
    """
    path = Path(path)
    try:
        stat = path.stat()
        return _read(path, stat.st_mtime_ns, stat.st_size)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not a UTF-8 text file: {error.reason} at byte {error.start}") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read as CoNLL-U: {error.strerror}") from error


def _letters(text: str) -> str:
    """Return a sentence without what tokenizers disagree about: ``the water 's edge`` equals ``the water's edge``."""
    return "".join(tokenize(text)).replace("'", "")


class _Word(NamedTuple):
    form: str
    head: int
    kind: str
    line: int


@lru_cache(maxsize=2)
def _read(path: Path, *_stamp: int) -> Parses:
    found: dict[str, tuple[Relation, ...]] = {}
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        for text, words in _sentences(path, lines):
            if letters := _letters(text):
                relations = tuple(_relations(path, words))
                if not relations:
                    raise UserError(f"{path}:{words[0].line}: no word of {text!r} has a letter or a digit")
                found.setdefault(letters, relations)
    return Parses(path, found)


def _sentences(path: Path, lines: Iterable[str]) -> Iterator[tuple[str, list[_Word]]]:
    """Yield the text and the words of each sentence."""
    text, words = "", list[_Word]()
    for number, line in enumerate(chain(lines, ("",)), start=1):
        columns = line.rstrip("\r\n").split("\t")
        if line.startswith("#"):
            text = found[1].strip() if (found := _TEXT.match(line)) else text
        elif not line.strip():
            if words:
                yield text or " ".join(word.form for word in words), words
            text, words = "", list[_Word]()
        elif len(columns) != _COLUMNS:
            raise UserError(f"{path}:{number}: {len(columns)} columns with tabs between them; CoNLL-U has {_COLUMNS}")
        elif not _NO_WORD.fullmatch(columns[0]):
            words.append(_word(columns, number, f"{path}:{number}", len(words) + 1))


def _word(columns: Sequence[str], line: int, place: str, expected: int) -> _Word:
    name, form, head, kind = columns[0], columns[1], columns[6], columns[7]
    if name != str(expected):
        raise UserError(f"{place}: a word is numbered {name!r} where {expected} is expected")
    if not (head.isascii() and head.isdecimal() and len(head) < 10) or head == name:
        raise UserError(f"{place}: the head of word {name} is {head!r}, but must be the number of another word, or 0")
    return _Word(form, int(head), sys.intern(kind), line)


def _relations(path: Path, words: Sequence[_Word]) -> Iterator[Relation]:
    """Yield the relation of each word that has a letter or a digit."""
    forms = [sys.intern(" ".join(tokenize(word.form))) for word in words]
    for form, word in zip(forms, words, strict=True):
        if word.head > len(words):
            raise UserError(f"{path}:{word.line}: the head is word {word.head}, but there are only {len(words)}")
        if form:
            yield Relation(word.kind, forms[word.head - 1] if word.head else "", form)


class RelationEncoder(nn.Module):
    """Encode relations ``(R, w1, w2)`` as ``s = f(W_R [x1, x2] + b_R)`` in the embedding space of the regions.

    W_R and b_R belong to the kind of relation; x1 and x2 are the vectors of the head and of its dependent; START
    replaces the head of a root. These are the sentence fragments of Karpathy, Joulin and Fei-Fei (2014), used with Eq.
    8 in the rows "DepTree edges" of Alignments.

    Args:
        vocabulary_size: V, reserved tokens included.
        out_size: size D of the vectors s.
        kinds: number of kinds of relations, including the one shared by rare kinds.
        dropout: dropout probability on x.
        rectified: f is the ReLU; otherwise s is linear in x and may have any sign.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_size: int,
        out_size: int,
        kinds: int,
        dropout: float = 0.0,
        rectified: bool = True,
    ):
        super().__init__()
        self.rectified = rectified
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.maps = nn.ModuleList(nn.Linear(2 * word_size, out_size) for _ in range(kinds))
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.2)
            self.words.weight[PAD] = 0

    def forward(self, relations: Tensor) -> EncodedText:
        """Encode sentences' relations ``(S, T, 3)``, padded on the right: word, head and kind of each.

        Padding does not affect the result. A sentence without relations has no vectors.
        """
        mask = relations[..., 0] != PAD
        words, heads, kinds = relations[mask].unbind(1)  # (N,): skip products with padding
        pairs = self.dropout(self.words(torch.stack((heads, words), dim=1))).flatten(1)  # (N, 2E)
        order = kinds.argsort(stable=True)
        parts = pairs[order].split(kinds.bincount(minlength=len(self.maps)).tolist())
        rows = torch.cat([apply(part) for apply, part in zip(self.maps, parts, strict=True)])
        rows = functional.relu(rows) if self.rectified else rows
        vectors = rows.new_zeros(*mask.shape, rows.shape[1])
        vectors[mask] = rows[order.argsort()]
        return EncodedText(vectors, mask)

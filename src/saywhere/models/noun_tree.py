"""Names of things and what they are kinds of: ImageNet's classes and everyday kinds in WordNet's tree (docs/nouns.md).

The table ``nouns.tsv`` beside this file is compiled by ``benchmarks/noun_table.py``; ``nouns.LICENSE`` is
WordNet's notice.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from saywhere.text import tokenize

TABLE = Path(__file__).with_name("nouns.tsv")
_reading = threading.Lock()

Sort = Literal["class", "kind", "group"]
"""A class of ImageNet, another kind of thing, or what several of them are."""
Use = Literal["count", "mass", "plural", ""]
"""How a name is used: ``a dog``, ``grass``, ``skis``; empty if people say the name of a node above instead."""

IRREGULAR = {
    "man": "men", "woman": "women", "child": "children", "person": "people", "foot": "feet", "tooth": "teeth",
    "mouse": "mice", "goose": "geese", "ox": "oxen", "sheep": "sheep", "deer": "deer", "fish": "fish", "bison": "bison",
    "knife": "knives", "wolf": "wolves", "leaf": "leaves", "shelf": "shelves", "scarf": "scarves", "half": "halves",
    "calf": "calves", "loaf": "loaves", "wife": "wives", "skis": "skis", "glasses": "glasses",
    "sunglasses": "sunglasses", "scissors": "scissors", "shorts": "shorts", "pants": "pants", "goggles": "goggles",
    "stairs": "stairs", "jeans": "jeans",
}  # fmt: skip
"""Plurals that no rule gives."""
AFTER = frozenset(
    [
        "of",
        "with",
        "in",
        "on",
        "at",
        "from",
        "by",
        "near",
        "under",
        "over",
        "behind",
        "beside",
        "to",
        "for",
        "against",
        "into",
        "through",
        "onto",
        "next",
        "that",
        "who",
        "which",
        "while",
        "is",
        "are",
        "wearing",
        "holding",
        "riding",
        "carrying",
        "playing",
        "sitting",
        "standing",
        "walking",
        "running",
        "jumping",
        "looking",
    ]
)
"""Words before which the noun of a phrase stands."""
ARTICLES = frozenset(["a", "an", "the", "his", "her", "their", "its", "another", "two", "three"])
"""Words that begin another phrase after "and"."""
AMOUNTS = frozenset({
    "group", "pair", "bunch", "couple", "piece", "line", "row", "kind", "type", "pile", "lot", "number", "slice",
    "plate", "stack", "herd", "flock", "set",
})  # fmt: skip
"""What is said of the noun after ``of``: ``a group of people``."""

LONGEST = 3
"""Words of a name in a text."""


def plural(name: str) -> str:
    """Return the plural of a noun: ``hot dog`` gives ``hot dogs``, ``policeman`` gives ``policemen``."""
    before, _, last = name.rpartition(" ")
    if last in IRREGULAR:
        last = IRREGULAR[last]
    elif last.endswith("man"):
        last = last[:-2] + "en"
    elif last.endswith(("s", "x", "ch", "sh")):
        last += "es"
    elif last.endswith("y") and last[-2:-1] not in "aeiou":
        last = last[:-1] + "ies"
    else:
        last += "s"
    return f"{before} {last}" if before else last


def known_form(word: str, known: Container[str]) -> str:
    """Return a word as it is if it is known, else its singular or its plural if that is."""
    if word in known:
        return word
    singulars = [name for name, several in IRREGULAR.items() if several == word]
    singulars += [word[: len(word) - cut] + end for cut, end in ((1, ""), (2, ""), (3, "y"), (2, "an"))]
    forms = [form for form in singulars if form and plural(form) == word] + [plural(word)]
    return next((form for form in forms if form in known), word)


@dataclass(frozen=True, eq=False)
class Noun:
    """A node of the tree.

    Attributes:
        row: its place in the table.
        sort: of node.
        name: what people call it, in the singular.
        use: of the name.
        ancestors: rows of the nodes at or above it, with the steps to each.
        leaves: rows of the classes and kinds at or below it.
    """

    row: int
    sort: Sort
    name: str
    use: Use
    ancestors: Mapping[int, int] = field(repr=False)
    leaves: np.ndarray = field(repr=False)


@dataclass(frozen=True)
class Head:
    """The noun of a phrase: its words ``start`` to ``stop``, the node or None, and whether it is in the plural."""

    start: int
    stop: int
    noun: Noun | None
    plural: bool


class NounTree:
    """Tree of nouns, from a table.

    Args:
        lines: of the table: synset, sort, name, use, words that lead to it, synsets above; separated by tabs.
            ImageNet's classes come first, in their order, then the other kinds, then the groups.

    Attributes:
        nouns: in the order of the table.
        leaves: how many of them are classes and kinds.

    Raises:
        ValueError: a line is something else.
    """

    def __init__(self, lines: Sequence[str]) -> None:
        rows = [line.split("\t") for line in lines]
        sorts, uses = get_args(Sort), get_args(Use)
        if any(len(row) != 6 or row[1] not in sorts or row[3] not in uses for row in rows):
            raise ValueError("a noun has a synset, a sort, a name, a use, words and the synsets above it")
        numbers = {row[0]: number for number, row in enumerate(rows)}
        above = [tuple(numbers[synset] for synset in row[5].split()) for row in rows]
        ancestors = [_ancestors(number, above) for number in range(len(rows))]
        self.leaves = sum(row[1] != "group" for row in rows)
        below: list[list[int]] = [[] for _ in rows]
        for leaf in range(self.leaves):
            for up in ancestors[leaf]:
                below[up].append(leaf)
        self.nouns = tuple(
            Noun(number, *row[1:4], ancestors[number], np.array(below[number], np.int64))  # pyright: ignore[reportArgumentType, reportCallIssue]
            for number, row in enumerate(rows)
        )
        self._words: dict[str, tuple[int, bool]] = {}
        for number, row in enumerate(rows):
            for word in row[4].split(", "):
                self._words[word] = (number, False)
        self._words.pop("", None)
        for word, (number, _) in list(self._words.items()):
            self._words.setdefault(plural(word), (number, True))

    def named(self, word: str) -> Noun | None:
        """Return the node that a word, or a name of several words, leads to, in the singular or the plural."""
        found = self._words.get(word)
        return None if found is None else self.nouns[found[0]]

    def entry(self, noun: Noun) -> Noun | None:
        """Return the nearest node at or above one whose name people use; None if there is none."""
        near = [(steps, row) for row, steps in noun.ancestors.items() if self.nouns[row].use]
        return self.nouns[min(near)[1]] if near else None

    def find(self, phrase: str) -> Noun | None:
        """Return the node of the noun of a phrase: of ``two big dogs on the grass`` that of ``dog``."""
        return self.head(tokenize(phrase)).noun

    def head(self, words: Sequence[str]) -> Head:
        """Return where the noun of a phrase is, and what it is.

        It is the longest name in the tree that ends where the phrase, or its part before "of", "in", "wearing" and so
        on, ends. The noun of "a group of people" comes after "of", if it is in the tree. Of a phrase without a noun in
        the tree it is the last of these words.
        """
        whole = self._ending(words, 0, len(words))
        if whole is not None and whole.start <= 1:
            return whole
        stop = next((i for i in range(1, len(words)) if self._ends(words[i : i + 2])), len(words))
        found = self._ending(words, 0, stop)
        if words[stop : stop + 1] == ["of"] and (found is None or words[stop - 1] in AMOUNTS):
            inner = self.head(words[stop + 1 :])
            if inner.noun is not None:
                return Head(inner.start + stop + 1, inner.stop + stop + 1, inner.noun, inner.plural)
        return found or Head(max(stop - 1, 0), stop, None, stop > 0 and words[stop - 1].endswith("s"))

    def _ends(self, words: Sequence[str]) -> bool:
        """Whether a phrase's noun stands before the first of two words."""
        if words[0] in ("and", "or"):
            return words[-1] in ARTICLES
        return words[0] in AFTER or (words[0].endswith("ing") and words[0] not in self._words)

    def _ending(self, words: Sequence[str], start: int, stop: int) -> Head | None:
        """The longest name that ends at ``stop``."""
        firsts = range(max(start, stop - 4), stop)
        return next((head for first in firsts if (head := self.name_at(words, first, stop))), None)

    def name_at(self, words: Sequence[str], start: int, stop: int) -> Head | None:
        """Return the name that the words ``start`` to ``stop`` are; None if they are none, or there are fewer words."""
        found = self._words.get(" ".join(words[start:stop])) if stop <= len(words) else None
        return None if found is None else Head(start, stop, self.nouns[found[0]], found[1])


def _ancestors(number: int, above: Sequence[tuple[int, ...]]) -> dict[int, int]:
    steps, todo = {number: 0}, [number]
    for one in todo:
        for up in above[one]:
            if up not in steps:
                steps[up] = steps[one] + 1
                todo.append(up)
    return steps


def find_heads(words: Sequence[str], tree: NounTree) -> list[Head]:
    """Return where the nouns of a text are that are in the tree, in order; of names of several words the longest."""
    found, start = list[Head](), 0
    while start < len(words):
        head = next((h for stop in range(start + LONGEST, start, -1) if (h := tree.name_at(words, start, stop))), None)
        if head is not None:
            found.append(head)
        start = start + 1 if head is None else head.stop
    return found


def find_nouns(text: str, tree: NounTree) -> list[Noun]:
    """Return the nouns of a text that are in the tree, see :func:`find_heads`."""
    return [head.noun for head in find_heads(tokenize(text), tree) if head.noun is not None]


def find_invented(said: Sequence[Noun], mentioned: Collection[Noun]) -> list[Noun]:
    """Return the nouns that nobody mentions (CHAIR, Rohrbach et al. 2018).

    A noun counts as mentioned if people named it, a kind of it, or what it is a kind of: "a man" where they say "a
    person".
    """
    rows = {noun.row for noun in mentioned}
    above = {row for noun in mentioned for row in noun.ancestors}
    return [noun for noun in said if noun.row not in above and rows.isdisjoint(noun.ancestors)]


def kind_of(tree: NounTree, phrase: str) -> str:
    """Return the kind that a true phrase names: the name that people use for its noun, or its last word."""
    head = tree.head(words := tokenize(phrase))
    entry = None if head.noun is None else tree.entry(head.noun)
    return entry.name if entry is not None else " ".join(words[head.start : head.stop])


def is_right(tree: NounTree, said: str | Noun | None, truths: Sequence[str]) -> bool:
    """Return whether a noun is right for a region of which true phrases are known.

    It is, if it is the noun of one of them, a synonym, or a kind of it: "man" and "skier" are right for "a person", and
    "person" is wrong for "a man". A breed or a make counts as what people call it: "dog" is right for "a poodle". A
    noun that the tree does not have is right if it is the same word.

    Args:
        tree: of nouns.
        said: a phrase, or a node; None is wrong.
        truths: phrases.
    """
    if said is None:
        return False
    if isinstance(said, str):
        words = tokenize(said)
        head = tree.head(words)
        noun, word = head.noun, " ".join(words[head.start : head.stop])
    else:
        noun, word = said, said.name
    for truth in truths:
        true = tree.head(true_words := tokenize(truth))
        entry = None if true.noun is None else tree.entry(true.noun)
        if noun is not None and entry is not None and entry.row in noun.ancestors:
            return True
        if word == " ".join(true_words[true.start : true.stop]):
            return True
    return False


def noun_tree() -> NounTree:
    """Return the tree of the table that comes with the package; the same in all threads."""
    with _reading:
        return _noun_tree()


@cache
def _noun_tree() -> NounTree:
    return NounTree(TABLE.read_text(encoding="utf-8").splitlines())

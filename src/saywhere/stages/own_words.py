"""Words and names of a user's own, which the model that fine-tuning starts from does not use as the user does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Sequence
from typing import NamedTuple

from saywhere.configs.densecap import DenseCapConfig
from saywhere.models.nouns import BEFORE_NOUNS, COLOURS, FUNCTION_WORDS, NounEvidence, noun_tree, singulars
from saywhere.text import tokenize

ADJECTIVES = BEFORE_NOUNS.union(COLOURS)
"""Words that alone are no name."""
COMMON, SELDOM = 0.05, 0.2
"""A known word counts as one's own if this share of the boxes or more have it in their phrases, and the initial model
uses it in less than this share of them."""


Described = tuple[str, Sequence[str]]
"""The phrase that the initial model gives a true box, and the true phrases."""


class OwnWords(NamedTuple):
    """A user's words and names, each with what the initial model calls most of their boxes, or an empty text."""

    words: dict[str, str]
    names: dict[str, str]


def find_own(
    described: Iterable[Described], new: Sequence[str], config: DenseCapConfig, nouns: NounEvidence | None
) -> tuple[OwnWords, list[str]]:
    """Return the words and names of a user's phrases, and the names whose meaning is not clear.

    Words are the ``new`` ones, and known ones that occur in the phrases of a share of the boxes of at least
    :data:`COMMON`, if the initial model uses them in less than :data:`SELDOM` of these. Those of an earlier fine-tuning
    (``config``) keep their meaning. ``nouns`` translates its names.
    """
    boxes, said, called = 0, Counter[str](), dict[str, Counter[str]]()
    phrases = list[tuple[list[str], str]]()
    for phrase, references in described:
        boxes += 1
        kind = kind_of(phrase if nouns is None else nouns.translate(phrase))
        words = {word for reference in references for word in tokenize(reference)} - FUNCTION_WORDS
        for word in words:
            called.setdefault(word, Counter())[kind] += 1
        said.update(words & set(tokenize(phrase)))
        phrases += [(tokenize(reference), kind) for reference in references]
    common = (
        word for word, kinds in called.items()
        if (count := kinds.total()) >= COMMON * boxes and said[word] < SELDOM * count
    )  # fmt: skip
    own = {word: _majority(called.get(word, Counter())) for word in (*new, *common)}
    own |= config.own_words
    names = find_names(phrases, own, new)
    names |= {word: own[word] for word in new if own[word] and noun_tree().named(word) is None}
    names |= config.own_names
    unclear = sorted(name for name, meaning in names.items() if not meaning)
    names = {name: meaning for name, meaning in names.items() if meaning}
    return OwnWords(dict(sorted(own.items())), dict(sorted(names.items()))), unclear


def find_names(phrases: Sequence[tuple[list[str], str]], own: Container[str], new: Container[str]) -> dict[str, str]:
    """Return the names in phrases, and what the initial model calls most things so named, or an empty text.

    Names consist of own words, or of new ones before a noun. Each phrase has what the initial model calls its box.
    Names that the noun tree has keep their usual meaning, and so do colours and other adjectives alone.
    """
    tree, named = noun_tree(), dict[str, Counter[str]]()
    for words, kind in phrases:
        head = tree.head(words)
        first = stop = head.stop
        while first > 0 and words[first - 1] in own:
            first -= 1
        if first == stop:  # the noun is none of them
            first = head.start
            while first > 0 and words[first - 1] in new:
                first -= 1
            first = stop if first == head.start else first
        last = singulars(words[stop - 1])[:1] if head.plural and first < stop else words[first:stop][-1:]
        name = " ".join([*words[first:stop][:-1], *last])
        if name and tree.named(name) is None and not ADJECTIVES.issuperset(name.split()):
            named.setdefault(name, Counter())[kind] += 1
    return {name: _majority(kinds) for name, kinds in named.items()}


def kind_of(phrase: str) -> str:
    """Return the noun of a phrase by its name in the tree; an empty text if it has none."""
    noun = noun_tree().find(phrase)
    return "" if noun is None else noun.name


def _majority(kinds: Counter[str]) -> str:
    """Return what more than half of the boxes are called, or the narrowest kind of thing that these are; else "".

    A mountain bike is a bicycle, too. Groups of the tree, such as all mammals, are too wide.
    """
    tree, above = noun_tree(), Counter[int]()
    name, count = kinds.most_common(1)[0] if kinds else ("", 0)
    if 2 * count > kinds.total():
        return name
    for name, count in kinds.items():
        noun = tree.named(name)
        above.update(dict.fromkeys(() if noun is None else noun.ancestors, count))
    common = [tree.nouns[row] for row, count in above.items() if 2 * count > kinds.total()]
    narrow = sorted((noun for noun in common if noun.sort != "group"), key=lambda noun: len(noun.leaves))
    return narrow[0].name if narrow else ""

"""How often people say what is looked for: what they seldom say is seldom in an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import log

from saywhere.models.noun_tree import noun_tree
from saywhere.models.placing import noun_words
from saywhere.text import Vocabulary


def base_words(words: Iterable[str]) -> list[str]:
    """Return words in the singular, where the tree of nouns or a final ``s`` tells, and by the name people use."""
    tree = noun_tree()
    named = [(word, tree.named(word)) for word in words]
    return [word.removesuffix("s") if noun is None else noun.name for word, noun in named]


def kinds(words: Iterable[str]) -> list[str]:
    """Return the base words of words, and the names of what these are kinds of: of ``men`` also ``person``."""
    tree, several = noun_tree(), list(words)
    nouns = (noun for word in several if (noun := tree.named(word)) is not None)
    above = (tree.nouns[row].name for noun in nouns for row in noun.ancestors)
    return list(dict.fromkeys((*base_words(several), *above)))


class Commonness:
    """Frequencies of nouns in captions; other words for the same thing, and for kinds of it, are counted together.

    Args:
        vocabulary: with the counts of words in the sentences of training.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tree, self._counts = noun_tree(), Counter[str]()
        for word, count in vocabulary.counts.items():
            self._counts.update(dict.fromkeys(kinds([word]), count))
        nouns = (base for base in self._counts if tree.named(base) is not None)
        self._most = max((self._counts[base] for base in nouns), default=0)

    def rarest(self, phrases: Iterable[str]) -> float:
        """Return the log-frequency of the rarest noun of phrases, relative to the commonest noun; 0 without a noun."""
        return min(self._frequencies(phrases), default=0.0)

    def together(self, phrases: Iterable[str]) -> float:
        """Return the log-frequency of all nouns of phrases together, if one says nothing of another: their sum."""
        return sum(self._frequencies(phrases))

    def _frequencies(self, phrases: Iterable[str]) -> list[float]:
        """The log-frequencies of the nouns, each once."""
        nouns = {base for phrase in phrases for base in base_words(noun_words(phrase))}
        return [log((1 + self._counts[base]) / (1 + self._most)) for base in sorted(nouns)]


@lru_cache(maxsize=4)
def commonness_of(vocabulary: Vocabulary) -> Commonness:
    """Return the commonness of nouns in a model's vocabulary: counted once, for all queries."""
    return Commonness(vocabulary)

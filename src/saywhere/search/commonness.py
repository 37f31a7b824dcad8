"""How often people say what is looked for: what they seldom say is seldom in an image."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from math import log

from saywhere.models.nouns import noun_tree
from saywhere.models.placing import noun_words
from saywhere.text import Vocabulary


def base_words(words: Iterable[str]) -> list[str]:
    """Return words in the singular, where the tree of nouns or a final ``s`` tells, and by the name people use."""
    tree = noun_tree()
    named = [(word, tree.named(word)) for word in words]
    return [word.removesuffix("s") if noun is None else noun.name for word, noun in named]


class Commonness:
    """Tell how often people say nouns; other words for the same thing are counted together.

    Args:
        vocabulary: with the counts of words in the sentences of training.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tree, self._counts = noun_tree(), Counter[str]()
        words = list(vocabulary.counts)
        for word, base in zip(words, base_words(words), strict=True):
            self._counts[base] += vocabulary.counts[word]
        nouns = (base for base in self._counts if tree.named(base) is not None)
        self._most = max((self._counts[base] for base in nouns), default=0)

    def rarest(self, phrases: Iterable[str]) -> float:
        """Return the log-frequency of the rarest noun of phrases, relative to the commonest noun; 0 without a noun."""
        nouns = (base for phrase in phrases for base in base_words(noun_words(phrase)))
        return min((log((1 + self._counts[base]) / (1 + self._most)) for base in nouns), default=0.0)


@lru_cache(maxsize=4)
def commonness_of(vocabulary: Vocabulary) -> Commonness:
    """Return the commonness of nouns in a model's vocabulary: counted once, for all queries."""
    return Commonness(vocabulary)

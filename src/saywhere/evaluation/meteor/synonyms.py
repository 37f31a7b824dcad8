"""Synonyms: words with a set of WordNet in common, their own or one of their base form."""

from __future__ import annotations

from collections import defaultdict

ENDINGS = (
    ("s", ""),
    ("ies", "y"),
    ("es", ""),
    ("men", "man"),
    ("ed", "e"),
    ("ed", ""),
    ("ing", "e"),
    ("ing", ""),
    ("er", ""),
    ("er", "e"),
    ("est", ""),
    ("est", "e"),
)
"""Of inflected words, and of their base forms; the first that gives a known word counts."""


class Synonyms:
    """Look up the synonym sets of words.

    Args:
        sets: lines in turn of a word and of the names of its sets.
        exceptions: lines in turn of a base form and of its irregular inflected forms.
    """

    def __init__(self, sets: str, exceptions: str) -> None:
        self._sets = dict(_pairs(sets))
        self._bases: dict[str, list[str]] = defaultdict(list)
        for base, forms in _pairs(exceptions):
            for form in forms.split():
                self._bases[form].append(base)

    def sets(self, word: str) -> frozenset[str]:
        """Return the names of the sets that a word, or its base form, is in."""
        return frozenset(name for form in (word, *self._base_forms(word)) for name in self._sets.get(form, "").split())

    def _base_forms(self, word: str) -> list[str]:
        if word in self._bases:
            return self._bases[word]
        if len(word) > 2 and not word.endswith("ss"):
            for old, new in ENDINGS:
                if word.endswith(old) and (base := word[: -len(old)] + new) in self._sets:
                    return [base]
        return []


def _pairs(text: str) -> zip[tuple[str, str]]:
    lines = text.split("\n")
    return zip(lines[0::2], lines[1::2], strict=False)

"""Which noun a region's phrase has: the decoder's, or that of the classes (docs/nouns.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from saywhere.calibration import Logistic
from saywhere.models.noun_tree import Head, Noun, NounTree, plural
from saywhere.models.nouns import NounEvidence
from saywhere.text import tokenize

LEAST = 1e-4
"""Probabilities are held this far from 0 and 1."""


def noun_evidence(confidence: np.ndarray, of_decoder: np.ndarray, of_classes: np.ndarray) -> dict[str, np.ndarray]:
    """Return what says how probably the nouns of the decoder's phrases are right, by its names in a calibration.

    Args:
        confidence: ``(N,)`` mean log-probability of the words of each phrase.
        of_decoder: ``(N,)`` probability of its noun by the classes; NaN for a noun that they do not know, whose
            log-odds count as 0.
        of_classes: ``(N,)`` probability of the noun that the classes would say.
    """
    known = np.nan_to_num(log_odds(of_decoder))
    return {"confidence": confidence, "decoder": known, "nouns": log_odds(of_classes)}


def log_odds(probability: np.ndarray) -> np.ndarray:
    """Return ``log(p / (1 - p))``, bounded."""
    p = np.clip(np.asarray(probability, np.float64), LEAST, 1 - LEAST)
    return np.log(p / (1 - p))


def rename(
    classes: NounEvidence,
    posterior: np.ndarray,
    phrases: Sequence[str],
    confidence: np.ndarray,
    right: Logistic,
    threshold: float,
) -> list[str]:
    """Return the phrases of regions with the nouns that are more probably right.

    The classes propose the most specific noun whose probability is above ``threshold``. It replaces the decoder's where
    it is more probable than that, unless one of the two is a kind of the other: then the decoder's stays.

    Args:
        classes: with the tree of nouns.
        posterior: ``(N, K)`` of the regions.
        phrases, confidence: N of the decoder.
        right: how probable it is that the decoder's noun is right, by :func:`noun_evidence`.
        threshold: of the probability of a noun.
    """
    heads = [(words := tokenize(phrase), classes.tree.head(words)) for phrase in phrases]
    proposed = classes.name(posterior, threshold)
    of_decoder = noun_probabilities(classes, posterior, [head.noun for _, head in heads])
    of_classes = np.array([0.0 if found is None else found[1] for found in proposed])
    trust = right.apply(noun_evidence(confidence, of_decoder, of_classes))
    renamed: list[str] = []
    for number, (words, head) in enumerate(heads):
        found = proposed[number]
        if found is None or found[1] <= trust[number] or (head.noun and related(head.noun, found[0])):
            renamed.append(phrases[number])
        else:
            renamed.append(with_noun(head, words, found[0]))
    return renamed


def noun_probabilities(classes: NounEvidence, posterior: np.ndarray, nouns: Sequence[Noun | None]) -> np.ndarray:
    """Return the probability ``(N,)`` of a noun for each region by the classes; NaN where there is none."""
    found = [
        np.nan if noun is None else classes.probability(posterior[i : i + 1], noun)[0] for i, noun in enumerate(nouns)
    ]
    return np.array(found, np.float64)


def related(one: Noun, other: Noun) -> bool:
    """Return whether one of two nouns is a kind of the other, or both are the same."""
    return one.row in other.ancestors or other.row in one.ancestors


def with_noun(head: Head, words: Sequence[str], noun: Noun) -> str:
    """Return a phrase with another noun.

    Adjectives and what follows stay if both nouns are kinds of the same thing in the tree, as a brown dog and a brown
    cow are animals; else only the article or number stays: of "its mouth", a cat makes "a cat". The plural stays.
    """
    alike = head.noun is not None and not head.noun.ancestors.keys().isdisjoint(noun.ancestors)
    first = words[: min(head.start, 1)]
    before = list(words[: head.start]) if alike else [word for word in first if word in NEUTRAL_DETERMINERS]
    after = list(words[head.stop :]) if alike else []
    name = plural(noun.name) if head.plural and noun.use == "count" else noun.name
    if before[:1] in (["a"], ["an"]):
        before = before[1:] if noun.use != "count" or name != noun.name else before
    elif not before and noun.use == "count" and name == noun.name:
        before = ["a"]
    said = [*before, name]
    if said[0] in ("a", "an"):
        said[0] = "an" if said[1][0] in "aeiou" else "a"
    return " ".join([*said, *after])


def fuller_phrase(tree: NounTree, said: str, label: str) -> str:
    """Return the decoder's phrase for a region whose ``label`` is known: as it is if it names the same or a kind of it.

    Otherwise the label's noun takes the place of the decoder's, see :func:`with_noun`. A label without a noun in the
    tree stays as it is.

    Example:
        >>> from saywhere.models.noun_tree import noun_tree
        >>> tree = noun_tree()
        >>> fuller_phrase(tree, "a man in a red shirt", "a person"), fuller_phrase(tree, "a wooden bench", "a chair")
        ('a man in a red shirt', 'a wooden chair')
    """
    noun, words = tree.find(label), tokenize(said)
    head = tree.head(words)
    if noun is None:
        return label
    if head.noun is not None and (head.noun.row == noun.row or noun.row in head.noun.ancestors):
        return said
    return with_noun(head, words, noun)


NEUTRAL_DETERMINERS = frozenset({
    "a", "an", "the", "one", "two", "three", "four", "five", "several", "some", "many",
})  # fmt: skip
"""Words that may stand before any noun."""
DETERMINERS = NEUTRAL_DETERMINERS | {"his", "her", "their", "its"}
"""Those, and whose a thing is."""

"""Nouns of captions that nobody mentions, as CHAIR counts them (Rohrbach et al. 2018), over the tree of nouns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from saywhere.models.nouns import Noun, NounTree
from saywhere.text import tokenize

LONGEST = 3
"""Words of a name."""


@dataclass(frozen=True)
class Invented:
    """Say how much captions invent.

    Attributes:
        nouns: share of the captions' nouns that nobody mentions (CHAIR-i); 0 without nouns.
        sentences: share of the captions with such a noun (CHAIR-s).
    """

    nouns: float
    sentences: float


def count_invented(captions: Mapping[str, str], mentions: Mapping[str, Iterable[str]], tree: NounTree) -> Invented:
    """Compare the nouns of captions with those of what people wrote of the same images.

    A noun counts as mentioned if people named it, a kind of it, or what it is a kind of: "a man" where they say "a
    person". Only nouns of the tree count.

    Args:
        captions: of each image; at least one.
        mentions: of each image the true sentences, and the phrases or names of its boxes.
        tree: of nouns.
    """
    nouns, invented, sentences = 0, 0, 0
    for name, caption in captions.items():
        true = {noun.row: noun for text in mentions[name] for noun in find_nouns(text, tree)}
        said = find_nouns(caption, tree)
        new = [noun for noun in said if not any(_related(noun, other) for other in true.values())]
        nouns, invented, sentences = nouns + len(said), invented + len(new), sentences + bool(new)
    return Invented(invented / max(nouns, 1), sentences / len(captions))


def find_nouns(text: str, tree: NounTree) -> list[Noun]:
    """Return the nouns of a text that are in the tree, in order; of names of several words the longest."""
    words, found, start = tokenize(text), list[Noun](), 0
    while start < len(words):
        for stop in range(min(start + LONGEST, len(words)), start, -1):
            if (noun := tree.named(" ".join(words[start:stop]))) is not None:
                found.append(noun)
                start = stop - 1
                break
        start += 1
    return found


def _related(one: Noun, other: Noun) -> bool:
    return other.row in one.ancestors or one.row in other.ancestors

"""Nouns of captions that nobody mentions, as CHAIR counts them (Rohrbach et al. 2018), over the tree of nouns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from saywhere.models.noun_tree import NounTree, find_invented, find_nouns


@dataclass(frozen=True)
class Invented:
    """Shares of the captions' nouns that are invented (CHAIR).

    Attributes:
        nouns: share of the captions' nouns that nobody mentions (CHAIR-i); 0 without nouns.
        sentences: share of the captions with such a noun (CHAIR-s).
    """

    nouns: float
    sentences: float


def count_invented(captions: Mapping[str, str], mentions: Mapping[str, Iterable[str]], tree: NounTree) -> Invented:
    """Compare the nouns of captions with those of what people wrote of the same images.

    Which nouns count as mentioned: see :func:`saywhere.models.noun_tree.find_invented`. Only nouns of the tree count.

    Args:
        captions: of each image; at least one.
        mentions: of each image the true sentences, and the phrases or names of its boxes.
        tree: of nouns.
    """
    nouns, invented, sentences = 0, 0, 0
    for name, caption in captions.items():
        said = find_nouns(caption, tree)
        new = find_invented(said, [noun for text in mentions[name] for noun in find_nouns(text, tree)])
        nouns, invented, sentences = nouns + len(said), invented + len(new), sentences + bool(new)
    return Invented(invented / max(nouns, 1), sentences / len(captions))

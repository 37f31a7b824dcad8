"""The class of a region in formats that know classes and not phrases: the noun of its phrase."""

from __future__ import annotations

from collections.abc import Iterable

from saywhere.models.noun_tree import noun_tree
from saywhere.regions import Regions
from saywhere.text import tokenize

NAMELESS = "object"
"""The class of a region without a phrase."""


def label(caption: str | None) -> str:
    """Return the noun of a phrase, ``dog`` for "a brown dog on the grass", known or not."""
    words = tokenize(caption or "")
    head = noun_tree().head(words)
    return head.noun.name if head.noun is not None else " ".join(words[head.start : head.stop]) or NAMELESS


def labels(regions: Regions) -> list[str]:
    """Return the class of each region."""
    return [label(region.caption) for region in regions]


def classes(images: Iterable[Regions]) -> list[str]:
    """Return the classes of all regions, in the order of the alphabet."""
    return sorted({name for regions in images for name in labels(regions)})

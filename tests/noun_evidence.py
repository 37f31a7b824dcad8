"""What regions show, as the classifier of nouns says it: made by hand."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import numpy as np

from saywhere.configs.nouns import NounsConfig
from saywhere.models.nouns import NounEvidence, noun_tree
from saywhere.text import Vocabulary

TREE = noun_tree()


def evidence(kinds: Iterable[str], **options: float) -> NounEvidence:
    """The evidence of a classifier that was taught these kinds."""
    config = NounsConfig(**options)  # pyright: ignore[reportArgumentType]
    return NounEvidence(SimpleNamespace(config=config, vocabulary=Vocabulary(dict.fromkeys(kinds, 9))))  # pyright: ignore[reportArgumentType]


def posteriors(*shown: dict[str, float]) -> np.ndarray:
    """What some regions show, on the first leaf of each kind."""
    rows = np.zeros((len(shown), TREE.leaves), np.float32)
    for row, probabilities in zip(rows, shown, strict=True):
        for name, probability in probabilities.items():
            noun = TREE.named(name)
            row[noun.row if noun.row < TREE.leaves else noun.leaves[0]] = probability
    return rows

"""Captions that do not invent: nouns that nothing in an image supports become less probable words (docs/nouns.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from saywhere.box_coding import BoxCoder
from saywhere.configs.captioner import CaptionerConfig
from saywhere.configs.parts import ProposalConfig
from saywhere.engines.engine import Decoder, State
from saywhere.models.class_evidence import ClassEvidence
from saywhere.models.detection import propose_boxes
from saywhere.models.encoding import Encoding
from saywhere.text import Vocabulary

REGIONS = 20
"""Proposals beside the whole image."""
LEAST = 1e-3
"""No noun is taken to be less probable than this."""


class NounSupport:
    """Tell which nouns of a vocabulary an image supports.

    A word stands for what it names and for what names of several words end with: ``bear`` for teddy bears too.

    Args:
        classes: tells what regions show.
        vocabulary: whose words are judged; those that name nothing in the tree of nouns are not.
    """

    def __init__(self, classes: ClassEvidence, vocabulary: Vocabulary) -> None:
        nouns = {number: classes.tree.named(word) for number, word in enumerate(vocabulary.tokens)}
        self.token_ids = np.array([number for number, noun in nouns.items() if noun is not None], np.int64)
        self._classes, self._words = classes, len(vocabulary)
        self._below = np.zeros((classes.tree.leaves, len(self.token_ids)), np.float32)
        for column, number in enumerate(self.token_ids.tolist()):
            noun = nouns[number]
            assert noun is not None
            self._below[noun.leaves, column] = 1
        columns = {vocabulary.tokens[number]: column for column, number in enumerate(self.token_ids.tolist())}
        for noun in classes.tree.nouns:
            if (column := columns.get(noun.name.rpartition(" ")[2])) is not None:
                self._below[noun.leaves, column] = 1

    def bias(self, encodings: Sequence[Encoding], proposals: ProposalConfig, config: CaptionerConfig) -> np.ndarray:
        """Return what is added to the log-probability of each word in each image ``(N, V)``, at most 0.

        A noun is as probable as it is in the region that shows it best, of the whole image and its best proposals. The
        log-probability of one below ``config.support_floor`` falls by ``config.support_weight`` times the logarithm of
        how far it is below.

        Args:
            encodings: of the images.
            proposals: of the localization layer.
            config: of the captioner.
        """
        boxes = [_regions(encoding, proposals) for encoding in encodings]
        bias = np.zeros((len(encodings), self._words), np.float32)
        for row, posterior in zip(bias, self._classes.posteriors(encodings, boxes), strict=True):
            probable = np.maximum((posterior @ self._below).max(axis=0), LEAST)
            row[self.token_ids] = config.support_weight * np.minimum(np.log(probable / config.support_floor), 0)
        return bias


def _regions(encoding: Encoding, proposals: ProposalConfig) -> np.ndarray:
    """The whole image and its best proposals."""
    whole = np.array([[0, 0, encoding.width, encoding.height]], np.float32)
    return np.concatenate((whole, encoding.to_image(propose_boxes(encoding, proposals, BoxCoder(), REGIONS)[0])))


@dataclass(frozen=True, eq=False)
class BiasedDecoder:
    """Decode as another decoder, with a number for each item and word added to its log-probabilities.

    Attributes:
        decoder: the other; see :class:`saywhere.engines.engine.Decoder`.
        bias: ``(N, V)`` of the N items.
    """

    decoder: Decoder
    bias: np.ndarray

    @property
    def never(self) -> Sequence[int]:
        """Token ids that are never chosen."""
        return self.decoder.never

    @property
    def unknown(self) -> str:
        """How the unknown word is written."""
        return self.decoder.unknown

    @property
    def independent(self) -> bool:
        """Whether rows may be dropped."""
        return self.decoder.independent

    def start(self, embeddings: Any) -> State:
        """Return the state after the embeddings ``(N, D)`` of all items."""
        return self.decoder.start(embeddings), np.arange(len(embeddings))

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return the biased log-probabilities ``(N, V)`` of the next word, and the next state."""
        inner, items = state
        log_probs, inner = self.decoder.step(token_ids, inner)
        return log_probs + self.bias[items], (inner, items)

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state."""
        inner, items = state
        return self.decoder.select(inner, rows), items[rows]

    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
        return self.decoder.join([inner for inner, _ in states]), np.concatenate([items for _, items in states])

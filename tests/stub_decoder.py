"""A decoder whose words are known by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from saywhere.text import PAD, START, UNKNOWN


class Chain:
    """The next word depends on the last one alone: ``table[last]`` are probabilities; it counts what it was asked.

    Its state is one number a row, which must stay its own.
    """

    never, unknown, independent = (PAD, START, UNKNOWN), "<unk>", True

    def __init__(self, table: Any) -> None:
        with np.errstate(divide="ignore"):
            self.table = np.log(np.array(table, np.float32))
        self.rows: list[int] = []

    def start(self, embeddings: np.ndarray) -> tuple[np.ndarray, ...]:
        return embeddings, embeddings + 1

    def step(self, token_ids: np.ndarray, state: tuple[np.ndarray, ...]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        assert np.array_equal(state[1], state[0] + 1)
        self.rows.append(len(token_ids))
        return self.table[token_ids], state

    def select(self, state: tuple[np.ndarray, ...], rows: np.ndarray) -> tuple[np.ndarray, ...]:
        return tuple(part[rows] for part in state)

    def join(self, states: Sequence[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        return tuple(np.concatenate(parts) for parts in zip(*states, strict=True))

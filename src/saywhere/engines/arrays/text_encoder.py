"""Words to vectors in the space of regions: Deep Visual-Semantic Alignments, Eqs. 2 to 6, in numpy."""

from __future__ import annotations

import numpy as np

from saywhere.configs.aligner import AlignerConfig
from saywhere.engines.arrays.layers import Gru, Linear, Lstm, Weights, relu
from saywhere.text import PAD


class TextEncoder:
    """Encode sentences, see :class:`saywhere.networks.language.text_encoder.TextEncoder`."""

    def __init__(self, weights: Weights, config: AlignerConfig) -> None:
        self.config = config
        self.words = weights["words.weight"]
        self.encode, self.decode = Linear(weights.below("encode")), Linear(weights.below("decode"))
        cell = config.cell
        if cell == "relu":
            self.recurrent = [Linear(weights.below(f"{name}.recurrent")) for name in ("forwards", "backwards")]
        elif cell != "none":
            kind = Gru if cell == "gru" else Lstm
            self.cells = [kind(weights.below("context"), suffix) for suffix in ("l0", "l0_reverse")]

    def __call__(self, token_ids: np.ndarray) -> np.ndarray:
        """Return vectors ``(S, T, D)`` of token ids ``(S, T)``, padded on the right; zero where padded."""
        mask = token_ids != PAD
        inputs = relu(self.encode(self.words[token_ids]))  # Eqs. 2 and 3
        both = inputs
        if self.config.cell != "none":
            both = self._direction(0, inputs, mask) + self._direction(1, inputs, mask)  # Eqs. 4 and 5
            if self.config.residual and self.config.cell != "relu":
                both = both + inputs
        vectors = self.decode(both)  # Eq. 6
        vectors = relu(vectors) if self.config.rectified else vectors
        return vectors * mask[..., None]

    def _direction(self, number: int, inputs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Return the states ``(S, T, H)`` of one direction; padding keeps the state 0 and changes nothing."""
        count, length, size = inputs.shape
        states = np.zeros((count, length, size), np.float32)
        h = c = np.zeros((count, size), np.float32)
        cell = None if self.config.cell == "relu" else self.cells[number]
        gates = inputs if cell is None else cell.inputs(inputs)
        for t in reversed(range(length)) if number else range(length):
            real = mask[:, t, None]
            if cell is None:
                h = relu(gates[:, t] + self.recurrent[number](h)) * real
            elif isinstance(cell, Lstm):
                stepped, memory = cell.step(gates[:, t], h, c)
                h, c = np.where(real, stepped, h), np.where(real, memory, c)
            else:
                h = np.where(real, cell.step(gates[:, t], h), h)
            states[:, t] = h * real
        return states

"""What every decoder of this package offers for decoding one word at a time, in torch."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from saywhere.text import PAD, RESERVED, START, UNKNOWN

State = tuple[Tensor, ...]
"""The state of a decoder: tensors whose first dimension is the hypotheses."""

NEVER = (PAD, START, UNKNOWN)
"""Token ids that decoding never chooses, unless a decoder says otherwise."""

UNKNOWN_WORD = RESERVED[UNKNOWN]
"""How the unknown word is written, unless a decoder says otherwise."""


class TensorDecoder(Protocol):
    """A decoder on tensors; :class:`saywhere.networks.language.decoders.adapter.TorchDecoder` adapts it to arrays."""

    @property
    def never(self) -> tuple[int, ...]:
        """Token ids that decoding never chooses."""
        ...

    @property
    def unknown(self) -> str:
        """How the unknown word is written."""
        ...

    @property
    def independent(self) -> bool:
        """Whether what a row decodes does not depend on its place among the others, so that rows may be dropped."""
        ...

    def start(self, embeddings: Tensor) -> State:
        """Return the state after the embeddings ``(N, D)``."""
        ...

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        ...

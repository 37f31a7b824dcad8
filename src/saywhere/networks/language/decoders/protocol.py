"""The word-by-word interface of this package's decoders on tensors, and its adapter to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from saywhere.text import END, PAD, RESERVED, START, UNKNOWN

State = tuple[Tensor, ...]
"""The state of a decoder: tensors whose first dimension is the hypotheses."""


def after_start(token_ids: Tensor) -> Tensor:
    """Return ``token_ids (..., T)`` with START in front, ``(..., T + 1)``: the input at each predicted token."""
    return torch.cat((token_ids.new_full((*token_ids.shape[:-1], 1), START), token_ids), dim=-1)


def with_end(token_ids: Sequence[Tensor]) -> Tensor:
    """Return the texts of several images, each padded ``(K, T)``, as ``(sum K, max T + 1)`` with END after each."""
    length = max(rows.shape[1] for rows in token_ids) + 1
    joined = torch.cat([functional.pad(rows, (0, length - rows.shape[1]), value=PAD) for rows in token_ids])
    return joined.scatter(1, (joined != PAD).sum(dim=1, keepdim=True), END)


class TensorDecoder(Protocol):
    """A decoder on tensors; :class:`saywhere.networks.language.decoders.protocol.TorchDecoder` adapts it to arrays."""

    never: tuple[int, ...] = (PAD, START, UNKNOWN)
    """Token ids that decoding never chooses."""
    unknown: str = RESERVED[UNKNOWN]
    """Text of the unknown word."""
    independent: bool = True
    """Whether the result of a row does not depend on its position, so that rows may be dropped."""

    def start(self, embeddings: Tensor) -> State:
        """Return the state after the embeddings ``(N, D)``."""
        ...

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        ...


class TorchDecoder:
    """Adapt a :class:`TensorDecoder` to arrays, see :class:`saywhere.engines.engine.Decoder`.

    Args:
        decoder: in eval mode.
        like: one of its parameters; embeddings are converted to its device and dtype.
    """

    def __init__(self, decoder: TensorDecoder, like: Tensor):
        self.decoder, self._device, self._dtype = decoder, like.device, like.dtype
        self.never, self.unknown, self.independent = decoder.never, decoder.unknown, decoder.independent

    @torch.inference_mode()
    def start(self, embeddings: Any) -> State:
        return self.decoder.start(torch.as_tensor(embeddings, dtype=self._dtype, device=self._device))

    @torch.inference_mode()
    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        log_probs, state = self.decoder.step(torch.as_tensor(token_ids, device=self._device), state)
        return log_probs.float().cpu().numpy(), state

    @torch.inference_mode()
    def select(self, state: State, rows: np.ndarray) -> State:
        index = torch.as_tensor(rows, device=self._device)
        return tuple(part[index] for part in state)

    @torch.inference_mode()
    def join(self, states: Sequence[State]) -> State:
        return tuple(torch.cat(parts) for parts in zip(*states, strict=True))

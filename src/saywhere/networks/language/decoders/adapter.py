"""A torch decoder as the decoder that the model layer asks: arrays in, arrays out, the state stays on the device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from saywhere.networks.language.decoders.protocol import State, TensorDecoder


class TorchDecoder:
    """Adapt a :class:`TensorDecoder` to :class:`saywhere.engines.engine.Decoder`; nothing is differentiated.

    Args:
        decoder: in eval mode.
        like: a parameter of it, whose device and type embeddings are moved to.
    """

    def __init__(self, decoder: TensorDecoder, like: Tensor):
        self.decoder, self._device, self._dtype = decoder, like.device, like.dtype

    @property
    def never(self) -> tuple[int, ...]:
        """Token ids that decoding never chooses."""
        return self.decoder.never

    @property
    def unknown(self) -> str:
        """How the unknown word is written."""
        return self.decoder.unknown

    @property
    def independent(self) -> bool:
        """Whether rows of a state may be dropped."""
        return self.decoder.independent

    @torch.inference_mode()
    def start(self, embeddings: Any) -> State:
        """Return the state after the embeddings ``(N, D)``, an array or a tensor."""
        return self.decoder.start(torch.as_tensor(embeddings, dtype=self._dtype, device=self._device))

    @torch.inference_mode()
    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return log-probabilities ``(N, V)`` float32 of the word after ``token_ids (N,)``, and the next state."""
        log_probs, state = self.decoder.step(torch.as_tensor(token_ids, device=self._device), state)
        return log_probs.float().cpu().numpy(), state

    @torch.inference_mode()
    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state: with repetitions, and in any order."""
        index = torch.as_tensor(rows, device=self._device)
        return tuple(part[index] for part in state)

    @torch.inference_mode()
    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
        return tuple(torch.cat(parts) for parts in zip(*states, strict=True))

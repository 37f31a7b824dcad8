"""Sentences sampled from a decoder, with gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from saywhere.networks.language.decoders.protocol import TensorDecoder
from saywhere.text import END, PAD, START


def sample(
    decoder: TensorDecoder,
    embeddings: Tensor,
    max_words: int,
    count: int,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Sample ``count`` sentences for each of N embeddings, word by word with the decoder's probabilities.

    Args:
        decoder: the language model.
        embeddings: ``(N, D)``; N may be 0.
        max_words: bound on the words; a sentence that reaches it has no END.
        count: sentences an embedding; they are neighbouring rows.
        generator: of the random numbers, on the CPU.

    Returns:
        token ids ``(N count, T)``, END and then padding after the last word if that fits in T; and the natural
        log-probability of each among the words that may be chosen, with gradients, 0 where padded.

    Raises:
        ValueError: ``max_words`` or ``count`` is below 1.
    """
    if max_words < 1 or count < 1:
        raise ValueError(f"max_words ({max_words}) and count ({count}) must be at least 1")
    state = tuple(part.repeat_interleave(count, dim=0) for part in decoder.start(embeddings))
    last = torch.full((len(embeddings) * count,), START, device=embeddings.device)
    ended = torch.zeros(len(last), dtype=torch.bool, device=embeddings.device)
    never = torch.tensor(decoder.never, device=embeddings.device)
    token_ids: list[Tensor] = []
    chosen: list[Tensor] = []
    for _ in range(max_words):
        log_probs, state = decoder.step(last, state)
        log_probs = log_probs.index_fill(1, never, -torch.inf).float().log_softmax(dim=1)
        uniform = torch.rand(log_probs.shape, generator=generator).to(log_probs.device)
        last = (log_probs.detach() - (-uniform.log()).log()).argmax(dim=1)  # the Gumbel-max trick
        token_ids.append(last.masked_fill(ended, PAD))
        chosen.append(log_probs.gather(1, last[:, None])[:, 0].masked_fill(ended, 0))
        ended = ended | (last == END)
        if ended.all():
            break
    return torch.stack(token_ids, dim=1), torch.stack(chosen, dim=1)

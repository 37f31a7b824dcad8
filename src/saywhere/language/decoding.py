"""From a speaker to words: greedy and beam search, and drawing, for any number of areas at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from saywhere.text import END, PAD, START, UNKNOWN

State = tuple[Tensor, ...]
NEVER_SAID = (PAD, START, UNKNOWN)


class Speaker(Protocol):
    """What decoding needs of a language model; every tensor of a state has the areas as its first dimension.

    In beam search the hypotheses of an area are neighbouring rows, and the areas stay in order: with K of them, rows
    ``i K`` to ``i K + K - 1`` are those of area i.
    """

    def start(self, codes: Tensor) -> State:
        """The state ``N x ...`` after hearing the codes ``(N, D)``."""
        ...

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N, V)`` of the word after ``words (N,)``, and the next state."""
        ...


@dataclass(frozen=True)
class Decoded:
    """Words said of N areas.

    Attributes:
        words: ``(N, T)`` long; END and then padding after the last word, if that fits in T.
        log_probs: ``(N, T)`` natural log-probability of each word and of END; 0 where padded.
    """

    words: Tensor
    log_probs: Tensor

    @property
    def total(self) -> Tensor:
        """Log-probability ``(N,)`` of each whole sentence."""
        return self.log_probs.sum(dim=1)


@torch.no_grad()
def decode(
    speaker: Speaker,
    codes: Tensor,
    max_words: int,
    beam: int = 1,
    length_power: float = 0.0,
    never: Sequence[int] = NEVER_SAID,
) -> Decoded:
    """Say at most ``max_words`` words of each area: greedy with ``beam`` 1, else beam search.

    Args:
        speaker: the language model, in eval mode.
        codes: ``(N, D)``; N may be 0.
        max_words: bound on the words; a sentence that reaches it has no END.
        beam: hypotheses kept for each area.
        length_power: finished hypotheses are compared by log-probability / length ** length_power.
        never: words that are not said.
    """
    if max_words < 1 or beam < 1:
        raise ValueError(f"max_words ({max_words}) and beam ({beam}) must be at least 1")
    if len(codes) == 0:
        return Decoded(codes.new_zeros((0, 0), dtype=torch.long), codes.new_zeros((0, 0)))
    if beam == 1:
        return _greedy(speaker, codes, max_words, never)
    return _beam(speaker, codes, max_words, beam, length_power, never)


def draw(
    speaker: Speaker,
    codes: Tensor,
    max_words: int,
    count: int,
    generator: torch.Generator | None = None,
    never: Sequence[int] = NEVER_SAID,
) -> Decoded:
    """Draw ``count`` sentences of each of N areas, word by word as probable as the speaker says.

    Args:
        speaker, codes, max_words, never: see :func:`decode`.
        count: sentences of an area; they are neighbouring rows.
        generator: of the random numbers, on the CPU.

    Returns:
        ``N count`` sentences, whose ``log_probs`` have gradients.
    """
    if max_words < 1 or count < 1:
        raise ValueError(f"max_words ({max_words}) and count ({count}) must be at least 1")
    state = tuple(part.repeat_interleave(count, dim=0) for part in speaker.start(codes))
    words = torch.full((len(codes) * count,), START, device=codes.device)
    ended = torch.zeros(len(words), dtype=torch.bool, device=codes.device)
    said, said_log_probs = [], []
    for _ in range(max_words):
        log_probs, state = _next(speaker, words, state, never)
        log_probs = log_probs.float().log_softmax(dim=1)  # of the words that may be said
        chances = torch.rand(log_probs.shape, generator=generator).to(log_probs.device)
        words = (log_probs.detach() - (-chances.log()).log()).argmax(dim=1)  # the Gumbel-max trick
        said.append(words.masked_fill(ended, PAD))
        said_log_probs.append(log_probs.gather(1, words[:, None])[:, 0].masked_fill(ended, 0))
        ended = ended | (words == END)
        if ended.all():
            break
    return Decoded(torch.stack(said, dim=1), torch.stack(said_log_probs, dim=1))


def _next(speaker: Speaker, words: Tensor, state: State, never: Sequence[int]) -> tuple[Tensor, State]:
    log_probs, state = speaker.step(words, state)
    log_probs = log_probs.clone()
    log_probs[:, list(never)] = -torch.inf
    return log_probs, state


def _greedy(speaker: Speaker, codes: Tensor, max_words: int, never: Sequence[int]) -> Decoded:
    state = speaker.start(codes)
    words = torch.full((len(codes),), START, device=codes.device)
    ended = torch.zeros(len(codes), dtype=torch.bool, device=codes.device)
    said, said_log_probs = [], []
    for _ in range(max_words):
        log_probs, state = _next(speaker, words, state, never)
        best, words = log_probs.max(dim=1)
        said.append(words.masked_fill(ended, PAD))
        said_log_probs.append(best.masked_fill(ended, 0))
        ended = ended | (words == END)
        if ended.all():
            break
    return Decoded(torch.stack(said, dim=1), torch.stack(said_log_probs, dim=1))


def _beam(
    speaker: Speaker, codes: Tensor, max_words: int, beam: int, length_power: float, never: Sequence[int] = NEVER_SAID
) -> Decoded:
    """Hypotheses of an area occupy ``beam`` neighbouring rows; one that has ended goes on with PAD at no cost."""
    n, device = len(codes), codes.device
    state = tuple(part.repeat_interleave(beam, dim=0) for part in speaker.start(codes))
    words = torch.full((n * beam,), START, device=device)
    total = torch.full((n, beam), -torch.inf, device=device)
    total[:, 0] = 0  # all hypotheses are equal at first: only one may continue
    ended = torch.zeros((n, beam), dtype=torch.bool, device=device)
    said = torch.zeros((n, beam, 0), dtype=torch.long, device=device)
    said_log_probs = torch.zeros((n, beam, 0), device=device)
    for _ in range(max_words):
        log_probs, state = _next(speaker, words, state, never)
        log_probs = log_probs.float().reshape(n, beam, -1)
        size = log_probs.shape[2]
        log_probs[ended] = -torch.inf
        log_probs[..., PAD] = torch.where(ended, 0.0, log_probs[..., PAD])
        length = (said != PAD).sum(dim=2, keepdim=True) + (~ended)[..., None]
        ranking = (total[..., None] + log_probs) / length**length_power
        choice = ranking.flatten(1).topk(beam, dim=1).indices
        parent, word = choice // size, choice % size
        picked = log_probs.flatten(1).gather(1, choice)
        total = total.gather(1, parent) + picked
        said = torch.cat((_rows(said, parent), word[..., None]), dim=2)
        said_log_probs = torch.cat((_rows(said_log_probs, parent), picked[..., None]), dim=2)
        ended = ended.gather(1, parent) | (word == END)
        rows = (torch.arange(n, device=device)[:, None] * beam + parent).flatten()
        state, words = tuple(part[rows] for part in state), word.flatten()
        if ended.all():
            break
    length = (said != PAD).sum(dim=2).clamp(min=1)
    best = (total / length**length_power).argmax(dim=1, keepdim=True)
    return Decoded(_rows(said, best)[:, 0], _rows(said_log_probs, best)[:, 0])


def _rows(values: Tensor, parent: Tensor) -> Tensor:
    """``values (N, B, T)`` with the hypotheses ``parent (N, K)`` picked: ``(N, K, T)``."""
    return values.gather(1, parent[..., None].expand(-1, -1, values.shape[2]))

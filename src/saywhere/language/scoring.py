"""How likely a speaker is to say given phrases of given areas: ``log P(phrase | area)`` (DenseCap, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from saywhere.language.decoding import Speaker, State
from saywhere.text import END, START

ROWS = 4096
"""Words that are said in one step at most; bounds the memory of their probabilities."""

STATES = 1 << 15
"""States that are kept between two steps at most, unless one area alone has more."""


@dataclass(frozen=True, eq=False)
class _Level:
    """The prefixes of one length, in the order of their parents.

    Attributes:
        words: ``(K,)`` the last word of each.
        parents: ``(K,)`` the prefix without that word, in the level above.
        ends, phrases: ``(E,)`` each: the prefixes that are whole phrases, and which phrases.
    """

    words: Tensor
    parents: Tensor
    ends: Tensor
    phrases: Tensor


def _tree(phrases: Sequence[Sequence[int]], device: torch.device) -> list[_Level]:
    """The phrases' prefixes by length, START alone first; what several phrases begin with is there once."""
    levels: list[_Level] = []
    nodes: dict[tuple[int, ...], int] = {(): 0}
    words, parents = [START], [0]
    depth = 0
    while nodes:
        ends = [(nodes[tuple(p)], number) for number, p in enumerate(phrases) if len(p) == depth]
        rows = (words, parents, [node for node, _ in ends], [number for _, number in ends])
        levels.append(_Level(*(torch.tensor(row, dtype=torch.long, device=device) for row in rows)))
        depth += 1
        prefixes = {tuple(p[:depth]) for p in phrases if len(p) >= depth}
        longer = sorted(prefixes, key=lambda prefix: (nodes[prefix[:-1]], prefix[-1]))
        words, parents = [prefix[-1] for prefix in longer], [nodes[prefix[:-1]] for prefix in longer]
        nodes = {prefix: number for number, prefix in enumerate(longer)}
    return levels


@torch.no_grad()
def phrase_log_probs(speaker: Speaker, codes: Tensor, phrases: Sequence[Sequence[int]], rows: int = ROWS) -> Tensor:
    """The natural log-probability ``(R, P)`` that the speaker says each phrase, END included, of each area.

    All phrases and areas go through the speaker together, a word at a time: it takes as many steps as the longest
    phrase has words, and one more (more only where ``rows`` and ``STATES`` bound the memory). What several phrases
    begin with is said once.

    Args:
        speaker: the language model, in eval mode.
        codes: ``(R, D)``; R may be 0.
        phrases: P lists of word numbers, without START and END; P may be 0, and a phrase may be empty.
        rows: words said in one step at most.
    """
    if not len(codes) or not phrases:
        return codes.new_zeros((len(codes), len(phrases)))
    levels = _tree(phrases, codes.device)
    areas = max(1, STATES // max(len(level.words) for level in levels))
    return torch.cat([_walk(speaker, part, levels, len(phrases), rows) for part in codes.split(areas)])


def _walk(speaker: Speaker, codes: Tensor, levels: Sequence[_Level], count: int, rows: int) -> Tensor:
    """As :func:`phrase_log_probs`, for areas ``(N, D)`` whose states fit into memory."""
    n = len(codes)
    totals = torch.zeros((count, n), device=codes.device)
    state: State = tuple(part[None] for part in speaker.start(codes))
    so_far = torch.zeros((1, n), device=codes.device)
    for level, after in zip(levels, [*levels[1:], None], strict=True):
        step = max(1, rows // n)
        states, following = [], []
        for first in range(0, len(level.words), step):
            chunk = slice(first, first + step)
            log_probs, heard = _say(speaker, level.words[chunk], tuple(part[level.parents[chunk]] for part in state))
            states.append(heard)
            here = (level.ends >= first) & (level.ends < first + step)
            ends = level.ends[here]
            totals[level.phrases[here]] = so_far[ends] + log_probs[ends - first, :, END]
            if after is not None:
                mine = (after.parents >= first) & (after.parents < first + step)
                parents = after.parents[mine]
                following.append(so_far[parents] + log_probs[parents - first, :, after.words[mine]])
        if after is not None:
            state = tuple(torch.cat(parts) for parts in zip(*states, strict=True))
            so_far = torch.cat(following)
    return totals.T


def _say(speaker: Speaker, words: Tensor, state: State) -> tuple[Tensor, State]:
    """Log-probabilities ``(K, N, V)`` after ``words (K,)`` in states ``K x N x ...``, and the next states."""
    k, n = state[0].shape[:2]
    log_probs, state = speaker.step(words.repeat_interleave(n), tuple(part.flatten(0, 1) for part in state))
    return log_probs.float().unflatten(0, (k, n)), tuple(part.unflatten(0, (k, n)) for part in state)

"""Several speakers that say one sentence together (Areas of Attention, Table 4)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from saywhere.language.decoding import Speaker, State


class Ensemble:
    """A speaker whose probability of a word is the mean of its members' probabilities.

    Its codes are the members' codes side by side, ``torch.cat(codes, dim=1)``: each member may see the picture with its
    own network. All must have one vocabulary.

    Args:
        speakers: the members, in eval mode; those with areas as :meth:`AttentionSpeaker.look` gives them.
        sizes: of each member the size of its codes.

    Raises:
        ValueError: no members, or not a size for each; in :meth:`start` codes of another size than all together; in
            :meth:`step` vocabularies of different sizes.
    """

    def __init__(self, speakers: Sequence[Speaker], sizes: Sequence[int]):
        if not speakers or len(speakers) != len(sizes):
            raise ValueError(f"{len(speakers)} speakers with {len(sizes)} sizes of codes")
        self.speakers, self.sizes = tuple(speakers), tuple(sizes)
        self._lengths: list[int] = []  # of the members' states, known once they have begun

    def start(self, codes: Tensor) -> State:
        """The members' states one after the other, for codes ``(N, sum of sizes)``."""
        if codes.shape[1] != sum(self.sizes):
            raise ValueError(f"codes of {codes.shape[1]} numbers for members that want {self.sizes}")
        states = [
            speaker.start(part) for speaker, part in zip(self.speakers, codes.split(self.sizes, dim=1), strict=True)
        ]
        self._lengths = [len(state) for state in states]
        return tuple(part for state in states for part in state)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N, V)`` of the word after ``words (N,)``, and the next state."""
        log_probs: list[Tensor] = []
        following: State = ()
        for speaker, length in zip(self.speakers, self._lengths, strict=True):
            said, part = speaker.step(words, state[:length])
            log_probs.append(said)
            state, following = state[length:], following + part
        if len(sizes := {said.shape[1] for said in log_probs}) > 1:
            raise ValueError(
                f"members of one ensemble with vocabularies of {' and '.join(map(str, sorted(sizes)))} words"
            )
        return torch.stack(log_probs).logsumexp(dim=0) - math.log(len(log_probs)), following

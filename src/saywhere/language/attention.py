"""The speaker that looks while it speaks: Areas of Attention (section 3.2, Eqs. 4 to 7).

Training and reading the attention::

    speaker = AttentionSpeaker(code_size, region_size, len(vocabulary), word_size=256, hidden_size=512)
    log_probs = speaker(codes, areas, words, mask)               # teacher forcing: (N, T + 1, V)
    weights = speaker.attention(codes, areas, words, mask)       # p(r_t | h_t) of each word and END: (N, T + 1, R)

Decoding: :meth:`AttentionSpeaker.look` binds the areas and gives a :class:`saywhere.language.decoding.Speaker`, so that
beam search holds the areas of a picture once for all its hypotheses::

    decode(speaker.look(areas, mask), codes, max_words, beam)

``codes (N, D_c)`` describe the whole pictures (phi(I) of section 3.1), ``areas (N, R, D_r)`` their areas. Pictures with
fewer areas are padded and ``mask (N, R)`` says which exist (:func:`pad_areas` makes both); padding is never read. R may
differ between training and use, and be 0. Several sentences a picture, ``words (N, K, T)``, share its tables.

Rows of the paper's Table 1, as ``terms`` and ``feedback``:

==============================  ================================================================  =============
baseline                        word-state, word                                                  none
theta_wh, theta_wr              word-state, word-region, word, region                             none
theta_wh, theta_wr, theta_rh    all five                                                          none
conditional feedback            all five                                                          conditional
full model                      all five                                                          marginal
==============================  ================================================================  =============
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from saywhere.language.decoding import State
from saywhere.language.joint import WordRegion, log_regions, log_words
from saywhere.text import END, PAD, START

Term = Literal["word-state", "word-region", "region-state", "word", "region"]
Feedback = Literal["none", "marginal", "conditional"]
TERMS: tuple[Term, ...] = get_args(Term)
"""The five terms of Eq. 5 in its order."""


def pad_areas(features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Areas ``(R_i, D)`` of N pictures as one ``(N, R, D)``, padded with zeros, and which of them exist ``(N, R)``."""
    areas = nn.utils.rnn.pad_sequence(list(features), batch_first=True)
    counts = torch.tensor([len(rows) for rows in features], device=areas.device)
    return areas, torch.arange(areas.shape[1], device=areas.device) < counts[:, None]


@dataclass(frozen=True, eq=False)
class _View:
    """What the steps need of N pictures: descriptors ``(N, R, D)``, which regions count, and the word-region part."""

    areas: Tensor
    mask: Tensor
    word_region: WordRegion | None


class AttentionSpeaker(nn.Module):
    """Says words of a picture's code and areas by the joint distribution p(w, r | h) over words and regions.

    With ``W`` = ``words``, ``g`` = ``gru``, ``theta_hi`` = ``begin`` and R the areas of a picture, one a row::

        h_0 = theta_hi code
        p(w, r | h) ~ exp s(w, r, h)                                                              (4)
        s = w'W theta_wh h + w'W theta_wr R'r + r'R theta_rh h + w'W theta_w + r'R theta_r         (5)
        v_t = sum_r p(r | h_t) r'R    or with p(r | w_t, h_t) if feedback is conditional           (6)
        h_{t+1} = g(h_t, [W'w_t, v_t])                                                            (7)

    The GRU hears START, and what h_0 attends to, before the first word. A picture without areas, or whose descriptors
    are all 0, is described as by :class:`saywhere.language.gru.GruSpeaker`.

    Args:
        code_size: of the pictures' codes.
        region_size: D of the areas' descriptors.
        vocabulary_size: V, reserved tokens included.
        word_size: of the word vectors, which are heard and said.
        hidden_size: of the GRU.
        dropout: on the GRU's inputs and outputs and on the codes.
        terms: of Eq. 5, any of :data:`TERMS`.
        feedback: what the GRU hears of the areas.

    Raises:
        ValueError: an unknown term or feedback.
    """

    def __init__(
        self,
        code_size: int,
        region_size: int,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        terms: Sequence[Term] = TERMS,
        feedback: Feedback = "marginal",
    ):
        super().__init__()
        if unknown := set(terms) - set(TERMS):
            raise ValueError(f"the terms of the score are {', '.join(TERMS)}, not {unknown.pop()!r}")
        if feedback not in get_args(Feedback):
            raise ValueError(f"feedback is {', '.join(get_args(Feedback))}, not {feedback!r}")
        self.feedback: Feedback = feedback
        self.begin = nn.Linear(code_size, hidden_size)
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        heard = word_size + (region_size if feedback != "none" else 0)
        self.gru = nn.GRU(heard, hidden_size, batch_first=True)
        self.word_state = nn.Linear(hidden_size, word_size, bias=False) if "word-state" in terms else None
        self.word_region = nn.Linear(region_size, word_size, bias=False) if "word-region" in terms else None
        self.region_state = nn.Linear(hidden_size, region_size, bias=False) if "region-state" in terms else None
        self.word_bias = nn.Parameter(torch.zeros(word_size)) if "word" in terms else None
        self.region_bias = nn.Parameter(torch.zeros(region_size)) if "region" in terms else None
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.1)
            self.words.weight[PAD] = 0

    def forward(
        self, codes: Tensor, areas: Tensor, words: Tensor, mask: Tensor | None = None, real: Tensor | None = None
    ) -> Tensor:
        """Log-probabilities ``(N, T + 1, V)`` of each word of ``words (N, T)`` and of the END after it.

        ``words`` has neither START nor END and is padded on the right; what follows the END means nothing. With
        ``words (N, K, T)`` each picture has K sentences that share its tables: ``(N, K, T + 1, V)``. With a mask
        ``real (N, T + 1)`` or ``(N, K, T + 1)`` only its places are returned, in their order: ``(places, V)``.
        """
        view = self._view(areas, mask)
        to_words, to_regions = self._run(codes, view, words)
        log_probs = self._log_words(to_words, to_regions, view).reshape(*words.shape[:-1], words.shape[-1] + 1, -1)
        return log_probs if real is None else log_probs[real]

    @torch.no_grad()
    def attention(
        self, codes: Tensor, areas: Tensor, words: Tensor, mask: Tensor | None = None, conditional: bool = False
    ) -> Tensor:
        """Weights of the regions while each of ``words (N, T)``, and the END after it, is said: ``(N, T + 1, R)``.

        They are p(r_t | h_t), or with ``conditional`` p(r_t | w_t, h_t) with the word that is said (of the last step:
        the END). Each row sums to 1; a picture without areas has zeros.
        """
        view = self._view(areas, mask)
        to_words, to_regions = self._run(codes, view, words)
        said = torch.cat((words, words.new_full((len(words), 1), END)), dim=1)
        log_weights = (
            self._log_given(to_regions, view, said) if conditional else self._log_regions(to_words, to_regions, view)
        )
        weights = log_weights.exp()[..., : areas.shape[1]]
        return weights if mask is None else weights * mask[:, None]

    def look(self, areas: Tensor, mask: Tensor | None = None) -> Looking:
        """The speaker that :func:`saywhere.language.decoding.decode` needs, for pictures with these areas."""
        return Looking(self, self._view(areas, mask))

    def _view(self, areas: Tensor, mask: Tensor | None) -> _View:
        """The areas, with one of zeros in pictures that have none: it gives the baseline's words and no feedback."""
        if mask is None:
            mask = torch.ones(areas.shape[:2], dtype=torch.bool, device=areas.device)
        areas = areas.masked_fill(~mask[..., None], 0)
        if areas.shape[1] == 0:
            areas, mask = areas.new_zeros(len(areas), 1, areas.shape[2]), mask.new_zeros(len(areas), 1)
        first = torch.arange(areas.shape[1], device=areas.device) == 0
        mask = mask | (first & ~mask.any(dim=1, keepdim=True))
        if self.word_region is None:
            return _View(areas, mask, None)
        return _View(areas, mask, WordRegion.of(self.word_region(areas) @ self.words.weight.T, mask))

    def _parts(self, states: Tensor, view: _View) -> tuple[Tensor, Tensor]:
        """The parts of the score ``(N, K, V)`` of words and ``(N, K, R)`` of regions in the states ``(N, K, H)``."""
        said = states.new_zeros(()) if self.word_state is None else self.word_state(states)
        said = said if self.word_bias is None else said + self.word_bias
        wanted = states.new_zeros(()) if self.region_state is None else self.region_state(states)
        wanted = wanted if self.region_bias is None else wanted + self.region_bias
        said = said.expand(*states.shape[:2], self.words.embedding_dim)
        wanted = wanted.expand(*states.shape[:2], view.areas.shape[2])
        to_regions = (wanted @ view.areas.transpose(1, 2)).masked_fill(~view.mask[:, None], -torch.inf)
        return said @ self.words.weight.T, to_regions

    def _log_words(self, to_words: Tensor, to_regions: Tensor, view: _View) -> Tensor:
        """``ln p(w | h)``, ``(N, K, V)``."""
        if view.word_region is None:
            return to_words.log_softmax(dim=2)
        return log_words(to_words, to_regions, view.word_region)

    def _log_regions(self, to_words: Tensor, to_regions: Tensor, view: _View) -> Tensor:
        """``ln p(r | h)``, ``(N, K, R)``."""
        if view.word_region is None:
            return to_regions.log_softmax(dim=2)
        return log_regions(to_words, to_regions, view.word_region)

    def _log_given(self, to_regions: Tensor, view: _View, words: Tensor) -> Tensor:
        """``ln p(r | w, h)``, ``(N, K, R)``, of the words ``(N, K)``."""
        if self.word_region is not None:
            to_regions = to_regions + self.words(words) @ self.word_region(view.areas).transpose(1, 2)
        return to_regions.log_softmax(dim=2)

    def _pooled(self, log_weights: Tensor, view: _View) -> Tensor:
        """``v_t (N, K, D)`` (Eq. 6)."""
        return log_weights.exp().to(view.areas.dtype) @ view.areas

    def _run(self, codes: Tensor, view: _View, words: Tensor) -> tuple[Tensor, Tensor]:
        """The parts of the score in the states after START and after each of ``words (N, T)`` or ``(N, K, T)``.

        The steps of a picture's K sentences lie one sentence after the other: ``(N, K (T + 1), ...)``.
        """
        words = words[:, None] if words.dim() == 2 else words
        heard = torch.cat((words.new_full((*words.shape[:2], 1), START), words), dim=2)
        n, k, steps = heard.shape
        state = self.begin(self.dropout(codes))[:, None].expand(-1, k, -1)
        if self.feedback == "none":
            inputs = self.dropout(self.words(heard)).reshape(n * k, steps, -1)
            hidden = self.gru(inputs, state.reshape(1, n * k, -1).contiguous())[0]
            return self._parts(self.dropout(hidden).reshape(n, k * steps, -1), view)
        parts = [self._parts(self.dropout(state), view)]
        for t in range(steps):
            state = self._next(heard[..., t], state, self._seen(parts[-1], view, heard[..., t]))
            parts.append(self._parts(self.dropout(state), view))
        to_words, to_regions = (torch.stack(part, dim=2).flatten(1, 2) for part in zip(*parts[1:], strict=True))
        return to_words, to_regions

    def _seen(self, parts: tuple[Tensor, Tensor], view: _View, words: Tensor) -> Tensor:
        """The feedback ``v_t`` of a step whose parts of the score are given, and in which ``words (N, K)`` are said."""
        if self.feedback == "conditional":
            return self._pooled(self._log_given(parts[1], view, words), view)
        return self._pooled(self._log_regions(*parts, view), view)

    def _next(self, words: Tensor, state: Tensor, seen: Tensor | None) -> Tensor:
        """The state ``(N, K, H)`` after ``words (N, K)`` and the feedback (Eq. 7)."""
        heard = self.words(words)
        heard = self.dropout(heard if seen is None else torch.cat((heard, seen), dim=2))
        return torch.gru_cell(heard.flatten(0, 1), state.flatten(0, 1), *self.gru.all_weights[0]).reshape(state.shape)


class Looking:
    """An :class:`AttentionSpeaker` before N pictures; hypotheses of a picture stand in neighbouring rows of a state.

    The state is h and, with marginal feedback, v: ``(N K, H)`` and ``(N K, D)`` with K hypotheses a picture.
    """

    def __init__(self, speaker: AttentionSpeaker, view: _View):
        self._speaker, self._view = speaker, view

    def start(self, codes: Tensor) -> State:
        """The state of each of the N pictures after hearing its code ``(N, D)``."""
        state = self._speaker.begin(codes)[:, None]
        return self._state(state, self._speaker._parts(state, self._view))

    def _state(self, state: Tensor, parts: tuple[Tensor, Tensor]) -> State:
        if self._speaker.feedback != "marginal":
            return (state.flatten(0, 1),)
        seen = self._speaker._seen(parts, self._view, torch.empty(0))
        return state.flatten(0, 1), seen.flatten(0, 1)

    def step(self, words: Tensor, state: State) -> tuple[Tensor, State]:
        """Log-probabilities ``(N K, V)`` of the word after ``words (N K,)``, and the next state."""
        n, speaker, view = len(self._view.areas), self._speaker, self._view
        hidden, *seen = (part.reshape(n, -1, part.shape[1]) for part in state)
        words = words.reshape(n, -1)
        if speaker.feedback == "conditional":
            parts = speaker._parts(hidden, view)
            seen = [speaker._seen(parts, view, words)]
        hidden = speaker._next(words, hidden, seen[0] if seen else None)
        parts = speaker._parts(hidden, view)
        return speaker._log_words(*parts, view).flatten(0, 1), self._state(hidden, parts)

"""The decoder with attention to regions: Areas of Attention (section 3.2, Eqs. 4 to 7).

Training, and reading the attention::

    decoder = AttentionDecoder(embed_dim, region_size, len(vocabulary), word_size=256, hidden_size=512)
    log_probs = decoder(embeddings, regions, token_ids, mask)          # teacher forcing: (N, T + 1, V)
    weights = decoder.attention(embeddings, regions, token_ids, mask)  # p(r_t | h_t), also of END: (N, T + 1, R)

Decoding: :meth:`AttentionDecoder.bind` binds the regions and returns a word-by-word decoder. All hypotheses of a beam
search share the regions of their image.

``embeddings (N, D_e)`` describe whole images (phi(I) in section 3.1), ``regions (N, R, D_r)`` their regions. Images
with fewer regions are padded and ``mask (N, R)`` is True for real ones (:func:`pad_regions` makes both); padding has no
effect. R may differ between training and inference, and be 0. Several sentences per image, ``token_ids (N, K, T)``,
share its tables.

Rows of the paper's Table 1, as ``terms`` and ``feedback``:

==============================  ================================================================  =============
baseline                        word-state, word                                                  none
theta_wh, theta_wr              word-state, word-region, word, region                             none
theta_wh, theta_wr, theta_rh    all five                                                          none
conditional feedback            all five                                                          conditional
full model                      all five                                                          marginal
==============================  ================================================================  =============

The score of a word, a region and a state (Eq. 5) is a sum of three parts::

    s(w, r, h) = a(w, h) + m(w, r) + c(r, h)
    a(w, h) = w' W theta_wh h + w' W theta_w      word-state, word
    m(w, r) = w' W theta_wr R' r                  word-region: the same in every state
    c(r, h) = r' R theta_rh h + r' R theta_r      region-state, region

so that both marginals are products with one table ``exp m`` per image, shared by all its states::

    p(w | h) ~ exp a(w) * sum_r exp c(r) exp m(w, r)
    p(r | h) ~ exp c(r) * sum_w exp a(w) exp m(w, r)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from saywhere.configs.captioner import TERMS, Feedback, Term
from saywhere.networks.language.decoders.protocol import State, TensorDecoder, after_start
from saywhere.options import dataclass
from saywhere.text import END, PAD

BLOCK = 512
"""Words per block when sums are computed in log space."""


@dataclass(frozen=True, eq=False)
class WordRegion:
    """The word-region part m for several images, computed once and used in every step.

    Attributes:
        peak: ``(N, V)`` maximum of m over the image's regions, for each word; detached.
        table: ``(N, R, V)`` exp(m - peak): at most 1, and 0 for padded regions.
        scores: ``(N, R, V)`` m - peak, kept only if m varies so much over the regions that sums of the table's products
            could underflow. The marginal over regions is then computed in log space.
    """

    peak: Tensor
    table: Tensor
    scores: Tensor | None

    @classmethod
    def of(cls, word_region: Tensor, mask: Tensor) -> WordRegion:
        """Build the table from m ``(N, R, V)`` and the mask ``(N, R)`` of real regions, at least one per image."""
        word_region, absent = _single(word_region), ~mask[..., None]
        with torch.no_grad():
            peak = word_region.masked_fill(absent, -torch.inf).amax(dim=1)
            least = word_region.masked_fill(absent, torch.inf).amin(dim=1)
            wide = bool(((peak - least) > _limit(peak.dtype)).any())
        scores = word_region - peak[:, None]
        table = scores.masked_fill(absent, -torch.inf).exp()
        return cls(peak, table, scores if wide else None)


def log_words(words: Tensor, regions: Tensor, word_region: WordRegion) -> Tensor:
    """Return ``ln p(w | h)``, ``(N, K, V)``: the marginal distribution of the next word.

    Takes a, ``words (N, K, V)``; c, ``regions (N, K, R)``, minus infinity for padded regions; and m.
    """
    words, regions = _single(words), _single(regions)
    top = regions.detach().amax(dim=2, keepdim=True)
    least = regions.detach().masked_fill(regions == -torch.inf, torch.inf).amin(dim=2, keepdim=True)
    if word_region.scores is not None and bool((top - least > _limit(regions.dtype)).any()):
        summed = _log_over_regions(regions, word_region.scores)
    else:  # the region with the largest c, or with the largest m, keeps each sum from underflowing
        summed = _product((regions - top).exp(), word_region.table).log()
    return (words + word_region.peak[:, None] + summed).log_softmax(dim=2)


def log_regions(words: Tensor, regions: Tensor, word_region: WordRegion) -> Tensor:
    """Return ``ln p(r | h)``, ``(N, K, R)``: the region weights of Eq. 6. Arguments as in :func:`log_words`."""
    regions, heights = _single(regions), _single(words) + word_region.peak[:, None]
    if word_region.scores is not None:
        summed = _log_over_words(heights, word_region.scores)
    else:
        top = heights.detach().amax(dim=2, keepdim=True)
        summed = _product((heights - top).exp(), word_region.table.transpose(1, 2)).clamp(min=_tiny(top.dtype)).log()
    return (regions + summed).log_softmax(dim=2)


def _log_over_regions(regions: Tensor, scores: Tensor) -> Tensor:
    """Return ``ln sum_r exp(c + m - peak)``, ``(N, K, V)``, in blocks of words that the backward pass recomputes."""

    def block(regions: Tensor, scores: Tensor) -> Tensor:
        return (regions[..., None] + scores[:, None]).logsumexp(dim=2)

    return torch.cat([_again(block, regions, part) for part in scores.split(BLOCK, dim=2)], dim=2)


def _log_over_words(heights: Tensor, scores: Tensor) -> Tensor:
    """Return ``ln sum_w exp(a + m)``, ``(N, K, R)`` up to a constant, in blocks as :func:`_log_over_regions`."""

    def block(heights: Tensor, scores: Tensor) -> Tensor:
        return (heights[:, :, None] + scores[:, None]).logsumexp(dim=3)

    parts = zip(heights.split(BLOCK, dim=2), scores.split(BLOCK, dim=2), strict=True)
    return torch.stack([_again(block, *part) for part in parts]).logsumexp(dim=0)


def _again(block: Callable[[Tensor, Tensor], Tensor], a: Tensor, b: Tensor) -> Tensor:
    """Return the block's value without keeping its intermediate results for the backward pass."""
    result = checkpoint(block, a, b, use_reentrant=False)
    assert isinstance(result, Tensor)
    return result


def _single(scores: Tensor) -> Tensor:
    """Convert to single precision or better: half is too coarse for sums over a vocabulary."""
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Return the matrix product in the precision of its factors, even under automatic mixed precision."""
    with torch.autocast(a.device.type, enabled=False):
        return a @ b


def _tiny(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).tiny


def _limit(dtype: torch.dtype) -> float:
    """Return how far scores may vary for exact sums: exp(-limit) is 5e11 times the smallest normal number."""
    return -math.log(_tiny(dtype)) - 27


def pad_regions(features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Pad the regions ``(R_i, D)`` of N images to ``(N, R, D)`` with zeros; return them and the mask ``(N, R)``."""
    regions = nn.utils.rnn.pad_sequence(list(features), batch_first=True)
    counts = torch.tensor([len(rows) for rows in features], device=regions.device)
    return regions, torch.arange(regions.shape[1], device=regions.device) < counts[:, None]


@dataclass(frozen=True, eq=False)
class _Regions:
    """What each step needs of N images: features ``(N, R, D)``, mask of regions that count, and word-region part."""

    features: Tensor
    mask: Tensor
    word_region: WordRegion | None


class AttentionDecoder(nn.Module):
    """Decode an image's embedding and regions by the joint distribution p(w, r | h) over words and regions.

    With ``W`` = ``words``, ``g`` = ``gru``, ``theta_hi`` = ``begin`` and R the regions of an image, one per row::

        h_0 = theta_hi embedding
        p(w, r | h) ~ exp s(w, r, h)                                                              (4)
        s = w'W theta_wh h + w'W theta_wr R'r + r'R theta_rh h + w'W theta_w + r'R theta_r         (5)
        v_t = sum_r p(r | h_t) r'R    or with p(r | w_t, h_t) if feedback is conditional           (6)
        h_{t+1} = g(h_t, [W'w_t, v_t])                                                            (7)

    The GRU's first input is START and the feedback of h_0. With the terms ``word-state`` and ``word`` alone and without
    feedback it is the encoder-decoder of section 3.1 (Eqs. 1 to 3), as it is for an image without regions, or with
    all-zero features.

    Args:
        embed_dim: size of the image embeddings.
        region_size: size D of the region features.
        vocabulary_size: V, reserved tokens included.
        word_size: size of the word vectors, which are both inputs and outputs.
        dropout: dropout probability on the embeddings and on the GRU's inputs and outputs.
        terms: of Eq. 5, any of :data:`saywhere.configs.captioner.TERMS`.
        feedback: which attention weights pool the region features that the GRU takes as input.
    """

    def __init__(
        self,
        embed_dim: int,
        region_size: int,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        terms: Sequence[Term] = TERMS,
        feedback: Feedback = "marginal",
    ):
        super().__init__()
        self.feedback: Feedback = feedback
        self.begin = nn.Linear(embed_dim, hidden_size)
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        input_size = word_size + (region_size if feedback != "none" else 0)
        self.gru = nn.GRU(input_size, hidden_size, batch_first=True)
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
        self,
        embeddings: Tensor,
        regions: Tensor,
        token_ids: Tensor,
        mask: Tensor | None = None,
        real: Tensor | None = None,
    ) -> Tensor:
        """Return the log-probabilities ``(N, T + 1, V)`` of each of ``token_ids (N, T)`` and of the END after them.

        ``token_ids`` have neither START nor END and are padded on the right; outputs after the END are undefined. For
        ``token_ids (N, K, T)`` each image has K sentences: ``(N, K, T + 1, V)``. With a mask ``real (N, T + 1)`` or
        ``(N, K, T + 1)`` only its positions are returned, in order: ``(positions, V)``.
        """
        bound = self._bind(regions, mask)
        to_words, to_regions = self._run(embeddings, bound, token_ids)
        log_probs = self._log_words(to_words, to_regions, bound)
        log_probs = log_probs.reshape(*token_ids.shape[:-1], token_ids.shape[-1] + 1, -1)
        return log_probs if real is None else log_probs[real]

    @torch.no_grad()
    def attention(
        self,
        embeddings: Tensor,
        regions: Tensor,
        token_ids: Tensor,
        mask: Tensor | None = None,
        conditional: bool = False,
    ) -> Tensor:
        """Return the region weights ``(N, T + 1, R)`` at each of ``token_ids (N, T)`` and at the END after them.

        They are p(r_t | h_t), or with ``conditional`` p(r_t | w_t, h_t) given the word of the step (END in the last
        one). Each row sums to 1; an image without regions has zeros.
        """
        bound = self._bind(regions, mask)
        to_words, to_regions = self._run(embeddings, bound, token_ids)
        if conditional:
            words = torch.cat((token_ids, token_ids.new_full((len(token_ids), 1), END)), dim=1)
            log_weights = self._log_regions_given(to_regions, bound, words)
        else:
            log_weights = self._log_regions(to_words, to_regions, bound)
        weights = log_weights.exp()[..., : regions.shape[1]]
        return weights if mask is None else weights * mask[:, None]

    def bind(self, regions: Tensor, mask: Tensor | None = None) -> BoundDecoder:
        """Return the word-by-word decoder for images with these regions."""
        return BoundDecoder(self, self._bind(regions, mask))

    def _bind(self, regions: Tensor, mask: Tensor | None) -> _Regions:
        """Give images without regions a single one of zeros, which yields the baseline's words and no feedback."""
        if mask is None:
            mask = torch.ones(regions.shape[:2], dtype=torch.bool, device=regions.device)
        regions = regions.masked_fill(~mask[..., None], 0)
        if regions.shape[1] == 0:
            regions, mask = regions.new_zeros(len(regions), 1, regions.shape[2]), mask.new_zeros(len(regions), 1)
        first = torch.arange(regions.shape[1], device=regions.device) == 0
        mask = mask | (first & ~mask.any(dim=1, keepdim=True))
        if self.word_region is None:
            return _Regions(regions, mask, None)
        return _Regions(regions, mask, WordRegion.of(self.word_region(regions) @ self.words.weight.T, mask))

    def _parts(self, states: Tensor, bound: _Regions) -> tuple[Tensor, Tensor]:
        """Return the score parts ``(N, K, V)`` of words and ``(N, K, R)`` of regions in the states ``(N, K, H)``."""
        to_words = states.new_zeros(()) if self.word_state is None else self.word_state(states)
        to_words = to_words if self.word_bias is None else to_words + self.word_bias
        to_regions = states.new_zeros(()) if self.region_state is None else self.region_state(states)
        to_regions = to_regions if self.region_bias is None else to_regions + self.region_bias
        to_words = to_words.expand(*states.shape[:2], self.words.embedding_dim)
        to_regions = to_regions.expand(*states.shape[:2], bound.features.shape[2])
        scores = (to_regions @ bound.features.transpose(1, 2)).masked_fill(~bound.mask[:, None], -torch.inf)
        return to_words @ self.words.weight.T, scores

    def _log_words(self, to_words: Tensor, to_regions: Tensor, bound: _Regions) -> Tensor:
        """Return ``ln p(w | h)``, ``(N, K, V)``."""
        if bound.word_region is None:
            return to_words.log_softmax(dim=2)
        return log_words(to_words, to_regions, bound.word_region)

    def _log_regions(self, to_words: Tensor, to_regions: Tensor, bound: _Regions) -> Tensor:
        """Return ``ln p(r | h)``, ``(N, K, R)``."""
        if bound.word_region is None:
            return to_regions.log_softmax(dim=2)
        return log_regions(to_words, to_regions, bound.word_region)

    def _log_regions_given(self, to_regions: Tensor, bound: _Regions, token_ids: Tensor) -> Tensor:
        """Return ``ln p(r | w, h)``, ``(N, K, R)``, for the words ``(N, K)``."""
        if self.word_region is not None:
            to_regions = to_regions + self.words(token_ids) @ self.word_region(bound.features).transpose(1, 2)
        return to_regions.log_softmax(dim=2)

    def _run(self, embeddings: Tensor, bound: _Regions, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the score parts in the states after START and after each of ``token_ids (N, T)`` or ``(N, K, T)``.

        The steps of an image's K sentences are concatenated: ``(N, K (T + 1), ...)``.
        """
        token_ids = token_ids[:, None] if token_ids.dim() == 2 else token_ids
        inputs = after_start(token_ids)
        n, k, steps = inputs.shape
        state = self.begin(self.dropout(embeddings))[:, None].expand(-1, k, -1)
        if self.feedback == "none":
            vectors = self.dropout(self.words(inputs)).reshape(n * k, steps, -1)
            hidden = self.gru(vectors, state.reshape(1, n * k, -1).contiguous())[0]
            return self._parts(self.dropout(hidden).reshape(n, k * steps, -1), bound)
        parts = [self._parts(self.dropout(state), bound)]
        for t in range(steps):
            state = self._next(inputs[..., t], state, self._feedback(parts[-1], bound, inputs[..., t]))
            parts.append(self._parts(self.dropout(state), bound))
        to_words, to_regions = (torch.stack(part, dim=2).flatten(1, 2) for part in zip(*parts[1:], strict=True))
        return to_words, to_regions

    def _feedback(self, parts: tuple[Tensor, Tensor], bound: _Regions, token_ids: Tensor | None) -> Tensor:
        """Return ``v_t (N, K, D)`` (Eq. 6), given a step's score parts and, if conditional, words ``(N, K)``."""
        if self.feedback == "conditional" and token_ids is not None:
            log_weights = self._log_regions_given(parts[1], bound, token_ids)
        else:
            log_weights = self._log_regions(*parts, bound)
        return log_weights.exp().to(bound.features.dtype) @ bound.features

    def _next(self, token_ids: Tensor, state: Tensor, feedback: Tensor | None) -> Tensor:
        """Return the state ``(N, K, H)`` after ``token_ids (N, K)`` and the feedback (Eq. 7)."""
        inputs = self.words(token_ids)
        inputs = self.dropout(inputs if feedback is None else torch.cat((inputs, feedback), dim=2))
        return torch.gru_cell(inputs.flatten(0, 1), state.flatten(0, 1), *self.gru.all_weights[0]).reshape(state.shape)


class BoundDecoder(TensorDecoder):
    """An :class:`AttentionDecoder` bound to the regions of N images; hypotheses of an image are adjacent rows.

    The state is h and, with marginal feedback, v: ``(N K, H)`` and ``(N K, D)`` for K hypotheses per image.
    """

    independent = False  # the position of a row determines its image

    def __init__(self, decoder: AttentionDecoder, bound: _Regions):
        self._decoder, self._bound = decoder, bound

    def start(self, embeddings: Tensor) -> State:
        """Return the state of each of the N images after its embedding ``(N, D)``."""
        state = self._decoder.begin(embeddings)[:, None]
        return self._state(state, self._decoder._parts(state, self._bound))

    def _state(self, state: Tensor, parts: tuple[Tensor, Tensor]) -> State:
        if self._decoder.feedback != "marginal":
            return (state.flatten(0, 1),)
        return state.flatten(0, 1), self._decoder._feedback(parts, self._bound, None).flatten(0, 1)

    def step(self, token_ids: Tensor, state: State) -> tuple[Tensor, State]:
        n, decoder, bound = len(self._bound.features), self._decoder, self._bound
        hidden, *feedback = (part.reshape(n, -1, part.shape[1]) for part in state)
        token_ids = token_ids.reshape(n, -1)
        if decoder.feedback == "conditional":
            feedback = [decoder._feedback(decoder._parts(hidden, bound), bound, token_ids)]
        hidden = decoder._next(token_ids, hidden, feedback[0] if feedback else None)
        parts = decoder._parts(hidden, bound)
        return decoder._log_words(*parts, bound).flatten(0, 1), self._state(hidden, parts)

"""The aligner and its text encoder: match words with regions, and sentences with images.

Deep Visual-Semantic Alignments, section 3.1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from saywhere import reproductions
from saywhere.configs.aligner import AlignerConfig, Cell, Score
from saywhere.networks.aligner.loss import AlignmentOutput, SentenceTarget
from saywhere.networks.normalisation import BatchNorm
from saywhere.networks.vision.region_features import ImageMaps, RegionExtractor, feature_size
from saywhere.networks.vision.trunk import Trunk
from saywhere.text import END, PAD, UNKNOWN, Vocabulary


class EncodedText(NamedTuple):
    """Encoded sentences: ``vectors (S, T, D)``, zero where padded, and ``mask (S, T)``, True for real tokens."""

    vectors: Tensor
    mask: Tensor


class ReluContext(nn.Module):
    """One direction of Eqs. 4 and 5: ``h_t = f(e_t + W h_(t-1) + b)``, where f is the ReLU and the initial h is 0.

    Args:
        size: of ``e`` and ``h``.
    """

    def __init__(self, size: int):
        super().__init__()
        self.recurrent = nn.Linear(size, size)
        with torch.no_grad():  # ReLU recurrences neither die nor explode if initialised near the identity
            self.recurrent.weight.normal_(std=0.01)
            self.recurrent.weight.add_(0.5 * torch.eye(size))
            self.recurrent.bias.zero_()

    def forward(self, inputs: Tensor, mask: Tensor, backward: bool) -> Tensor:
        """Return states ``(S, T, H)`` for ``inputs (S, T, H)``; padding has state 0 and affects no other state."""
        state = inputs.new_zeros(inputs.shape[0], inputs.shape[2])
        states: list[Tensor] = []
        times = range(inputs.shape[1])
        for t in reversed(times) if backward else times:
            state = torch.relu(inputs[:, t] + self.recurrent(state)).where(mask[:, t, None], 0.0)
            states.append(state)
        if not states:
            return inputs
        return torch.stack(states[::-1] if backward else states, dim=1)


class TextEncoder(nn.Module):
    """Encode words as vectors in the embedding space of the regions.

    ``cell="relu"`` is the bidirectional RNN of Eqs. 2 to 6. ``gru`` replaces Eqs. 4 and 5 by such cells; ``none`` drops
    them, so that each word is encoded on its own.

    Args:
        vocabulary_size: V, reserved tokens included.
        word_size: size of the word vectors x (Eq. 2).
        hidden_size: size of e and h (Eqs. 3 to 5).
        out_size: size D of the vectors s (Eq. 6).
        dropout: dropout probability on x, e and h; never on the recurrence.
        rectified: f in Eq. 6 is the ReLU; otherwise s may have any sign.
        residual: add e to the states of a GRU, as in Eqs. 4 and 5.
    """

    def __init__(
        self,
        vocabulary_size: int,
        word_size: int,
        hidden_size: int,
        out_size: int,
        cell: Cell = "relu",
        dropout: float = 0.0,
        rectified: bool = True,
        residual: bool = False,
    ):
        super().__init__()
        self.cell, self.rectified, self.residual = cell, rectified, residual
        self.words = nn.Embedding(vocabulary_size, word_size, padding_idx=PAD)
        self.encode = nn.Linear(word_size, hidden_size)
        if cell == "relu":
            self.forwards, self.backwards = ReluContext(hidden_size), ReluContext(hidden_size)
        elif cell == "gru":
            self.context = nn.GRU(hidden_size, hidden_size, batch_first=True, bidirectional=True)
        self.decode = nn.Linear(hidden_size, out_size)
        self.dropout = nn.Dropout(dropout)
        with torch.no_grad():
            self.words.weight.normal_(std=0.2)
            self.words.weight[PAD] = 0

    def forward(self, token_ids: Tensor) -> EncodedText:
        """Encode sentences ``token_ids (S, T)``, padded on the right.

        Padding does not affect the result. An empty sentence has no vectors.
        """
        mask = token_ids != PAD
        inputs = torch.relu(self.encode(self.dropout(self.words(token_ids))))  # Eqs. 2 and 3
        states = self._context(self.dropout(inputs), mask)
        vectors = self.decode(self.dropout(states))  # Eq. 6
        vectors = torch.relu(vectors) if self.rectified else vectors
        return EncodedText(vectors.where(mask[..., None], 0.0), mask)

    def _context(self, inputs: Tensor, mask: Tensor) -> Tensor:
        """Return the sum ``(S, T, H)`` of the states of both directions."""
        if self.cell == "none":
            return inputs
        if self.cell == "relu":
            return self.forwards(inputs, mask, backward=False) + self.backwards(inputs, mask, backward=True)
        if not mask.any():
            return torch.zeros_like(inputs)  # nothing to pack
        lengths = mask.sum(dim=1).clamp(min=1).cpu()  # an empty sentence counts as one padded word, masked below
        packed = pack_padded_sequence(inputs, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.context(packed)[0], batch_first=True, total_length=inputs.shape[1])
        left, right = states.chunk(2, dim=-1)
        return left + right + inputs if self.residual else left + right


FLAT = 1e-6
"""The square root of a feature below this magnitude passes no gradient."""


class Aligner(nn.Module):
    """Embed regions and words in one space.

    Args:
        trunk: possibly shared with other systems. Its localization layer comes from a trained DenseCap, see
            :meth:`saywhere.networks.vision.trunk.Trunk.take_from`.

    Attributes:
        extractor: computes from pixels the regions that training may cache; holds the trunk.

    Raises:
        UserError: the trunk lacks a part that the configuration needs.
    """

    def __init__(self, config: AlignerConfig, vocabulary: Vocabulary, trunk: Trunk):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        proposals = config.proposals if config.uses_proposals else None
        trunk.require_parts(proposals is not None, config.head)
        self.trunk = trunk
        read = config.levels, config.head, config.branch
        settings = repr((config.trunk, *read, config.regions, config.proposals))
        # In a tuple, so that the trunk's weights are not registered a second time under the extractor.
        self._extractor = (RegionExtractor(trunk, config, proposals, settings),)
        features, dim = feature_size(trunk, config.levels, config.layout), config.embed_dim // config.encoders
        self.standardise = BatchNorm(features, affine=False)
        self.feature_dropout = nn.Dropout(config.feature_dropout)
        self.projects = nn.ModuleList(nn.Linear(features, dim) for _ in range(config.encoders))
        self.encoders = nn.ModuleList(_text_encoder(config, len(vocabulary), dim) for _ in range(config.encoders))
        self.hubs = Hubs(config.embed_dim, config.hubs) if config.hubs else None
        self.log_scale = nn.Parameter(torch.tensor(-math.log(config.temperature)))
        self.log_scale.requires_grad_(config.loss == "contrastive")

    @property
    def extractor(self) -> RegionExtractor:
        """Module that computes from pixels the regions that training may cache."""
        return self._extractor[0]

    def train(self, mode: bool = True) -> Aligner:
        """Set the mode of all parts and the extractor. Frozen projections keep their feature statistics."""
        super().train(mode)
        self.standardise.train(mode and any(weight.requires_grad for weight in self.projects.parameters()))
        self.extractor.train(mode)
        return self

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[SentenceTarget],
        generator: torch.Generator | None = None,
    ) -> list[AlignmentOutput]:
        """Return the scores of all images of a batch with all its sentences.

        Args:
            features: per image, the extractor's ``features (1, R, F)`` and ``boxes (1, R, 4)``.
            targets: the sentences of each image.
            generator: drives the word dropout.

        Returns:
            One output per text encoder in training; otherwise a single output of all encoders together.
        """
        regions, mask = self.embed_regions([row[0][0] for row in features])
        token_ids = pad_sequence([row for t in targets for row in t.token_ids], batch_first=True, padding_value=PAD)
        counts = torch.tensor([len(t.token_ids) for t in targets], device=token_ids.device)
        owner = torch.arange(len(targets), device=token_ids.device).repeat_interleave(counts)
        encoded = self.encode_text(self.drop_words(token_ids, generator))
        scale = self.log_scale.exp() if self.config.loss == "contrastive" else 1.0
        parts = self.config.encoders if self.training else 1
        outputs = []
        split = (vectors.chunk(parts, dim=-1) for vectors in (regions, self.weighed(encoded)))
        for part, words in zip(*split, strict=True):
            part = part * parts  # a part adds to the mean its own product times the number of parts
            scores = pair_scores(part, mask, words, encoded.mask, self.config.score)
            outputs.append(AlignmentOutput(scores * scale, owner))
        return outputs

    def drop_words(self, token_ids: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return sentences ``(S, T)``, in training with words set to UNKNOWN at the rate ``config.word_dropout``.

        In relations ``(S, T, 3)`` either of the two words may be replaced, but not the kind.
        """
        if not self.training or self.config.word_dropout == 0:
            return token_ids
        dropped = torch.rand(token_ids.shape, generator=generator).to(token_ids.device) < self.config.word_dropout
        if self.config.parses is not None:
            dropped[..., 2] = False
        return token_ids.masked_fill(dropped & (token_ids > END), UNKNOWN)

    def region_features(self, image: ImageMaps, boxes: Tensor) -> Tensor:
        """Return the features ``(R, F)`` of boxes ``(R, 4)`` in input pixels."""
        return image.features(boxes, self.config)

    def embed_regions(self, features: Sequence[Tensor], last: bool = False) -> tuple[Tensor, Tensor]:
        """Return the vectors ``(K, R, D)`` of features ``(R_k, F)`` (Eq. 1), and the mask ``(K, R)`` of real ones.

        ``last``: use the last encoder only.
        """
        counts = [len(rows) for rows in features]
        flat = torch.cat(list(features)).float()
        if self.config.signed_sqrt:
            flat = _signed_sqrt(flat)
        flat = self.standardise(flat)
        projects = list(self.projects)[-1 if last else 0 :]
        parts = [project(self.feature_dropout(flat)) for project in projects]
        vectors = _side_by_side(parts)
        mask = pad_sequence([torch.ones(n, dtype=torch.bool, device=flat.device) for n in counts], batch_first=True)
        return pad_sequence(list(vectors.split(counts)), batch_first=True), mask

    def encode_text(self, token_ids: Tensor, last: bool = False) -> EncodedText:
        """Return the word vectors of sentences ``token_ids (S, T)``, padded on the right (Eqs. 2 to 6).

        With ``config.sentence_token`` each sentence ends with END. With ``config.parses`` the input is relations ``(S,
        T, 3)``. ``last``: use the last encoder only.
        """
        encoded = [encoder(token_ids) for encoder in list(self.encoders)[-1 if last else 0 :]]
        vectors = _side_by_side([text.vectors for text in encoded])
        return EncodedText(vectors, encoded[0].mask)

    def weighed(self, encoded: EncodedText) -> Tensor:
        """Return the word vectors ``(S, T, D)`` whose products with their best regions sum to the score.

        With ``config.mean_over_words`` each word is divided by the number of words. END stands for the whole sentence
        and counts as much as all words together.
        """
        if not self.config.mean_over_words:
            return encoded.vectors
        counts = encoded.mask.sum(dim=1, keepdim=True)
        if not self.config.sentence_token:
            return encoded.vectors / counts.clamp(min=1)[..., None]
        is_end = torch.arange(encoded.mask.shape[1], device=counts.device) == counts - 1
        return encoded.vectors / torch.where(is_end, 1, (counts - 1).clamp(min=1))[..., None]


class Hubs(nn.Module):
    """Typical texts and images (:class:`saywhere.engines.engine.Hubness`), fitted separately from the network.

    Args:
        count: number of typical texts, and of typical images.
    """

    temperatures: Tensor

    def __init__(self, size: int, count: int) -> None:
        super().__init__()
        self.texts, self.images = nn.Linear(size, count), nn.Linear(size, count)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("temperatures", torch.ones(2))
        self.requires_grad_(False)


def _text_encoder(config: AlignerConfig, words: int, dim: int) -> nn.Module:
    if config.parses is not None:
        kinds = len(config.relations) + 1
        encoder = reproductions.find("encoder=relations")
        return encoder(words, config.word_size, dim, kinds, config.dropout, config.rectified)
    return TextEncoder(
        words, config.word_size, config.hidden_size, dim, config.cell, config.dropout, config.rectified, config.residual
    )


def _signed_sqrt(features: Tensor) -> Tensor:
    """Return the signed square root of each feature, with a gradient that stays finite at 0."""
    root = features.abs().clamp(min=FLAT).sqrt()
    return features.sign() * (root + (features.detach().abs().sqrt() - root.detach()))


def _side_by_side(parts: Sequence[Tensor]) -> Tensor:
    """Concatenate the vectors of all encoders, scaled so that a product is the mean of the encoders' products."""
    return torch.cat(list(parts), dim=-1) / math.sqrt(len(parts))


def pair_scores(regions: Tensor, region_mask: Tensor, words: Tensor, word_mask: Tensor, score: Score = "max") -> Tensor:
    """Return the scores ``S_kl`` of all images k with all sentences l, computed as one masked contraction.

    ``max`` is Eq. 8: the sum over words of the product with their best region. ``fragments`` is Eq. 7: the sum of all
    positive products. Padded regions and words never affect a score. An image without regions scores 0.
    :mod:`saywhere.models.aligner` computes the same scores at inference.

    Args:
        regions: ``(K, R, D)``. region_mask: ``(K, R)``, True for real regions.
        words: ``(L, T, D)``. word_mask: ``(L, T)``, True for real words.

    Returns:
        ``(K, L)``, differentiable in regions and words.
    """
    real = words[word_mask]  # (W, D): skip products with padding
    sentence = torch.arange(len(words), device=words.device)[:, None].expand(word_mask.shape)[word_mask]
    products = (regions.flatten(0, 1) @ real.T).unflatten(0, regions.shape[:2])  # (K, R, W)
    hidden = ~region_mask[..., None]
    if score == "fragments":
        best = (
            torch.relu(products)
            .masked_fill(hidden, 0.0)
            .sum(dim=1, dtype=torch.promote_types(products.dtype, torch.float32))
        )
    elif regions.shape[1] == 0:
        best = products.sum(dim=1)
    else:
        best = products.masked_fill(hidden, -torch.inf).amax(dim=1)
        best = best.where(region_mask.any(dim=1, keepdim=True), 0.0)
    best = best.to(torch.promote_types(best.dtype, torch.float32))  # half precision is too coarse for long sums
    return best.new_zeros(len(regions), len(words)).index_add(1, sentence, best)

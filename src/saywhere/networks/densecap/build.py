"""The parts of a DenseCap that are made one way by default and another in the published program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from torch import Tensor, nn

from saywhere import reproductions
from saywhere.box_coding import BoxCoder
from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.protocol import TensorDecoder
from saywhere.networks.vision.roi_pooling import pool_pyramid
from saywhere.ops.box_sampling import RegionSampler

Pool = Callable[[Sequence[Tensor], Tensor, tuple[int, int]], Tensor]
"""Returns features ``(N, C, size, size)`` of maps, boxes ``(N, 4)`` in the box coder's format, and the input's size."""


class RegionDecoder(TensorDecoder, Protocol):
    """A decoder of region embeddings; see :class:`saywhere.networks.language.decoders.lstm.LstmDecoder`."""

    @property
    def words(self) -> nn.Embedding:
        """The word vectors."""
        ...

    def __call__(self, embeddings: Tensor, token_ids: Tensor, real: Tensor | None = None) -> Any:
        """Return the logits of words, for training."""
        ...


class Conventions:
    """Make the box coder, the pooling, the sampler of anchors and the decoder of a DenseCap from its options."""

    def box_coder(self, config: DenseCapConfig) -> BoxCoder:
        """Return the format of the boxes, and how they are placed, compared and clipped."""
        return BoxCoder(config.max_log_scale)

    def pooling(self, config: DenseCapConfig) -> Pool:
        """Return the pooling of boxes from maps."""
        strides = config.trunk.strides
        return lambda maps, boxes, size: pool_pyramid(maps, strides, boxes, config.pool_size, config.pooling)

    def rpn_sampler(self, config: DenseCapConfig) -> RegionSampler:
        """Return what samples the anchors that train the RPN."""
        return RegionSampler(config.rpn_batch, config.rpn_fg_iou, config.rpn_bg_iou)

    def decoder(self, config: DenseCapConfig, vocabulary_size: int) -> RegionDecoder:
        """Return the decoder of region embeddings."""
        sizes = config.word_size, config.hidden_size
        return LstmDecoder(config.embed_dim, vocabulary_size, *sizes, config.decoder_dropout)


def find_conventions(config: DenseCapConfig) -> Conventions:
    """Return the conventions that the options name."""
    if config.conventions == "saywhere":
        return Conventions()
    return reproductions.find(f"conventions={config.conventions}")()

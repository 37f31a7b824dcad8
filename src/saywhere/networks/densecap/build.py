"""The parts of a DenseCap that are made one way by default and another in the published program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from saywhere.box_coding import BoxCoder
from saywhere.configs.densecap import DenseCapConfig
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.original import OriginalDecoder
from saywhere.networks.vision.roi_pooling import pool_pyramid
from saywhere.ops.box_sampling import RegionSampler
from saywhere.original.box_coding import OriginalBoxCoder
from saywhere.original.sampling import roi_pooling

Pool = Callable[[Sequence[Tensor], Tensor, tuple[int, int]], Tensor]
"""Returns features ``(N, C, size, size)`` of maps, boxes ``(N, 4)`` in the box coder's format, and the input's size."""


def build_box_coder(config: DenseCapConfig) -> BoxCoder:
    """Return the format of the boxes, and how they are placed, compared and clipped."""
    kind = OriginalBoxCoder if config.conventions == "original" else BoxCoder
    return kind(config.max_log_scale)


def build_pooling(config: DenseCapConfig) -> Pool:
    """Return the pooling of boxes from maps."""
    if config.conventions == "original":
        return lambda maps, boxes, size: roi_pooling(maps[0], boxes, size[1], size[0], config.pool_size)
    strides = config.trunk.strides
    return lambda maps, boxes, size: pool_pyramid(maps, strides, boxes, config.pool_size, config.pooling)


def build_rpn_sampler(config: DenseCapConfig) -> RegionSampler:
    """Return what samples the anchors that train the RPN; the program's samples negatives again if they are too few."""
    fill = config.conventions == "original"
    return RegionSampler(config.rpn_batch, config.rpn_fg_iou, config.rpn_bg_iou, fill=fill)


def build_decoder(config: DenseCapConfig, vocabulary_size: int) -> LstmDecoder | OriginalDecoder:
    """Return the decoder of region embeddings."""
    kind = OriginalDecoder if config.conventions == "original" else LstmDecoder
    return kind(config.embed_dim, vocabulary_size, config.word_size, config.hidden_size, config.decoder_dropout)

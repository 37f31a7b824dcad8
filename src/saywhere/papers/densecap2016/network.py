"""The published program's network: its backbone, and the parts that a DenseCap takes with ``conventions: original``."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from saywhere.configs.densecap import DenseCapConfig
from saywhere.configs.parts import VGG16_CHANNELS
from saywhere.errors import UserError
from saywhere.networks.densecap.build import Conventions, Pool
from saywhere.networks.vision.backbones import Backbone, Single, fetching_vgg16, first_four
from saywhere.ops.box_sampling import RegionSampler
from saywhere.papers.densecap2016.conventions import OriginalBoxCoder, OriginalPreprocess, roi_pooling
from saywhere.papers.densecap2016.language_model import OriginalDecoder

VGG16_DEPTHS = (2, 2, 3, 3, 3)
CAFFE_MEAN = (103.939 / 255, 116.779 / 255, 123.68 / 255)  # blue, green, red


class OriginalConventions(Conventions):
    """Make the program's parts of a DenseCap."""

    def box_coder(self, config: DenseCapConfig) -> OriginalBoxCoder:
        """Return the program's boxes: centres and sizes from 1, with all of its quirks."""
        return OriginalBoxCoder(config.max_log_scale)

    def pooling(self, config: DenseCapConfig) -> Pool:
        """Return the program's pooling, from the one map."""
        return lambda maps, boxes, size: roi_pooling(maps[0], boxes, size[1], size[0], config.pool_size)

    def rpn_sampler(self, config: DenseCapConfig) -> RegionSampler:
        """Return the program's sampler, which samples negatives again if they are too few."""
        return RegionSampler(config.rpn_batch, config.rpn_fg_iou, config.rpn_bg_iou, fill=True)

    def decoder(self, config: DenseCapConfig, vocabulary_size: int) -> OriginalDecoder:
        """Return the program's language model, with our token ids."""
        sizes = config.word_size, config.hidden_size
        return OriginalDecoder(config.embed_dim, vocabulary_size, *sizes, config.decoder_dropout)


def build_caffe_vgg16(channels: Sequence[int] = VGG16_CHANNELS, pretrained: bool = True) -> Backbone:
    """Build VGG-16 as the published DenseCap has it: without the last pooling, and the others round up.

    Its pixels are those of Caffe: B G R from 0 to 255, less the means; ``mean`` and ``std`` are shares of 255, B G R.

    Args:
        channels: of the five stages; ImageNet weights are for ``VGG16_CHANNELS``.
        pretrained: load the ImageNet weights of Caffe's VGG-16 (torchvision has them, for R G B).
    """
    layers: list[nn.Module] = []
    before = 3
    for width, depth in zip(channels, VGG16_DEPTHS, strict=True):
        for _ in range(depth):
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.ReLU()]
            before = width
        layers.append(nn.MaxPool2d(2, 2, ceil_mode=True))
    body = Single(*layers[:-1])
    if pretrained:
        from torchvision.models import VGG16_Weights

        if tuple(channels) != VGG16_CHANNELS:
            raise UserError(f"the ImageNet weights of vgg16 have the widths {VGG16_CHANNELS}, not {tuple(channels)}")
        with fetching_vgg16():
            stored = VGG16_Weights.IMAGENET1K_FEATURES.get_state_dict(progress=False)
        prefix = "features."
        weights = {key.removeprefix(prefix): value for key, value in stored.items() if key.startswith(prefix)}
        body.load_state_dict({**weights, "0.weight": weights["0.weight"].flip(1)})
    return Backbone(body, (16,), channels[-1:], CAFFE_MEAN, (1 / 255,) * 3, first_four(layers), OriginalPreprocess)

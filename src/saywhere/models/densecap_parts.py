"""The parts of a DenseCap that are made one way in ours and another in the published program."""

from __future__ import annotations

from saywhere.images import Preprocess
from saywhere.language.lstm import LstmSpeaker
from saywhere.language.original import OriginalSpeaker
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.original.conventions import OriginalConventions
from saywhere.original.images import OriginalPreprocess
from saywhere.vision.backbones import Backbone, build_backbone, build_caffe_vgg16
from saywhere.vision.conventions import Conventions
from saywhere.vision.localization import AnchorGenerator, LocalizationLayer, RegionSampler, RpnHead


def build_feature_network(config: DenseCapConfig, pretrained: bool) -> Backbone:
    """The backbone; ``vgg16_caffe`` with the widths that the configuration says."""
    if config.backbone == "vgg16_caffe":
        return build_caffe_vgg16(config.vgg_channels, pretrained)
    return build_backbone(config.backbone, config.strides, pretrained)


def build_preprocess(config: DenseCapConfig, backbone: Backbone) -> Preprocess:
    """The program's way to look at pictures for its network, ours for all others."""
    kind = OriginalPreprocess if config.backbone == "vgg16_caffe" else Preprocess
    return kind(config.long_side, config.multiple, backbone.mean, backbone.std)


def build_conventions(config: DenseCapConfig) -> Conventions:
    """How boxes are written, placed, compared and cut."""
    kind = OriginalConventions if config.conventions == "original" else Conventions
    return kind(config.max_log_scale)


def build_localization(config: DenseCapConfig, channels: int, conventions: Conventions) -> LocalizationLayer:
    """The localization layer on maps of ``channels``."""
    anchors = AnchorGenerator(config.anchors, config.strides, conventions)
    head = RpnHead(channels, config.rpn_hidden, anchors.per_cell, config.rpn_two_way, conventions)
    return LocalizationLayer(head, anchors, conventions, config.rpn_nms, config.before_nms)


def build_rpn_sampler(config: DenseCapConfig) -> RegionSampler:
    """What draws the anchors that train the RPN; the program's draws negatives again where they are too few."""
    fill = config.conventions == "original"
    return RegionSampler(config.rpn_batch, config.rpn_positive, config.rpn_negative, fill=fill)


def build_speaker(config: DenseCapConfig, vocabulary_size: int) -> LstmSpeaker | OriginalSpeaker:
    """What says words of region codes."""
    kind = OriginalSpeaker if config.conventions == "original" else LstmSpeaker
    return kind(config.code_size, vocabulary_size, config.word_size, config.hidden_size, config.speaker_dropout)

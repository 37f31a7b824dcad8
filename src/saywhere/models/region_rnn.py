"""Region RNN: each region cropped, resized and passed through the whole network (DenseCap, section 4.1, baselines).

It has the backbone, the size of the code and the speaker of :class:`saywhere.models.densecap.DenseCap`, but sees a
region's pixels and nothing around them, and finds no regions. Taught sentences of whole pictures, it is the Full Image
RNN.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.images import Picture, Preprocess, open_picture
from saywhere.language.decoding import decode
from saywhere.language.lstm import LstmSpeaker
from saywhere.models.config import Config
from saywhere.regions import Regions
from saywhere.text import END, PAD, Vocabulary
from saywhere.vision.backbones import build_backbone

if TYPE_CHECKING:
    from saywhere.images import ImageLike


@dataclass(frozen=True)
class RegionRnnConfig(Config):
    """Options of :class:`RegionRnn`.

    Attributes:
        backbone, strides: see :func:`saywhere.vision.backbones.build_backbone`.
        side: pixels of each side of a resized crop, whatever its shape was.
        grid: the maps are averaged over ``grid x grid`` parts of the crop.
        code_size, dropout: two fully connected layers, as in the recognition network of DenseCap.
        word_size, hidden_size, speaker_dropout: see :class:`saywhere.language.lstm.LstmSpeaker`.
        max_words: of a caption.
        beam, length_power: see :func:`saywhere.language.decoding.decode`.
    """

    backbone: str = "efficientnet_lite2"
    strides: tuple[int, ...] = (32,)
    side: int = 224
    grid: int = 3
    code_size: int = 512
    dropout: float = 0.2
    word_size: int = 256
    hidden_size: int = 384
    speaker_dropout: float = 0.3
    max_words: int = 12
    beam: int = 1
    length_power: float = 0.0

    def __post_init__(self) -> None:
        self.require(len(self.strides) > 0, "strides", "one or more")
        for option in ("side", "grid", "code_size", "word_size", "hidden_size", "max_words", "beam"):
            self.require(getattr(self, option) >= 1, option, "at least 1")
        for option in ("dropout", "speaker_dropout"):
            self.require(0 <= getattr(self, option) < 1, option, "at least 0 and below 1")


class RegionRnn(nn.Module):
    """A speaker of single crops.

    Args:
        config: see :class:`RegionRnnConfig`.
        vocabulary: the words it can say.
        pretrained_backbone: start from ImageNet weights.
    """

    def __init__(self, config: RegionRnnConfig, vocabulary: Vocabulary, pretrained_backbone: bool = True):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.backbone = build_backbone(config.backbone, config.strides, pretrained_backbone)
        self.preprocess = Preprocess(config.side, config.side, self.backbone.mean, self.backbone.std)
        self.feature_size = sum(self.backbone.channels) * config.grid**2
        self.layers = nn.Sequential(
            nn.LayerNorm(self.feature_size),  # as the pyramid's normalisation in FCLN: a frozen backbone's scale is any
            nn.Linear(self.feature_size, config.code_size),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.code_size, config.code_size),
            nn.ReLU(),
            nn.Dropout(config.dropout),
        )
        self.speaker = LstmSpeaker(
            config.code_size, len(vocabulary), config.word_size, config.hidden_size, config.speaker_dropout
        )

    def crop(self, picture: Picture, boxes: Tensor) -> Tensor:
        """The pixels ``(N, 3, side, side)`` in boxes ``(N, 4)`` of a picture, resized without regard to their shape."""
        sx, sy = picture.pixels.width / picture.width, picture.pixels.height / picture.height
        crops = torch.empty(len(boxes), 3, self.config.side, self.config.side)
        for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            left, right = _whole_pixels(x1 * sx, x2 * sx, picture.pixels.width)
            top, bottom = _whole_pixels(y1 * sy, y2 * sy, picture.pixels.height)
            pixels = picture.pixels.crop((left, top, right, bottom))
            # To the preprocessing every crop is square: both of its sides become ``side`` pixels.
            crops[row] = self.preprocess(Picture(pixels, self.config.side, self.config.side))
        return crops

    def pool(self, crops: Tensor) -> Tensor:
        """Features ``(N, feature_size)`` of crops ``(N, 3, side, side)``: the backbone's maps, averaged over a grid."""
        maps = self.backbone.body(crops)
        return torch.cat([functional.adaptive_avg_pool2d(m, self.config.grid).flatten(1) for m in maps], dim=1)

    def forward(self, features: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """What is said of crops, for training.

        Args:
            features: ``(N, feature_size)``, as :meth:`pool` gives them.
            words: ``(N, T)`` the numbers of a phrase each, without START and END, padded.

        Returns:
            ``(K, V)`` logits and the ``(K,)`` words they are for: all words and ENDs, row after row.
        """
        ends = (words != PAD).sum(dim=1, keepdim=True)
        said = functional.pad(words, (0, 1), value=PAD).scatter(1, ends, END)
        real = said != PAD
        return self.speaker(self.layers(features), words, real), said[real]

    @torch.no_grad()
    def speak(self, features: Tensor) -> list[str]:
        """A caption for each row of ``features (N, feature_size)``."""
        config = self.config
        words = decode(self.speaker, self.layers(features), config.max_words, config.beam, config.length_power).words
        return [self.vocabulary.decode(row) for row in words.tolist()]

    @torch.no_grad()
    def features(self, picture: Picture, boxes: Tensor, at_once: int = 1) -> Tensor:
        """Features ``(N, feature_size)`` of the boxes ``(N, 4)`` of a picture, ``at_once`` crops in a pass.

        One crop at a time is fastest on a CPU, whose caches do not hold the maps of several.
        """
        parts = (
            [self.pool(self.crop(picture, part).to(self.device)) for part in boxes.split(at_once)] if len(boxes) else []
        )
        return torch.cat(parts) if parts else torch.zeros(0, self.feature_size, device=self.device)

    def describe(self, images: Sequence[ImageLike | Picture], boxes: Sequence[Tensor]) -> list[Regions]:
        """Say what is in given boxes; the captions have no scores, as only proposals do.

        Args:
            images: paths, PIL images, arrays or pictures.
            boxes: for each of them ``(N, 4)`` in its pixels, inside it.

        Raises:
            ImageError: a picture cannot be read.
        """
        pictures = [open_picture(image) for image in images]
        return [
            Regions(
                picture.width,
                picture.height,
                rows,
                captions=tuple(self.speak(self.features(picture, rows))),
                image=picture.name,
            )
            for picture, rows in zip(pictures, boxes, strict=True)
        ]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.speaker.output.weight.device


def _whole_pixels(low: float, high: float, size: int) -> tuple[int, int]:
    """The pixels that an interval touches, at least one, inside ``size``."""
    first = min(max(math.floor(low), 0), size - 1)
    return first, max(first + 1, min(math.ceil(high), size))

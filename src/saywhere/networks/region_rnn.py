"""Region RNN: each region cropped, resized and passed through the whole network (DenseCap, section 4.1, baselines).

It has the backbone, the size of the embeddings and the decoder of :class:`saywhere.networks.densecap.network.DenseCap`,
but sees a region's pixels and nothing around them, and finds no regions. Trained on sentences of whole images, it is
the Full Image RNN.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.region_rnn import RegionRnnConfig
from saywhere.images import LoadedImage, Preprocess
from saywhere.models.decoding import decode
from saywhere.networks.language.decoders.adapter import TorchDecoder
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.vision.trunk import Trunk, build_trunk
from saywhere.text import END, PAD, Vocabulary


class RegionRnn(nn.Module):
    """A decoder of single crops.

    Args:
        config: see :class:`RegionRnnConfig`.
        vocabulary: the words it can use.
        trunk: backbone; built from ``config`` if not given.
        pretrained_backbone: start from ImageNet weights, if the trunk is built here.
    """

    def __init__(
        self,
        config: RegionRnnConfig,
        vocabulary: Vocabulary,
        trunk: Trunk | None = None,
        pretrained_backbone: bool = True,
    ):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.trunk = build_trunk(config.trunk, pretrained=pretrained_backbone) if trunk is None else trunk
        self.feature_size = sum(self.trunk.backbone.channels) * config.grid**2
        self.layers = nn.Sequential(
            nn.LayerNorm(self.feature_size),  # as the pyramid's normalisation in FCLN: a frozen backbone's scale is any
            nn.Linear(self.feature_size, config.embed_dim),
            nn.ReLU(),
            nn.Dropout(config.dropout),
            nn.Linear(config.embed_dim, config.embed_dim),
            nn.ReLU(),
            nn.Dropout(config.dropout),
        )
        self.decoder = LstmDecoder(
            config.embed_dim, len(vocabulary), config.word_size, config.hidden_size, config.decoder_dropout
        )

    @property
    def preprocess(self) -> Preprocess:
        """How crops become pixels."""
        return self.trunk.preprocess

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.decoder.output.weight.device

    def crop(self, image: LoadedImage, boxes: Tensor) -> Tensor:
        """Return the pixels ``(N, 3, side, side)`` in boxes ``(N, 4)`` of an image, resized whatever their shape."""
        side = self.config.side
        sx, sy = image.pixels.width / image.width, image.pixels.height / image.height
        crops = torch.empty(len(boxes), 3, side, side)
        for row, (x1, y1, x2, y2) in enumerate(boxes.tolist()):
            left, right = _whole_pixels(x1 * sx, x2 * sx, image.pixels.width)
            top, bottom = _whole_pixels(y1 * sy, y2 * sy, image.pixels.height)
            pixels = image.pixels.crop((left, top, right, bottom))
            # To the preprocessing every crop is square: both of its sides become ``side`` pixels.
            crops[row] = torch.from_numpy(self.preprocess(LoadedImage(pixels, side, side)))
        return crops

    def pool(self, crops: Tensor) -> Tensor:
        """Return features ``(N, feature_size)`` of crops ``(N, 3, side, side)``: maps averaged over a grid."""
        maps = self.trunk.backbone.body(crops)
        return torch.cat([functional.adaptive_avg_pool2d(m, self.config.grid).flatten(1) for m in maps], dim=1)

    @torch.no_grad()
    def features(self, image: LoadedImage, boxes: Tensor, at_once: int = 1) -> Tensor:
        """Return features ``(N, feature_size)`` of the boxes ``(N, 4)`` of an image, ``at_once`` crops in a pass.

        One crop at a time is fastest on a CPU, whose caches do not hold the maps of several.
        """
        parts = boxes.split(at_once) if len(boxes) else ()
        pooled = [self.pool(self.crop(image, part).to(self.device)) for part in parts]
        return torch.cat(pooled) if pooled else torch.zeros(0, self.feature_size, device=self.device)

    def forward(self, features: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of crops' phrases, for training.

        Args:
            features: ``(N, feature_size)``, as :meth:`pool` gives them.
            token_ids: ``(N, T)`` of a phrase each, without START and END, padded.

        Returns:
            ``(K, V)`` logits and the ``(K,)`` token ids they are for: all words and ENDs, row after row.
        """
        ends = (token_ids != PAD).sum(dim=1, keepdim=True)
        targets = functional.pad(token_ids, (0, 1), value=PAD).scatter(1, ends, END)
        real = targets != PAD
        return self.decoder(self.layers(features), token_ids, real), targets[real]

    @torch.no_grad()
    def caption(self, features: Tensor) -> list[str]:
        """Return a caption for each row of ``features (N, feature_size)``."""
        decoder = TorchDecoder(self.decoder, self.decoder.output.weight)
        decoded = decode(decoder, self.layers(features), self.config.decoding)
        return [self.vocabulary.decode(row) for row in decoded.token_ids.tolist()]


def _whole_pixels(low: float, high: float, size: int) -> tuple[int, int]:
    """The pixels that an interval touches, at least one, inside ``size``."""
    first = min(max(math.floor(low), 0), size - 1)
    return first, max(first + 1, min(math.ceil(high), size))

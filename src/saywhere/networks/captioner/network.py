"""The captioner network: captions for images or their boxes, from a trunk and a decoder.

:class:`CaptionerConfig` chooses between the multimodal RNN of Deep Visual-Semantic Alignments (section 3.2), the
encoder-decoder of Areas of Attention (section 3.1) and its attention over regions (section 3.2).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.configs.captioner import CaptionerConfig
from saywhere.models.decoding import decode
from saywhere.networks.captioner.loss import CaptionOutput, CaptionTarget, SampledOutput
from saywhere.networks.language.decoders.attention import AttentionDecoder, BoundDecoder, pad_regions
from saywhere.networks.language.decoders.lstm import LstmDecoder
from saywhere.networks.language.decoders.protocol import TensorDecoder, TorchDecoder, with_end
from saywhere.networks.language.decoders.rnn import RnnDecoder, log_frequencies
from saywhere.networks.language.ngrams import Ngrams
from saywhere.networks.vision.backbones import by_shape
from saywhere.networks.vision.grid import cell_features
from saywhere.networks.vision.region_features import (
    ImageMaps,
    feature_size,
    position_features,
    propose_regions,
    whole_image,
)
from saywhere.networks.vision.spatial_transformer import SpatialTransformer
from saywhere.networks.vision.trunk import Trunk
from saywhere.options import dataclass
from saywhere.text import END, PAD, START, UNKNOWN, Vocabulary


@dataclass(frozen=True, eq=False)
class ImageRegions:
    """One image and its regions.

    Attributes:
        embedding: ``(1, D)`` of the whole image.
        features: ``(R, D)``, one row per region.
        boxes: ``(R, 4)`` in pixels of the network's input (``x1 y1 x2 y2``); the bounding boxes of warped regions.
        corners: ``(R, 4, 2)`` of warped regions; None for other kinds.
        narrowed: whether the features already have the decoder's input size.
    """

    embedding: Tensor
    features: Tensor
    boxes: Tensor
    corners: Tensor | None = None
    narrowed: bool = False


def region_cells(config: CaptionerConfig, image: ImageMaps, cells: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the features ``(1 + cells², D)`` of the whole image and of the cells of a grid, and their boxes.

    ``cells`` is the number of rows and columns; None for ``config.grid``. See :func:`cell_features`.
    """
    sources = image.sources(config.levels, config.head, config.branch)
    features, boxes = cell_features(sources, config.grid if cells is None else cells, *image.input_size)
    return image.with_summary(features, boxes, config), boxes


def normalised(features: Tensor) -> Tensor:
    """Return the features with each row scaled to mean 0 and variance 1."""
    return functional.layer_norm(features, features.shape[-1:])


PlainDecoder = RnnDecoder | LstmDecoder
"""A decoder without attention to regions."""


@dataclass(frozen=True, eq=False)
class AttendedImages:
    """The inputs of the decoder ``attention`` for N images.

    Attributes:
        embeddings: ``(N, D)`` of the whole images.
        features: ``(N, R, region_size)`` of their regions, padded.
        mask: ``(N, R)``, True for real regions.
        regions: the regions of each image before padding.
    """

    embeddings: Tensor
    features: Tensor
    mask: Tensor
    regions: tuple[ImageRegions, ...]


class Captioner(nn.Module):
    """Caption images with sentences or, with ``config.describe_boxes``, boxes with phrases.

    Args:
        trunk: possibly shared with other systems. Only its backbone is trained.

    Raises:
        UserError: the trunk lacks a part that the configuration needs.
    """

    def __init__(self, config: CaptionerConfig, vocabulary: Vocabulary, trunk: Trunk):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        trunk.require_parts(config.uses_proposals, config.head)
        self.trunk = trunk
        self.feature_size = feature_size(trunk, config.levels, config.layout)
        self.dropout = nn.Dropout(config.region_dropout)
        self.narrow = nn.Linear(self.feature_size, config.region_size) if config.decoder == "attention" else None
        self.transformer: SpatialTransformer | None = None
        if config.attend_to == "transformer":
            self.transformer = SpatialTransformer(config.region_size, config.coarsest, config.grid, zoom=config.zoom)
        self.decoder = self._build_decoder()
        self.ngrams = Ngrams(self.feature_size, config.ngrams) if config.ngrams.count else None

    def _build_decoder(self) -> PlainDecoder | AttentionDecoder:
        config = self.config
        sizes = (len(self.vocabulary), config.word_size, config.hidden_size, config.dropout)
        if config.decoder == "attention":
            return AttentionDecoder(self.feature_size, config.region_size, *sizes, config.terms, config.feedback)
        if config.decoder == "rnn":
            return RnnDecoder(self.feature_size, *sizes, log_frequencies(self.vocabulary))
        return LstmDecoder(self.feature_size, *sizes)

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[CaptionTarget],
        generator: torch.Generator | None = None,
    ) -> CaptionOutput | SampledOutput:
        """Return the outputs of one training step.

        Args:
            features: the backbone's maps of each image.
            targets: the captions of each image; the decoder ``attention`` needs equally many per image.
            generator: drives the sampling of sentences for a reward. Dropout follows torch's global seed.
        """
        images = [ImageMaps(self.trunk, m, t.width, t.height) for m, t in zip(features, targets, strict=True)]
        if self.config.reward != "none":
            return self._sampled(images, targets, generator)
        return self._supervised(images, targets)

    def _supervised(self, images: Sequence[ImageMaps], targets: Sequence[CaptionTarget]) -> CaptionOutput:
        token_ids = with_end([target.token_ids for target in targets])
        inputs = token_ids[:, :-1].masked_fill(token_ids[:, :-1] == END, PAD)
        real = (token_ids != PAD) & (token_ids != UNKNOWN)
        if isinstance(self.decoder, AttentionDecoder):
            seen = self.attend(images)
            shape = (len(targets), -1, token_ids.shape[1])
            inputs = inputs.reshape(*shape[:2], shape[2] - 1)
            log_probs = self.decoder(seen.embeddings, seen.features, inputs, seen.mask, real.reshape(shape))
        else:
            rows = [self.embed(image, target.boxes) for image, target in zip(images, targets, strict=True)]
            embeddings = torch.cat(rows)
            if not self.config.describe_boxes:
                counts = torch.tensor([len(target.token_ids) for target in targets], device=token_ids.device)
                embeddings = embeddings.repeat_interleave(counts, dim=0)
            log_probs = self.decoder(embeddings, inputs, real).log_softmax(dim=1)
        return CaptionOutput(log_probs, token_ids[real])

    def _sampled(
        self, images: Sequence[ImageMaps], targets: Sequence[CaptionTarget], generator: torch.Generator | None
    ) -> SampledOutput:
        """Sample ``config.num_samples`` sentences per image in training; otherwise decode one greedily."""
        supervised = None
        if self.training and self.config.word_weight:
            supervised = self._supervised(images, [target.first(self.config.sentences) for target in targets])
        decoder, embeddings = self.bind(images)
        if self.training:
            count = self.config.num_samples
            token_ids, log_probs = sample(decoder, embeddings, self.config.decoding.max_words, count, generator)
        else:
            adapted = TorchDecoder(decoder, self.decoder.words.weight)
            decoded = decode(adapted, embeddings, self.config.decoding, beam_size=1)
            token_ids = torch.from_numpy(decoded.token_ids).to(embeddings.device)
            log_probs = torch.from_numpy(decoded.log_probs).to(embeddings.device)
        shape = (len(targets), -1, token_ids.shape[1])
        references = tuple(target.token_ids for target in targets)
        return SampledOutput(token_ids.reshape(shape), log_probs.reshape(shape), references, supervised)

    def embed(self, image: ImageMaps, boxes: Tensor | None = None) -> Tensor:
        """Return the embeddings of an image or of its boxes, each row with mean 0 and variance 1.

        The shape is ``(R, D)`` for ``boxes (R, 4)`` in input pixels, and ``(1, D)`` for the whole image.
        """
        if boxes is None and not self.config.describe_boxes:
            return normalised(region_cells(self.config, image, 0)[0])
        boxes = whole_image(image).to(image.maps[0]) if boxes is None else boxes
        return normalised(image.features(boxes, self.config))

    def attend(self, images: Sequence[ImageMaps], boxes: Sequence[Tensor | None] | None = None) -> AttendedImages:
        """Return the inputs of the decoder ``attention``.

        ``boxes`` has one ``(R, 4)`` per image, in input pixels; None for the network's own regions.
        """
        boxes = [None] * len(images) if boxes is None else boxes
        regions = self._find_regions(images, boxes)
        features, mask = pad_regions([one.features for one in regions])
        features = features if regions[0].narrowed else self._narrowed(features)
        return AttendedImages(torch.cat([one.embedding for one in regions]), features, mask, tuple(regions))

    def _find_regions(self, images: Sequence[ImageMaps], boxes: Sequence[Tensor | None]) -> list[ImageRegions]:
        """Return the features of images and of their regions, whose kind is ``config.attend_to``."""
        config = self.config
        if config.attend_to == "grid":
            rows = [(normalised(features), places) for features, places in (region_cells(config, i) for i in images)]
            return [ImageRegions(features[:1], features[1:], places[1:]) for features, places in rows]
        wholes = [normalised(region_cells(config, image, 0)[0]) for image in images]
        if (transformer := self.transformer) is not None:
            # Images of one size share the transformer's batch and, in training, the sampled positions.
            rows = [self._positions(image) for image in images]
            warped = by_shape(
                lambda positions: transformer(self._narrowed(positions).permute(0, 3, 1, 2)),
                [(normalised(positions),) for positions in rows],
            )
            return [ImageRegions(whole, *one, narrowed=True) for whole, one in zip(wholes, warped, strict=True)]
        missing = [image for image, given in zip(images, boxes, strict=True) if given is None]
        found = iter(propose_regions(missing, config.proposals))
        places = [next(found) if given is None else given for given in boxes]
        return [
            ImageRegions(whole, normalised(image.features(rows, config)), rows)
            for whole, rows, image in zip(wholes, places, images, strict=True)
        ]

    def _positions(self, image: ImageMaps) -> Tensor:
        """Return the features ``(H, W, D)`` of positions; the tower's embedding is of the whole image alone."""
        config = self.config
        sources = image.sources(config.levels, config.head, config.branch)
        found = position_features(sources, config.coarsest, config.grid, *image.input_size)
        return functional.pad(found, (0, config.layout["summary"]))

    def _narrowed(self, features: Tensor) -> Tensor:
        """Project region features ``(..., D)`` to ``(..., region_size)``."""
        assert self.narrow is not None
        return torch.relu(self.narrow(self.dropout(features)))

    def bind(
        self, images: Sequence[ImageMaps], boxes: Sequence[Tensor | None] | None = None
    ) -> tuple[PlainDecoder | BoundDecoder, Tensor]:
        """Return the word-by-word decoder of images, and their embeddings ``(N, D)``.

        Arguments are those of :meth:`attend`; a decoder without attention ignores the boxes.
        """
        if isinstance(self.decoder, AttentionDecoder):
            seen = self.attend(images, boxes)
            return self.decoder.bind(seen.features, seen.mask), seen.embeddings
        return self.decoder, torch.cat([self.embed(image) for image in images])


def sample(
    decoder: TensorDecoder, embeddings: Tensor, max_words: int, count: int, generator: torch.Generator | None = None
) -> tuple[Tensor, Tensor]:
    """Sample ``count`` sentences for each of N ``embeddings (N, D)``, word by word from the decoder's distribution.

    A sentence that reaches ``max_words`` (at least 1) has no END. ``generator`` must be on the CPU.

    Returns:
        Token ids ``(N count, T)``, with the sentences of an embedding in neighbouring rows, each followed by END, if it
        fits in T, and padding; and the natural log-probability of each token among the allowed ones, with gradients, 0
        where padded.
    """
    state = tuple(part.repeat_interleave(count, dim=0) for part in decoder.start(embeddings))
    last = torch.full((len(embeddings) * count,), START, device=embeddings.device)
    ended = torch.zeros(len(last), dtype=torch.bool, device=embeddings.device)
    never = torch.tensor(decoder.never, device=embeddings.device)
    token_ids: list[Tensor] = []
    chosen: list[Tensor] = []
    for _ in range(max_words):
        log_probs, state = decoder.step(last, state)
        log_probs = log_probs.index_fill(1, never, -torch.inf).float().log_softmax(dim=1)
        uniform = torch.rand(log_probs.shape, generator=generator).to(log_probs.device)
        last = (log_probs.detach() - (-uniform.log()).log()).argmax(dim=1)  # the Gumbel-max trick
        token_ids.append(last.masked_fill(ended, PAD))
        chosen.append(log_probs.gather(1, last[:, None])[:, 0].masked_fill(ended, 0))
        ended = ended | (last == END)
        if ended.all():
            break
    return torch.stack(token_ids, dim=1), torch.stack(chosen, dim=1)

"""DenseCap: boxes, each with a caption and a score, in one pass over an image (Johnson et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from saywhere import boxes as geometry
from saywhere.boxes import propose
from saywhere.configs.densecap import DenseCapConfig
from saywhere.engines.engine import RegionHeadOutput, RpnOutput
from saywhere.networks.densecap.build import RegionSampler, SampledBoxes, find_conventions
from saywhere.networks.language.decoders.protocol import with_end
from saywhere.networks.language.ngrams import Ngrams
from saywhere.networks.normalisation import BatchNorm
from saywhere.networks.vision.region_features import ImageMaps, feature_size
from saywhere.networks.vision.trunk import Trunk
from saywhere.options import dataclass
from saywhere.text import END, PAD, Vocabulary


class RegionHead(nn.Module):
    """The recognition network (section 3.1.3): the embedding, second score and second offset of each region.

    Args:
        channels, pool_size: of the input features ``(N, channels, pool_size, pool_size)``.
        embed_dim: size D of the embeddings.
        dropout: dropout probability after each of the two layers.
        fc_size: size of the first layer; None for ``embed_dim``.
    """

    def __init__(self, channels: int, pool_size: int, embed_dim: int, dropout: float, fc_size: int | None = None):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * pool_size**2, fc_size or embed_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(fc_size or embed_dim, embed_dim),
            nn.ReLU(),
            nn.Dropout(dropout),
        )
        self.score = nn.Linear(embed_dim, 1)
        self.offset = nn.Linear(embed_dim, 4)
        nn.init.normal_(self.score.weight, std=0.01)
        nn.init.zeros_(self.score.bias)
        nn.init.zeros_(self.offset.weight)
        nn.init.zeros_(self.offset.bias)

    def forward(self, features: Tensor) -> RegionHeadOutput:
        """Return embeddings, logits and offsets for the features ``(N, C, size, size)`` of N regions."""
        embeddings = self.layers(features)
        return RegionHeadOutput(embeddings, self.score(embeddings).squeeze(1), self.offset(embeddings))


MOVED = 0.1
"""Standard deviation, as a share of the box's side, by which box sides move when only phrases are trained."""
LEAST_OVERLAP = 0.6
"""A moved box keeps more than this IoU with the true box."""


@dataclass(frozen=True, eq=False)
class Target:
    """The ground truth of one image.

    Attributes:
        width, height: size of the network's input, in pixels.
        boxes: ``(M, 4)`` in these pixels (``x1 y1 x2 y2``); M may be 0.
        token_ids: ``(M, T)``, one phrase per box, without START and END, padded.
        phrase_weights: ``(M,)`` loss weight of each phrase; None for 1 each.
    """

    width: int
    height: int
    boxes: Tensor
    token_ids: Tensor
    phrase_weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class DenseCapOutput:
    """The inputs of the losses, for all images of a batch in a row.

    Attributes:
        rpn_logits, rpn_positive: ``(R,)`` logits of the sampled anchors, and whether each is positive.
        rpn_offsets, rpn_offset_targets: ``(P, 4)`` of the positive anchors.
        rpn_all_offsets: ``(A, 4)`` of all anchors.
        logits, positive: ``(B,)`` second score of the sampled regions, and whether each is positive.
        offsets, offset_targets: ``(Q, 4)`` second offset of the positive regions.
        word_logits, token_ids: ``(K, V)`` and ``(K,)``, the words and ENDs of the positive regions' phrases in a row,
            without phrases of weight 0.
        word_weights: ``(K,)`` weight of the phrase that each word belongs to; None for 1 each.
    """

    rpn_logits: Tensor
    rpn_positive: Tensor
    rpn_offsets: Tensor
    rpn_offset_targets: Tensor
    rpn_all_offsets: Tensor
    logits: Tensor
    positive: Tensor
    offsets: Tensor
    offset_targets: Tensor
    word_logits: Tensor
    token_ids: Tensor
    word_weights: Tensor | None = None


class PhraseHead(nn.Sequential):
    """Map the standardised features of a region and its image to the decoder's input with one linear layer.

    Args:
        features: size D of :meth:`saywhere.engines.engine.RegionMaps.phrase_features`.
        embed_dim: size E of the decoder's input.
        dropout: dropout probability on the standardised features.
    """

    def __init__(self, features: int, embed_dim: int, dropout: float):
        standardise = BatchNorm(features, affine=False)
        super().__init__(standardise, nn.Dropout(dropout), nn.Linear(features, embed_dim), nn.ReLU(), nn.Dropout(0.2))


class StartLayers(nn.Module):
    """The layers that write the phrases of regions and score their boxes, as they were before fine-tuning."""

    def __init__(self, phrase_head: PhraseHead | None, decoder: Any, embed_dim: int):
        super().__init__()
        self.phrase_head: PhraseHead | None = phrase_head
        self.decoder: Any = decoder
        self.score = nn.Linear(embed_dim, 1)


class DenseCap(nn.Module):
    """A fully convolutional localization network with a decoder.

    Training calls :meth:`forward`. Inference calls the trunk, :meth:`apply_region_head` and ``decoder`` through
    :mod:`saywhere.engines.torch` and :mod:`saywhere.models.densecap`.

    Args:
        trunk: with a localization layer, possibly shared with other networks.

    Attributes:
        trunk: see :class:`saywhere.networks.vision.trunk.Trunk`.
        region_head: the recognition network.
        phrase_head: between regions and decoder; None: the decoder takes the embeddings of ``region_head``.
        ngrams: predictor of the n-grams of a region's phrases, trained afterwards; or None.
        start: the layers before fine-tuning; None if they were not fine-tuned.
        rpn_sampler, sampler: sample the anchors that train the RPN, and the regions that train the second stage.

    Raises:
        UserError: the trunk has no localization layer, or lacks the last layer that the configuration needs.
    """

    def __init__(self, config: DenseCapConfig, vocabulary: Vocabulary, trunk: Trunk):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        make = find_conventions(config)
        self.box_coder = make.box_coder(config)
        trunk.require_parts(proposals=True, head=config.uses_head)
        self.trunk = trunk
        self.rpn_sampler = make.rpn_sampler(config)
        self.sampler = RegionSampler(
            config.batch, config.fg_iou, config.bg_iou, config.positive_share, best_is_positive=False
        )
        self._pool = make.pooling(config)
        self.region_head = RegionHead(
            trunk.region_channels, config.pool_size, config.embed_dim, config.dropout, config.fc_size
        )
        levels = config.phrase_levels
        size = feature_size(trunk, levels, config.phrase_layout)

        def layers() -> tuple[PhraseHead | None, Any]:
            head = PhraseHead(size, config.embed_dim, config.phrase_dropout) if levels else None
            return head, make.decoder(config, len(vocabulary))

        self.phrase_head, self.decoder = layers()
        self.start: StartLayers | None = StartLayers(*layers(), config.embed_dim) if config.finetuned else None
        self.ngrams = Ngrams(size, config.ngrams) if config.ngrams.count else None

    # Training

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[Target],
        generator: torch.Generator | None = None,
        sampled: Sequence[SampledBoxes] | None = None,
    ) -> DenseCapOutput:
        """Return the outputs of one training step, given each image's backbone maps and ground truth (may be empty).

        ``generator`` drives the samplers, on the CPU. ``sampled`` holds the anchors per image that train the RPN; None:
        they are sampled here.

        If the localization layer and the region head are frozen, only the phrases are trained, on the true boxes and
        slightly moved copies (:func:`move`). The box losses are then 0.
        """
        if not self.learns_boxes:
            return self._forward_phrases(features, targets, generator)
        coder = self.box_coder
        targets = [replace(target, boxes=coder.from_xyxy(target.boxes)) for target in targets]
        images = self._look(features, targets)
        rpns = ImageMaps.rpns(images)
        if sampled is None:
            sampled = [self.sample_anchors(rpn, target, generator) for rpn, target in zip(rpns, targets, strict=True)]
        regions = [self._sample_regions(*row, generator) for row in zip(rpns, sampled, targets, strict=True)]
        head_output = self.region_head(self.pool(images, [boxes for boxes, _ in regions]))
        choices = [choice for _, choice in regions]
        positive, positives = _is_positive(choices), [boxes[: len(choice.positive)] for boxes, choice in regions]
        chosen = list(zip(targets, choices, strict=True))
        said = self._say(
            images, [coder.to_xyxy(boxes) for boxes in positives], head_output.embeddings[positive],
            with_end([target.token_ids[choice.truth] for target, choice in chosen]), _phrase_weights(targets, choices),
        )  # fmt: skip
        truths = torch.cat([target.boxes[choice.truth] for target, choice in chosen])
        rows = list(zip(rpns, sampled, targets, strict=True))
        return DenseCapOutput(
            rpn_logits=torch.cat([coder.pick(rpn.logits, choice.rows) for rpn, choice, _ in rows]),
            rpn_positive=_is_positive(sampled),
            rpn_offsets=torch.cat([rpn.offsets[choice.positive] for rpn, choice, _ in rows]),
            rpn_offset_targets=torch.cat(
                [coder.encode(t.boxes[c.truth], rpn.anchors[c.positive]) for rpn, c, t in rows]
            ),
            rpn_all_offsets=torch.cat([rpn.offsets for rpn in rpns]),
            logits=head_output.logits,
            positive=positive,
            offsets=head_output.offsets[positive],
            offset_targets=coder.encode(truths, torch.cat(positives)),
            **said,
        )

    def _look(self, features: Sequence[tuple[Tensor, ...]], targets: Sequence[Target]) -> list[ImageMaps]:
        """Return the images of a training step; those of one size share a pass through the pyramid."""
        images = [ImageMaps(self.trunk, maps, t.width, t.height) for maps, t in zip(features, targets, strict=True)]
        ImageMaps.pyramids(images, together=True)
        return images

    def _say(
        self, images: Sequence[ImageMaps], boxes: Sequence[Tensor], embeddings: Tensor, token_ids: Tensor,
        weights: Tensor | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Return the word fields of an output, given each image's boxes (``x1 y1 x2 y2``) and all phrases with END."""
        embeddings = self.phrase_embeddings(self.phrase_features(images, boxes, embeddings))
        if weights is not None:
            token_ids, embeddings, weights = token_ids[weights > 0], embeddings[weights > 0], weights[weights > 0]
        real, previous = token_ids != PAD, token_ids[:, :-1]
        return {
            "word_logits": self.decoder(embeddings, previous.masked_fill(previous == END, PAD), real),
            "token_ids": token_ids[real],
            "word_weights": None if weights is None else weights[:, None].expand_as(real)[real],
        }

    @property
    def learns_boxes(self) -> bool:
        """Whether the trunk's localization layer or the region head is trained, that is, not frozen."""
        modules = (self.trunk.localization, self.region_head)
        return any(p.requires_grad for module in modules if module is not None for p in module.parameters())

    def _forward_phrases(
        self, features: Sequence[tuple[Tensor, ...]], targets: Sequence[Target], generator: torch.Generator | None
    ) -> DenseCapOutput:
        """Do what :meth:`forward` does if only phrases are trained: take the true boxes, moved a little in training."""
        boxes = [move(t.boxes, (t.width, t.height), generator) if self.training else t.boxes for t in targets]
        with torch.no_grad():
            images = self._look(features, targets)
            given = [self.box_coder.from_xyxy(rows) for rows in boxes]
            embeddings = self.region_head(self.pool(images, given)).embeddings
        weights = _phrase_weights(targets)
        token_ids = with_end([target.token_ids for target in targets])
        said = self._say(images, boxes, embeddings, token_ids, weights)
        none, nothing = embeddings.new_zeros(0), embeddings.new_zeros(len(embeddings), 4)
        mask = torch.zeros(0, dtype=torch.bool, device=none.device)
        return DenseCapOutput(
            rpn_logits=none, rpn_positive=mask, rpn_offsets=nothing[:0], rpn_offset_targets=nothing[:0],
            rpn_all_offsets=nothing, logits=none, positive=mask, offsets=nothing, offset_targets=nothing, **said,
        )  # fmt: skip

    def sample_anchors(self, rpn: RpnOutput, target: Target, generator: torch.Generator | None = None) -> SampledBoxes:
        """Return one image's anchors that train the RPN; ``target.boxes`` are in the box coder's format."""
        boxes = self.box_coder.decode(rpn.offsets, rpn.anchors).detach() if self.config.match_proposals else rpn.anchors
        inside = self.box_coder.inside(boxes, target.width, target.height) if self.config.inside_only else None
        return self.rpn_sampler(self.box_coder.iou(boxes, target.boxes), inside, generator)

    def _sample_regions(
        self, rpn: RpnOutput, anchors: SampledBoxes, target: Target, generator: torch.Generator | None
    ) -> tuple[Tensor, SampledBoxes]:
        """Return one image's boxes that train the second stage, positives first, and how they were sampled."""
        coder = self.box_coder
        if self.config.shared_batch:
            return coder.pick(coder.decode(rpn.offsets, rpn.anchors), anchors.rows), anchors
        proposals, _ = propose(coder, rpn, (target.width, target.height), *self.config.proposals.limits)
        boxes = torch.cat((proposals, target.boxes))
        sampled = self.sampler(coder.iou(boxes.detach(), target.boxes), None, generator)
        return boxes[sampled.rows], sampled

    # The functions of an engine

    def pool(self, images: Sequence[ImageMaps], boxes: Sequence[Tensor]) -> Tensor:
        """Return the features ``(N, C, size, size)`` of all boxes of all images, in order.

        Boxes are in the format of ``box_coder``, in pixels of the network's input.
        """
        rows = zip(ImageMaps.pyramids(images), boxes, images, strict=True)
        return torch.cat([self._pool(maps, own, image.input_size) for maps, own, image in rows])

    def apply_region_head(self, images: Sequence[ImageMaps], boxes: Sequence[Tensor]) -> list[RegionHeadOutput]:
        """Return the embeddings, second scores and second offsets of each image's boxes (section 3.1.3).

        ``boxes`` has one ``(N, 4)`` per image (``x1 y1 x2 y2``), in pixels of the network's input.
        """
        out = self.region_head(self.pool(images, [self.box_coder.from_xyxy(b) for b in boxes]))
        counts = [len(b) for b in boxes]
        parts = zip(out.embeddings.split(counts), out.logits.split(counts), out.offsets.split(counts), strict=True)
        return [RegionHeadOutput(*part) for part in parts]

    def phrase_features(self, images: Sequence[ImageMaps], boxes: Sequence[Tensor], embeddings: Tensor) -> Tensor:
        """Return the features ``(N, F)`` of the boxes of all images, in order, from which phrases are written.

        ``boxes`` has one ``(N_k, 4)`` per image, in input pixels; ``embeddings`` are the region head's, of all boxes.
        """
        if self.phrase_head is None:
            return embeddings
        own = embeddings.split([len(rows) for rows in boxes])
        levels = self.config.phrase_levels
        rows = [image.phrase_features(b, levels, e) for image, b, e in zip(images, boxes, own, strict=True)]
        return torch.cat(rows)

    def phrase_embeddings(self, features: Tensor) -> Tensor:
        """Return the decoder's input ``(N, embed_dim)`` for boxes with :meth:`phrase_features`."""
        return features if self.phrase_head is None else self.phrase_head(features)


def move(boxes: Tensor, size: tuple[int, int], generator: torch.Generator | None = None) -> Tensor:
    """Return the boxes ``(N, 4)`` of an image of (width, height) ``size``, about half of them with their sides moved.

    Sides move by about a tenth of their length. A box whose IoU with the original would not exceed 0.6 stays unchanged.
    """
    sides = (boxes[:, 2:] - boxes[:, :2]).repeat(1, 2)
    noise = torch.randn(boxes.shape, generator=generator).to(boxes) * MOVED
    moved = geometry.clip(boxes + noise * sides, *size)
    overlap = geometry.pair_iou(moved, boxes)
    chosen = (torch.rand(len(boxes), generator=generator).to(boxes) < 0.5) & (overlap > LEAST_OVERLAP)
    return torch.where(chosen[:, None], moved, boxes)


def _is_positive(sampled: Sequence[SampledBoxes]) -> Tensor:
    """Return a mask over all sampled rows of all images, in order."""
    parts = [torch.arange(len(s.rows), device=s.rows.device) < len(s.positive) for s in sampled]
    return torch.cat(parts)


def _phrase_weights(targets: Sequence[Target], sampled: Sequence[SampledBoxes] | None = None) -> Tensor | None:
    """Return the phrase weights of all boxes, or of the positive rows, of all images in order; None if all are 1."""
    if all(target.phrase_weights is None for target in targets):
        return None
    weights = [t.boxes.new_ones(len(t.boxes)) if t.phrase_weights is None else t.phrase_weights for t in targets]
    if sampled is not None:
        weights = [each[choice.truth] for each, choice in zip(weights, sampled, strict=True)]
    return torch.cat(weights)

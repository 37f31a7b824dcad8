"""DenseCap: boxes, each with a sentence and a score, in one pass over a picture (Johnson et al., 2016)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, overload

import torch
from torch import Tensor, nn

from saywhere.errors import UserError
from saywhere.images import Picture, open_picture
from saywhere.language.decoding import Decoded, decode
from saywhere.models.densecap_config import DenseCapConfig
from saywhere.models.densecap_parts import (
    build_conventions,
    build_feature_network,
    build_localization,
    build_preprocess,
    build_rpn_sampler,
    build_speaker,
)
from saywhere.models.encoding import Encoding, inside
from saywhere.models.found import Found, confidence, rank
from saywhere.models.phrase_scores import PhraseScores, score_regions
from saywhere.regions import Regions
from saywhere.text import END, PAD, Vocabulary
from saywhere.vision.backbones import Pyramid, by_shape
from saywhere.vision.localization import Choice, RegionSampler, RpnOutput
from saywhere.vision.recognition import Recognised, Recognition

if TYPE_CHECKING:
    from saywhere.images import ImageLike

AT_ONCE = 16  # pictures of a list that are in memory together


@dataclass(frozen=True, eq=False)
class Target:
    """The truth of one picture.

    Attributes:
        width, height: of the network's input.
        boxes: ``(M, 4)`` in its pixels; M may be 0.
        words: ``(M, T)`` the numbers of one phrase a box, without START and END, padded.
    """

    width: int
    height: int
    boxes: Tensor
    words: Tensor

    def to(self, device: torch.device) -> Target:
        """The same on ``device``."""
        return replace(self, boxes=self.boxes.to(device), words=self.words.to(device))


@dataclass(frozen=True, eq=False)
class DenseCapOutput:
    """What the losses need, of all pictures of a batch one after the other.

    Attributes:
        rpn_logits, rpn_positive: ``(R,)`` of the anchors drawn, and whether each is positive.
        rpn_offsets, rpn_offset_targets: ``(P, 4)`` of the positive ones.
        rpn_all_offsets: ``(A, 4)`` of every anchor.
        logits, positive: ``(B,)`` second score of the regions drawn, and whether each is positive.
        offsets, offset_targets: ``(Q, 4)`` second offset of the positive ones.
        word_logits, words: ``(K, V)`` and ``(K,)``: what is said of the positive ones, all words and ENDs in a row.
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
    words: Tensor


class DenseCap(nn.Module):
    """A fully convolutional localization network with a speaker.

    Args:
        config: see :class:`DenseCapConfig`.
        vocabulary: the words it can say.
        pretrained_backbone: start from ImageNet weights.
    """

    def __init__(self, config: DenseCapConfig, vocabulary: Vocabulary, pretrained_backbone: bool = True):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.backbone = build_feature_network(config, pretrained_backbone)
        self.preprocess = build_preprocess(config, self.backbone)
        channels = config.pyramid or self.backbone.channels[0]
        self.pyramid = Pyramid(self.backbone.channels, channels) if config.pyramid else None
        self.conventions = build_conventions(config)
        self.localization = build_localization(config, channels, self.conventions)
        self.rpn_sampler = build_rpn_sampler(config)
        self.sampler = RegionSampler(
            config.batch, config.positive, config.negative, config.positive_share, best_is_positive=False
        )
        self.recognition = Recognition(channels, config.pool_size, config.code_size, config.dropout, config.fc_size)
        self.speaker = build_speaker(config, len(vocabulary))

    # Training

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[Target],
        generator: torch.Generator | None = None,
        chosen: Sequence[Choice] | None = None,
    ) -> DenseCapOutput:
        """One training step's outputs.

        Args:
            features: of each picture the backbone's maps.
            targets: of each picture the truth; it may be empty.
            generator: source of the samplers' randomness, on the CPU.
            chosen: of each picture the anchors that train the RPN, instead of drawing them.
        """
        conventions = self.conventions
        targets = [replace(target, boxes=conventions.from_ours(target.boxes)) for target in targets]
        pictures = self.neck(features)
        rpns = self.localization(pictures)
        if chosen is None:
            chosen = [self._choose_anchors(rpn, target, generator) for rpn, target in zip(rpns, targets, strict=True)]
        drawn = [self._choose_regions(*row, generator) for row in zip(rpns, chosen, targets, strict=True)]
        sizes = [(target.width, target.height) for target in targets]
        recognised = self.recognition(self.pool(pictures, [boxes for boxes, _ in drawn], sizes))
        choices = [choice for _, choice in drawn]
        positive = _is_positive(choices)
        references = torch.cat([boxes[: len(choice.positive)] for boxes, choice in drawn])
        words = _with_end([target.words[choice.truth] for target, choice in zip(targets, choices, strict=True)])
        real, heard = words != PAD, words[:, :-1]
        said = self.speaker(recognised.codes[positive], heard.masked_fill(heard == END, PAD), real)
        rows = list(zip(rpns, chosen, targets, strict=True))
        return DenseCapOutput(
            rpn_logits=torch.cat([conventions.pick(rpn.logits, choice.rows) for rpn, choice, _ in rows]),
            rpn_positive=_is_positive(chosen),
            rpn_offsets=torch.cat([rpn.offsets[choice.positive] for rpn, choice, _ in rows]),
            rpn_offset_targets=torch.cat(
                [conventions.encode(t.boxes[c.truth], rpn.anchors[c.positive]) for rpn, c, t in rows]
            ),
            rpn_all_offsets=torch.cat([rpn.offsets for rpn in rpns]),
            logits=recognised.logits,
            positive=positive,
            offsets=recognised.offsets[positive],
            offset_targets=conventions.encode(
                torch.cat([t.boxes[c.truth] for t, c in zip(targets, choices, strict=True)]), references
            ),
            word_logits=said,
            words=words[real],
        )

    def _choose_anchors(self, rpn: RpnOutput, target: Target, generator: torch.Generator | None) -> Choice:
        boxes = self.localization.boxes(rpn).detach() if self.config.match_proposals else rpn.anchors
        inside = self.conventions.inside(boxes, target.width, target.height) if self.config.inside_only else None
        return self.rpn_sampler(self.conventions.iou(boxes, target.boxes), inside, generator)

    def _choose_regions(
        self, rpn: RpnOutput, choice: Choice, target: Target, generator: torch.Generator | None
    ) -> tuple[Tensor, Choice]:
        """The boxes of one picture that train the second stage, positives first, and their truths."""
        if self.config.shared_batch:
            return self.conventions.pick(self.localization.boxes(rpn), choice.rows), choice
        proposals, _ = self.localization.propose(rpn, target.width, target.height, self.config.proposals)
        boxes = torch.cat((proposals, target.boxes))
        choice = self.sampler(self.conventions.iou(boxes.detach(), target.boxes), None, generator)
        return boxes[choice.rows], choice

    # Describing

    def neck(self, features: Sequence[tuple[Tensor, ...]]) -> list[tuple[Tensor, ...]]:
        """The maps that regions are found on and pooled from, of each picture's backbone maps."""
        return list(features) if self.pyramid is None else by_shape(self.pyramid, features)

    @overload
    def encode(self, images: ImageLike | Picture) -> Encoding: ...
    @overload
    def encode(self, images: Sequence[ImageLike | Picture]) -> list[Encoding]: ...
    @torch.no_grad()
    def encode(self, images):
        """Pass one picture (path, PIL image, array), or a list of them, through the convolutional network once.

        The maps of all stay in memory: about a megabyte a picture with the default configuration.
        """
        if not isinstance(images, (list, tuple)):
            return self.encode([images])[0]
        pictures = [open_picture(image, self.config.long_side) for image in images]
        pixels = [self.preprocess(picture).to(self.recognition.score.weight) for picture in pictures]
        maps = self.neck(self.backbone(pixels))
        return [
            Encoding(m, picture.width, picture.height, x.shape[2], x.shape[1], picture.name)
            for m, picture, x in zip(maps, pictures, pixels, strict=True)
        ]

    @torch.no_grad()
    def propose(self, encodings: Sequence[Encoding], limit: int | None = None) -> list[Tensor]:
        """The best proposals ``(B, 4)`` of each picture, in pixels of the network's input."""
        rpns = self.localization([encoding.maps for encoding in encodings])
        limit = self.config.proposals if limit is None else limit
        return [
            self.conventions.to_ours(
                self.localization.propose(rpn, encoding.input_width, encoding.input_height, limit)[0]
            )
            for rpn, encoding in zip(rpns, encodings, strict=True)
        ]

    def pool(
        self, pictures: Sequence[tuple[Tensor, ...]], boxes: Sequence[Tensor], sizes: Sequence[tuple[int, int]]
    ) -> Tensor:
        """Features ``(N, C, size, size)`` of all boxes of all pictures, in order.

        Boxes are in the format of ``conventions``, in pixels of the network's input; ``sizes`` are its (width, height).
        """
        size, strides, how = self.config.pool_size, self.config.strides, self.config.pooling
        rows = zip(pictures, boxes, sizes, strict=True)
        return torch.cat([self.conventions.pool(m, strides, b, size, how, picture) for m, b, picture in rows])

    @torch.no_grad()
    def recognise(self, encodings: Sequence[Encoding], boxes: Sequence[Tensor]) -> list[Recognised]:
        """Codes, second scores and second offsets of each picture's boxes (in pixels of the network's input)."""
        sizes = [(encoding.input_width, encoding.input_height) for encoding in encodings]
        written = [self.conventions.from_ours(b) for b in boxes]
        out = self.recognition(self.pool([encoding.maps for encoding in encodings], written, sizes))
        counts = [len(b) for b in boxes]
        parts = zip(out.codes.split(counts), out.logits.split(counts), out.offsets.split(counts), strict=True)
        return [Recognised(*part) for part in parts]

    @torch.no_grad()
    def speak(self, codes: Tensor) -> list[str]:
        """A caption of each region code ``(N, D)``."""
        return [self._text(row) for row in self._say(codes).words.tolist()]

    def _say(self, codes: Tensor) -> Decoded:
        config, never = self.config, self.speaker.never_said
        return decode(self.speaker, codes, config.max_words, config.beam, config.length_power, never)

    def _text(self, words: list[int]) -> str:
        return self.vocabulary.decode(words, self.speaker.unknown)

    def select(self, encoding: Encoding, proposals: Tensor, found: Recognised) -> tuple[Tensor, Tensor]:
        """Final boxes ``(N, 4)`` in pixels of the picture, and which proposals they come from, by falling logit."""
        conventions = self.conventions
        found_boxes = conventions.decode(found.offsets, conventions.from_ours(proposals))
        boxes = encoding.to_picture(conventions.to_ours(found_boxes))
        rows = conventions.suppress_final(found_boxes, boxes, found.logits, self.config.final_nms)
        rows = rows[((boxes[rows, 2:] - boxes[rows, :2]) > 0).all(dim=1)]
        return boxes[rows], rows

    @torch.no_grad()
    def find(
        self,
        encodings: Sequence[Encoding],
        boxes: Sequence[Tensor] | None = None,
        proposals: Sequence[Tensor] | None = None,
    ) -> list[Found]:
        """The regions of each picture, or those in ``boxes`` (in its pixels), described but not yet ranked.

        ``proposals`` (in pixels of the network's input) take the place of the localization layer's.
        """
        if boxes is None:
            proposals = self.propose(encodings) if proposals is None else proposals
            recognised = self.recognise(encodings, proposals)
            kept = [self.select(*row) for row in zip(encodings, proposals, recognised, strict=True)]
        else:
            given = [inside(e, torch.as_tensor(b)) for e, b in zip(encodings, boxes, strict=True)]
            recognised = self.recognise(encodings, [e.to_input(b) for e, b in zip(encodings, given, strict=True)])
            kept = [(b, torch.arange(len(b), device=b.device)) for b in given]
        codes = [r.codes[rows] for r, (_, rows) in zip(recognised, kept, strict=True)]
        said = self._say(torch.cat(codes))
        captions, sure = iter(said.words.tolist()), iter(confidence(said).split([len(rows) for _, rows in kept]))
        return [
            Found(e, final, r.logits[rows], code, tuple(self._text(next(captions)) for _ in rows), next(sure))
            for e, r, (final, rows), code in zip(encodings, recognised, kept, codes, strict=True)
        ]

    @overload
    def describe(
        self,
        images: ImageLike | Picture | Encoding,
        boxes: Tensor | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> Regions: ...
    @overload
    def describe(
        self,
        images: Sequence[ImageLike | Picture | Encoding],
        boxes: Sequence[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
    ) -> list[Regions]: ...
    @torch.no_grad()
    def describe(self, images, boxes=None, *, top=None, threshold=None):
        """Find the regions of a picture and say what each is.

        Captions are said only of the boxes that survive the final suppression, from the code of their proposal; of
        overlapping regions with the same caption the best is kept. A long list is worked off a few pictures at a time.

        Args:
            images: a path, PIL image, array, :class:`Picture` or :class:`Encoding`, or a list of them.
            boxes: ``(N, 4)`` in pixels of the picture (a list of such for a list): describe just these, all of them and
                in this order.
            top: at most this many regions, best first.
            threshold: only regions with at least this score.

        Returns:
            :class:`Regions` with scores, captions and features (region codes); a list of them for a list.

        Raises:
            ImageError: a picture cannot be read.
            UserError: boxes of another shape or outside their picture, or together with ``top`` or ``threshold``.
        """
        if boxes is not None and (top is not None or threshold is not None):
            raise UserError("top and threshold choose among the boxes that are found; given boxes are all described")
        if not isinstance(images, (list, tuple)):
            return self.describe([images], None if boxes is None else [boxes], top=top, threshold=threshold)[0]
        if boxes is not None and len(boxes) != len(images):
            raise UserError(f"{len(boxes)} lists of boxes for {len(images)} pictures")
        regions: list[Regions] = []
        for start in range(0, len(images), AT_ONCE):
            encodings = self._encode_all(images[start : start + AT_ONCE])
            given = None if boxes is None else boxes[start : start + AT_ONCE]
            regions += [found.regions(self.config.calibration) for found in self.find(encodings, given)]
        return regions if boxes is not None else [r[rank(r, self.config.repeat_nms, threshold, top)] for r in regions]

    @torch.no_grad()
    def score(
        self, image: ImageLike | Picture | Encoding, phrases: Sequence[str], boxes: Tensor | None = None
    ) -> PhraseScores:
        """How likely each region is to be called each phrase: open-world detection (section 4.2).

        Args:
            image: a path, PIL image, array, :class:`Picture` or :class:`Encoding`.
            phrases: texts with a word or more.
            boxes: ``(R, 4)`` in pixels of the picture; if not given, the regions that :meth:`describe` finds.

        Raises:
            UserError: a phrase has no word; and what :meth:`describe` raises.
        """
        return score_regions(self.speaker, self.vocabulary, self.describe(image, boxes), phrases)

    def _encode_all(self, images: Sequence[ImageLike | Picture | Encoding]) -> list[Encoding]:
        """Encodings as they are and pictures encoded, in one batch."""
        fresh = iter(self.encode([image for image in images if not isinstance(image, Encoding)]))
        return [image if isinstance(image, Encoding) else next(fresh) for image in images]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.recognition.score.weight.device


def _is_positive(choices: Sequence[Choice]) -> Tensor:
    """Mask over all chosen rows of all pictures, in their order."""
    parts = [torch.arange(len(c.rows), device=c.rows.device) < len(c.positive) for c in choices]
    return torch.cat(parts)


def _with_end(words: Sequence[Tensor]) -> Tensor:
    """Phrases of several pictures, each ``(N, T)`` padded, as one ``(sum N, max T + 1)`` with END after each."""
    length = max(w.shape[1] for w in words) + 1
    rows = torch.cat([nn.functional.pad(w, (0, length - w.shape[1]), value=PAD) for w in words])
    ends = (rows != PAD).sum(dim=1, keepdim=True)
    return rows.scatter(1, ends, END)

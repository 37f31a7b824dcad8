"""Captions of pictures, and of their regions: an image network and a speaker.

The multimodal RNN of Deep Visual-Semantic Alignments (section 3.2), the encoder-decoder of Areas of Attention (section
3.1) and its attention over areas (section 3.2) are choices of :class:`CaptionerConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.images import Picture, Preprocess, open_picture
from saywhere.language.attention import AttentionSpeaker, pad_areas
from saywhere.language.decoding import Speaker, decode
from saywhere.language.gru import GruSpeaker
from saywhere.language.lstm import LstmSpeaker
from saywhere.language.rnn import RnnSpeaker, log_frequencies
from saywhere.models.attended import Attended
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.models.encoding import Encoding, inside
from saywhere.regions import Regions
from saywhere.text import END, PAD, UNKNOWN, Vocabulary, pad, tokenize
from saywhere.vision.areas import AreaFeatures
from saywhere.vision.backbones import build_backbone
from saywhere.vision.cells import cell_boxes, cell_features

if TYPE_CHECKING:
    from saywhere.images import ImageLike

AT_ONCE = 16  # pictures of a list that are in memory together


@dataclass(frozen=True, eq=False)
class CaptionTarget:
    """What is said of one picture.

    Attributes:
        words: ``(K, T)`` the numbers of K sentences, without START and END, padded.
        width, height: of the network's input.
        boxes: ``(K, 4)`` in its pixels, which each of them is about; None if about the whole picture.
    """

    words: Tensor
    width: int
    height: int
    boxes: Tensor | None = None

    def to(self, device: torch.device) -> CaptionTarget:
        """The same on ``device``."""
        boxes = None if self.boxes is None else self.boxes.to(device)
        return CaptionTarget(self.words.to(device), self.width, self.height, boxes)


@dataclass(frozen=True, eq=False)
class CaptionOutput:
    """What is said of all pictures of a batch, one word after the other.

    Attributes:
        log_probs: ``(K, V)`` natural logarithms of probabilities.
        words: ``(K,)`` what people said, ENDs included; words that the vocabulary does not have are left out.
    """

    log_probs: Tensor
    words: Tensor


class CaptionCriterion(nn.Module):
    """The cross entropy of a word, one loss named ``caption``.

    Args:
        smoothing: share of the probability that is given to all words alike; in training only.
    """

    def __init__(self, smoothing: float = 0.0):
        super().__init__()
        self.smoothing = smoothing

    def forward(self, output: CaptionOutput) -> dict[str, Tensor]:
        """The mean over the words; 0 if there are none."""
        log_probs = output.log_probs.float()
        if len(output.words) == 0:
            return {"caption": log_probs.sum()}
        loss = functional.nll_loss(log_probs, output.words)
        if self.training and self.smoothing:
            loss = (1 - self.smoothing) * loss - self.smoothing * log_probs.mean()
        return {"caption": loss}


class Captioner(nn.Module):
    """Says a sentence of a picture or, with ``config.regions``, a phrase of each box.

    Args:
        config: see :class:`CaptionerConfig`.
        vocabulary: the words it can say.
        pretrained_backbone: start from ImageNet weights.
    """

    def __init__(self, config: CaptionerConfig, vocabulary: Vocabulary, pretrained_backbone: bool = True):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        self.backbone = build_backbone(config.backbone, config.strides, pretrained_backbone)
        self.preprocess = Preprocess(config.long_side, config.multiple, self.backbone.mean, self.backbone.std)
        self.features = AreaFeatures(config.strides, self.backbone.channels, config.levels, config.head)
        if self.features.head is not None:
            self.features.head.requires_grad_(False)
            if pretrained_backbone:
                self.features.head.load_published(config.backbone)
        self.dropout = nn.Dropout(config.area_dropout)
        self.narrow = nn.Linear(self.features.size, config.area_size) if config.speaker == "attention" else None
        self.speaker = self._build_speaker()

    def _build_speaker(self) -> RnnSpeaker | LstmSpeaker | GruSpeaker | AttentionSpeaker:
        config = self.config
        code_size = self.features.size * (2 if config.context else 1)
        sizes = (len(self.vocabulary), config.word_size, config.hidden_size, config.dropout)
        if config.speaker == "attention":
            return AttentionSpeaker(code_size, config.area_size, *sizes, config.terms, config.feedback)
        if config.speaker == "rnn":
            return RnnSpeaker(code_size, *sizes, log_frequencies(self.vocabulary))
        return {"lstm": LstmSpeaker, "gru": GruSpeaker}[config.speaker](code_size, *sizes)

    # Training

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[CaptionTarget],
        generator: torch.Generator | None = None,
    ) -> CaptionOutput:
        """One training step's outputs.

        Args:
            features: of each picture the backbone's maps.
            targets: of each picture what is said of it; as many sentences of each, if the speaker is ``attention``.
            generator: not used: dropout follows torch's own seed.
        """
        words = _with_end([target.words for target in targets])
        heard = words[:, :-1].masked_fill(words[:, :-1] == END, PAD)
        real = (words != PAD) & (words != UNKNOWN)
        pairs = zip(features, targets, strict=True)
        rows = [self._see(maps, target.width, target.height, target.boxes) for maps, target in pairs]
        if isinstance(self.speaker, AttentionSpeaker):
            codes, areas, mask = self._for_attention(rows)
            shape = (len(targets), -1, words.shape[1])
            log_probs = self.speaker(codes, areas, heard.reshape(*shape[:2], shape[2] - 1), mask, real.reshape(shape))
        else:
            counts = torch.tensor([len(target.words) for target in targets], device=words.device)
            codes = torch.cat(rows) if self.config.regions else torch.cat(rows).repeat_interleave(counts, dim=0)
            log_probs = self.speaker(codes, heard, real).log_softmax(dim=1)
        return CaptionOutput(log_probs, words[real])

    def _see(self, maps: tuple[Tensor, ...], width: float, height: float, boxes: Tensor | None = None) -> Tensor:
        """What a picture's backbone maps show, each row with mean 0 and variance 1.

        Args:
            maps: see :class:`saywhere.models.encoding.Encoding`.
            width, height: of the network's input.
            boxes: ``(R, 4)`` in its pixels.

        Returns:
            ``(R, D)`` features of the boxes, with the whole picture's behind each for context; if no boxes are given
            those of the whole picture and of the grid's cells.
        """
        if boxes is None and not self.config.regions:
            cells = self.config.grid if self.config.areas == "grid" else 0
            return _normalised(cell_features(self.features, maps, cells, width, height)[0])
        whole = maps[0].new_tensor([[0.0, 0.0, width, height]])
        boxes = whole if boxes is None else boxes
        if not self.config.context:
            return _normalised(self.features(maps, boxes, width, height))
        seen = _normalised(self.features(maps, torch.cat((boxes, whole)), width, height))
        return torch.cat((seen[:-1], seen[-1:].expand(len(boxes), -1)), dim=1)

    @torch.no_grad()
    def codes(self, pictures: Sequence[tuple[tuple[Tensor, ...], float, float]]) -> Tensor:
        """What is seen of whole pictures ``(N, D)``; of each its backbone maps, and width and height of the input."""
        return torch.cat([self._see(*picture)[:1] for picture in pictures])

    def _for_attention(self, rows: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Codes ``(N, D)`` of the pictures, their areas ``(N, R, area_size)``, and which of these exist ``(N, R)``."""
        assert self.narrow is not None
        areas, mask = pad_areas([seen[1:] for seen in rows])
        return torch.stack([seen[0] for seen in rows]), torch.relu(self.narrow(self.dropout(areas))), mask

    # Describing

    @torch.no_grad()
    def encode(self, images: Sequence[ImageLike | Picture]) -> list[Encoding]:
        """Pass pictures (paths, PIL images, arrays) through the convolutional network once."""
        pictures = [open_picture(image, self.config.long_side) for image in images]
        pixels = [self.preprocess(picture).to(self.device) for picture in pictures]
        return [
            Encoding(maps, picture.width, picture.height, x.shape[2], x.shape[1], picture.name)
            for maps, picture, x in zip(self.backbone(pixels), pictures, pixels, strict=True)
        ]

    @overload
    def caption(
        self, images: ImageLike | Picture | Encoding, beam: int | None = None, *, attention: Literal[True]
    ) -> Attended: ...
    @overload
    def caption(
        self, images: Sequence[ImageLike | Picture | Encoding], beam: int | None = None, *, attention: Literal[True]
    ) -> list[Attended]: ...
    @overload
    def caption(self, images: ImageLike | Picture | Encoding, beam: int | None = None) -> str: ...
    @overload
    def caption(self, images: Sequence[ImageLike | Picture | Encoding], beam: int | None = None) -> list[str]: ...
    @torch.no_grad()
    def caption(self, images, beam=None, *, attention=False):
        """Say a sentence of a picture. A long list is worked off a few pictures at a time.

        Args:
            images: a path, PIL image, array, :class:`Picture` or :class:`Encoding`, or a list of them.
            beam: hypotheses in decoding, instead of the configuration's; 1 is greedy.
            attention: also tell where the model looked at each word.

        Returns:
            the sentence, with ``attention`` an :class:`Attended`; a list of them for a list.

        Raises:
            ImageError: a picture cannot be read.
            UserError: ``beam`` is below 1, or ``attention`` of a speaker that looks at no areas.
        """
        alone = not isinstance(images, (list, tuple))
        said: list[str | Attended] = []
        for encodings in self._encoded([images] if alone else images):
            rows = [self._see(e.maps, e.input_width, e.input_height) for e in encodings]
            if isinstance(self.speaker, AttentionSpeaker):
                codes, areas, mask = self._for_attention(rows)
                texts = self._say(self.speaker.look(areas, mask), codes, beam)
            else:
                texts = self._say(self.speaker, torch.cat(rows), beam)
            pairs = zip(encodings, texts, strict=True)
            said += [self.attend(encoding, [text])[0] for encoding, text in pairs] if attention else texts
        return said[0] if alone else said

    @torch.no_grad()
    def attend(self, image: ImageLike | Picture | Encoding, sentences: Sequence[str]) -> list[Attended]:
        """Where the model looks at each word of given sentences of one picture; END is left out.

        Words that the vocabulary does not have are heard as the unknown word.

        Raises:
            ImageError: the picture cannot be read.
            UserError: a speaker that looks at no areas.
        """
        if not isinstance(self.speaker, AttentionSpeaker):
            raise UserError(f"a captioner with the speaker {self.config.speaker} looks at no areas: give another model")
        ((encoding,),) = self._encoded([image])
        codes, areas, mask = self._for_attention([self._see(encoding.maps, *encoding.input_size)])
        boxes = cell_boxes(self.config.grid, *encoding.input_size)[1:]
        words = pad([self.vocabulary.encode(text) for text in sentences]).to(codes.device)
        many = [part.expand(len(words), *part.shape[1:]) for part in (codes, areas, mask)]
        weights = self.speaker.attention(many[0], many[1], words, many[2]).float().cpu()
        said = [tuple(tokenize(text)) for text in sentences]
        placed = encoding.to_picture(boxes).float().cpu()
        return [
            Attended(" ".join(text), text, rows[: len(text)], placed, None, encoding.width, encoding.height)
            for text, rows in zip(said, weights, strict=True)
        ]

    @torch.no_grad()
    def describe(
        self,
        images: Sequence[ImageLike | Picture | Encoding],
        boxes: Sequence[Tensor] | None = None,
        *,
        top: int | None = None,
        threshold: float | None = None,
        beam: int | None = None,
    ) -> list[Regions]:
        """Say a phrase of each box of each picture, or a sentence of its one region, all of it.

        A model that has learnt sentences of pictures can be given boxes too, as the full-frame model of Table 3.

        Args:
            images: as :meth:`caption`, in a list.
            boxes: of each picture ``(N, 4)`` in its pixels.
            top: at most this many regions.
            threshold: cannot be kept to: there are no scores.
            beam: as :meth:`caption`.

        Raises:
            ImageError: a picture cannot be read.
            UserError: boxes that leave their picture, a speaker that looks at areas of its own, a ``threshold``, or a
                wrong ``beam``.
        """
        if threshold is not None:
            raise UserError("a captioner gives no scores, so a threshold cannot choose among its regions")
        if boxes is not None and isinstance(self.speaker, AttentionSpeaker):
            raise UserError("the speaker attention says sentences of whole pictures; boxes need another model")
        if boxes is not None and len(boxes) != len(images):
            raise UserError(f"{len(boxes)} lists of boxes for {len(images)} pictures")
        regions: list[Regions] = []
        for encodings in self._encoded(images):
            if boxes is None:
                given = [torch.tensor([[0.0, 0.0, e.width, e.height]]) for e in encodings]
                said = iter(self.caption(encodings, beam))
            else:
                given = boxes[len(regions) : len(regions) + len(encodings)]
                given = [inside(e, torch.as_tensor(b)) for e, b in zip(encodings, given, strict=True)]
                pairs = zip(encodings, given, strict=True)
                rows = [self._see(e.maps, e.input_width, e.input_height, e.to_input(b)) for e, b in pairs]
                assert not isinstance(self.speaker, AttentionSpeaker)
                said = iter(self._say(self.speaker, torch.cat(rows), beam))
            regions += [
                Regions(e.width, e.height, b.float().cpu(), captions=tuple(next(said) for _ in b), image=e.name)[:top]
                for e, b in zip(encodings, given, strict=True)
            ]
        return regions

    def _say(self, speaker: Speaker, codes: Tensor, beam: int | None) -> list[str]:
        beam = self.config.beam if beam is None else beam
        if beam < 1:
            raise UserError(f"beam is at least 1, not {beam}")
        words = decode(speaker, codes, self.config.max_words, beam, self.config.length_power).words
        return [self.vocabulary.decode(row) for row in words.tolist()]

    def _encoded(self, images: Sequence[ImageLike | Picture | Encoding]) -> Iterator[list[Encoding]]:
        """Encodings as they are and pictures encoded, a few at a time."""
        for start in range(0, len(images), AT_ONCE):
            some = images[start : start + AT_ONCE]
            fresh = iter(self.encode([image for image in some if not isinstance(image, Encoding)]))
            yield [image if isinstance(image, Encoding) else next(fresh) for image in some]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.speaker.words.weight.device


def _normalised(features: Tensor) -> Tensor:
    """Each row with mean 0 and variance 1."""
    return functional.layer_norm(features, features.shape[-1:])


def _with_end(words: Sequence[Tensor]) -> Tensor:
    """Sentences of several pictures, each ``(K, T)`` padded, as one ``(sum K, max T + 1)`` with END after each."""
    length = max(w.shape[1] for w in words) + 1
    rows = torch.cat([functional.pad(w, (0, length - w.shape[1]), value=PAD) for w in words])
    return rows.scatter(1, (rows != PAD).sum(dim=1, keepdim=True), END)

"""Captions of pictures, and of their regions: an image network and a speaker.

The multimodal RNN of Deep Visual-Semantic Alignments (section 3.2), the encoder-decoder of Areas of Attention (section
3.1) and its attention over areas (section 3.2) are choices of :class:`CaptionerConfig`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal, overload

import torch
from torch import Tensor, nn
from torch.nn import functional

from saywhere.errors import UserError
from saywhere.images import Picture, Preprocess, open_picture
from saywhere.language.attention import AttentionSpeaker, pad_areas
from saywhere.language.decoding import Speaker, decode, draw
from saywhere.language.gru import GruSpeaker
from saywhere.language.lstm import LstmSpeaker
from saywhere.language.rnn import RnnSpeaker, log_frequencies
from saywhere.models.attended import Attended
from saywhere.models.caption_loss import CaptionOutput, CaptionTarget
from saywhere.models.caption_reward import DrawnOutput
from saywhere.models.captioner_config import CaptionerConfig
from saywhere.models.encoding import Encoding, inside
from saywhere.models.looks import Look, build_finder, look, normalised
from saywhere.regions import Regions
from saywhere.text import END, PAD, UNKNOWN, Vocabulary, pad, tokenize
from saywhere.vision.areas import AreaFeatures
from saywhere.vision.backbones import build_backbone
from saywhere.vision.cells import cell_features
from saywhere.vision.proposer import Mapped, Proposer

if TYPE_CHECKING:
    from saywhere.images import ImageLike

    One = ImageLike | Picture | Encoding

AT_ONCE = 16  # pictures of a list that are in memory together


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
        self.finder = build_finder(config, self.backbone.channels)
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

    def take_localization(self, densecap: nn.Module) -> None:
        """Take over what finds proposals from a trained DenseCap: ``backbone``, ``pyramid`` and ``localization``.

        Raises:
            UserError: it has no such parts, or of other shapes than this model's.
        """
        assert isinstance(self.finder, Proposer)
        parts = {"backbone": self.backbone, "pyramid": self.finder.pyramid, "localization": self.finder.localization}
        for name, mine in parts.items():
            theirs = getattr(densecap, name, None)
            try:
                if (mine is None) != (theirs is None):
                    raise UserError(f"localizer: that model and this captioner do not both have a {name}")
                if mine is not None and theirs is not None:
                    mine.load_state_dict(theirs.state_dict())
            except RuntimeError as error:
                reason = " ".join(str(error).split())[:200]
                raise UserError(f"localizer: the {name} of that model does not fit this captioner: {reason}") from error

    # Training

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[CaptionTarget],
        generator: torch.Generator | None = None,
    ) -> CaptionOutput | DrawnOutput:
        """One training step's outputs.

        Args:
            features: of each picture the backbone's maps.
            targets: of each picture what is said of it; as many sentences of each, if the speaker is ``attention``.
            generator: of the sentences that are drawn for a reward; dropout follows torch's own seed.
        """
        if self.config.reward != "none":
            return self._drawn(features, targets, generator)
        return self._taught(features, targets)

    def _taught(self, features: Sequence[tuple[Tensor, ...]], targets: Sequence[CaptionTarget]) -> CaptionOutput:
        words = _with_end([target.words for target in targets])
        heard = words[:, :-1].masked_fill(words[:, :-1] == END, PAD)
        real = (words != PAD) & (words != UNKNOWN)
        pairs = zip(features, targets, strict=True)
        if isinstance(self.speaker, AttentionSpeaker):
            pictures = [(maps, (target.width, target.height)) for maps, target in pairs]
            codes, areas, mask, _ = self._look(pictures, [None] * len(pictures))
            shape = (len(targets), -1, words.shape[1])
            log_probs = self.speaker(codes, areas, heard.reshape(*shape[:2], shape[2] - 1), mask, real.reshape(shape))
        else:
            rows = [self._see(maps, target.width, target.height, target.boxes) for maps, target in pairs]
            counts = torch.tensor([len(target.words) for target in targets], device=words.device)
            codes = torch.cat(rows) if self.config.regions else torch.cat(rows).repeat_interleave(counts, dim=0)
            log_probs = self.speaker(codes, heard, real).log_softmax(dim=1)
        return CaptionOutput(log_probs, words[real])

    def _drawn(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[CaptionTarget],
        generator: torch.Generator | None,
    ) -> DrawnOutput:
        """In training ``config.drawn`` random sentences of each picture, otherwise the one that is said greedily."""
        taught = None
        if self.training and self.config.word_weight:
            taught = self._taught(features, [target.some(self.config.sentences) for target in targets])
        pictures = [(maps, (t.width, t.height)) for maps, t in zip(features, targets, strict=True)]
        speaker, codes = self._before(pictures, [None] * len(pictures))
        if self.training:
            said = draw(speaker, codes, self.config.max_words, self.config.drawn, generator)
        else:
            said = decode(speaker, codes, self.config.max_words)
        words, log_probs = (part.reshape(len(targets), -1, part.shape[1]) for part in (said.words, said.log_probs))
        return DrawnOutput(words, log_probs, tuple(target.words for target in targets), taught)

    def _see(self, maps: tuple[Tensor, ...], width: float, height: float, boxes: Tensor | None = None) -> Tensor:
        """What a picture's backbone maps show, each row with mean 0 and variance 1.

        Args:
            maps: see :class:`saywhere.models.encoding.Encoding`.
            width, height: of the network's input.
            boxes: ``(R, 4)`` in its pixels.

        Returns:
            ``(R, D)`` features of the boxes, with the whole picture's behind each for context; if no boxes are given
            those of the whole picture.
        """
        if boxes is None and not self.config.regions:
            return normalised(cell_features(self.features, maps, 0, width, height)[0])
        whole = maps[0].new_tensor([[0.0, 0.0, width, height]])
        boxes = whole if boxes is None else boxes
        if not self.config.context:
            return normalised(self.features(maps, boxes, width, height))
        seen = normalised(self.features(maps, torch.cat((boxes, whole)), width, height))
        return torch.cat((seen[:-1], seen[-1:].expand(len(boxes), -1)), dim=1)

    @torch.no_grad()
    def codes(self, pictures: Sequence[tuple[tuple[Tensor, ...], float, float]]) -> Tensor:
        """What is seen of whole pictures ``(N, D)``; of each its backbone maps, and width and height of the input."""
        return torch.cat([self._see(*picture)[:1] for picture in pictures])

    def _look(
        self, pictures: Sequence[Mapped], boxes: Sequence[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor, list[Look]]:
        """What the speaker ``attention`` needs of pictures.

        Args:
            pictures: N of them.
            boxes: of each picture ``(R, 4)`` in pixels of the input; None lets the model find them.

        Returns:
            codes ``(N, D)``; areas ``(N, R, area_size)``; which of these exist ``(N, R)``; and where they are.
        """
        looks = look(self.config, self.features, self.finder, self._narrowed, pictures, boxes)
        areas, mask = pad_areas([one.features for one in looks])
        areas = areas if looks[0].narrowed else self._narrowed(areas)
        return torch.cat([one.whole for one in looks]), areas, mask, looks

    def _narrowed(self, features: Tensor) -> Tensor:
        """Features ``(..., D)`` of areas as ``(..., area_size)``."""
        assert self.narrow is not None
        return torch.relu(self.narrow(self.dropout(features)))

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
        self, images: One, beam: int | None = None, *, attention: Literal[True], boxes: Tensor | None = None
    ) -> Attended: ...
    @overload
    def caption(
        self,
        images: Sequence[One],
        beam: int | None = None,
        *,
        attention: Literal[True],
        boxes: Sequence[Tensor] | None = None,
    ) -> list[Attended]: ...
    @overload
    def caption(self, images: One, beam: int | None = None, *, boxes: Tensor | None = None) -> str: ...
    @overload
    def caption(
        self, images: Sequence[One], beam: int | None = None, *, boxes: Sequence[Tensor] | None = None
    ) -> list[str]: ...
    @torch.no_grad()
    def caption(self, images, beam=None, *, attention=False, boxes=None):
        """Say a sentence of a picture. A long list is worked off a few pictures at a time.

        Args:
            images: a path, PIL image, array, :class:`Picture` or :class:`Encoding`, or a list of them.
            beam: hypotheses in decoding, instead of the configuration's; 1 is greedy.
            attention: also tell where the model looked at each word.
            boxes: ``(R, 4)`` in pixels of the picture, to look at instead of the model's own proposals; a list of them
                for a list.

        Returns:
            the sentence, with ``attention`` an :class:`Attended`; a list of them for a list.

        Raises:
            ImageError: a picture cannot be read.
            UserError: ``beam`` is below 1, ``attention`` of a speaker that looks at no areas, or wrong ``boxes``.
        """
        if not isinstance(images, (list, tuple)):
            return self._caption([images], beam, attention, None if boxes is None else [boxes])[0]
        return self._caption(images, beam, attention, boxes)

    def _caption(
        self, images: Sequence[One], beam: int | None, attention: bool, boxes: Sequence[Tensor] | None
    ) -> list[str] | list[Attended]:
        if boxes is not None and len(boxes) != len(images):
            raise UserError(f"{len(boxes)} lists of boxes for {len(images)} pictures")
        said: list[str] = []
        seen: list[Attended] = []
        for encodings in self._encoded(images):
            some = None if boxes is None else boxes[len(said) : len(said) + len(encodings)]
            texts = self.say(*self.ready(encodings, some), beam)
            for number, (encoding, text) in enumerate(zip(encodings, texts, strict=True)):
                if attention:
                    seen += self.attend(encoding, [text], None if some is None else some[number])
            said += texts
        return seen if attention else said

    @torch.no_grad()
    def ready(self, encodings: Sequence[Encoding], boxes: Sequence[Tensor] | None = None) -> tuple[Speaker, Tensor]:
        """The speaker that has N pictures before it, and their codes ``(N, D)``: what decoding begins with.

        ``boxes`` are as in :meth:`caption`, of each picture.
        """
        return self._before([(e.maps, e.input_size) for e in encodings], self._given(encodings, boxes))

    def _before(self, pictures: Sequence[Mapped], boxes: Sequence[Tensor | None]) -> tuple[Speaker, Tensor]:
        if isinstance(self.speaker, AttentionSpeaker):
            codes, areas, mask, _ = self._look(pictures, boxes)
            return self.speaker.look(areas, mask), codes
        return self.speaker, torch.cat([self._see(maps, *size) for maps, size in pictures])

    def _given(self, encodings: Sequence[Encoding], boxes: Sequence[Tensor] | None) -> list[Tensor | None]:
        """Boxes in pixels of the pictures, if there are any, in pixels of the network's inputs."""
        if boxes is None:
            return [None] * len(encodings)
        if self.config.areas != "proposals":
            raise UserError(f"a captioner with areas {self.config.areas} looks at no boxes; proposals are needed")
        return [e.to_input(inside(e, torch.as_tensor(b))) for e, b in zip(encodings, boxes, strict=True)]

    @torch.no_grad()
    def attend(self, image: One, sentences: Sequence[str], boxes: Tensor | None = None) -> list[Attended]:
        """Where the model looks at each word of given sentences of one picture; END is left out.

        Words that the vocabulary does not have are heard as the unknown word. ``boxes`` are as in :meth:`caption`.

        Raises:
            ImageError: the picture cannot be read.
            UserError: a speaker that looks at no areas, or wrong ``boxes``.
        """
        if not isinstance(self.speaker, AttentionSpeaker):
            raise UserError(f"a captioner with the speaker {self.config.speaker} looks at no areas: give another model")
        ((encoding,),) = self._encoded([image])
        given = self._given([encoding], None if boxes is None else [boxes])
        *seen, (found,) = self._look([(encoding.maps, encoding.input_size)], given)
        words = pad([self.vocabulary.encode(text) for text in sentences]).to(self.device)
        codes, areas, mask = (part.expand(len(words), *part.shape[1:]) for part in seen)
        weights = self.speaker.attention(codes, areas, words, mask).float().cpu()
        placed, corners = encoding.to_picture(found.boxes).float().cpu(), None
        if found.corners is not None:
            corners = found.corners.float().cpu() * torch.tensor(encoding.scale)
        said = [tuple(tokenize(text)) for text in sentences]
        return [
            Attended(" ".join(text), text, rows[: len(text)], placed, corners, encoding.width, encoding.height)
            for text, rows in zip(said, weights, strict=True)
        ]

    @torch.no_grad()
    def describe(
        self,
        images: Sequence[One],
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
                said = iter(self.say(self.speaker, torch.cat(rows), beam))
            regions += [
                Regions(e.width, e.height, b.float().cpu(), captions=tuple(next(said) for _ in b), image=e.name)[:top]
                for e, b in zip(encodings, given, strict=True)
            ]
        return regions

    def say(self, speaker: Speaker, codes: Tensor, beam: int | None = None) -> list[str]:
        """Decode a sentence for each of the codes ``(N, D)`` by the configuration; ``beam`` as in :meth:`caption`."""
        beam = self.config.beam if beam is None else beam
        if beam < 1:
            raise UserError(f"beam is at least 1, not {beam}")
        words = decode(speaker, codes, self.config.max_words, beam, self.config.length_power).words
        return [self.vocabulary.decode(row) for row in words.tolist()]

    def _encoded(self, images: Sequence[One]) -> Iterator[list[Encoding]]:
        """Encodings as they are and pictures encoded, a few at a time."""
        for start in range(0, len(images), AT_ONCE):
            some = images[start : start + AT_ONCE]
            fresh = iter(self.encode([image for image in some if not isinstance(image, Encoding)]))
            yield [image if isinstance(image, Encoding) else next(fresh) for image in some]

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.speaker.words.weight.device


def _with_end(words: Sequence[Tensor]) -> Tensor:
    """Sentences of several pictures, each ``(K, T)`` padded, as one ``(sum K, max T + 1)`` with END after each."""
    length = max(w.shape[1] for w in words) + 1
    rows = torch.cat([functional.pad(w, (0, length - w.shape[1]), value=PAD) for w in words])
    return rows.scatter(1, (rows != PAD).sum(dim=1, keepdim=True), END)

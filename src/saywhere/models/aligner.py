"""The aligner: which words belong to which area, and which sentence to which picture (Alignments, section 3.1)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from saywhere import boxes as geometry
from saywhere.errors import UserError
from saywhere.images import Picture, Preprocess, open_picture
from saywhere.language.reader import Read, Reader
from saywhere.models.aligner_config import AlignerConfig
from saywhere.models.alignment import Alignment, PictureVectors, SentenceVectors, make_alignment
from saywhere.models.alignment_loss import AlignmentOutput
from saywhere.models.alignment_score import pair_scores, score_matrix
from saywhere.models.phrase_products import phrase_products
from saywhere.models.sentence_target import SentenceTarget
from saywhere.text import END, PAD, UNKNOWN, Vocabulary, pad, tokenize
from saywhere.vision.areas import AreaExtractor, AreaFeatures, ProposedAreas, WholePicture
from saywhere.vision.backbones import Pyramid, build_backbone
from saywhere.vision.conventions import Conventions
from saywhere.vision.localization import AnchorGenerator, LocalizationLayer, RpnHead

if TYPE_CHECKING:
    from saywhere.images import ImageLike

SEEING = ("backbone", "strides", "levels", "head", "areas", "proposals", "proposal_nms", "before_nms", "anchors")
"""Options that areas and their features depend on, beside the size of the input and the weights."""

AT_ONCE = 16  # pictures of a list that are in memory together
SENTENCES_AT_ONCE = 256


class Aligner(nn.Module):
    """Areas and words in one space.

    Args:
        config: see :class:`AlignerConfig`.
        vocabulary: the words it knows.
        pretrained_backbone: start from ImageNet weights. (What finds the areas is taken over from a trained DenseCap,
            see :meth:`take_localization`.)
    """

    def __init__(self, config: AlignerConfig, vocabulary: Vocabulary, pretrained_backbone: bool = True):
        super().__init__()
        self.config, self.vocabulary = config, vocabulary
        provider = _build_provider(config, pretrained_backbone)
        backbone = provider.backbone
        self.preprocess = Preprocess(config.long_side, config.multiple, backbone.mean, backbone.std)
        self.extractor = AreaExtractor(provider, repr([getattr(config, option) for option in SEEING]))
        self.standardise = nn.BatchNorm1d(provider.feature_size, affine=False)
        self.feature_dropout = nn.Dropout(config.feature_dropout)
        readers, size = range(config.readers), config.size // config.readers
        self.projects = nn.ModuleList(nn.Linear(provider.feature_size, size) for _ in readers)
        self.readers = nn.ModuleList(
            Reader(
                len(vocabulary), config.word_size, config.hidden_size, size, config.cell, config.dropout,
                config.rectified, config.skip,
            )
            for _ in readers
        )  # fmt: skip
        for words in self.word_vectors:
            words.requires_grad_(config.train_words)
        self.log_scale = nn.Parameter(torch.tensor(-math.log(config.temperature)))
        self.log_scale.requires_grad_(config.loss == "contrastive")

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.log_scale.device

    @property
    def word_vectors(self) -> list[Tensor]:
        """Of each reader the table of its words, ``(V, word_size)``."""
        return [self.get_parameter(f"readers.{number}.words.weight") for number in range(self.config.readers)]

    @property
    def provider(self) -> WholePicture:
        """What turns pictures into areas."""
        provider = self.extractor.provider
        assert isinstance(provider, WholePicture)
        return provider

    def take_localization(self, densecap: nn.Module) -> None:
        """Take over what finds the areas from a trained DenseCap: ``backbone``, ``pyramid`` and ``localization``.

        Raises:
            UserError: its parts have other shapes than this model's.
        """
        for name in ("backbone", "pyramid", "localization"):
            mine, theirs = getattr(self.provider, name, None), getattr(densecap, name, None)
            if isinstance(mine, nn.Module) and isinstance(theirs, nn.Module):
                try:
                    mine.load_state_dict(theirs.state_dict())
                except RuntimeError as error:
                    raise UserError(f"the {name} of that DenseCap does not fit this aligner: {error}") from error

    # Training

    def forward(
        self,
        features: Sequence[tuple[Tensor, ...]],
        targets: Sequence[SentenceTarget],
        generator: torch.Generator | None = None,
    ) -> list[AlignmentOutput]:
        """Scores of all pictures of a batch with all its sentences.

        Args:
            features: of each picture the extractor's ``features (1, R, F)`` and ``boxes (1, R, 4)``.
            targets: of each picture its sentences.
            generator: of the words that the reader does not hear.

        Returns:
            an output of each reader in training, and one of all together otherwise.
        """
        areas, real = self.embed_areas([row[0][0] for row in features])
        sentences = pad_sequence([row for t in targets for row in t.words], batch_first=True, padding_value=PAD)
        counts = torch.tensor([len(t.words) for t in targets], device=sentences.device)
        owner = torch.arange(len(targets), device=sentences.device).repeat_interleave(counts)
        read = self._read(self._dropped(sentences, generator))
        scale = self.log_scale.exp() if self.config.loss == "contrastive" else 1.0
        parts = self.config.readers if self.training else 1
        boxes = [row[1][0] for row in features]
        outputs = []
        split = (vectors.chunk(parts, dim=-1) for vectors in (areas, read.vectors, self.weighed(read)))
        for seen, heard, said in zip(*split, strict=True):
            seen = seen * parts  # what a part adds to the mean is its own product by the number of parts
            scores = pair_scores(seen, real, said, read.real, self.config.score)
            phrases = phrase_products(seen, real, boxes, heard, targets) if self.config.phrase_weight else ()
            outputs.append(AlignmentOutput(scores * scale, owner, *phrases))
        return outputs

    def _dropped(self, words: Tensor, generator: torch.Generator | None) -> Tensor:
        if not self.training or self.config.word_dropout == 0:
            return words
        lost = torch.rand(words.shape, generator=generator).to(words.device) < self.config.word_dropout
        return words.masked_fill(lost & (words != PAD) & (words != END), UNKNOWN)

    def embed_areas(self, features: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Features ``(R_k, F)`` of each picture to vectors ``(K, R, D)`` (Eq. 1), and which are real, ``(K, R)``."""
        counts = [len(rows) for rows in features]
        flat = torch.cat(list(features)).float()
        if self.config.root:
            flat = flat.sign() * flat.abs().sqrt()
        flat = self.standardise(flat)
        parts = [project(self.feature_dropout(flat)) for project in self.projects]
        vectors = _side_by_side(parts, self.config.unit != "none")
        real = pad_sequence([torch.ones(n, dtype=torch.bool, device=flat.device) for n in counts], batch_first=True)
        return pad_sequence(list(vectors.split(counts)), batch_first=True), real

    def weighed(self, read: Read) -> Tensor:
        """The vectors of words ``(S, T, D)`` whose sum over the best areas is the score.

        With ``mean`` a word counts by its share in the sentence, and END, which stands for all of it, as much as all
        words together.
        """
        if not self.config.mean:
            return read.vectors
        counts = read.real.sum(dim=1, keepdim=True)
        if not self.config.sentence:
            return read.vectors / counts.clamp(min=1)[..., None]
        last = torch.arange(read.real.shape[1], device=counts.device) == counts - 1
        return read.vectors / torch.where(last, 1, (counts - 1).clamp(min=1))[..., None]

    # Asking

    def numbers(self, sentences: Sequence[str]) -> Tensor:
        """Word numbers ``(S, T)`` as the reader takes them."""
        end = [END] if self.config.sentence else []
        return pad([self.vocabulary.encode(sentence) + end for sentence in sentences]).to(self.device)

    @torch.no_grad()
    def read(self, sentences: Sequence[str]) -> Read:
        """Vectors of the words of sentences, not weighed.

        Raises:
            UserError: a sentence without a word.
        """
        if wordless := [sentence for sentence in sentences if not tokenize(sentence)]:
            raise UserError(f"the sentence {wordless[0]!r} has no word")
        return self._read(self.numbers(sentences))

    def _read(self, words: Tensor) -> Read:
        reads = [reader(words) for reader in self.readers]
        return Read(_side_by_side([read.vectors for read in reads], self.config.unit == "both"), reads[0].real)

    @torch.no_grad()
    def embed_pictures(
        self,
        images: Sequence[ImageLike | Picture],
        boxes: Sequence[Tensor] | None = None,
        limit: int | None = None,
    ) -> list[PictureVectors]:
        """Areas and their vectors, of each picture.

        Args:
            images: paths, PIL images, arrays or :class:`Picture`; worked off a few at a time.
            boxes: of each picture ``(N, 4)`` in its pixels: use these areas and the whole picture.
            limit: at most this many areas beside the whole picture, instead of ``config.proposals``.

        Raises:
            ImageError: a picture cannot be read.
            UserError: boxes of another shape, or outside their picture.
        """
        if boxes is not None and len(boxes) != len(images):
            raise UserError(f"{len(boxes)} lists of boxes for {len(images)} pictures")
        found: list[PictureVectors] = []
        for start in range(0, len(images), AT_ONCE):
            part = slice(start, start + AT_ONCE)
            found += self._embed_some(images[part], None if boxes is None else boxes[part], limit)
        return found

    def _embed_some(
        self, images: Sequence[ImageLike | Picture], boxes: Sequence[Tensor] | None, limit: int | None
    ) -> list[PictureVectors]:
        pictures = [open_picture(image, self.config.long_side) for image in images]
        pixels = [self.preprocess(picture).to(self.device) for picture in pictures]
        factors = [(x.shape[2] / p.width, x.shape[1] / p.height) for p, x in zip(pictures, pixels, strict=True)]
        given = None
        if boxes is not None:
            checked = [_inside(p, torch.as_tensor(b)) for p, b in zip(pictures, boxes, strict=True)]
            given = [geometry.scale(b.to(self.device), *f) for b, f in zip(checked, factors, strict=True)]
        areas = self.provider(pixels, given, limit)
        vectors, _ = self.embed_areas([a.features for a in areas])
        return [
            PictureVectors(
                picture.width,
                picture.height,
                geometry.clip(geometry.scale(a.boxes, 1 / sx, 1 / sy), picture.width, picture.height),
                rows[: len(a)],
                picture.name,
                a.scores,
            )
            for picture, a, rows, (sx, sy) in zip(pictures, areas, vectors, factors, strict=True)
        ]

    @torch.no_grad()
    def embed_sentences(self, sentences: Sequence[str]) -> list[SentenceVectors]:
        """The words of each sentence and their vectors; summed over the best areas they give the score (Eq. 8)."""
        found: list[SentenceVectors] = []
        for start in range(0, len(sentences), SENTENCES_AT_ONCE):
            part = sentences[start : start + SENTENCES_AT_ONCE]
            read = self.read(part)
            rows = zip(part, self.weighed(read), read.real, strict=True)
            found += [SentenceVectors(tuple(tokenize(text)), v[real]) for text, v, real in rows]
        return found

    @overload
    def embed(self, what: ImageLike | Picture) -> PictureVectors | SentenceVectors: ...
    @overload
    def embed(self, what: Sequence[ImageLike | Picture]) -> list[PictureVectors] | list[SentenceVectors]: ...
    def embed(self, what: Any) -> Any:
        """Vectors of a picture or of a sentence, or of a list of one kind.

        A text is a picture if there is a file of that name, and a sentence otherwise; :meth:`embed_pictures` and
        :meth:`embed_sentences` leave no doubt.
        """
        if not isinstance(what, (list, tuple)):
            return self.embed([what])[0]
        sentences = [isinstance(each, str) and not _is_file(each) for each in what]
        if all(sentences):
            return self.embed_sentences(what)
        if any(sentences):
            raise UserError(f"{what[sentences.index(True)]!r} is no file, and the list has pictures; ask for one kind")
        return self.embed_pictures(what)

    @torch.no_grad()
    def score(self, pictures: Sequence[PictureVectors], sentences: Sequence[SentenceVectors]) -> Tensor:
        """Scores ``(K, L)`` of embedded pictures and sentences, computed in blocks."""
        if not pictures or not sentences:
            return torch.zeros(len(pictures), len(sentences), device=self.device)
        areas, areas_real = stack([p.vectors for p in pictures])
        words, words_real = stack([s.vectors for s in sentences])
        return score_matrix(areas, areas_real, words, words_real, self.config.score)

    @overload
    def align(
        self, images: ImageLike | Picture, sentences: str, boxes: Tensor | None = None, *, beta: float | None = None,
        limit: int | None = None,
    ) -> Alignment: ...  # fmt: skip
    @overload
    def align(
        self, images: Sequence[ImageLike | Picture], sentences: Sequence[str], boxes: Sequence[Tensor] | None = None,
        *, beta: float | None = None, limit: int | None = None,
    ) -> list[Alignment]: ...  # fmt: skip
    def align(self, images, sentences, boxes=None, *, beta=None, limit=None):
        """Say which words of a sentence belong to which area of a picture (section 3.1.4).

        Args:
            images: a picture, or a list of them.
            sentences: the sentence, or for a list of pictures a list with a sentence for each.
            boxes: ``(N, 4)`` in pixels of the picture (a list of such for a list): choose among these and the whole.
            beta: affinity of neighbouring words to the same area (Eq. 12); 0 is word by word. ``config.beta`` if None.
            limit: see :meth:`embed_pictures`.

        Returns:
            the sentence as phrases with areas; a list of them for a list.
        """
        if not isinstance(images, (list, tuple)):
            return self.align([images], [sentences], None if boxes is None else [boxes], beta=beta, limit=limit)[0]
        if isinstance(sentences, str) or len(sentences) != len(images):
            count = 1 if isinstance(sentences, str) else len(sentences)
            raise UserError(f"{count} sentences for {len(images)} pictures")
        beta = self.config.beta if beta is None else beta
        if beta < 0:
            raise UserError(f"beta is at least 0, not {beta}")
        pictures = self.embed_pictures(images, boxes, limit)
        return [self.align_vectors(p, s, beta) for p, s in zip(pictures, sentences, strict=True)]

    @torch.no_grad()
    def align_vectors(self, picture: PictureVectors, sentence: str, beta: float) -> Alignment:
        """:meth:`align` for a picture that is embedded already."""
        words = tuple(tokenize(sentence))
        vectors = self.read([sentence]).vectors[0, : len(words)]
        products = (vectors @ picture.vectors.T).float().cpu() + self.bonus(picture)
        boxes = picture.boxes.float().cpu()
        return make_alignment(picture.name, picture.width, picture.height, words, boxes, products, beta)

    def bonus(self, picture: PictureVectors) -> Tensor:
        """What is added to the products of all words with an area ``(R,)``: how likely it is to be named at all."""
        shares = geometry.area(picture.boxes.float().cpu()) / (picture.width * picture.height)
        bonus = self.config.size_bonus * shares.clamp(min=1e-3).log()
        if picture.scores is None:
            return bonus
        return bonus + self.config.score_bonus * picture.scores.float().cpu()

    @torch.no_grad()
    def ground_vectors(self, picture: PictureVectors, sentence: str, spans: Sequence[tuple[int, int]]) -> Tensor:
        """The boxes ``(N, 4)`` in pixels of an embedded picture of phrases of a sentence.

        Args:
            picture: see :meth:`embed_pictures`.
            sentence: all of it, for the reader colours words by their neighbours.
            spans: of each phrase the number of its first word and of the word after its last.
        """
        alignment = self.align_vectors(picture, sentence, 0.0)
        return torch.stack([alignment.locate(start, stop) for start, stop in spans])


def stack(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Vectors ``(N_k, D)`` of each item as one ``(K, N, D)``, and the mask ``(K, N)`` of those that are real."""
    real = [torch.ones(len(r), dtype=torch.bool, device=r.device) for r in rows]
    return pad_sequence(list(rows), batch_first=True), pad_sequence(real, batch_first=True)


def _side_by_side(parts: Sequence[Tensor], unit: bool) -> Tensor:
    """Vectors of all readers as one, such that its products are the mean of the readers'; of length 1 if ``unit``."""
    parts = [functional.normalize(part, dim=-1) for part in parts] if unit else parts
    return torch.cat(list(parts), dim=-1) / math.sqrt(len(parts))


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):  # too long for a name, or with a zero byte
        return False


def _inside(picture: Picture, boxes: Tensor) -> Tensor:
    if boxes.numel() and (boxes.ndim != 2 or boxes.shape[1] != 4):
        raise UserError(f"{picture.name}: boxes need four numbers each, (N, 4); these are {tuple(boxes.shape)}")
    boxes = boxes.reshape(-1, 4).float()
    cut = geometry.clip(boxes, picture.width, picture.height)
    solid = torch.isfinite(boxes).all(dim=1) & ((cut[:, 2:] - cut[:, :2]) > 0).all(dim=1)
    if not bool(solid.all()):
        bad = boxes[int((~solid).nonzero()[0])].tolist()
        raise UserError(f"{picture.name}: the box {bad} is not inside the {picture.width} x {picture.height} picture")
    return cut


def _build_provider(config: AlignerConfig, pretrained: bool) -> WholePicture:
    backbone = build_backbone(config.backbone, config.strides, pretrained)
    features = AreaFeatures(backbone.strides, backbone.channels, config.levels, config.head)
    if pretrained and features.head is not None:
        features.head.load_published(config.backbone)
    if config.areas == "whole":
        return WholePicture(backbone, features)
    channels = config.pyramid or backbone.channels[0]
    pyramid = Pyramid(backbone.channels, channels) if config.pyramid else None
    anchors = AnchorGenerator(config.anchors, config.strides)
    head = RpnHead(channels, config.rpn_hidden, anchors.per_cell, two_way=False)
    layer = LocalizationLayer(head, anchors, Conventions(), config.proposal_nms, config.before_nms)
    return ProposedAreas(backbone, features, pyramid, layer, config.proposals)

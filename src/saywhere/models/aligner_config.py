"""The options of the aligner, with today's defaults and those of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from saywhere.language.reader import Cell
from saywhere.models.alignment_score import How
from saywhere.models.config import Config
from saywhere.models.densecap_config import Shapes, pyramid_anchors
from saywhere.vision.backbones import GROUPS, LITE_PACKAGES

Kind = Literal["proposals", "whole"]
Unit = Literal["none", "areas", "both"]
Loss = Literal["contrastive", "margin"]

POSITIVE = (
    "long_side", "multiple", "rpn_hidden", "before_nms", "size", "readers", "word_size", "hidden_size", "sentences",
)  # fmt: skip
SHARES = ("proposal_nms", "word_dropout", "smoothing")
BELOW_ONE = ("feature_dropout", "dropout")


@dataclass(frozen=True)
class AlignerConfig(Config):
    """Options of :class:`saywhere.models.aligner.Aligner`; ``AlignerConfig()`` is the good default.

    Attributes:
        backbone, strides: see :func:`saywhere.vision.backbones.build_backbone`.
        long_side, multiple: size of the network's input, see :class:`saywhere.images.Preprocess`.
        levels: strides of the maps that are averaged over an area.
        head: average the last layer before the classifier too (only EfficientNet-Lite).
        areas: ``proposals`` of DenseCap's localization layer and the whole picture, or the ``whole`` picture alone.
        proposals: at most so many areas beside the whole picture; section 3.1.1 has 19.
        proposal_nms, before_nms: suppression of proposals, see :class:`saywhere.vision.localization.LocalizationLayer`.
        localizer: name or folder of the DenseCap whose localization layer training takes over.
        pyramid, anchors, rpn_hidden: of that DenseCap.
        root: features enter as the square root of their size, sign kept, which tames the strong ones.
        size: of the space that areas and words share.
        readers: so many readers share the space out between them. Each has word vectors and a projection of the areas
            of its own and is taught by a loss of its own; readers differ by their first weights and by what dropout
            takes from them, and the mean of their products says more than each (an ensemble in one model).
        word_size, hidden_size, cell, rectified, skip: of each reader, see :class:`saywhere.language.reader.Reader`.
        word_vectors: file in GloVe's text format that training starts from; None draws them.
        train_words: learn the word vectors; else they stay as they were loaded or drawn.
        feature_dropout: on the features of areas.
        dropout: in the reader.
        word_dropout: share of the words that the reader hears as the unknown word, in training.
        unit: ``both`` gives all vectors length 1, ``areas`` those of the areas, ``none`` leaves all as they are.
        score: ``max`` (Eq. 8) or ``fragments`` (Eq. 7).
        mean: the score is the mean over the words instead of the sum.
        sentence: the END of a sentence is a word too: one that has heard them all, and stands for the sentence.
        loss: ``margin`` (Eq. 9) or ``contrastive`` (cross-entropy over the batch).
        margin, hardest: see :func:`saywhere.models.alignment_loss.max_margin`.
        temperature: that scores of the contrastive loss are divided by at first; it is learnt.
        smoothing: see :func:`saywhere.models.alignment_loss.contrastive`.
        phrase_weight: of the loss of phrases whose boxes are known (Flickr30k Entities); 0 learns from sentences alone.
        sentences: of each picture in a batch, drawn anew in each epoch.
        score_bonus, size_bonus: an area's logit that there is something, and the log of its share of the picture, are
            added, with these weights, to its products with all words when a sentence is aligned; 0 for Eq. 11 as it is.
        beta: affinity of neighbouring words to the same area (Eq. 12) unless :meth:`Aligner.align` is told another.
    """

    backbone: str = "efficientnet_lite2"
    strides: tuple[int, ...] = (8, 16, 32)
    long_side: int = 384
    multiple: int = 32
    levels: tuple[int, ...] = (16, 32)
    head: bool = True
    areas: Kind = "proposals"
    proposals: int = 19
    proposal_nms: float = 0.5
    before_nms: int = 1000
    localizer: str = "densecap-flickr8k"
    pyramid: int = 128
    anchors: tuple[Shapes, ...] = pyramid_anchors()
    rpn_hidden: int = 128
    root: bool = True
    size: int = 512
    readers: int = 1
    word_size: int = 300
    hidden_size: int = 512
    cell: Cell = "gru"
    rectified: bool = False
    skip: bool = False
    word_vectors: str | None = None
    train_words: bool = True
    feature_dropout: float = 0.3
    dropout: float = 0.3
    word_dropout: float = 0.1
    unit: Unit = "none"
    score: How = "max"
    mean: bool = True
    sentence: bool = True
    loss: Loss = "contrastive"
    margin: float = 1.0
    hardest: bool = False
    temperature: float = 1.0
    smoothing: float = 0.0
    phrase_weight: float = 0.0
    sentences: int = 1
    score_bonus: float = 0.0
    size_bonus: float = 0.0
    beta: float = 0.5

    def __post_init__(self) -> None:
        for option in POSITIVE:
            self.require(getattr(self, option) >= 1, option, "at least 1")
        for option in SHARES:
            self.require(0 <= getattr(self, option) <= 1, option, "between 0 and 1")
        for option in BELOW_ONE:
            self.require(0 <= getattr(self, option) < 1, option, "at least 0 and below 1")
        self.require(self.size % self.readers == 0, "size", f"a multiple of the {self.readers} readers")
        self.require(list(self.strides) == sorted(set(self.strides)) != [], "strides", "one or more, ascending")
        self.require(set(self.levels) <= set(self.strides), "levels", "among the strides")
        self.require(bool(self.levels) or self.head, "levels", "one or more, or head true")
        self.require(not self.head or self.backbone in LITE_PACKAGES, "head", f"false for {self.backbone}")
        self.require(self.proposals >= 0, "proposals", "at least 0")
        self.require(self.pyramid >= 0 and self.pyramid % GROUPS == 0, "pyramid", f"a multiple of {GROUPS}")
        shapes = {len(level) for level in self.anchors}
        good = len(self.anchors) == len(self.strides) and len(shapes) == 1 and shapes != {0}
        self.require(good, "anchors", "k shapes (w, h) for each stride")
        for option, kind in (("areas", Kind), ("score", How), ("loss", Loss), ("cell", Cell), ("unit", Unit)):
            self.require(getattr(self, option) in get_args(kind), option, " or ".join(get_args(kind)))
        for option in ("margin", "beta", "phrase_weight"):
            self.require(getattr(self, option) >= 0, option, "at least 0")
        self.require(self.temperature > 0, "temperature", "above 0")

    @classmethod
    def original(cls) -> AlignerConfig:
        """The paper's model (sections 3.1 and 3.3) on our areas: a ReLU network, Eq. 8 as a sum, Eq. 9 over all."""
        return cls(
            root=False,
            size=1000,
            word_size=300,
            hidden_size=300,
            cell="relu",
            rectified=True,
            feature_dropout=0.5,
            dropout=0.5,
            word_dropout=0.0,
            unit="none",
            mean=False,
            sentence=False,
            loss="margin",
            margin=1.0,
            sentences=1,
        )

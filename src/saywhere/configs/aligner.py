"""The options of the aligner, with today's defaults and those of the paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from saywhere.configs.parts import MOST_FEATURES, MOST_SENTENCES, Config, ProposalConfig, RegionConfig

RegionKind = Literal["proposals", "whole"]
Score = Literal["max", "fragments"]
Cell = Literal["relu", "gru", "lstm", "none"]
Loss = Literal["contrastive", "margin"]
PROPOSALS = ProposalConfig(nms_iou=0.5, post_nms_top_n=19)
VECTOR_OPTIONS = frozenset({
    "trunk", "proposals", "levels", "head", "branch", "regions", "signed_sqrt", "embed_dim", "encoders", "hubness",
})  # fmt: skip
"""Options on which the vectors of regions depend; the others are those of texts, of scores and of training."""


@dataclass(frozen=True)
class GroundingConfig(Config):
    """Options of how phrases are placed, and when they count as found; ``saywhere calibrate`` chooses the weights.

    Attributes:
        nms_iou: phrases are placed in regions none of which overlaps a better one by more than this, in place of the
            dense captioner's ``final_nms`` and ``repeat_nms`` and of the aligner's ``proposals.nms_iou``: of boxes that
            are closer together one fits better. None leaves those.
        score_weight: of the log-probability that a region is there, beside that of the phrase for it; both are the
            dense captioner's.
        kind_weight: of the log-probability, by the classes, that a region is of the kind that a phrase names.
        rare: the text encoder hardly knows a noun that it saw fewer times than this in training.
        rare_kind_weight: takes the place of ``kind_weight`` for phrases with such a noun.
        similarity_kind_weight: takes the place of both where the aligner places phrases: its similarities are larger
            than log-probabilities.
        threshold: a phrase is found from this probability on, if the model is calibrated for phrases.
    """

    nms_iou: float | None = None
    score_weight: float = 1.0
    kind_weight: float = 0.0
    rare: int = 20
    rare_kind_weight: float = 0.0
    similarity_kind_weight: float = 0.0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self.require_at_least(0, "score_weight", "kind_weight", "rare", "rare_kind_weight", "similarity_kind_weight")
        self.require_share("threshold", *(() if self.nms_iou is None else ("nms_iou",)))


@dataclass(frozen=True)
class AlignerConfig(RegionConfig):
    """Options of :class:`saywhere.networks.aligner.network.Aligner`; ``AlignerConfig()`` is the good default.

    Attributes:
        trunk, proposals: parts, see :mod:`saywhere.configs.parts`; section 3.1.1 has 19 proposals.
        localizer, levels, head, branch: see :class:`saywhere.configs.parts.RegionConfig`.
        regions: ``proposals`` of DenseCap's localization layer and the whole image, or the ``whole`` image alone.
        signed_sqrt: features enter as the square root of their size, sign kept, which tames the strong ones.
        embed_dim: of the space that regions and words share.
        encoders: so many text encoders share the space out between them. Each has word vectors and a projection of the
            regions of its own and is trained by a loss of its own; the mean of their products ranks better than each
            (an ensemble in one model).
        word_size, hidden_size, cell, rectified, residual: of each encoder, see
            :class:`saywhere.networks.aligner.network.TextEncoder`.
        parses: CoNLL-U file of parsed sentences (:mod:`saywhere.papers.relations`). Their relations then take the place
            of words, and only these sentences can be encoded. None encodes words.
        relations: kinds of relations that have a map each; all others share one. Training takes the frequent ones if
            none are named.
        feature_dropout: on the features of regions.
        dropout: in the text encoder.
        word_dropout: share of the words that the text encoder reads as the unknown word, in training.
        score: ``max`` (Eq. 8) or ``fragments`` (Eq. 7).
        mean_over_words: the score is the mean over the words instead of the sum.
        sentence_token: the END of a sentence is a word too; it comes after all others and stands for the sentence.
        loss: ``margin`` (Eq. 9) or ``contrastive`` (cross-entropy over the batch).
        margin: see :func:`saywhere.networks.aligner.loss.max_margin`.
        temperature: that scores of the contrastive loss are divided by at first; it is learnt.
        phrase_weight: of the loss of phrases whose boxes are known (Flickr30k Entities); 0 learns from sentences alone.
        sentences: of each image in a batch, drawn anew in each epoch.
        region_phrases: the phrases of an image's regions are texts of it as its sentences are, so that short texts and
            names of things are learnt, too.
        hubs: so many typical texts, and typical images, tell how similar an image is to texts at large, and a text to
            images (:class:`saywhere.engines.engine.Hubness`); ``saywhere calibrate`` fits them.
        hubness: take that off similarities, if there are hubs.
        score_bonus, size_bonus: a region's logit that there is something, and the log of its share of the image, are
            added, with these weights, to its products with all words when a sentence is aligned; 0 for Eq. 11 as it is.
        beta: affinity of neighbouring words to the same region (Eq. 12), unless a call gives another.
        grounding: see :class:`GroundingConfig`.
    """

    proposals: ProposalConfig = PROPOSALS
    regions: RegionKind = "proposals"
    signed_sqrt: bool = True
    embed_dim: int = 512
    encoders: int = 1
    word_size: int = 300
    hidden_size: int = 512
    cell: Cell = "gru"
    rectified: bool = False
    residual: bool = False
    parses: str | None = None
    relations: tuple[str, ...] = ()
    feature_dropout: float = 0.3
    dropout: float = 0.3
    word_dropout: float = 0.1
    score: Score = "max"
    mean_over_words: bool = True
    sentence_token: bool = True
    loss: Loss = "contrastive"
    margin: float = 1.0
    temperature: float = 1.0
    phrase_weight: float = 0.0
    sentences: int = 1
    region_phrases: bool = False
    hubs: int = 0
    hubness: bool = True
    score_bonus: float = 0.0
    size_bonus: float = 0.0
    beta: float = 0.5
    grounding: GroundingConfig = GroundingConfig()

    def __post_init__(self) -> None:
        self.require_features("embed_dim", "word_size", "hidden_size")
        self.require_between(1, MOST_SENTENCES, "sentences")
        self.require_between(1, self.embed_dim, "encoders")
        self.require_between(0, MOST_FEATURES, "hubs")
        self.require_at_least(0, "margin", "beta", "phrase_weight")
        self.require(not self.hubs or self.score == "max", "hubs", "0 with the score fragments")
        self.require_share("word_dropout")
        self.require_below_one("feature_dropout", "dropout")
        self.require(self.temperature > 0, "temperature", "above 0")
        self.require(self.embed_dim % self.encoders == 0, "embed_dim", f"a multiple of the {self.encoders} encoders")
        self.require_choice((("regions", RegionKind), ("score", Score), ("loss", Loss), ("cell", Cell)))
        self.require(self.parses is not None or not self.relations, "relations", "empty without parses")
        if self.parses is not None:
            self.require(not self.sentence_token, "sentence_token", "false with parses: no relation is the sentence")
            self.require(self.phrase_weight == 0, "phrase_weight", "0 with parses: phrases have words")
        self.require_levels(self.levels, self.head, self.branch)
        if self.region_phrases:
            self.require(self.phrase_weight == 0, "phrase_weight", "0 with region_phrases")
        if self.uses_proposals:
            self.require_proposals()

    def vector_options(self) -> dict[str, Any]:
        """Return the options on which the vectors of regions depend, beside the weights."""
        stored = {name: value for name, value in self.to_dict().items() if name in VECTOR_OPTIONS}
        stored["normalize"] = "none"  # an option that is gone: indexes that were made with it stay valid
        return stored if self.branch else {name: value for name, value in stored.items() if name != "branch"}

    @property
    def uses_proposals(self) -> bool:
        return self.regions == "proposals"

    @classmethod
    def original(cls) -> AlignerConfig:
        """Return the paper's model (sections 3.1, 3.3) on our regions: a ReLU network, Eq. 8 as a sum, Eq. 9."""
        return cls(
            signed_sqrt=False,
            embed_dim=1000,
            word_size=300,
            hidden_size=300,
            cell="relu",
            rectified=True,
            feature_dropout=0.5,
            dropout=0.5,
            word_dropout=0.0,
            mean_over_words=False,
            sentence_token=False,
            loss="margin",
            margin=1.0,
            sentences=1,
        )

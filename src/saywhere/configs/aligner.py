"""Options of the aligner: our defaults, and those of the paper."""

from __future__ import annotations

from typing import Any, Literal

from saywhere.configs.parts import MOST_FEATURES, MOST_SENTENCES, Config, ProposalConfig, RegionConfig
from saywhere.options import dataclass

RegionKind = Literal["proposals", "whole"]
Score = Literal["max", "fragments"]
Cell = Literal["relu", "gru", "none"]
Loss = Literal["contrastive", "margin"]
PROPOSALS = ProposalConfig(nms_iou=0.5, post_nms_top_n=19)
VECTOR_OPTIONS = frozenset({
    "trunk", "proposals", "levels", "head", "branch", "regions", "signed_sqrt", "embed_dim", "encoders", "hubness",
})  # fmt: skip
"""Options that affect region embeddings; the others affect texts, scores or training."""


@dataclass(frozen=True)
class GroundingConfig(Config):
    """Options of grounding: how phrases are placed and when they are found; ``saywhere calibrate`` fits the weights.

    Attributes:
        nms_iou: maximum IoU of the candidate regions; replaces ``final_nms`` and ``repeat_nms`` of the dense captioner
            and ``proposals.nms_iou`` of the aligner. A higher value allows boxes that fit better. None: keep those.
        score_weight: weight of the log-probability that a region contains something, relative to that of the phrase;
            both are the dense captioner's.
        kind_weight: weight of the noun classifier's log-probability that a region shows the phrase's kind of thing.
        rare: a noun is rare if the text encoder saw it fewer times than this in training.
        bare_kind_share: for a phrase that says nothing but its noun, such as "a dog", the share of the log-probability
            that a region contains something and that it is of this kind, instead; the rest is the dense captioner's.
            It has more to say of a dog that is clearly seen, so that "a dog" alone fits what is blurred or small.
        similarity_kind_weight: replaces both where the aligner places phrases, because similarities are larger than
            log-probabilities.
        least_seen: a noun outside the noun tree has a low probability if the text encoder saw it fewer times than this
            in training.
        threshold: minimum probability of a phrase that counts as found, if the model has a calibration of phrases.
    """

    nms_iou: float | None = None
    score_weight: float = 1.0
    kind_weight: float = 0.0
    rare: int = 20
    bare_kind_share: float = 0.0
    similarity_kind_weight: float = 0.0
    least_seen: int = 0
    threshold: float = 0.5

    def __post_init__(self) -> None:
        self.require_at_least(0, "score_weight", "kind_weight", "rare", "similarity_kind_weight")
        self.require_at_least(0, "least_seen")
        self.require_share("threshold", "bare_kind_share", *(() if self.nms_iou is None else ("nms_iou",)))


@dataclass(frozen=True)
class AlignerConfig(RegionConfig):
    """Options of :class:`saywhere.networks.aligner.network.Aligner`; ``AlignerConfig()`` is the recommended default.

    Attributes:
        trunk, proposals: see :mod:`saywhere.configs.parts`; section 3.1.1 has 19 proposals.
        localizer, levels, head, branch: see :class:`saywhere.configs.parts.RegionConfig`.
        regions: ``proposals`` of DenseCap's localization layer and the whole image, or only the ``whole`` image.
        signed_sqrt: take the signed square root of region features, which compresses large values.
        embed_dim: dimension of the joint space of regions and words.
        encoders: number of text encoders that divide the joint space, an ensemble in one model. Each has its own word
            embeddings, projection of regions and loss. The mean of their products ranks better than each alone.
        word_size, hidden_size, cell, rectified, residual: options of each encoder, see
            :class:`saywhere.networks.aligner.network.TextEncoder`.
        parses: CoNLL-U file of parsed sentences (:mod:`saywhere.papers.relations`). Relations then replace words, and
            only these sentences can be encoded. None: encode words.
        relations: types of relations with their own map; all others share one. Default: training takes the frequent
            ones.
        feature_dropout: dropout of region features.
        dropout: dropout in the text encoder.
        word_dropout: fraction of words replaced by the unknown word in training.
        score: ``max`` (Eq. 8) or ``fragments`` (Eq. 7).
        mean_over_words: whether the score is the mean over words instead of the sum.
        sentence_token: whether END, which represents the whole sentence, also counts as a word.
        loss: ``margin`` (Eq. 9) or ``contrastive`` (cross-entropy over the batch).
        margin: see :func:`saywhere.networks.aligner.loss.max_margin`.
        temperature: initial temperature of the contrastive loss; it is learnt.
        sentences: number of sentences per image in a batch, redrawn each epoch.
        region_phrases: whether the phrases of an image's regions are training texts like its sentences; teaches short
            texts and names of things.
        hubs: number of typical texts, and of typical images, for estimating the hubness of images and texts
            (:class:`saywhere.engines.engine.Hubness`); fitted by ``saywhere calibrate``.
        hubness: whether to subtract hubness from similarities, if there are hubs.
        score_bonus, size_bonus: weights of a region's objectness logit and of the log of its fraction of the image in
            the bonus that alignment adds to its products with words; 0: Eq. 11 as published.
        beta: default affinity of neighbouring words to the same region (Eq. 12).
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
        self.require_at_least(0, "margin", "beta")
        self.require(not self.hubs or self.score == "max", "hubs", "0 with the score fragments")
        self.require_share("word_dropout")
        self.require_below_one("feature_dropout", "dropout")
        self.require(self.temperature > 0, "temperature", "above 0")
        self.require(self.embed_dim % self.encoders == 0, "embed_dim", f"a multiple of the {self.encoders} encoders")
        self.require_choice((("regions", RegionKind), ("score", Score), ("loss", Loss), ("cell", Cell)))
        self.require(self.parses is not None or not self.relations, "relations", "empty without parses")
        if self.parses is not None:
            self.require(not self.sentence_token, "sentence_token", "false with parses: no relation is the sentence")
        self.require_levels(self.levels, self.head, self.branch)
        if self.uses_proposals:
            self.require_proposals()

    def vector_options(self) -> dict[str, Any]:
        """Return the options that affect region embeddings, besides the weights."""
        stored = {name: value for name, value in self.to_dict().items() if name in VECTOR_OPTIONS}
        return stored if self.branch else {name: value for name, value in stored.items() if name != "branch"}

    @property
    def uses_proposals(self) -> bool:
        return self.regions == "proposals"

    @classmethod
    def original(cls) -> AlignerConfig:
        """Return the paper's model (sections 3.1, 3.3) on our regions: a ReLU network, Eq. 8 as a sum, Eq. 9.

        Word vectors are learnt from random numbers. The paper keeps those of word2vec.
        """
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

"""The options of the captioner, with today's defaults and those of the multimodal RNN as it was published."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from saywhere.configs.parts import LARGEST_GRID, MOST_SENTENCES, Config, DecodingConfig, ProposalConfig, RegionConfig

DecoderKind = Literal["rnn", "lstm", "gru", "attention"]
AttendTo = Literal["whole", "grid", "proposals", "transformer"]
Reward = Literal["none", "cider"]
Term = Literal["word-state", "word-region", "region-state", "word", "region"]
Feedback = Literal["none", "marginal", "conditional"]
TERMS: tuple[Term, ...] = get_args(Term)
"""The five terms of Eq. 5 of Areas of Attention in its order."""
PROPOSALS = ProposalConfig(nms_iou=0.5, post_nms_top_n=50)
DECODING = DecodingConfig(max_words=16, beam_size=3, length_penalty=0.7)


HEAVIEST = 1000.0
"""A weight that leaves nothing to the decoder."""
MOST_STORED = 100_000_000
"""Sentences, n-grams or words that are stored with the weights, at most."""


@dataclass(frozen=True)
class NgramsConfig(Config):
    """Options of the n-gram probabilities of an image, by which captions are reranked.

    Attributes:
        count: n-grams that are stored with the weights; 0 are none. a stage ``ngrams`` chooses them.
        words: of all of them together.
        size: dimensions of which their probabilities are made.
        weight: in use, of the agreement of a sentence with them (:mod:`saywhere.engines.arrays.ngrams`) in the choice
            among the hypotheses of the beam; 0 asks none.
        least_lift: in use, a closing phrase such as "in the air" is left out if its noun is less than so many times as
            probable of the image as of any (:func:`saywhere.models.captioner.without_unlikely_endings`);
            0 leaves none out.
    """

    count: int = 0
    words: int = 0
    size: int = 64
    weight: float = 1.1
    least_lift: float = 0.4

    def __post_init__(self) -> None:
        self.require_between(0, MOST_STORED, "count")
        self.require(0 <= self.weight <= HEAVIEST, "weight", f"between 0 and {HEAVIEST}")
        self.require(0 <= self.least_lift <= HEAVIEST, "least_lift", f"between 0 and {HEAVIEST}")
        self.require_between(self.count, MOST_STORED, "words")
        self.require_features("size")


@dataclass(frozen=True)
class CaptionerConfig(RegionConfig):
    """Options of :class:`saywhere.networks.captioner.network.Captioner`; ``CaptionerConfig()`` is the good default.

    Attributes:
        trunk, proposals, decoding: parts, see :mod:`saywhere.configs.parts`. The proposals are those of ``attend_to:
            proposals``.
        localizer, levels, head, branch: see :class:`saywhere.configs.parts.RegionConfig`.
        decoder: ``rnn`` (:class:`saywhere.networks.language.decoders.rnn.RnnDecoder`), ``lstm``, ``gru`` (both begin
            with the whole image) or ``attention``
            (:class:`saywhere.networks.language.decoders.attention.AttentionDecoder`).
        attend_to: ``whole``, the image is one region; for ``attention`` the cells of a ``grid``, ``proposals`` of a
            DenseCap's localization layer or given boxes, or a spatial ``transformer`` in each cell of a grid.
        grid: rows and columns of the grid. It may be another in use than in training.
        zoom: size of the ``transformer``'s regions at first, see
            :class:`saywhere.networks.vision.spatial_transformer.SpatialTransformer`.
        region_size: dimensions of a region's features before ``attention``.
        region_dropout: on the features of regions.
        terms, feedback: of ``attention``. The engine ``onnx`` runs it without ``region-state`` and feedback, which help
            nothing (docs/captioning.md): what regions add to words is then the same in every state.
        describe_boxes: caption boxes with phrases rather than images with sentences.
        word_size, hidden_size, dropout: of the decoder.
        sentences: of each image in a batch, drawn anew in each epoch; of boxes one phrase each.
        smoothing: share of the probability that training gives to all words alike.
        reward: ``none`` learns people's words one by one; ``cider`` continues with a model that has learnt them
            (``training.start``), whose own sentences are rewarded by their CIDEr-D, see
            :mod:`saywhere.networks.captioner.loss`. References are all sentences of an image of at most
            ``decoding.max_words``.
        num_samples: sentences of an image that are compared for the reward. They are sampled as in use, without dropout
            but that of the words that ``attention`` takes in.
        word_weight: of the supervised loss of people's words, ``sentences`` of an image, beside the reward.
        invented_weight: what each noun that none of an image's references mentions takes off the reward (CHAIR), and an
            ending of three words that no sentence has.
        similarity_weight: in use, of the similarity of image and sentence (Alignments, Eq. 8) by the last encoder, in
            the choice among the hypotheses of the beam; for a model with the part ``aligner``.
        seen_weight: in use, in the same choice, of how sure it is that regions of the image show what a sentence
            names, see :func:`saywhere.models.captioner.support`; where ``nouns`` are looked at.
        nouns: in use, a noun of a sentence that no region of the image shows gives way to what one does show, see
            :mod:`saywhere.models.captioner`; for a model with the parts ``densecap`` and ``nouns``.
        people_threshold: in use, sentences name people only if a region shows somebody with this probability at least;
            where ``nouns`` are looked at.
        ngrams: probabilities of n-grams in captions of the image, by which the hypotheses are reranked too.
    """

    proposals: ProposalConfig = PROPOSALS
    decoding: DecodingConfig = DECODING
    decoder: DecoderKind = "attention"
    attend_to: AttendTo = "grid"
    grid: int = 6
    zoom: float = 2.0
    region_size: int = 384
    region_dropout: float = 0.3
    terms: tuple[Term, ...] = ("word-state", "word-region", "word", "region")
    feedback: Feedback = "none"
    describe_boxes: bool = False
    word_size: int = 256
    hidden_size: int = 384
    dropout: float = 0.5
    sentences: int = 2
    smoothing: float = 0.1
    reward: Reward = "none"
    num_samples: int = 5
    word_weight: float = 0.0
    invented_weight: float = 0.0
    similarity_weight: float = 0.0
    seen_weight: float = 0.0
    nouns: bool = True
    people_threshold: float = 0.1
    ngrams: NgramsConfig = NgramsConfig()

    def __post_init__(self) -> None:
        self.require_levels(self.levels, self.head, self.branch)
        self.require_between(1, LARGEST_GRID, "grid")
        self.require_features("region_size", "word_size", "hidden_size")
        self.require_between(1, MOST_SENTENCES, "sentences")
        self.require_below_one("dropout", "region_dropout", "smoothing")
        self.require_share("people_threshold")
        self.require_choice(
            (("decoder", DecoderKind), ("attend_to", AttendTo), ("feedback", Feedback), ("reward", Reward))
        )
        self.require(set(self.terms) <= set(TERMS), "terms", f"some of {', '.join(TERMS)}")
        self.require(self.zoom > 0, "zoom", "above 0")
        self.require_at_least(0, "word_weight", "invented_weight", "similarity_weight", "seen_weight")
        wanted = f"at least 2, to be compared, and at most {MOST_SENTENCES}"
        self.require(2 <= self.num_samples <= MOST_SENTENCES, "num_samples", wanted)
        attends = self.decoder == "attention"
        wanted = "whole, but for the decoder attention, which needs more"
        self.require(attends == (self.attend_to != "whole"), "attend_to", wanted)
        boxes = self.describe_boxes
        self.require(not (attends and boxes), "describe_boxes", "false with the decoder attention")
        self.require(self.reward == "none" or not boxes, "reward", "none with describe_boxes")
        self.require(not (boxes and self.ngrams.count), "ngrams.count", "0 with describe_boxes")
        if self.uses_proposals:
            self.require_proposals()
            self.require_at_least(1, "proposals.post_nms_top_n")
            self.require(self.proposals.nms_iou > 0, "proposals.nms_iou", "above 0")

    @property
    def uses_proposals(self) -> bool:
        return self.attend_to == "proposals"

    @classmethod
    def original(cls) -> CaptionerConfig:
        """Return the multimodal RNN of Alignments: section 3.2, and its program where the paper is silent."""
        return cls(
            decoding=DecodingConfig(max_words=20, beam_size=7, length_penalty=0.0),
            levels=(),
            decoder="rnn",
            attend_to="whole",
            word_size=256,
            hidden_size=512,
            dropout=0.5,
            sentences=1,
            smoothing=0.0,
        )

"""Options of the captioner: our defaults, and those of the published multimodal RNN."""

from __future__ import annotations

from typing import Literal, get_args

from saywhere.configs.parts import (
    LARGEST_GRID,
    MOST_SENTENCES,
    DecodingConfig,
    NgramsConfig,
    ProposalConfig,
    RegionConfig,
)
from saywhere.options import dataclass

DecoderKind = Literal["rnn", "lstm", "attention"]
AttendTo = Literal["whole", "grid", "proposals", "transformer"]
Reward = Literal["none", "cider"]
Term = Literal["word-state", "word-region", "region-state", "word", "region"]
Feedback = Literal["none", "marginal", "conditional"]
TERMS: tuple[Term, ...] = get_args(Term)
"""The five terms of Areas of Attention's Eq. 5, in its order."""
PROPOSALS = ProposalConfig(nms_iou=0.5, post_nms_top_n=50)
DECODING = DecodingConfig(max_words=16, beam_size=3, length_penalty=0.7)


@dataclass(frozen=True)
class CaptionNgramsConfig(NgramsConfig):
    """Options of the n-gram probabilities of an image's captions.

    Attributes:
        weight, least_probability: see :class:`saywhere.configs.parts.NgramsConfig`.
        least_subject: a caption gives way to the phrase of a region if the noun that it begins with is less probable
            than this, and no region surely shows it; 0: never. Needs the parts ``densecap`` and ``nouns``.
    """

    weight: float = 1.1
    least_probability: float = 0.005
    least_subject: float = 0.03

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_share("least_subject")


@dataclass(frozen=True)
class CaptionerConfig(RegionConfig):
    """Options of :class:`saywhere.networks.captioner.network.Captioner`; defaults are the recommended ones.

    Attributes:
        trunk, proposals, decoding: see :mod:`saywhere.configs.parts`; ``proposals`` are for ``attend_to: proposals``.
        localizer, levels, head, branch: see :class:`saywhere.configs.parts.RegionConfig`.
        decoder: ``rnn`` (:class:`saywhere.networks.language.decoders.rnn.RnnDecoder`), ``lstm`` (starts with the whole
            image) or ``attention`` (:class:`saywhere.networks.language.decoders.attention.AttentionDecoder`).
        attend_to: ``whole``: the image is one region. With ``attention``: the cells of a ``grid``, ``proposals`` of a
            DenseCap's localization layer or given boxes, or a spatial ``transformer`` in each cell of a grid.
        grid: rows and columns of the grid; can differ between training and inference.
        zoom: initial size of the ``transformer``'s regions, see
            :class:`saywhere.networks.vision.spatial_transformer.SpatialTransformer`.
        region_size: dimension of region features at the input of ``attention``.
        region_dropout: dropout of region features.
        terms, feedback: options of ``attention``. The engine ``onnx`` lacks ``region-state`` and feedback, which do not
            help (docs/captioning.md): without them, what regions add to words is the same in every state.
        describe_boxes: caption boxes with phrases instead of images with sentences.
        word_size, hidden_size, dropout: options of the decoder.
        sentences: number of sentences per image in a batch, redrawn each epoch; for boxes one phrase each.
        smoothing: label smoothing, the probability that training spreads over all words.
        reward: ``none``: learn reference words one by one. ``cider``: continue from a model trained this way
            (``training.start``) and reward sampled sentences by CIDEr-D, see
            :mod:`saywhere.networks.captioner.loss`. References are all sentences of an image with at most
            ``decoding.max_words``.
        num_samples: number of sampled sentences per image that are compared for the reward. The decoder's
            dropout is off as at inference, except for the words that ``attention`` takes in; that of regions is not.
        word_weight: weight of the supervised loss next to the reward, on ``sentences`` per image.
        invented_weight: penalty on the reward for each noun that no reference of the image mentions (CHAIR), and for a
            three-word ending that no training sentence has.
        similarity_weight: weight of the similarity of image and sentence (Alignments, Eq. 8) by the last encoder of the
            part ``aligner`` when reranking beam hypotheses.
        seen_weight: weight in reranking of how surely the image's regions show what a sentence names, see
            :func:`saywhere.models.caption_nouns.support`; needs ``nouns``.
        nouns: whether to replace a noun that no region shows by one that is shown, see
            :mod:`saywhere.models.caption_nouns`; needs the parts ``densecap`` and ``nouns``.
        people_threshold: minimum probability that a region shows a person; below it sentences must not name people.
            Needs ``nouns``.
        ngrams: n-gram probabilities of an image's captions, for reranking hypotheses.
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
    ngrams: CaptionNgramsConfig = CaptionNgramsConfig()

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
        wanted = f"{'grid, proposals or transformer' if attends else 'whole'} with the decoder {self.decoder}"
        self.require(attends == (self.attend_to != "whole"), "attend_to", wanted)
        moves = self.attend_to == "transformer"
        self.require(not moves or self.coarsest > 0, "levels", "one or more, or head true")
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

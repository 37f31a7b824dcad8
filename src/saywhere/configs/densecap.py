"""Options of DenseCap: our defaults, and those of the published program."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from saywhere.boxes import MAX_LOG_SCALE
from saywhere.configs.parts import (
    LARGEST_GRID,
    LAST_CHANNELS,
    LITE_PACKAGES,
    PLACE,
    DecodingConfig,
    NgramsConfig,
    ProposalConfig,
    Shapes,
    SystemConfig,
    TrunkConfig,
)
from saywhere.options import dataclass

Conventions = Literal["saywhere", "original"]
DECODING = DecodingConfig()

PUBLISHED_ANCHORS: Shapes = (
    (45, 90), (90, 45), (64, 64), (90, 180), (180, 90), (128, 128),
    (181, 362), (362, 181), (256, 256), (362, 724), (724, 362), (512, 512),
)  # fmt: skip


@dataclass(frozen=True)
class PhraseNgramsConfig(NgramsConfig):
    """Options of the n-gram probabilities of a region's phrases.

    Attributes:
        size, hidden, weight, least_probability: see :class:`saywhere.configs.parts.NgramsConfig`.
    """

    size: int = 128
    hidden: int = 384
    weight: float = 3.0
    least_probability: float = 0.03


@dataclass(frozen=True)
class DenseCapConfig(SystemConfig):
    """Options of :class:`saywhere.networks.densecap.network.DenseCap`; ``DenseCapConfig()`` is the recommended default.

    Attributes:
        trunk, proposals, decoding: see :mod:`saywhere.configs.parts`.
        conventions: ``original``: boxes, ties, tokens and sampling as in the published program (docs/original.md).
        rpn_fg_iou, rpn_bg_iou, rpn_batch: sampling of boxes that train the RPN, see
            :class:`saywhere.networks.densecap.build.RegionSampler`.
        match_proposals: RPN positives by the IoU of the regressed proposals (published) instead of the anchors'.
        inside_only: exclude boxes that leave the image from the RPN's training.
        shared_batch: train the second stage on the RPN's batch (published). Otherwise sample boxes from proposals and
            ground truth by ``fg_iou``, ``bg_iou``, ``batch`` and ``positive_share``.
        fg_iou, bg_iou: a box is positive above the former IoU and negative below the latter.
        batch, positive_share: number of boxes per image that train the second stage, and maximum fraction of positives.
        pool_size: points per side of pooled box features, see :mod:`saywhere.networks.densecap.build`.
        embed_dim, dropout: recognition network, two fully connected layers.
        fc_size: width of the first one; None: ``embed_dim``.
        phrase_levels: strides of the backbone maps whose means over a region join its embedding as decoder input, with
            the last layer's means over the region and the image, see
            :class:`saywhere.networks.densecap.network.PhraseHead`. Empty: decode from the embedding alone.
        phrase_dropout: dropout of those features.
        word_size, hidden_size, decoder_dropout: see :class:`saywhere.networks.language.decoders.lstm.LstmDecoder`.
        beam_regions: number of regions per image, by most probable box, decoded with the beam of ``decoding``. All
            other regions, and those below :data:`saywhere.regions.SHOWN`, are decoded greedily. None: no such limit.
            Given boxes are all decoded with the beam.
        similarity_weight: weight of the aligner's similarity of region and phrase when reranking the beam, next to the
            phrase's mean log-probability, see :class:`saywhere.models.phrases.PhraseWriter`.
        noun_weight: weight of the natural log-probability of the phrase's noun by the part nouns: in reranking, and in
            each decoding step before the noun, where it redistributes the decoder's total probability of nouns.
        ngrams: n-gram probabilities of a region's phrases, for reranking the beam and shortening its best phrase.
        finetuned: whether the layers that write phrases and score boxes were fine-tuned. The model then keeps those
            from before beside them, for finding phrases in images.
        own_words: words of one's own images, which fine-tuning taught to the decoder. N-grams and aligner do not know
            their use, so they do not judge phrases with them. Each has the kind as which the noun classifier judges
            such phrases, or an empty text: it does not judge them either. Regions that hardly show the kind do not get
            the word.
        own_names: names that consist of these words, such as "trash panda", each with what the other parts of the model
            call such things.
        person_threshold, colour_threshold: minimum probabilities of words for a person's sex and of colours, by the
            model's calibration if it has one; words below are left out. 0: keep the decoder's words.
        final_nms: IoU threshold for the suppression of final boxes.
        repeat_nms: of two regions with the same caption and a higher IoU, only the better is kept; None: both are kept.
        nouns: whether to use the part ``nouns``, if present: for ``noun_weight``, and for the probability that phrases
            name what is in their boxes.
        max_log_scale: upper bound of the log growth of a box; None: no bound.
        balanced: average the RPN's score loss over positives and negatives separately and add both.
        box_beta: transition of smooth L1 from quadratic to linear.
        box_limit: box targets beyond this are excluded from training (the published guard); None: no limit.
        rpn_score_weight, rpn_box_weight, score_weight, box_weight, caption_weight: weights of the five losses.
        box_decay: weight of half the squared RPN offsets.
    """

    decoding: DecodingConfig = DECODING
    conventions: Conventions = "saywhere"
    rpn_fg_iou: float = 0.6
    rpn_bg_iou: float = 0.3
    rpn_batch: int = 128
    match_proposals: bool = False
    inside_only: bool = False
    shared_batch: bool = False
    fg_iou: float = 0.5
    bg_iou: float = 0.5
    batch: int = 64
    positive_share: float = 0.5
    pool_size: int = 7
    embed_dim: int = 512
    fc_size: int | None = None
    dropout: float = 0.2
    phrase_levels: tuple[int, ...] = ()
    phrase_dropout: float = 0.3
    word_size: int = 256
    hidden_size: int = 384
    decoder_dropout: float = 0.3
    beam_regions: int | None = None
    similarity_weight: float = 0.0
    noun_weight: float = 0.0
    ngrams: PhraseNgramsConfig = PhraseNgramsConfig()
    finetuned: bool = False
    own_words: dict[str, str] = field(default_factory=dict)
    own_names: dict[str, str] = field(default_factory=dict)
    person_threshold: float = 0.6
    colour_threshold: float = 0.5
    final_nms: float = 0.5
    repeat_nms: float | None = 0.4
    nouns: bool = True
    max_log_scale: float | None = MAX_LOG_SCALE
    balanced: bool = False
    box_beta: float = 0.11
    box_limit: float | None = None
    rpn_score_weight: float = 1.0
    rpn_box_weight: float = 1.0
    score_weight: float = 1.0
    box_weight: float = 1.0
    caption_weight: float = 0.3
    box_decay: float = 0.0

    def __post_init__(self) -> None:
        self.require_proposals()
        self.require_at_least(1, "proposals.post_nms_top_n", "rpn_batch", "batch")
        self.require_between(1, LARGEST_GRID, "pool_size")
        self.require_features("embed_dim", "word_size", "hidden_size", *(() if self.fc_size is None else ("fc_size",)))
        self.require_share("final_nms", "fg_iou", "bg_iou", "rpn_fg_iou", "rpn_bg_iou", "positive_share")
        self.require_share("person_threshold", "colour_threshold")
        self.require_at_least(0, "similarity_weight", "noun_weight")
        self.require(self.beam_regions is None or self.beam_regions >= 0, "beam_regions", "at least 0, or null")
        self.require(self.repeat_nms is None or 0 <= self.repeat_nms <= 1, "repeat_nms", "between 0 and 1, or null")
        self.require_below_one("dropout", "decoder_dropout", "phrase_dropout")
        strides, backbone = self.trunk.strides, self.trunk.backbone
        self.require(set(self.phrase_levels) <= set(strides), "phrase_levels", f"some of the strides {strides}")
        known = not self.phrase_levels or backbone in LITE_PACKAGES
        self.require(known, "phrase_levels", f"empty for {backbone}, whose last layer is not known")
        weights = ("rpn_score_weight", "rpn_box_weight", "score_weight", "box_weight", "caption_weight")
        self.require_at_least(0, *weights, "box_decay")
        self.require(self.box_beta > 0, "box_beta", "above 0")
        self.require_choice((("conventions", Conventions),))
        if self.conventions == "original":
            self.require(len(self.trunk.strides) == 1, "trunk.strides", "one, with conventions=original")

    @property
    def uses_head(self) -> bool:
        return bool(self.phrase_levels)

    @property
    def phrase_layout(self) -> dict[str, int]:
        """Sizes of the parts of the features from which phrases are written, after the means of ``phrase_levels``."""
        if not self.phrase_levels:
            return {"embedding": self.embed_dim}
        branch = sum(self.trunk.branch_channels)
        region = {"head": 0 if branch else LAST_CHANNELS, "place": PLACE, "branch": branch}
        image = (branch or LAST_CHANNELS) + self.trunk.summary_channels
        return {**region, "image": image, "embedding": self.embed_dim}

    @classmethod
    def original(cls) -> DenseCapConfig:
        """Return the published program's options, by its code where that differs from the paper (docs/original.md)."""
        return cls(
            conventions="original",
            trunk=TrunkConfig(backbone="vgg16_caffe", strides=(16,), long_side=720, multiple=1),
            proposals=ProposalConfig(
                pyramid_channels=0,
                anchors=(PUBLISHED_ANCHORS,),
                hidden_size=256,
                two_way=True,
                nms_iou=0.7,
                pre_nms_top_n=None,
                post_nms_top_n=1000,
            ),
            decoding=DecodingConfig(max_words=15),
            rpn_fg_iou=0.7,
            rpn_bg_iou=0.3,
            rpn_batch=256,
            match_proposals=True,
            inside_only=True,
            shared_batch=True,
            embed_dim=4096,
            dropout=0.5,
            word_size=512,
            hidden_size=512,
            decoder_dropout=0.0,
            final_nms=0.3,
            repeat_nms=None,
            max_log_scale=None,
            balanced=True,
            box_beta=1.0,
            box_limit=10.0,
            rpn_score_weight=0.1,
            rpn_box_weight=0.05,
            score_weight=0.1,
            box_weight=0.1,
            caption_weight=1.0,
            box_decay=5e-5,
        )

"""The protocol between the model layer and its engines: functions on NumPy arrays.

An engine handles pixels, boxes and token ids, but no files, images, words or results. The result of
:meth:`Trunk.encode` is opaque, so that feature maps stay where the engine keeps them, such as on a GPU.

All boxes are float32 ``(N, 4)`` ``x1 y1 x2 y2`` in pixels of the network input.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np

from saywhere import boxes as geometry
from saywhere.boxes import Array, array_namespace
from saywhere.options import dataclass

if TYPE_CHECKING:
    from saywhere.boxes import BoxCoder
    from saywhere.calibration import Calibration
    from saywhere.configs.aligner import AlignerConfig
    from saywhere.configs.captioner import CaptionerConfig
    from saywhere.configs.densecap import DenseCapConfig
    from saywhere.configs.nouns import NounsConfig
    from saywhere.configs.parts import RegionConfig
    from saywhere.engines.arrays.layers import Ngrams
    from saywhere.images import LoadedImage
    from saywhere.text import Vocabulary

Maps = Any
"""Feature maps of one image, in the engine's format."""
State = tuple[Any, ...]
"""State of a decoder: arrays of the engine with one row per hypothesis."""
TEXT_WEIGHTS = ("encoders.", "log_scale", "hubs.images.")
"""Prefixes of the aligner's weights that affect only text embeddings."""


@dataclass(frozen=True, eq=False)
class RpnOutput:
    """Output of the localization layer for the A anchors of one image.

    Attributes:
        anchors: ``(A, 4)`` in the format of the box coder.
        logits: ``(A,)`` objectness logits.
        offsets: ``(A, 4)`` box offsets from the anchors.
    """

    anchors: Any
    logits: Any
    offsets: Any


@dataclass(frozen=True, eq=False)
class RegionHeadOutput:
    """Output of the recognition network for N boxes: ``embeddings (N, D)``, ``logits (N,)``, ``offsets (N, 4)``."""

    embeddings: Any
    logits: Any
    offsets: Any


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Output of the text encoder: ``vectors (S, T, D)``, zero for padding, and ``mask (S, T)`` of the words."""

    vectors: Any
    mask: Any


@dataclass(frozen=True, eq=False)
class Typical:
    """Summary of a bank by J vectors; similarity is ``temperature * log(sum_j of exp(vector_j · x + constant_j))``.

    Attributes:
        vectors: ``(J, D)`` typical members of the bank, divided by the temperature.
        constants: ``(J,)``.
        temperature: temperature of similarities.
    """

    vectors: np.ndarray
    constants: np.ndarray
    temperature: float

    def hubness(self, products: np.ndarray) -> float:
        """Return the similarity with the bank, given the products ``(J,)`` with the vectors."""
        logits = products + self.constants
        top = logits.max()
        return float(self.temperature * (top + np.log(np.exp(logits - top).sum())))


@dataclass(frozen=True, eq=False)
class Hubness:
    """Hubness of images and texts, estimated from typical ``texts`` and ``images`` of an aligner.

    Hubs are images that resemble every sentence, and sentences that resemble every image (Radovanović et al., 2010).
    Typical texts and images stand for a bank of queries (Smith et al., 2017; Bogolin et al., 2022). They are fitted to
    the similarities with a bank (:mod:`saywhere.training.hubness`).
    """

    texts: Typical
    images: Typical

    def of_image(self, vectors: np.ndarray) -> float:
        """Return the similarity of an image, given the vectors ``(R, D)`` of its regions, to texts in general.

        As in Eq. 8, each text is compared with its best region. 0 for an image without regions.
        """
        return self.texts.hubness((vectors @ self.texts.vectors.T).max(axis=0)) if len(vectors) else 0.0

    def of_text(self, vectors: np.ndarray) -> float:
        """Return the similarity of a text, given its weighted word vectors ``(T, D)``, to images in general."""
        return self.images.hubness(self.images.vectors @ vectors.sum(axis=0))


class Preprocess(Protocol):
    """Conversion of an opened image to the input pixels of the trunk."""

    @property
    def long_side(self) -> int:
        """Longer side of the input in pixels."""
        ...

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return pixels ``(3, h, w)`` float32."""
        ...

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Convert such pixels back for display: ``(h, w, 3)`` uint8, R G B."""
        ...


class Trunk(Protocol):
    """The network that all parts share."""

    @property
    def preprocess(self) -> Preprocess:
        """Conversion of images to input pixels."""
        ...

    def encode(self, pixels: Sequence[np.ndarray]) -> list[Maps]:
        """Return the feature maps of images ``(3, h, w)`` of any sizes: one pass of the network."""
        ...

    def propose(self, maps: Maps) -> RpnOutput:
        """Return the output of the localization layer for an image as NumPy arrays."""
        ...


class Decoder(Protocol):
    """A language model that predicts one word at a time.

    In beam search the hypotheses of an item are adjacent rows, and items keep their order. With K hypotheses, rows
    ``i K`` to ``i K + K - 1`` belong to item i. A decoder that is not ``independent`` relies on this.
    """

    @property
    def never(self) -> Sequence[int]:
        """Token ids that are never chosen."""
        ...

    @property
    def unknown(self) -> str:
        """Text of the unknown word."""
        ...

    @property
    def independent(self) -> bool:
        """Whether rows may be dropped, because a row's output does not depend on its position among the others."""
        ...

    def start(self, embeddings: Any) -> State:
        """Return the state after the embeddings ``(N, D)``, NumPy arrays or the engine's own."""
        ...

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        ...

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return rows of a state, in any order and possibly repeated."""
        ...

    def join(self, states: Sequence[State]) -> State:
        """Concatenate the rows of several states."""
        ...


class DenseCap(Protocol):
    """The part that finds and describes regions: DenseCap."""

    config: DenseCapConfig
    vocabulary: Vocabulary
    box_coder: BoxCoder

    @property
    def decoder(self) -> Decoder:
        """Decoder of region captions; starts from :meth:`phrase_embeddings`."""
        ...

    @property
    def ngrams(self) -> Ngrams | None:
        """Probabilities of n-grams in phrases, by :meth:`phrase_features`; None if the model has none."""
        ...

    @property
    def start(self) -> Self:
        """The part with its decoder from before fine-tuning; itself if it was not fine-tuned."""
        ...

    def region_head(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        """Return the output of the recognition network for each image's boxes as NumPy arrays."""
        ...

    def phrase_features(
        self, maps: Sequence[Maps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return the features ``(N, F)`` of each image's boxes, given their embeddings by the region head."""
        ...

    def phrase_embeddings(self, features: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the decoder's inputs ``(N, D)`` for each image's boxes, given their features."""
        ...


class Aligner(Protocol):
    """The part that embeds regions and words in one space: Deep Visual-Semantic Alignments."""

    config: AlignerConfig
    vocabulary: Vocabulary

    @property
    def hubness(self) -> Hubness | None:
        """Estimator of hubness; None if it was not fitted."""
        ...

    @property
    def last(self) -> Aligner:
        """The last encoder alone, without hubness: cheaper, and enough to compare sentences about one image."""
        ...

    def region_vectors(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the embeddings ``(R, D)`` of each image's boxes (Eq. 1)."""
        ...

    def text_vectors(self, token_ids: np.ndarray) -> EncodedText:
        """Return the word embeddings of sentences ``(S, T)``, padded on the right (Eqs. 2 to 6).

        With the option ``parses``, those of relations from :meth:`saywhere.papers.relations.Parses.encode`.
        """
        ...


@dataclass(frozen=True, eq=False)
class BoundImages:
    """Images prepared for a caption decoder.

    Attributes:
        decoder: decoder that attends to the images' regions.
        embeddings: ``(N, D)`` embeddings of the whole images, for :meth:`Decoder.start`.
        boxes: ``(R, 4)`` attended regions of each image; of warped regions the enclosing boxes; R may be 0.
        corners: ``(R, 4, 2)`` corners of each image's warped regions in input pixels, not clipped; or None.
        attention: function ``attention(token_ids (N, T))`` that returns the weights p(r | w, h) ``(N, T + 1, R)`` of
            the regions at each word of one sentence per image, and at END. None if the decoder attends to no regions.
    """

    decoder: Decoder
    embeddings: Any
    boxes: Sequence[np.ndarray]
    corners: Sequence[np.ndarray | None]
    attention: Any


class Captioner(Protocol):
    """The part that captions whole images (or boxes): Areas of Attention, and the multimodal RNN."""

    config: CaptionerConfig
    vocabulary: Vocabulary

    @property
    def ngrams(self) -> Ngrams | None:
        """Probabilities of n-grams in captions of an image; None if the model has none."""
        ...

    def bind_images(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray | None]) -> BoundImages:
        """Prepare images for decoding; ``boxes (R, 4)`` of each are attended to; None: the network's own regions."""
        ...

    def box_embeddings(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> tuple[Decoder, Any]:
        """Return the decoder, and embeddings ``(sum of N, D)`` of all images' boxes; not for attention."""
        ...


class Nouns(Protocol):
    """The part that classifies what kinds of things regions show."""

    config: NounsConfig
    vocabulary: Vocabulary

    def classify(
        self, maps: Sequence[Maps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return logits of ImageNet's classes ``(N, 1000)`` and of kinds ``(N, G + 2)`` for each image's boxes.

        The last two are for a region of another ImageNet class, and of nothing with a name. ``embeddings`` are
        ``(N, config.embed_dim)`` by the dense captioner's region head.
        """
        ...


class Engine(Protocol):
    """A trunk and the parts that use it."""

    @property
    def trunk(self) -> Trunk:
        """The network that all parts share."""
        ...

    @property
    def densecap(self) -> DenseCap | None:
        """The dense captioner, or None."""
        ...

    @property
    def aligner(self) -> Aligner | None:
        """The aligner, or None."""
        ...

    @property
    def captioner(self) -> Captioner | None:
        """The captioner, or None."""
        ...

    @property
    def nouns(self) -> Nouns | None:
        """The noun classifier, or None."""
        ...

    @property
    def calibration(self) -> Calibration:
        """Logistic regressions fitted after training."""
        ...

    @property
    def device(self) -> Any:
        """Device, such as ``cpu`` or ``cuda:0``."""
        ...

    def to(self, device: str) -> None:
        """Move the networks to another device, or ``UserError``; earlier feature maps can no longer be used."""
        ...

    def digest(self) -> str:
        """Return a hash of weights, configuration and calibration; engines with equal hashes give equal answers."""
        ...

    def vectors_digest(self) -> str:
        """Return a hash of everything that affects region embeddings: trunk, aligner and their relevant options.

        Text encoders do not count (:data:`TEXT_WEIGHTS`), so one index serves all models with these embeddings.
        """
        ...


Source = tuple[Array, Any]
"""A map ``(C, H, W)`` to average over regions, and its stride; see :func:`saywhere.boxes.means`."""


class RegionMaps(Protocol):
    """The maps of one image, and features of its regions: averages of maps over boxes, for NumPy and torch alike.

    Attributes:
        strides: of the backbone's maps.
        input_size: width and height of the network's input.
    """

    strides: tuple[int, ...]
    input_size: tuple[int, int]

    def level(self, stride: int) -> Array:
        """Return the backbone's map of this stride."""
        ...

    @cached_property
    def head(self) -> Array:
        """The map of the last layer before the classifier, at the coarsest stride."""
        ...

    @cached_property
    def branch(self) -> list[Source]:
        """The maps of the second branch, from fine to coarse, or of the tower; empty if the trunk has neither."""
        ...

    @cached_property
    def summary(self) -> Array:
        """The tower's embedding ``(E,)`` of the image; empty without a tower."""
        ...

    def box_means(self, boxes: Array, sources: Sequence[Source]) -> list[Array]:
        """Return the averages of some maps over boxes ``(R, 4)``."""
        return [geometry.means(features, boxes, stride) for features, stride in sources]

    def sources(self, levels: Sequence[int], head: bool, branch: bool = False) -> list[Source]:
        """Return the maps to pool region features from: of strides ``levels``, :attr:`head` and :attr:`branch`."""
        sources = [(self.level(stride), stride) for stride in levels]
        sources += [(self.head, self.strides[-1])] if head else []
        return [*sources, *self.branch] if branch else sources

    def means(self, boxes: Array, levels: Sequence[int], head: bool, branch: bool = False) -> Array:
        """Return the averages of :meth:`sources` over ``boxes (R, 4)``, and their positions: ``(R, D)``."""
        means = self.box_means(boxes, self.sources(levels, head, branch))
        return array_namespace(boxes).concat((*means, geometry.place(boxes, *self.input_size)), axis=1)

    def features(self, boxes: Array, config: RegionConfig) -> Array:
        """Return the features of ``boxes (R, 4)`` that a part reads, ``(R, D)``, as ``config.layout`` says."""
        return self.with_summary(self.means(boxes, config.levels, config.head, config.branch), boxes, config)

    def with_summary(self, means: Array, boxes: Array, config: RegionConfig) -> Array:
        """Append the tower's embedding of the image, if it is read: 0 for all boxes but that of the whole image."""
        if not config.layout["summary"]:
            return means
        xp = array_namespace(boxes)
        image = xp.asarray([0, 0, *self.input_size], dtype=boxes.dtype, device=boxes.device)
        return xp.concat((means, xp.all(boxes == image, axis=1, keepdims=True) * self.summary), axis=1)

    def class_features(self, boxes: Array, config: NounsConfig, embeddings: Array) -> Array:
        """Return what the noun classifier reads of boxes with their ``embeddings (R, E)``, as its layout says."""
        around = self._around(len(boxes), self.sources((), True, config.branch))
        means = self.means(boxes, config.levels, True, config.branch)
        return array_namespace(boxes).concat((means, around, embeddings), axis=1)

    def phrase_features(self, boxes: Array, levels: Sequence[int], embeddings: Array) -> Array:
        """Return what phrases are written from: boxes in their image, see ``DenseCapConfig.phrase_layout``.

        These are the :meth:`means`, including the last layer; the last layer averaged over the whole image; and the
        dense captioner's ``embeddings (R, E)``. A second branch or a tower replaces the last layer, and its averages
        follow the box position. The tower's embedding follows the averages over the whole image.
        """
        branch = self.branch
        means, more = self.means(boxes, levels, not branch), self.box_means(boxes, branch)
        around = self._around(len(boxes), branch or self.sources((), True))
        return array_namespace(boxes).concat((means, *more, around, embeddings), axis=1)

    def _around(self, count: int, sources: Sequence[Source]) -> Array:
        """Return the averages of maps over the image, and its summary, once for each of ``count`` boxes."""
        xp = array_namespace(self.summary)
        whole = xp.concat([*(xp.mean(features, axis=(1, 2)) for features, _ in sources), self.summary])
        return xp.broadcast_to(whole, (count, len(whole)))

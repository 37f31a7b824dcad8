"""What the model layer asks of an engine: functions on numpy arrays.

An engine knows pixels, boxes and token ids; it knows no files, no images, no words and no results. What
:meth:`Trunk.encode` returns is opaque, so that feature maps stay where the engine keeps them.

All boxes are float32 ``(N, 4)`` ``x1 y1 x2 y2`` in pixels of the network's input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from saywhere.boxes import BoxCoder
    from saywhere.calibration import Calibration
    from saywhere.configs.aligner import AlignerConfig
    from saywhere.configs.captioner import CaptionerConfig
    from saywhere.configs.densecap import DenseCapConfig
    from saywhere.configs.nouns import NounsConfig
    from saywhere.engines.arrays.ngrams import Ngrams
    from saywhere.images import LoadedImage
    from saywhere.text import Vocabulary

Maps = Any
"""The feature maps of one image, as the engine keeps them."""
State = tuple[Any, ...]
"""The state of a decoder: arrays of the engine whose first dimension is the hypotheses."""
TEXT_WEIGHTS = ("encoders.", "log_scale", "hubs.images.")
"""Names of the aligner's weights begin so, if only the vectors of texts depend on them."""


@dataclass(frozen=True, eq=False)
class RpnOutput:
    """What the localization layer says of the A anchors of one image.

    Attributes:
        anchors: ``(A, 4)`` in the format of the box coder.
        logits: ``(A,)`` that there is something.
        offsets: ``(A, 4)`` of the boxes from the anchors.
    """

    anchors: Any
    logits: Any
    offsets: Any


@dataclass(frozen=True, eq=False)
class RegionHeadOutput:
    """What the recognition network says of N boxes: ``embeddings (N, D)``, ``logits (N,)``, ``offsets (N, 4)``."""

    embeddings: Any
    logits: Any
    offsets: Any


@dataclass(frozen=True, eq=False)
class EncodedText:
    """Sentences after the text encoder: ``vectors (S, T, D)``, zero where padded; ``mask (S, T)`` of real ones."""

    vectors: Any
    mask: Any


@dataclass(frozen=True, eq=False)
class Typical:
    """Typical vectors; similarity with the bank: ``temperature * log(sum over j of exp(vector_j · x + constant_j))``.

    Attributes:
        vectors: ``(J, D)`` typical members of the bank, divided by the temperature.
        constants: ``(J,)``.
        temperature: of similarities.
    """

    vectors: np.ndarray
    constants: np.ndarray
    temperature: float

    def hubness(self, products: np.ndarray) -> float:
        """Return how similar to the bank that is whose products with the vectors are given ``(J,)``."""
        logits = products + self.constants
        top = logits.max()
        return float(self.temperature * (top + np.log(np.exp(logits - top).sum())))


@dataclass(frozen=True, eq=False)
class Hubness:
    """Typical ``texts`` and ``images`` of an aligner, by which hubs are known and taken off.

    Hubs are images that resemble every sentence, and sentences that resemble every image (Radovanović et al., 2010).
    Typical texts and images stand for a bank of queries (Smith et al., 2017; Bogolin et al., 2022); they are fitted to
    what a bank says (:mod:`saywhere.training.hubness`).
    """

    texts: Typical
    images: Typical

    def of_image(self, vectors: np.ndarray) -> float:
        """Return how similar an image, by the vectors ``(R, D)`` of its regions, is to texts at large.

        As in Eq. 8 the best region counts for each text. An image without regions is similar to none: 0.
        """
        return self.texts.hubness((vectors @ self.texts.vectors.T).max(axis=0)) if len(vectors) else 0.0

    def of_text(self, vectors: np.ndarray) -> float:
        """Return how similar a text, by the weighted vectors ``(T, D)`` of its words, is to images at large."""
        return self.images.hubness(self.images.vectors @ vectors.sum(axis=0))


class Preprocess(Protocol):
    """Turns an opened image into the pixels that the trunk takes."""

    @property
    def long_side(self) -> int:
        """Pixels of the longer side of the input."""
        ...

    def __call__(self, image: LoadedImage) -> np.ndarray:
        """Return pixels ``(3, h, w)`` float32."""
        ...

    def restore(self, pixels: np.ndarray) -> np.ndarray:
        """Return such pixels as they are shown: ``(h, w, 3)`` uint8, R G B."""
        ...


class Trunk(Protocol):
    """The network that all questions share."""

    @property
    def preprocess(self) -> Preprocess:
        """How images become pixels."""
        ...

    def encode(self, pixels: Sequence[np.ndarray]) -> list[Maps]:
        """Return the maps of images ``(3, h, w)`` of any sizes: one pass of the network."""
        ...

    def propose(self, maps: Maps) -> RpnOutput:
        """Return what the localization layer says of an image's anchors, as numpy arrays."""
        ...


class Decoder(Protocol):
    """A language model that is asked for one word at a time.

    In beam search the hypotheses of an item are neighbouring rows, and the items stay in order: with K of them, rows
    ``i K`` to ``i K + K - 1`` are those of item i; a decoder that is not ``independent`` relies on that.
    """

    @property
    def never(self) -> Sequence[int]:
        """Token ids that are never chosen."""
        ...

    @property
    def unknown(self) -> str:
        """How the unknown word is written."""
        ...

    @property
    def independent(self) -> bool:
        """Whether rows may be dropped: what a row decodes does not depend on its place among the others."""
        ...

    def start(self, embeddings: Any) -> State:
        """Return the state after the embeddings ``(N, D)``, numpy or the engine's own."""
        ...

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state."""
        ...

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state: with repetitions, and in any order."""
        ...

    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
        ...


class DenseCap(Protocol):
    """The part that finds and describes regions: DenseCap."""

    config: DenseCapConfig
    vocabulary: Vocabulary
    box_coder: BoxCoder

    @property
    def decoder(self) -> Decoder:
        """The region decoder; it starts from :meth:`phrase_embeddings`."""
        ...

    def region_head(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> list[RegionHeadOutput]:
        """Return what the recognition network says of each image's boxes, as numpy arrays."""
        ...

    def phrase_embeddings(
        self, maps: Sequence[Maps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray]
    ) -> list[np.ndarray]:
        """Return what the decoder takes ``(N, D)`` for each image's boxes and their embeddings by the region head."""
        ...


class Aligner(Protocol):
    """The part that puts regions and words into one space: Deep Visual-Semantic Alignments."""

    config: AlignerConfig
    vocabulary: Vocabulary

    @property
    def hubness(self) -> Hubness | None:
        """What tells images and texts that resemble everything; None if it was not fitted."""
        ...

    @property
    def last(self) -> Aligner:
        """The last of its encoders alone, without hubness: less work, and enough to compare sentences of one image."""
        ...

    def region_vectors(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return vectors ``(R, D)`` of each image's boxes (Eq. 1)."""
        ...

    def text_vectors(self, token_ids: np.ndarray) -> EncodedText:
        """Return the vectors of the words of sentences ``(S, T)``, padded on the right (Eqs. 2 to 6).

        With the option ``parses`` those of relations, from :meth:`saywhere.papers.relations.Parses.encode`.
        """
        ...


@dataclass(frozen=True, eq=False)
class BoundImages:
    """Images before a caption decoder.

    Attributes:
        decoder: the decoder that attends to the images' regions.
        embeddings: ``(N, D)`` of the whole images: what :meth:`Decoder.start` takes.
        boxes: of each image ``(R, 4)`` the regions it attends to; of warped ones the boxes around them; R may be 0.
        corners: of each image ``(R, 4, 2)`` of warped regions in pixels of the input, which they may leave; or None.
        attention: ``attention(token_ids (N, T))`` gives p(r | w, h) ``(N, T + 1, R)`` of the regions at each word of a
            sentence for each image, and at END; None if the decoder attends to no regions.
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
        """Probabilities of n-grams in captions of an image; None if there are none."""
        ...

    def bind_images(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray | None]) -> BoundImages:
        """Return the decoder of images; ``boxes (R, 4)`` of each are attended to, None if the network has its own."""
        ...

    def box_embeddings(self, maps: Sequence[Maps], boxes: Sequence[np.ndarray]) -> tuple[Decoder, Any]:
        """Return the decoder, and embeddings ``(sum of N, D)`` of all images' boxes; not with attention."""
        ...


class Nouns(Protocol):
    """The part that says what kinds of things regions show."""

    config: NounsConfig
    vocabulary: Vocabulary

    def classify(
        self, maps: Sequence[Maps], boxes: Sequence[np.ndarray], embeddings: Sequence[np.ndarray] | None = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return logits ``(N, 1000)`` of ImageNet's classes, and ``(N, G + 2)`` of kinds, of each image's boxes.

        Beside the kinds a region may be of another of ImageNet's classes, or of none that has a name. ``embeddings (N,
        config.embed_dim)`` are by the dense captioner's region head.
        """
        ...


class Engine(Protocol):
    """A trunk and the parts that stand on it."""

    @property
    def trunk(self) -> Trunk:
        """What all parts stand on."""
        ...

    @property
    def densecap(self) -> DenseCap | None:
        """The part, or None."""
        ...

    @property
    def aligner(self) -> Aligner | None:
        """The part, or None."""
        ...

    @property
    def captioner(self) -> Captioner | None:
        """The part, or None."""
        ...

    @property
    def nouns(self) -> Nouns | None:
        """The part, or None."""
        ...

    @property
    def calibration(self) -> Calibration:
        """What was fitted to the model after training."""
        ...

    @property
    def device(self) -> Any:
        """Where it runs, such as ``cpu`` or ``cuda:0``."""
        ...

    def to(self, device: str) -> None:
        """Move the networks to another device, or ``UserError``; earlier maps belong to another trunk then."""
        ...

    def digest(self) -> str:
        """Return a hash of weights, configurations and calibration: two engines of one digest give the same answers."""
        ...

    def vectors_digest(self) -> str:
        """Return a hash of what the vectors of regions depend on: trunk, aligner, and the options of both for them.

        The text encoders do not count (:data:`TEXT_WEIGHTS`), so an index is good for all of these vectors.
        """
        ...

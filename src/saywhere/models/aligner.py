"""Deep Visual-Semantic Alignments at inference: similarities (Eqs. 7, 8) and aligned segments (Eqs. 10 to 12)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.boxes import BoxCoder
from saywhere.calibration import logistic
from saywhere.configs.aligner import AlignerConfig, Score
from saywhere.engines.engine import Aligner
from saywhere.errors import UserError
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.regions import Box, Regions, drawn_png, open_pixels, show_image
from saywhere.report import counted
from saywhere.text import END, pad, tokenize

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

    from saywhere.images import ImageLike

TEXTS_AT_ONCE = 256


@dataclass(frozen=True, eq=False)
class ImageVectors:
    """Embeddings of an image's regions, in the space shared with words.

    Attributes:
        width, height: image size as a viewer shows it.
        boxes: ``(R, 4)`` region boxes in pixels of the image; the first is the whole image.
        vectors: ``(R, D)`` region embeddings.
        image: image name.
        logits: ``(R,)`` objectness logits; 0 where unknown, as for the whole image.
        hubness: similarity of the image to texts in general; 0 if the aligner has no estimate.
        nouns: ``(R, KEPT)`` packed noun predictions of the regions, see :func:`saywhere.models.nouns.pack_leaves`; None
            if not requested.
        colours: ``(R, 15)`` packed log-probabilities of colours in the boxes, see
            :func:`saywhere.models.phrases.pack_colours`; None if not requested.

    Example:
        >>> saywhere.load().embed("photo.jpg", regions=5).vectors.shape[0]
        6
    """

    width: int
    height: int
    boxes: np.ndarray
    vectors: np.ndarray
    image: str
    logits: np.ndarray
    hubness: float = 0.0
    nouns: np.ndarray | None = None
    colours: np.ndarray | None = None

    def __repr__(self) -> str:
        return f"ImageVectors({self.image!r}, {counted(len(self), 'region')})"

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def regions(self) -> Regions:
        """The boxes as regions; scores are probabilities that a region contains something, 0.5 where unknown."""
        return Regions(self.width, self.height, self.boxes, logistic(self.logits), image=self.image)


@dataclass(frozen=True, eq=False)
class TextVectors:
    """Embeddings of a sentence's words, in the space shared with regions.

    The similarity with an image sums, over the rows, the product with the best region (Eq. 8), and subtracts the
    hubness of both.

    Attributes:
        words: tokens of the sentence.
        vectors: ``(T, D)`` word embeddings, already multiplied by their weights in the similarity. One more row if the
            model also embeds the sentence as a whole.
        hubness: similarity of the text to images in general; 0 if the aligner has no estimate.

    Example:
        >>> saywhere.load().embed_text("a cat")
        TextVectors('a cat', 3 vectors)
    """

    words: tuple[str, ...]
    vectors: np.ndarray
    hubness: float = 0.0

    def __repr__(self) -> str:
        return f"TextVectors({' '.join(self.words)!r}, {counted(len(self), 'vector')})"

    def __len__(self) -> int:
        return len(self.vectors)


class AlignedPhrase(NamedTuple):
    """Consecutive words aligned with one region.

    Attributes:
        start, stop: indices in the sentence of the first word and of the word after the last.
        box: box of the region in pixels of the image.
        similarity: mean product of the words with the region (Eq. 11).

    Example:
        >>> alignment = saywhere.load().align("photo.jpg", "a woman", beta=100)
        >>> tuple((phrase.words, phrase.start, phrase.stop) for phrase in alignment.phrases)
        (('a woman', 0, 2),)
    """

    words: str
    start: int
    stop: int
    region: int
    box: Box
    similarity: float


@dataclass(frozen=True, eq=False)
class Alignment:
    """Alignment of a sentence with the regions of an image.

    Attributes:
        image: image name.
        width, height: image size as a viewer shows it.
        words: tokens of the sentence.
        boxes: ``(R, 4)`` region boxes in pixels of the image; the first is the whole image.
        products: ``(T, R)`` product of each word with each region (Eq. 11), plus the bonus of the region.
        beta: affinity of neighbouring words to the same region (Eq. 12).

    Example:
        >>> alignment = saywhere.load().align("photo.jpg", "a woman in a suit")
        >>> alignment.words, alignment.draw().width
        (('a', 'woman', 'in', 'a', 'suit'), 512)
    """

    image: str
    width: int
    height: int
    words: tuple[str, ...]
    boxes: np.ndarray
    products: np.ndarray
    beta: float

    def __repr__(self) -> str:
        return f"Alignment({' '.join(self.words)!r} with {counted(len(self.boxes), 'region')} of {self.image})"

    @property
    def phrases(self) -> tuple[AlignedPhrase, ...]:
        """The phrases in order: the sentence is cut where the box changes (Eqs. 10 to 12)."""
        corners = [tuple(box) for box in self.boxes.tolist()]
        first = {
            corners[region]: region for region in reversed(range(len(corners)))
        }  # a proposal may be the whole image
        chain = decode_chain(self.products, self.beta).tolist()
        best = [first[corners[region]] if region >= 0 else region for region in chain]
        return tuple(
            AlignedPhrase(
                " ".join(self.words[start:stop]), start, stop, region, Box(corners[region]),
                float(self.products[start:stop, region].mean()),
            )
            for start, stop, region in segments(best)
        )  # fmt: skip

    def with_beta(self, beta: float) -> Alignment:
        """Return the same words and regions, aligned with another ``beta`` (Eq. 12)."""
        return Alignment(self.image, self.width, self.height, self.words, self.boxes, self.products, beta)

    def snippets(self) -> list[tuple[Box, str]]:
        """Return each box with its words: the training data of a region decoder (section 3.2)."""
        return [(phrase.box, phrase.words) for phrase in self.phrases]

    def regions(self) -> Regions:
        """Return the phrases as regions with captions and similarities, in sentence order."""
        phrases = self.phrases
        boxes = np.array([phrase.box for phrase in phrases], np.float32).reshape(-1, 4)
        captions = tuple(phrase.words for phrase in phrases)
        similarities = np.array([phrase.similarity for phrase in phrases], np.float32)
        return Regions(self.width, self.height, boxes, captions=captions, image=self.image, similarities=similarities)

    def draw(self, image: ImageLike | None = None) -> PILImage:
        """Return a copy of the image with the phrases' boxes, and below it a strip with the phrases in their colours.

        Args:
            image: PIL image, array or path. Default: the file ``self.image``.

        Raises:
            ImageError: the image cannot be read.
            UserError: no image is given and ``self.image`` is not a file.
        """
        from saywhere.drawing import draw_boxes

        found = self.regions()
        size = (self.width, self.height)
        return draw_boxes(open_pixels(self.image, image, size), found.boxes, size, found.captions or ())

    def show(self, image: ImageLike | None = None) -> None:
        """Show :meth:`draw` below the notebook cell, or else in the system's image viewer."""
        show_image(self.draw(image))

    def _repr_png_(self) -> bytes | None:
        """Return the drawing for a notebook. None if the image cannot be read: the notebook then shows the ``repr``."""
        return drawn_png(self.draw)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``image, width, height, sentence, phrases``, each phrase with its words and box."""
        phrases = [
            {"words": p.words, "start": p.start, "stop": p.stop, "box": [round(v, 2) for v in p.box],
             "similarity": round(p.similarity, 5)}
            for p in self.phrases
        ]  # fmt: skip
        sentence = " ".join(self.words)
        return {"image": self.image, "width": self.width, "height": self.height, "sentence": sentence,
                "phrases": phrases}  # fmt: skip


def embed_images(
    aligner: Aligner,
    encodings: Sequence[Encoding],
    boxes: Sequence[ArrayLike] | None = None,
    limit: int | None = None,
    placing: bool = False,
    plain: bool = False,
) -> list[ImageVectors]:
    """Return the region embeddings of each image (Eq. 1).

    Args:
        boxes: one ``(N, 4)`` array per image, in its pixels; use these regions and the whole image.
        limit: maximum number of regions besides the whole image. Default: that of the configuration.
        placing: the regions are for grounding phrases; see :class:`saywhere.configs.aligner.GroundingConfig`.
        plain: leave the hubness at 0.

    Raises:
        UserError: boxes have a wrong shape or leave their image, or ``limit`` is negative.
    """
    if limit is not None and limit < 0:
        raise UserError(f"regions must be at least 0, not {limit}")
    if boxes is None:
        found = [_regions(aligner.config, encoding, limit, placing) for encoding in encodings]
        given = [e.to_image(b) for e, (b, _) in zip(encodings, found, strict=True)]
    else:
        given = [e.check(b) for e, b in zip(encodings, boxes, strict=True)]
        found = [(e.to_input(b), np.zeros(len(b), np.float32)) for e, b in zip(encodings, given, strict=True)]
    inputs = [_whole_first(b, *e.input_size) for e, (b, _) in zip(encodings, found, strict=True)]
    vectors = aligner.region_vectors([e.maps for e in encodings], inputs)
    hubness = None if plain else aligner.hubness
    return [
        ImageVectors(
            e.width, e.height, _whole_first(b, e.width, e.height), v, e.image,
            np.concatenate(([np.float32(0)], logits)),
            0.0 if hubness is None else hubness.of_image(v),
        )
        for e, b, v, (_, logits) in zip(encodings, given, vectors, found, strict=True)
    ]  # fmt: skip


def _whole_first(boxes: np.ndarray, width: int, height: int) -> np.ndarray:
    return np.concatenate((np.array([[0, 0, width, height]], np.float32), boxes))


def _regions(
    config: AlignerConfig, encoding: Encoding, limit: int | None, placing: bool
) -> tuple[np.ndarray, np.ndarray]:
    if config.regions == "whole":
        return np.zeros((0, 4), np.float32), np.zeros(0, np.float32)
    settings = config.proposals
    if placing and config.grounding.nms_iou is not None:
        settings = replace(settings, nms_iou=config.grounding.nms_iou)
    return propose_boxes(encoding, settings, BoxCoder(), limit)


def embed_texts(aligner: Aligner, texts: Sequence[str], plain: bool = False) -> list[TextVectors]:
    """Return the weighted word embeddings of each sentence; ``UserError`` for a sentence without words."""
    found: list[TextVectors] = []
    hubness = None if plain else aligner.hubness
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        part = texts[start : start + TEXTS_AT_ONCE]
        encoded = aligner.text_vectors(token_ids(aligner, part))
        weights = word_weights(encoded.mask, aligner.config)
        rows = zip(part, encoded.vectors * weights[..., None], encoded.mask, strict=True)
        for text, vectors, mask in rows:
            own = vectors[mask]
            found.append(TextVectors(tuple(tokenize(text)), own, 0.0 if hubness is None else hubness.of_text(own)))
    return found


def similarities(images: Sequence[ImageVectors], texts: Sequence[TextVectors], score: Score) -> np.ndarray:
    """Return the similarity ``(K, L)`` of each image and text: Eq. 8 minus the hubness of both."""
    matrix = similarity_matrix([image.vectors for image in images], [text.vectors for text in texts], score)
    return matrix - hubness_of(images)[:, None] - hubness_of(texts)


def plain_similarities(image: ImageVectors, texts: Sequence[TextVectors], score: Score) -> np.ndarray:
    """Return the similarity ``(L,)`` of an image and each text by Eq. 8 alone, without subtracting hubness."""
    return similarity_matrix([image.vectors], [text.vectors for text in texts], score)[0]


def hubness_of(items: Sequence[ImageVectors] | Sequence[TextVectors]) -> np.ndarray:
    """Return the hubness of each image or text ``(N,)``."""
    return np.array([item.hubness for item in items], np.float32)


def token_ids(aligner: Aligner, texts: Sequence[str]) -> np.ndarray:
    """Return the token ids ``(S, T)`` of sentences for the text encoder; ``(S, T, 3)`` with the option ``parses``.

    ``UserError`` for a sentence without words, or one that has no parse.
    """
    if wordless := [text for text in texts if not tokenize(text)]:
        raise UserError(f"the sentence {wordless[0]!r} has no word")
    config = aligner.config
    if config.parses is not None:
        from saywhere import reproductions

        parses = reproductions.find("parses=FILE")(config.parses)
        return parses.encode(texts, config.relations, aligner.vocabulary)
    end = [END] if config.sentence_token else []
    return pad([aligner.vocabulary.encode(text) + end for text in texts])


def word_weights(mask: np.ndarray, config: AlignerConfig) -> np.ndarray:
    """Return the weight ``(S, T)`` of each word in the sum of Eq. 8: 1 by default.

    With ``mean_over_words`` the words of a sentence share a weight of 1 equally. END, which stands for the whole
    sentence, has a weight of 1 of its own.
    """
    weights = mask.astype(np.float32)
    if not config.mean_over_words:
        return weights
    counts = mask.sum(axis=1, keepdims=True)
    if not config.sentence_token:
        return weights / np.maximum(counts, 1).astype(np.float32)
    is_end = np.arange(mask.shape[1]) == counts - 1
    return weights / np.where(is_end, 1, np.maximum(counts - 1, 1)).astype(np.float32)


def region_bonus(config: AlignerConfig, image: ImageVectors) -> np.ndarray:
    """Return the bonus ``(R,)`` that all words get with a region: larger for regions that are likelier to be named."""
    shares = geometry.area(image.boxes) / (image.width * image.height)
    return config.size_bonus * np.log(np.maximum(shares, np.float32(1e-3))) + config.score_bonus * image.logits


def align(aligner: Aligner, image: ImageVectors, sentence: str, beta: float | None = None) -> Alignment:
    """Align the words of a sentence with the regions of an embedded image (Eqs. 10 to 12).

    ``beta`` defaults to that of the configuration. ``UserError`` for a sentence without words, a negative ``beta``, or
    an aligner of relations.
    """
    if aligner.config.parses is not None:
        raise UserError("this aligner embeds relations between words (its option parses): it aligns no single words")
    beta = aligner.config.beta if beta is None else beta
    if beta < 0:
        raise UserError(f"beta must be at least 0, not {beta}")
    words = tuple(tokenize(sentence))
    vectors = aligner.text_vectors(token_ids(aligner, [sentence])).vectors[0, : len(words)]
    products = (vectors @ image.vectors.T).astype(np.float32) + region_bonus(aligner.config, image)
    return Alignment(image.image, image.width, image.height, words, image.boxes, products, beta)


BLOCK = 1 << 24
"""Maximum number of region-word products in memory at a time: 64 MB in single precision."""


def similarity_blocks(
    regions: Sequence[np.ndarray], words: Sequence[np.ndarray], score: Score = "max", block: int = BLOCK
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield the similarities of K images and L sentences block by block: row slice, column slice, ``(k, l)`` values.

    ``regions`` has one ``(R, D)`` array per image, ``words`` one weighted ``(T, D)`` array per sentence. ``max`` is
    Eq. 8: the sum over words of the best region. ``fragments`` is Eq. 7: the sum of all positive products. The
    similarity is 0 for an image without regions or a sentence without words. A block has about ``block`` products at
    most, which bounds the memory for sets of any size.
    """
    columns = _parts([len(vectors) for vectors in words], round(block**0.5) * 2)
    for row in _parts([len(vectors) for vectors in regions], max(1, block // (round(block**0.5) * 2))):
        tall = np.concatenate(regions[row])
        for column in columns:
            wide = np.concatenate(words[column])
            best = over_regions(tall @ wide.T, [len(v) for v in regions[row]], score)
            yield row, column, _sums(best.T, [len(v) for v in words[column]]).T


def similarity_matrix(
    regions: Sequence[np.ndarray], words: Sequence[np.ndarray], score: Score = "max", block: int = BLOCK
) -> np.ndarray:
    """Return the whole matrix ``(K, L)`` whose blocks :func:`similarity_blocks` yields."""
    matrix = np.zeros((len(regions), len(words)), np.float32)
    for row, column, part in similarity_blocks(regions, words, score, block):
        matrix[row, column] = part
    return matrix


def _parts(lengths: Sequence[int], most: int) -> list[slice]:
    """Cut items of the given lengths into runs with a total of about ``most``, at least one item each."""
    parts: list[slice] = []
    start = total = 0
    for number, length in enumerate(lengths):
        if number > start and total + length > most:
            parts.append(slice(start, number))
            start, total = number, 0
        total += length
    return [*parts, slice(start, len(lengths))] if lengths else []


def over_regions(products: np.ndarray, counts: Sequence[int] | np.ndarray, score: Score) -> np.ndarray:
    """Reduce products ``(sum of R, W)`` to ``(K, W)``: each image's best region, or its sum of positive products."""
    if score == "fragments":
        return _sums(np.maximum(products, 0), counts)
    full = np.flatnonzero(counts)
    best = np.zeros((len(counts), products.shape[1]), products.dtype)
    if len(full) and products.shape[1]:
        best[full] = np.maximum.reduceat(products, _starts(counts)[full], axis=0)
    return best


def _sums(values: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Sum runs of rows, ``(sum of counts, X)`` to ``(K, X)``; an empty run gives 0."""
    full = np.flatnonzero(counts)
    sums = np.zeros((len(counts), values.shape[1]), values.dtype)
    if len(full) and values.shape[1]:
        sums[full] = np.add.reduceat(values, _starts(counts)[full], axis=0)
    return sums


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


def decode_chain(products: np.ndarray, beta: float = 0.0) -> np.ndarray:
    """Return the best alignment ``(T,)``, a region for each word.

    It maximises ``sum_j v_(a_j) . s_j + beta * (number of neighbours on the same region)`` (Eq. 10), exactly, by
    dynamic programming over the words. (The paper calls the sum an energy and its terms log-probabilities; it means the
    largest sum.) The predecessor of region i at word j is either region i, with a bonus of ``beta``, or the best of all
    regions. So a step takes R operations, not R squared. ``beta = 0`` aligns word by word; a large ``beta`` puts the
    whole sentence on one region.

    Args:
        products: ``(T, R)`` product of each word with each region; minus infinity excludes a region.
        beta: affinity to longer segments, at least 0.
    """
    length, count = products.shape
    if not length or not count:
        return np.full(length, -1)
    here = np.arange(count)
    totals = products[0]
    came_from: list[np.ndarray] = []
    for row in products[1:]:
        best = totals.argmax()
        stay = totals + totals.dtype.type(beta) >= totals[best]
        came_from.append(np.where(stay, here, best))
        totals = np.maximum(totals + totals.dtype.type(beta), totals[best]) + row
    path = [int(totals.argmax())]
    for back in reversed(came_from):
        path.append(int(back[path[-1]]))
    return np.array(path[::-1])


def segments(regions: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of equal regions as (first word, word after the last, region), without words on region -1."""
    found: list[tuple[int, int, int]] = []
    for place, region in enumerate(regions):
        if found and found[-1][2] == region and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1, region)
        elif region >= 0:
            found.append((place, place + 1, region))
    return found

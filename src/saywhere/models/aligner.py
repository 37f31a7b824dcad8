"""Words and regions: Deep Visual-Semantic Alignments in use: scores of Eqs. 7 and 8, segments of Eqs. 10 to 12."""

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
    """Vectors of an image's regions in the space of words.

    Attributes:
        width, height: of the image as a viewer shows it.
        boxes: ``(R, 4)`` of its regions in its pixels, the whole image first.
        vectors: ``(R, D)``.
        image: its name.
        logits: ``(R,)`` that there is something in the region; 0 where nothing is known, as of the whole image.
        hubness: similarity of the image to texts at large; 0 if the aligner does not know it.
        nouns: ``(R, KEPT)`` what the classes say of the regions, see :func:`saywhere.models.nouns.pack_leaves`; None if
            they were not asked.

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

    def __repr__(self) -> str:
        return f"ImageVectors({self.image!r}, {counted(len(self), 'region')})"

    def __len__(self) -> int:
        return len(self.boxes)

    @property
    def regions(self) -> Regions:
        """The boxes; a score is the probability that there is something, 0.5 where nothing is known."""
        return Regions(self.width, self.height, self.boxes, logistic(self.logits), image=self.image)


@dataclass(frozen=True, eq=False)
class TextVectors:
    """Vectors of a sentence's words in the space of regions.

    Its similarity with an image is the sum over the rows of their product with the best region (Eq. 8), less the
    hubness of both.

    Attributes:
        words: as they were tokenised.
        vectors: ``(T, D)``, weighted as the similarity wants them; there is one row more if the model has a vector for
            the sentence as a whole.
        hubness: similarity of the text to images at large; 0 if the aligner does not know it.

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
    """Neighbouring words on one region.

    Attributes:
        start, stop: number of its first word in the sentence, and of the word after its last.
        box: of the region, in pixels of the image.
        similarity: the mean over the words of their product with the region (Eq. 11).

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
        image: name of the image.
        width, height: its size as a viewer shows it.
        words: of the sentence, as they were tokenised.
        boxes: ``(R, 4)`` of the regions in pixels of the image, the whole image first.
        products: ``(T, R)`` of each word with each region (Eq. 11), and what is added for the regions themselves.
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
        """The sentence in order, cut where the region changes (Eqs. 10 to 12)."""
        corners = self.boxes.tolist()
        return tuple(
            AlignedPhrase(
                " ".join(self.words[start:stop]), start, stop, region, Box(corners[region]),
                float(self.products[start:stop, region].mean()),
            )
            for start, stop, region in segments(decode_chain(self.products, self.beta).regions.tolist())
        )  # fmt: skip

    def with_beta(self, beta: float) -> Alignment:
        """Return the same words and regions, aligned with another affinity (Eq. 12)."""
        return Alignment(self.image, self.width, self.height, self.words, self.boxes, self.products, beta)

    def snippets(self) -> list[tuple[Box, str]]:
        """Return boxes and the words aligned with them: what a region decoder is trained on (section 3.2)."""
        return [(phrase.box, phrase.words) for phrase in self.phrases]

    def regions(self) -> Regions:
        """Return the phrases as regions with captions and similarities, in the order of the sentence."""
        phrases = self.phrases
        boxes = np.array([phrase.box for phrase in phrases], np.float32).reshape(-1, 4)
        captions = tuple(phrase.words for phrase in phrases)
        similarities = np.array([phrase.similarity for phrase in phrases], np.float32)
        return Regions(self.width, self.height, boxes, captions=captions, image=self.image, similarities=similarities)

    def draw(self, image: ImageLike | None = None) -> PILImage:
        """Return a copy of the image with the boxes of the phrases, and on a strip below the phrases in their colours.

        Args:
            image: a PIL image, array or path; the file ``self.image`` if not given.

        Raises:
            ImageError: it cannot be read.
            UserError: no image is given and the alignment does not name a file.
        """
        from saywhere.drawing import draw_boxes

        found = self.regions()
        size = (self.width, self.height)
        return draw_boxes(open_pixels(self.image, image), found.boxes, size, found.captions or ())

    def show(self, image: ImageLike | None = None) -> None:
        """Show the drawn sentence, in a notebook below the cell, else in the system's viewer; as :meth:`draw`."""
        show_image(self.draw(image))

    def _repr_png_(self) -> bytes | None:
        """Return the drawn sentence for a notebook; None, and so the ``repr``, if the image cannot be read."""
        return drawn_png(self.draw)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``image, width, height, sentence``, and of each of ``phrases`` words and place."""
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
    """Return the regions of images and their vectors (Eq. 1).

    Args:
        boxes: of each image ``(N, 4)`` in its pixels: use these regions and the whole image.
        limit: at most this many regions beside the whole image, instead of the configuration's.
        placing: words are to be placed in them; see :class:`saywhere.configs.aligner.GroundingConfig`.
        plain: leave the hubness at 0.

    Raises:
        UserError: boxes of another shape, or outside their image; or a negative ``limit``.
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
    """Return the words of each sentence (``UserError`` without any) and their weighted vectors."""
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
    """Return how well each text fits each image ``(K, L)``: Eq. 8 less the hubness of both."""
    matrix = similarity_matrix([image.vectors for image in images], [text.vectors for text in texts], score)
    return matrix - hubness_of(images)[:, None] - hubness_of(texts)


def plain_similarities(image: ImageVectors, texts: Sequence[TextVectors], score: Score) -> np.ndarray:
    """Return how well each text fits an image ``(L,)`` by Eq. 8 alone: what it says may be true of many images."""
    return similarity_matrix([image.vectors], [text.vectors for text in texts], score)[0]


def hubness_of(items: Sequence[ImageVectors] | Sequence[TextVectors]) -> np.ndarray:
    """Return the hubness of each image or text ``(N,)``."""
    return np.array([item.hubness for item in items], np.float32)


def token_ids(aligner: Aligner, texts: Sequence[str]) -> np.ndarray:
    """Return the token ids ``(S, T)`` of sentences as the text encoder takes them; with ``parses`` ``(S, T, 3)``.

    ``UserError`` for a sentence without a word, or one that was not parsed.
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
    """Return how much each word ``(S, T)`` counts in the sum of Eq. 8.

    With ``mean_over_words`` a word counts by its share in the sentence, and END, which stands for all of it, as much as
    all words together; otherwise each counts 1.
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
    """Return what is added to the products of all words with a region ``(R,)``: how likely it is to be named at all."""
    shares = geometry.area(image.boxes) / (image.width * image.height)
    return config.size_bonus * np.log(np.maximum(shares, np.float32(1e-3))) + config.score_bonus * image.logits


def align(aligner: Aligner, image: ImageVectors, sentence: str, beta: float | None = None) -> Alignment:
    """Return which words of a sentence belong to which region of an embedded image (Eqs. 10 to 12).

    ``beta`` is the configuration's if None. ``UserError`` for a sentence without a word, a negative ``beta``, or an
    aligner of relations.
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
"""Products of a region and a word that are in memory together: 64 MB in single precision."""


def similarity_blocks(
    regions: Sequence[np.ndarray], words: Sequence[np.ndarray], score: Score = "max", block: int = BLOCK
) -> Iterator[tuple[slice, slice, np.ndarray]]:
    """Yield the similarities of K images and L sentences a block at a time: rows, columns, and ``(k, l)`` of both.

    ``max`` is Eq. 8, the sum over the words of their best region; ``fragments`` is Eq. 7, the sum of all positive
    products. An image without regions, or a sentence without words, has similarity 0. A block has at most about
    ``block`` products, so that memory is bounded whatever the size of the sets. ``regions (R, D)`` are of each image,
    ``words (T, D)`` of each sentence, weighted.
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
    """Return the similarities ``(K, L)`` of :func:`similarity_blocks` together."""
    matrix = np.zeros((len(regions), len(words)), np.float32)
    for row, column, part in similarity_blocks(regions, words, score, block):
        matrix[row, column] = part
    return matrix


def _parts(lengths: Sequence[int], most: int) -> list[slice]:
    """Cut items of such lengths into runs of about ``most`` in all, at least one item each."""
    parts: list[slice] = []
    start = total = 0
    for number, length in enumerate(lengths):
        if number > start and total + length > most:
            parts.append(slice(start, number))
            start, total = number, 0
        total += length
    return [*parts, slice(start, len(lengths))] if lengths else []


def over_regions(products: np.ndarray, counts: Sequence[int] | np.ndarray, score: Score) -> np.ndarray:
    """Reduce products ``(sum of R, W)`` to ``(K, W)``: the best region of each image, or the sum of all positive."""
    if score == "fragments":
        return _sums(np.maximum(products, 0), counts)
    full = np.flatnonzero(counts)
    best = np.zeros((len(counts), products.shape[1]), products.dtype)
    if len(full) and products.shape[1]:
        best[full] = np.maximum.reduceat(products, _starts(counts)[full], axis=0)
    return best


def _sums(values: np.ndarray, counts: Sequence[int] | np.ndarray) -> np.ndarray:
    """Sum runs of rows ``(sum of counts, X)`` to ``(K, X)``; a run of none is 0."""
    full = np.flatnonzero(counts)
    sums = np.zeros((len(counts), values.shape[1]), values.dtype)
    if len(full) and values.shape[1]:
        sums[full] = np.add.reduceat(values, _starts(counts)[full], axis=0)
    return sums


def _starts(counts: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.cumsum(counts) - counts


class Chain(NamedTuple):
    """The best alignment of a sentence: the region ``(T,)`` of each word, and its ``total`` (Eq. 10)."""

    regions: np.ndarray
    total: float


def decode_chain(products: np.ndarray, beta: float = 0.0) -> Chain:
    """Return the alignment a that maximises ``sum_j v_(a_j) . s_j + beta * (number of neighbours on the same region)``.

    Found exactly by dynamic programming over the words. (The paper calls the sum an energy and its terms
    log-probabilities; it is the largest sum that is wanted.) Coming to region i at word j, either the word before was
    on i, which is worth ``beta``, or on the best of all regions, so that a step costs R operations and not R squared.
    ``beta = 0`` aligns word by word, a large ``beta`` puts the whole sentence on one region.

    Args:
        products: ``(T, R)`` of the words with the regions; a region that does not count has minus infinity.
        beta: affinity to longer segments, not negative.
    """
    length, count = products.shape
    if not length or not count:
        return Chain(np.full(length, -1), 0.0)
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
    return Chain(np.array(path[::-1]), float(totals.max()))


def segments(regions: list[int]) -> list[tuple[int, int, int]]:
    """Return runs of equal regions as (first word, word after the last, region); words on region -1 are left out."""
    found: list[tuple[int, int, int]] = []
    for place, region in enumerate(regions):
        if found and found[-1][2] == region and found[-1][1] == place:
            found[-1] = (found[-1][0], place + 1, region)
        elif region >= 0:
            found.append((place, place + 1, region))
    return found

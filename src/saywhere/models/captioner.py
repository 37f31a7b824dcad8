"""Captions of images, with the attention to regions at each word (Areas of Attention; the multimodal RNN).

The caption is the beam hypothesis with the highest score: length-normalised log-probability plus the weighted terms of
:class:`saywhere.models.decoding.Reranker`. Its nouns and colours are then corrected by
:class:`NounChecker` (docs/nouns.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere.boxes import BoxCoder
from saywhere.engines.engine import Aligner, BoundImages, Captioner
from saywhere.errors import UserError
from saywhere.models.aligner import embed_images, embed_texts, plain_similarities
from saywhere.models.caption_nouns import NounChecker
from saywhere.models.decoding import Reason, Reranker, Sentence, decode, search
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.nouns import (
    likely_length,
    noun_tree,
    with_singulars,
    without_loose_end,
)
from saywhere.models.phrases import SEXES, without_sex
from saywhere.options import require_texts
from saywhere.regions import Regions, open_pixels, show_image
from saywhere.text import pad, tokenize, with_usage

if TYPE_CHECKING:
    from PIL.Image import Image as PILImage

    from saywhere.images import ImageLike

SHORTLIST = 10
"""Hypotheses per image that the aligner scores; more take longer and hardly improve captions."""


NEVER = 1e3
"""Weight of a defect that a caption must not have: far above all other terms."""


def build_reranker(
    captioner: Captioner,
    embeddings: np.ndarray,
    encodings: Sequence[Encoding],
    aligner: Aligner | None = None,
    nouns: NounChecker | None = None,
) -> Reranker:
    """Return the reranker of captions, with the weights of the captioner and the terms that the model's parts allow.

    ``embeddings`` are ``(N, F)``, one row per image.
    """
    config, ngrams, reasons = captioner.config, captioner.ngrams, list[Reason]()
    if ngrams is not None and config.ngrams.weight:

        def expected(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
            weighed = [ngrams.weigh([one.token_ids for one in of_image]) for of_image in sentences]
            return ngrams.agreement(ngrams.probabilities(embeddings), weighed)

        reasons.append(Reason(expected, config.ngrams.weight))
    if nouns is not None:  # a caption that repeats a thing is chosen only if all do
        reasons.append(Reason(lambda sentences: [-nouns.repeats(own) for own in _texts(sentences)], NEVER))
    if nouns is not None and config.seen_weight:
        reasons.append(Reason(lambda sentences: nouns.support(_texts(sentences)), config.seen_weight))
    if aligner is not None and config.similarity_weight:
        score = partial(_similarities, aligner.last, encodings)
        reasons.append(Reason(score, config.similarity_weight, SHORTLIST))
    return Reranker(reasons)


def _texts(sentences: Sequence[Sequence[Sentence]]) -> list[list[str]]:
    return [[one.text for one in of_image] for of_image in sentences]


def _similarities(
    aligner: Aligner, encodings: Sequence[Encoding], sentences: Sequence[Sequence[Sentence]]
) -> list[np.ndarray]:
    """Return the similarity of each image with each of its sentences, without hubness: generic captions are fine."""
    texts = _texts(sentences)
    known = iter(embed_texts(aligner, [text for its in texts for text in its], plain=True))
    pairs = zip(embed_images(aligner, encodings, plain=True), texts, strict=True)
    score = aligner.config.score
    return [plain_similarities(image, [next(known) for _ in its], score) for image, its in pairs]


@dataclass(frozen=True, eq=False)
class Caption:
    """A caption of an image, with the attention to regions at each word.

    Attributes:
        sentence: the words joined by spaces.
        words: the T words.
        width, height: image size as a viewer shows it.
        image: image name.
        boxes: ``(R, 4)`` attended regions in pixels of the image, clipped to it; of warped regions the enclosing boxes.
            None if the model attends to no regions.
        attention: ``(T, R)`` weights p(r | w, h) of the regions at each word; rows sum to 1. None if not requested.
        corners: ``(R, 4, 2)`` corners of warped regions in pixels of the image, not clipped; None if none is warped.

    Example:
        >>> saywhere.Caption("a cat on a sofa", ("a", "cat", "on", "a", "sofa"), 640, 480, "cat.jpg")
        Caption('a cat on a sofa', cat.jpg)
    """

    sentence: str
    words: tuple[str, ...]
    width: int
    height: int
    image: str
    boxes: np.ndarray | None = None
    attention: np.ndarray | None = None
    corners: np.ndarray | None = None

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"Caption({self.sentence!r}, {self.image})"

    @property
    def outlines(self) -> np.ndarray | None:
        """The corners if regions are warped, otherwise the boxes."""
        return self.boxes if self.corners is None else self.corners

    def draw(self, image: ImageLike | None = None) -> PILImage:
        """Return a sheet that shows the image once per word; the width of an outline shows the attention to the region.

        Args:
            image: PIL image, array or path. Default: the file ``self.image``.

        Raises:
            ImageError: the image cannot be read.
            UserError: no image is given and ``self.image`` is not a file, or the caption has no attention.
        """
        if self.attention is None or self.outlines is None:
            raise UserError(f"{self.image}: this caption has no attention to draw; caption it with attention=True")
        from saywhere.drawing import draw_attention

        size = (self.width, self.height)
        pixels = open_pixels(self.image, image, size)
        return draw_attention(pixels, self.words, self.attention, self.outlines, size)

    def show(self, image: ImageLike | None = None) -> None:
        """Show :meth:`draw` below the notebook cell, or else in the system's image viewer."""
        show_image(self.draw(image))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: ``image, width, height, caption``; with attention also ``words, boxes, attention``."""
        row: dict[str, Any] = {"image": self.image, "width": self.width, "height": self.height}
        row["caption"] = self.sentence
        if self.attention is not None and self.boxes is not None:
            row["words"] = list(self.words)
            row["boxes"] = [[round(v, 2) for v in box] for box in self.boxes.tolist()]
            row["attention"] = [[round(v, 5) for v in weights] for weights in self.attention.tolist()]
        return row


def caption(
    captioner: Captioner,
    encodings: Sequence[Encoding],
    beam_size: int | None = None,
    boxes: Sequence[ArrayLike] | None = None,
    attention: bool = True,
    aligner: Aligner | None = None,
    nouns: NounChecker | None = None,
    phrases: Callable[[Sequence[Encoding]], Sequence[str | None]] | None = None,
    least_probability: float | None = None,
) -> list[Caption]:
    """Return a caption for each image.

    Args:
        beam_size: number of hypotheses; 1 is greedy. Default: that of the configuration.
        boxes: one ``(R, 4)`` array per image, in its pixels, to attend to instead of the model's own proposals.
        attention: whether to return the attention at each word, if the model attends to regions.
        aligner, nouns: help to choose among the beam hypotheses; ``nouns`` also corrects the chosen sentence.
        phrases: returns the main phrase of each image, for those whose caption begins with an unlikely noun.
        least_probability: see :func:`without_unlikely_endings`. Default: that of the configuration.

    Raises:
        UserError: ``beam_size`` is below 1, or ``boxes`` are invalid.
    """
    bound = bind(captioner, encodings, boxes)
    never = None if nouns is None else nouns.refuse_people(captioner)
    found = search(bound.decoder, bound.embeddings, captioner.config.decoding, beam_size, never)
    reranker = build_reranker(captioner, bound.embeddings, encodings, aligner, nouns)
    decoded = found.best(reranker.rank(found, captioner.vocabulary))
    texts = [captioner.vocabulary.decode(row) for row in decoded.token_ids.tolist()]
    texts = texts if nouns is None else nouns.correct(texts)
    texts = [without_monochrome(text, one.pixels) for one, text in zip(encodings, texts, strict=True)]
    texts = without_unlikely_endings(captioner, bound.embeddings, texts, least_probability)
    texts = texts if nouns is None else nouns.without_wrong_colours(texts)
    if nouns is not None and phrases is not None:
        rows = nouns.unlikely_subjects(captioner, bound.embeddings, texts)
        for row, phrase in zip(rows, phrases([encodings[row] for row in rows]) if rows else (), strict=True):
            texts[row] = phrase or texts[row]
    texts = [with_singulars(with_usage(text), noun_tree()) for text in texts]
    captions = [_plain(encoding, text) for encoding, text in zip(encodings, texts, strict=True)]
    if not attention or bound.attention is None:
        return captions
    token_ids = pad([captioner.vocabulary.encode(text) for text in texts])
    return _with_attention(captions, encodings, bound, bound.attention(token_ids))


def attend(
    captioner: Captioner, encoding: Encoding, sentences: Sequence[str], boxes: ArrayLike | None = None
) -> list[Caption]:
    """Return the attention at each word of given sentences about one image, without END.

    Words outside the vocabulary count as the unknown word.

    Raises:
        UserError: the decoder attends to no regions, ``sentences`` is a single string, or ``boxes`` are invalid.
    """
    require_texts(False, sentences=sentences)
    if captioner.config.decoder != "attention":
        raise UserError(f"a captioner with the decoder {captioner.config.decoder} attends to no regions")
    encodings = [encoding] * len(sentences)
    if not encodings:
        return []
    bound = bind(captioner, encodings, None if boxes is None else [boxes] * len(sentences))
    token_ids = pad([captioner.vocabulary.encode(text) for text in sentences])
    captions = [_plain(encoding, " ".join(tokenize(text))) for text in sentences]
    return _with_attention(captions, encodings, bound, bound.attention(token_ids))


def describe_boxes(captioner: Captioner, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike]) -> list[Regions]:
    """Return a caption for each of the given boxes, without scores.

    A model trained on whole images works on boxes too: the full-frame model of Alignments' Table 3.

    Raises:
        UserError: boxes leave their image, or the decoder attends to its own regions.
    """
    if captioner.config.decoder == "attention":
        raise UserError("a captioner with the decoder attention captions whole images; boxes need another model")
    given = [e.check(b) for e, b in zip(encodings, boxes, strict=True)]
    inputs = [e.to_input(b) for e, b in zip(encodings, given, strict=True)]
    decoder, embeddings = captioner.box_embeddings([e.maps for e in encodings], inputs)
    decoded = decode(decoder, embeddings, captioner.config.decoding)
    texts = iter(with_usage(captioner.vocabulary.decode(row)) for row in decoded.token_ids.tolist())
    return [
        Regions(e.width, e.height, b, captions=tuple(next(texts) for _ in b), image=e.image)
        for e, b in zip(encodings, given, strict=True)
    ]


def bind(captioner: Captioner, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike] | None = None) -> BoundImages:
    """Return the images prepared for decoding; ``boxes`` as in :func:`caption`."""
    config = captioner.config
    given: list[np.ndarray | None] = [None] * len(encodings)
    if boxes is not None:
        if config.attend_to != "proposals":
            raise UserError(f"a captioner that attends to {config.attend_to} takes no boxes")
        given = [e.to_input(e.check(b)) for e, b in zip(encodings, boxes, strict=True)]
    elif config.attend_to == "proposals":
        given = [propose_boxes(e, config.proposals, BoxCoder())[0] for e in encodings]
    return captioner.bind_images([e.maps for e in encodings], given)


def _plain(encoding: Encoding, text: str) -> Caption:
    return Caption(text, tuple(text.split()), encoding.width, encoding.height, encoding.image)


def _with_attention(
    captions: Sequence[Caption], encodings: Sequence[Encoding], bound: BoundImages, weights: np.ndarray
) -> list[Caption]:
    rows = zip(captions, encodings, bound.boxes, bound.corners, weights, strict=True)
    return [
        replace(
            caption,
            boxes=encoding.to_image(boxes),
            attention=attention[: len(caption.words), : len(boxes)],
            corners=None if corners is None else corners * np.array(encoding.scale, np.float32),
        )
        for caption, encoding, boxes, corners, attention in rows
    ]


MONOCHROME = re.compile(r"(?<!\S)black and white (?=(?:photo|photograph|picture|image)s?(?!\S))")
"""Words that are removed if the photograph has colours."""
SPREAD, COLOURED = 50, 0.05
"""A pixel has colour if its channels (0 to 255) differ by SPREAD; an image, if a COLOURED share of its pixels do."""


def without_monochrome(sentence: str, pixels: np.ndarray) -> str:
    """Remove "black and white" before words for a photo, if the image ``(h, w, 3)`` uint8 has colours."""
    spreads = pixels.max(axis=2) - pixels.min(axis=2)
    return MONOCHROME.sub("", sentence) if (spreads >= SPREAD).mean() >= COLOURED else sentence


def without_unlikely_endings(
    captioner: Captioner, embeddings: np.ndarray, sentences: Sequence[str], least: float | None = None
) -> list[str]:
    """End each image's sentence after the last part that the image probably shows.

    "A woman holds a baby in the air" becomes "a woman holds a baby" where the n-grams expect no air, see
    :func:`saywhere.models.nouns.likely_length`. Without n-grams nothing changes. ``embeddings`` are ``(N, F)``;
    ``least`` defaults to ``ngrams.least_probability``.
    """
    ngrams, vocabulary = captioner.ngrams, captioner.vocabulary
    if ngrams is None:
        return list(sentences)
    least = captioner.config.ngrams.least_probability if least is None else least
    kept = list[str]()
    for sentence, expected in zip(sentences, ngrams.probabilities(embeddings), strict=True):
        words = sentence.split()
        probable = ngrams.word_probabilities(expected, [vocabulary.number(word) for word in words])
        stop = likely_length(words, probable, least)
        kept.append(sentence if stop == len(words) else " ".join(words[: without_loose_end(words, stop)]))
    return kept


def without_unsure_sex(captioner: Captioner, encoding: Encoding, sentence: str, least: float) -> str:
    """Replace words for a person's sex by "person", "child" and the like if they are right with less than ``least``.

    The probability is the n-grams' of all words for that sex, divided by that of words for either. A sentence about
    both sexes, and one of a captioner without n-grams, stays.
    """
    words, ngrams = sentence.split(), captioner.ngrams
    places = {place for place, word in enumerate(words) if word in SEXES}
    if ngrams is None or len(sexes := {SEXES[words[place]] for place in places}) != 1:
        return sentence
    likely, own = ngrams.probabilities(bind(captioner, [encoding]).embeddings)[0], next(iter(sexes))
    each = ngrams.word_probabilities(likely, [captioner.vocabulary.number(word) for word in SEXES])
    sums = {
        sex: sum(p or 0.0 for p, of in zip(each, SEXES.values(), strict=True) if of == sex)
        for sex in ("male", "female")
    }
    if sums[own] >= least * sum(sums.values()):
        return sentence
    return with_usage(" ".join(without_sex(words, places)))

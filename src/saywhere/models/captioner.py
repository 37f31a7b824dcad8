"""A sentence of an image, and where the model looked at each word (Areas of Attention; the multimodal RNN).

A caption is the hypothesis of the beam with the highest sum of length-normalised log-probability and weighted reasons
(:class:`saywhere.models.reranking.Reranker`); its nouns are edited after that (:mod:`saywhere.models.caption_nouns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere.box_coding import BoxCoder
from saywhere.engines.engine import Aligner, BoundImages, Captioner
from saywhere.errors import UserError
from saywhere.models.aligner import embed_images, embed_texts, plain_similarities
from saywhere.models.caption_nouns import NounChecker
from saywhere.models.decoding import decode, search
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.reranking import Reason, Reranker, Sentence
from saywhere.regions import Regions
from saywhere.text import pad, tokenize

SHORTLIST = 10
"""Hypotheses of an image that the aligner compares: with more a caption takes longer, and is hardly better."""


def build_reranker(
    captioner: Captioner,
    embeddings: np.ndarray,
    encodings: Sequence[Encoding],
    aligner: Aligner | None = None,
    nouns: NounChecker | None = None,
) -> Reranker:
    """Return what ranks captions of images, by the parts of a model and the weights of its captioner.

    Args:
        captioner: with n-grams, or without.
        embeddings: ``(N, F)`` of the images.
        encodings: of the images.
        aligner, nouns: of the same images; None for a model that lacks them.
    """
    config, ngrams, reasons = captioner.config, captioner.ngrams, list[Reason]()
    if ngrams is not None:

        def expected(sentences: Sequence[Sequence[Sentence]]) -> list[np.ndarray]:
            weighed = [ngrams.weigh([one.token_ids for one in of_image]) for of_image in sentences]
            return ngrams.agreement(embeddings, weighed)

        reasons.append(Reason(expected, config.ngrams.weight))
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
    """Return how well each of its sentences fits each image, without hubness: a caption may be one that fits many."""
    texts = _texts(sentences)
    known = iter(embed_texts(aligner, [text for its in texts for text in its], plain=True))
    pairs = zip(embed_images(aligner, encodings, plain=True), texts, strict=True)
    score = aligner.config.score
    return [plain_similarities(image, [next(known) for _ in its], score) for image, its in pairs]


@dataclass(frozen=True, eq=False)
class Caption:
    """A sentence of an image, and the attention to the image's regions at each word.

    Attributes:
        sentence: its words with spaces between them.
        words: the T words.
        width, height: of the image as a viewer shows it.
        image: name of the image.
        boxes: ``(R, 4)`` the regions attended to in pixels of the image, inside it; of warped regions the boxes around
            them. None if the model attends to no regions.
        attention: ``(T, R)`` p(r | h) of the regions at each word; each row sums to 1. None if it was not asked for.
        corners: ``(R, 4, 2)`` of warped regions in pixels of the image, which they may leave; None if none is warped.
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

    @property
    def outlines(self) -> np.ndarray | None:
        """The corners if regions are warped, else the boxes."""
        return self.boxes if self.corners is None else self.corners

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
) -> list[Caption]:
    """Return a sentence for each image.

    Args:
        captioner: the part that captions.
        encodings: of the images.
        beam_size: hypotheses in decoding, instead of the configuration's; 1 is greedy.
        boxes: of each image ``(R, 4)`` in its pixels, to attend to instead of the model's own proposals.
        attention: also return where the model looked at each word, if it attends to regions.
        aligner: helps to choose among the hypotheses of the beam, see :func:`build_reranker`.
        nouns: checks the nouns of these images; helps to choose, too, and edits the sentence that is chosen.

    Raises:
        UserError: ``beam_size`` is below 1, or wrong ``boxes``.
    """
    bound = bind(captioner, encodings, boxes)
    found = search(bound.decoder, bound.embeddings, captioner.config.decoding, beam_size)
    reranker = build_reranker(captioner, bound.embeddings, encodings, aligner, nouns)
    decoded = found.best(reranker.rank(found, captioner.vocabulary))
    texts = [captioner.vocabulary.decode(row) for row in decoded.token_ids.tolist()]
    texts = texts if nouns is None else nouns.correct(texts)
    captions = [_plain(encoding, text) for encoding, text in zip(encodings, texts, strict=True)]
    if not attention or bound.attention is None:
        return captions
    token_ids = pad([captioner.vocabulary.encode(text) for text in texts])
    return _with_attention(captions, encodings, bound, bound.attention(token_ids))


def attend(
    captioner: Captioner, encoding: Encoding, sentences: Sequence[str], boxes: ArrayLike | None = None
) -> list[Caption]:
    """Return where the model looks at each word of given sentences of one image; END is left out.

    Words that the vocabulary does not have count as the unknown word. ``boxes`` are as in :func:`caption`.

    Raises:
        UserError: a decoder that attends to no regions, one sentence that is not in a list, or wrong ``boxes``.
    """
    if isinstance(sentences, str):
        raise UserError(f"sentences must be a list of strings, not one string: [{sentences!r}]")
    if captioner.config.decoder != "attention":
        raise UserError(f"a captioner with the decoder {captioner.config.decoder} attends to no regions")
    encodings = [encoding] * len(sentences)
    if not encodings:
        return []
    bound = bind(captioner, encodings, None if boxes is None else [boxes] * len(sentences))
    token_ids = pad([captioner.vocabulary.encode(text) for text in sentences])
    captions = [_plain(encoding, " ".join(tokenize(text))) for text in sentences]
    return _with_attention(captions, encodings, bound, bound.attention(token_ids))


def describe_boxes(
    captioner: Captioner,
    encodings: Sequence[Encoding],
    boxes: Sequence[ArrayLike],
    beam_size: int | None = None,
) -> list[Regions]:
    """Return a phrase for each of the given boxes; they have no scores.

    A model trained on sentences of images can be given boxes too, as the full-frame model of Alignments' Table 3.

    Raises:
        UserError: boxes that leave their image, or a decoder that attends to regions of its own.
    """
    if captioner.config.decoder == "attention":
        raise UserError("a captioner with the decoder attention captions whole images; boxes need another model")
    given = [e.check(b) for e, b in zip(encodings, boxes, strict=True)]
    inputs = [e.to_input(b) for e, b in zip(encodings, given, strict=True)]
    decoder, embeddings = captioner.box_embeddings([e.maps for e in encodings], inputs)
    decoded = decode(decoder, embeddings, captioner.config.decoding, beam_size)
    texts = iter(captioner.vocabulary.decode(row) for row in decoded.token_ids.tolist())
    return [
        Regions(e.width, e.height, b, captions=tuple(next(texts) for _ in b), image=e.name)
        for e, b in zip(encodings, given, strict=True)
    ]


def bind(captioner: Captioner, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike] | None = None) -> BoundImages:
    """Return what decoding sentences of images begins with; ``boxes`` as in :func:`caption`."""
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
    return Caption(text, tuple(text.split()), encoding.width, encoding.height, encoding.name)


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

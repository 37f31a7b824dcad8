"""Captions of images, with the attention to regions at each word (Areas of Attention; the multimodal RNN).

The caption is the beam hypothesis with the highest score: length-normalised log-probability plus the weighted terms of
:class:`saywhere.models.decoding.Reranker`. Its nouns are then corrected (:class:`NounChecker`, docs/nouns.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere.boxes import BoxCoder
from saywhere.engines.engine import Aligner, BoundImages, Captioner, DenseCap
from saywhere.errors import UserError
from saywhere.models.aligner import embed_images, embed_texts, plain_similarities
from saywhere.models.decoding import Reason, Reranker, Sentence, decode, search
from saywhere.models.encoding import Encoding, propose_boxes
from saywhere.models.nouns import (
    THIN,
    Head,
    Noun,
    NounEvidence,
    find_heads,
    find_nouns,
    likely_length,
    related,
    repeated,
    with_noun,
    without_loose_end,
    without_repetition,
)
from saywhere.options import require_texts
from saywhere.regions import Regions, open_pixels, show_image
from saywhere.text import pad, tokenize, with_usage, without_stutter

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
    if nouns is not None and phrases is not None:
        rows = nouns.unlikely_subjects(captioner, bound.embeddings, texts)
        for row, phrase in zip(rows, phrases([encodings[row] for row in rows]) if rows else (), strict=True):
            texts[row] = phrase or texts[row]
    texts = [with_usage(text) for text in texts]
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


FEW, REGIONS = 10, 40
"""Proposals per image to look at: first FEW, then REGIONS if the first do not show everything the sentence names."""
LEAST_REGION = 0.2
"""Minimum uncalibrated probability that a region contains something; other regions are left out."""
OF_PEOPLE = (
    "biker", "bikers", "climber", "climbers", "couple", "couples", "crowd", "crowds", "families", "family", "female",
    "females", "he", "her", "him", "his", "human", "humans", "male", "males", "pitcher", "pitchers", "she", "team",
    "teams", "their", "them", "they",
)  # fmt: skip
"""Words for people that are not in the person branch of the noun tree; some also describe other things."""
UNSEEN = 0.1
"""A thing is unseen if no region gives it this probability."""
LEAST_SUPPORT = -3.0
"""Minimum support of an unseen noun; a lower value would overstate what the classifier knows."""
SURE = 0.6
"""A thing that the caption does not name may be inserted if some region's probability for it is higher than this."""
LISTED = 2
"""Number of things listed instead of a sentence of which nothing is seen."""
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


class NounChecker:
    """Check the nouns of sentences against what their images show; each image is looked at once for all questions."""

    def __init__(self, detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding]) -> None:
        self._detector, self._classes, self._encodings = detector, classes, encodings
        self._looked: dict[int, np.ndarray] = {}

    @cached_property
    def _first(self) -> list[np.ndarray]:
        """Posteriors of the first :data:`FEW` proposals of each image."""
        return see(self._detector, self._classes, self._encodings, FEW)

    def _more(self, rows: Sequence[int]) -> list[np.ndarray]:
        """Return the posteriors of the first :data:`REGIONS` proposals of the images ``rows``."""
        new = [row for row in rows if row not in self._looked]
        if new:
            seen = see(self._detector, self._classes, [self._encodings[row] for row in new], REGIONS)
            self._looked.update(zip(new, seen, strict=True))
        return [self._looked[row] for row in rows]

    def refuse_people(self, captioner: Captioner) -> np.ndarray | None:
        """Return a mask ``(N, V)`` of forbidden words: words for people, in images that show nobody.

        An image shows somebody if one of its first :data:`REGIONS` regions shows a person with a probability of at
        least ``people_threshold``. None if no image forbids any word.
        """
        least, person = captioner.config.people_threshold, self._classes.tree.named("person")
        if not least or person is None:
            return None
        empty = np.array([shown(self._classes, posterior, person) < least for posterior in self._first], bool)
        rows = np.flatnonzero(empty).tolist()
        empty[rows] = [shown(self._classes, posterior, person) < least for posterior in self._more(rows)]
        named = [self._classes.tree.named(word) for word in captioner.vocabulary.tokens]
        of_people = [self._classes.tree.is_person(noun) for noun in named]
        words = np.array(of_people) | np.isin(captioner.vocabulary.tokens, OF_PEOPLE)
        return empty[:, None] & words if empty.any() else None

    def support(self, sentences: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return how well each image supports the nouns of its sentences, see :func:`support`."""
        return [support(self._classes, posterior, own) for posterior, own in zip(self._first, sentences, strict=True)]

    def correct(self, sentences: Sequence[str]) -> list[str]:
        """Correct the sentence of each image by :func:`correct`, with the first :data:`REGIONS` regions of the image.

        Repetitions are removed: of things, see :func:`saywhere.models.nouns.without_repetition`, and of adjacent words.
        Often the first :data:`FEW` regions show everything the sentence names, and the others are not looked at.
        """
        corrected, classes = list(sentences), self._classes
        doubtful = [i for i, shown in enumerate(self._first) if not all_seen(classes, shown, sentences[i])]
        for i, posterior in zip(doubtful, self._more(doubtful), strict=True):
            corrected[i] = correct(classes, posterior, sentences[i])
        return [without_repetition(without_stutter(sentence), classes.tree) for sentence in corrected]

    def unlikely_subjects(self, captioner: Captioner, embeddings: np.ndarray, sentences: Sequence[str]) -> list[int]:
        """Return the images whose sentence begins with a noun that neither n-grams nor regions expect.

        Its n-gram probability is below ``ngrams.least_subject``, of a word for people that of each such word, and no
        region surely shows the thing or one that is related. A noun that is no n-gram has a probability of 0.
        ``embeddings`` are ``(N, F)``.
        """
        ngrams, least, tree = captioner.ngrams, captioner.config.ngrams.least_subject, self._classes.tree
        if ngrams is None or not least:
            return []
        encode, likely = captioner.vocabulary.encode, ngrams.probabilities(embeddings)
        heads = [tree.head(tokenize(sentence)) for sentence in sentences]
        last = [
            " ".join(tokenize(text)[head.start : head.stop][-1:]) for head, text in zip(heads, sentences, strict=True)
        ]
        known = [ngrams.rows.get(tuple(encode(word))) for word in last]
        rows = [i for i, row in enumerate(known) if row is None or likely[i, row[0]] < least]
        things = [sure_things(self._classes, posterior) for posterior in self._more(rows)]
        tokens = captioner.vocabulary.tokens
        common = [(row, tree.named(tokens[key[0]])) for key, (row, _) in ngrams.rows.items() if rows and len(key) == 1]
        people = [row for row, noun in common if self._classes.tree.is_person(noun)]
        strange = list[int]()
        for i, seen in zip(rows, things, strict=True):
            noun = heads[i].noun
            shown = noun is not None and any(related(noun, thing) for thing in seen)
            person = self._classes.tree.is_person(noun) and (likely[i, people] >= least).any()
            if not (shown or person):
                strange.append(i)
        return strange

    def repeats(self, sentences: Sequence[str]) -> np.ndarray:
        """Return 1 for each sentence that names a thing twice, else 0; see :func:`saywhere.models.nouns.repeated`."""
        tree = self._classes.tree
        return np.array([repeated(tokenize(sentence), tree) is not None for sentence in sentences], np.float32)


def see(
    detector: DenseCap, classes: NounEvidence, encodings: Sequence[Encoding], limit: int = REGIONS
) -> list[np.ndarray]:
    """Return the noun posteriors ``(N, K)`` of each image's regions, over the K leaves of the noun tree.

    Thin regions (:data:`saywhere.models.nouns.THIN`) are left out, because the classifier mistakes them for people.
    """
    settings, coder = detector.config.proposals, detector.box_coder
    proposals = [propose_boxes(encoding, settings, coder, limit)[0] for encoding in encodings]
    heads = detector.start.region_head([e.maps for e in encodings], proposals)
    boxes, embeddings = list[np.ndarray](), list[np.ndarray]()
    for encoding, proposed, head in zip(encodings, proposals, heads, strict=True):
        in_image = encoding.to_image(proposed)
        kept = np.asarray(head.logits) > np.log(LEAST_REGION / (1 - LEAST_REGION))
        sides = (in_image[:, 2:] - in_image[:, :2]) / (encoding.width, encoding.height)
        kept &= sides.min(axis=1) >= THIN
        boxes.append(in_image[kept])
        embeddings.append(np.asarray(head.embeddings)[kept])
    return classes.posteriors(encodings, boxes, embeddings)


def correct(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> str:
    """Replace the nouns of a caption that the image does not show, as far as the classifier can tell.

    An unseen noun is replaced by the most probable thing that is seen, is of the same sort (a cat for a dog: both are
    animals) and is not named yet. Words for people stay. If the image then shows nothing that the sentence names, the
    sentence is about something else, and the most probable things are listed instead. ``posterior`` is that of the
    image's regions, see :func:`see`.
    """
    words = tokenize(sentence)
    heads = find_heads(words, classes.tree)
    things = sure_things(classes, posterior)
    if not heads or not things:
        return sentence
    nouns = [head.noun for head in heads if head.noun is not None]
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    for number, head in reversed(list(enumerate(heads))):
        if seen[number] or classes.tree.is_person(nouns[number]):
            continue
        new = next((noun for noun in things if _may_replace(nouns[number], noun, nouns)), None)
        if new is not None:
            before = max(head.start - 1, 0)
            moved = Head(head.start - before, head.stop - before, head.noun, head.plural)
            words[before : head.stop] = with_noun(moved, words[before : head.stop], new).split()
            nouns[number], seen[number] = new, True
    return " ".join(words) if any(seen) else listed(things)


def all_seen(classes: NounEvidence, posterior: np.ndarray, sentence: str) -> bool:
    """Return whether regions show everything that a sentence names, so that :func:`correct` would not change it."""
    nouns = find_nouns(sentence, classes.tree)
    seen = [is_seen(classes, posterior, noun) for noun in nouns]
    unseen = [noun for noun, there in zip(nouns, seen, strict=True) if not there]
    return not nouns or (any(seen) and all(classes.tree.is_person(noun) for noun in unseen))


def is_seen(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> bool:
    """Return whether some region shows what a noun names, see :func:`shown`."""
    return shown(classes, posterior, noun) >= UNSEEN


def shown(classes: NounEvidence, posterior: np.ndarray, noun: Noun) -> float:
    """Return the highest probability over regions that a region shows the noun; for words for people, any person.

    1 for a kind that the classifier was not trained on, because it cannot tell.
    """
    person = classes.tree.named("person")
    asked = person if person is not None and classes.tree.is_person(noun) else noun
    if asked.sort == "kind" and asked not in classes.kinds:
        return 1.0
    return float(classes.probability(posterior, asked).max(initial=0.0))


def support(classes: NounEvidence, posterior: np.ndarray, sentences: Sequence[str]) -> np.ndarray:
    """Return the support of each of S sentences by an image: the sum over its nouns of log(p / :data:`UNSEEN`).

    p is that of :func:`shown`. A seen noun adds 0; an unseen one adds at least :data:`LEAST_SUPPORT`.
    """
    named = [find_nouns(sentence, classes.tree) for sentence in sentences]
    likely = {noun.row: shown(classes, posterior, noun) for noun in {n.row: n for ns in named for n in ns}.values()}
    least = UNSEEN * np.exp(LEAST_SUPPORT)
    each = {row: np.log(min(max(p, least), UNSEEN) / UNSEEN) for row, p in likely.items()}
    return np.array([sum(each[noun.row] for noun in nouns) for nouns in named], np.float32)


def sure_things(classes: NounEvidence, posterior: np.ndarray) -> list[Noun]:
    """Return the kinds and classes that regions show with a probability above :data:`SURE`, most probable first."""
    if not len(posterior):
        return []
    found = [one for one in classes.name(posterior) if one[1] > SURE]
    return list(dict.fromkeys(noun for noun, _ in sorted(found, key=lambda one: -one[1])))


def listed(things: Sequence[Noun]) -> str:
    """Return the first few things as a phrase, none of them a kind of another: ``a banana and an orange``."""
    kept = list[Noun]()
    for noun in things:
        if len(kept) < LISTED and not any(related(noun, other) for other in kept):
            kept.append(noun)
    return " and ".join(with_noun(Head(0, 0, None, False), (), noun) for noun in kept)


def _may_replace(old: Noun, new: Noun, said: Sequence[Noun]) -> bool:
    alike = not old.ancestors.keys().isdisjoint(new.ancestors)
    return alike and not any(related(new, noun) for noun in said)

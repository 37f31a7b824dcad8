"""Grounding of phrases by all parts of a model, and the probability that an image shows a phrase at all.

The dense captioner chooses the region: the most probable pair of region and phrase. A model without one uses the
aligner. The noun classifier (docs/nouns.md) helps where a phrase names a kind of thing, most of all for rare nouns.
Presence in the image is a logistic regression on the aligner's similarity and the classifier's log-odds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from math import log
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.calibration import MATCH, Calibration, Logistic, logistic, logit
from saywhere.configs.aligner import GroundingConfig
from saywhere.engines.engine import Aligner, DenseCap
from saywhere.errors import UserError
from saywhere.models.aligner import (
    ImageVectors,
    TextVectors,
    embed_images,
    embed_texts,
    plain_similarities,
    region_bonus,
)
from saywhere.models.chunker import Chunker
from saywhere.models.densecap import describe
from saywhere.models.details import Colours, Details
from saywhere.models.encoding import Encoding
from saywhere.models.layout import (
    Layout,
    count_of,
    one_of,
    require_names,
    spelt_out,
    unused_runs,
)
from saywhere.models.lexicon import Lexicon, captioned, familiar
from saywhere.models.nouns import (
    FUNCTION_WORDS,
    LEAST,
    MOST,
    NounEvidence,
    noun_tree,
)
from saywhere.models.phrase_scores import score_regions
from saywhere.models.phrases import PhraseWriter, colours_of_boxes
from saywhere.options import dataclass, require_probabilities
from saywhere.regions import Regions
from saywhere.text import tokenize

FIT_SCALE = 50.0
"""Scale of the aligner's similarities relative to log-probabilities, if no weight of the noun classifier gives it."""
ANYBODY = frozenset({"people", "person", "persons", "somebody", "someone"})
"""Words for people of whom nothing else is said."""
PEOPLE = ("a man", "a woman", "a boy", "a girl")
"""Captions name these rather than a person, so an image that shows one of them shows somebody."""
FIT_WEIGHTS = {"densecap": 0.3, "aligner": 0.01}
"""Weight of a region's fit next to the classifier's log-odds when deciding whether an image shows a phrase. Without it
the classifier takes any thin dark box for a person (docs/experiments.md)."""

APART = 0.35
"""Maximum share of the smaller of two regions that lies in the other, if they count as two things: a wheel is no second
bicycle."""
INSIDE, BESIDE, AS_SURE = 0.8, 0.2, 0.7
"""A region is a group and no single thing, such as "two dogs" around two dogs, if two regions lie in it with this
share, each with less than this share of its area and a log-probability lower by at most AS_SURE, and share at most
BESIDE."""
SCORE_SHARE = 0.5
"""Power of the score of a region that counts as one of several things."""
STRIPS = ((0, 0, 1, 0.33), (0, 0, 1, 0.5), (0, 0.67, 1, 1))
"""Parts of the image, ``x1 y1 x2 y2`` in shares of its sides, that are regions to place phrases in, too.

Few proposals cover sky or grass (docs/experiments.md). The region head moves their borders. A user's limit of the
number of regions leaves them out.
"""
UNREAD = 0.4
"""Maximum probability of a noun that the text encoder hardly read and of which the tree has no kind: similarity and fit
rank .53 to .72 of such pairs right, where chance would rank .5 (docs/experiments.md)."""
STRIP_WEIGHT = 0.15
"""Factor of the scores of these regions, because most phrases name things that proposals cover."""
SEEN = log(9.0)
"""Log-odds that a phrase's colour is right in the one image that is asked about (docs/experiments.md)."""
COUNTED = log(3.0)
"""The same for its number."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores of P phrases for an image's regions.

    Attributes:
        regions: the R candidate regions; a score is the probability that a region contains something.
        fits: ``(R, P)`` how well each region fits each phrase, before the noun classifier: a log-probability (dense
            captioner) or a similarity (aligner).
        kinds: ``(R, P)`` log-probability that a region shows the phrase's kind of thing; 0 if it names none.
        named: ``(P,)`` whether the phrase names a kind in the noun tree.
        rare: ``(P,)`` whether the phrase's noun was rare in the text encoder's training data.
        similarity: ``(P,)`` similarity of the phrase with the image (Eq. 8); 0 without an aligner.
        by: the part that ``fits`` comes from.
        compared: ``(T,)`` similarities of the image with :attr:`Details.texts`.
        bare: ``(P,)`` whether the phrase says nothing but its noun, see :meth:`NounTree.is_bare`; None: no phrase does.
        lacking: ``(P,)`` whether only the noun classifier, not the text encoder, knows the noun and so decides alone;
            None: no phrase.
        indexed: whether what regions show comes from an index, not from pixels.
        counted: ``(R, P)`` ``kinds``, but for words for people that regions show somebody: of two girls, one is easily
            taken for a boy. None: ``kinds``.
    """

    regions: Regions
    fits: np.ndarray
    kinds: np.ndarray
    named: np.ndarray
    rare: np.ndarray
    similarity: np.ndarray
    by: Literal["densecap", "aligner"]
    compared: np.ndarray | None = None
    bare: np.ndarray | None = None
    lacking: np.ndarray | None = None
    indexed: bool = False
    counted: np.ndarray | None = None

    def first(self, count: int) -> Evidence:
        """Return the scores of the first ``count`` phrases."""
        names = ("fits", "kinds", "named", "rare", "similarity", "bare", "lacking", "counted")
        columns = {name: value[..., :count] for name in names if (value := getattr(self, name)) is not None}
        return replace(self, **columns)

    def place(
        self, config: GroundingConfig, layout: Layout, calibration: Calibration | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the region of each phrase ``(P,)``, and the log-probability ``(P,)`` of its places and relations.

        A calibration sets the weight of the fits: "the dog on the right" may fit a little worse than another dog.
        """
        if not layout.places and not layout.relations:
            return self.rows(config), np.zeros(len(layout.phrases))
        size = self.regions.width, self.regions.height
        fit = None if calibration is None else self._place_fit(calibration)
        weight = 1.0 if fit is None else min(max(fit.weights["share"], 0.0), 1.0)
        return layout.choose(self._log_fits(config), self.regions.boxes, size, weight)

    def rows(self, config: GroundingConfig) -> np.ndarray:
        """Return the index of the best region of each phrase ``(P,)``."""
        return self.fits_in(config).argmax(axis=0)

    def things(self, phrase: int, number: int) -> float | None:
        """Return how surely there are so many of a phrase's kind of thing; None if it names no kind.

        It is the log-probability of the kind, and half that of the score, in the best region, the second best and so on
        up to the ``number``-th. Regions that overlap by more than :data:`APART` count once, and groups not at all.
        """
        if not self.named[phrase] or self.regions.scores is None:
            return None
        kinds = self.kinds if self.counted is None else self.counted
        sure = kinds[:, phrase] + SCORE_SHARE * np.log(np.maximum(self.regions.scores, LEAST))
        shared, kept = geometry.containment(self.regions.boxes), list[int]()
        group = _are_groups(self.regions.boxes, shared, sure)
        for row in np.argsort(-sure, kind="stable").tolist():
            if len(kept) == number:
                break
            if not group[row] and not (shared[row, kept] > APART).any():
                kept.append(row)
        return float(sure[kept[-1]]) if len(kept) == number else (1 + SCORE_SHARE) * log(LEAST)

    def fits_in(self, config: GroundingConfig) -> np.ndarray:
        """Return how well each region fits each phrase ``(R, P)``, including the noun classifier."""
        if self.by == "aligner":
            return self.fits + np.float32(config.similarity_kind_weight) * self.kinds
        bare = self.named & (False if self.bare is None else self.bare)
        share = np.where(bare, config.bare_kind_share, 0).astype(np.float32)
        weights = np.where(bare, config.bare_kind_share, config.kind_weight).astype(np.float32)
        fits = (1 - share) * self.fits + weights * self.kinds
        if self.regions.scores is None:
            return fits
        counted = (1 - share) * config.score_weight + share  # the fits already include the score with a weight of 1
        more = (counted - (1 - share)).astype(np.float32)
        return fits + more * np.log(np.maximum(self.regions.scores, LEAST))[:, None]

    def _log_fits(self, config: GroundingConfig) -> np.ndarray:
        """Return the fits ``(R, P)`` as log-probabilities, up to a constant."""
        scale = 1 if self.by == "densecap" else config.similarity_kind_weight or FIT_SCALE
        return self.fits_in(config).astype(np.float64) / scale

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """Inputs of the calibration of presence (does the image show the phrase?), by name, ``(P,)`` each.

        ``region`` is the maximum over regions of the log-odds that a region shows the phrase's kind, plus its fit times
        :data:`FIT_WEIGHTS`, and ``fit`` that of the latter alone.
        """
        least, fits = float(logit(np.array(LEAST))), FIT_WEIGHTS[self.by] * self.fits
        best = (logit(np.clip(np.exp(self.kinds), LEAST, MOST)) + fits).max(axis=0, initial=least) * self.named
        fit = fits.max(axis=0, initial=least)
        columns = {"similarity": self.similarity, "region": best, "named": self.named, "fit": fit}
        return {name: column.astype(np.float64) for name, column in columns.items()}

    @property
    def best_kinds(self) -> np.ndarray:
        """Highest log-probability ``(P,)`` over regions of the phrase's kind of thing; 0 if it names none."""
        return self.kinds.max(axis=0, initial=np.log(LEAST)) * self.named

    def presence(self, calibration: Calibration) -> np.ndarray | None:
        """Return the probability ``(P,)`` that the image shows each phrase; None without a calibration."""
        odds = self.log_odds(calibration)
        return None if odds is None else logistic(odds).astype(np.float32)

    def log_odds(self, calibration: Calibration) -> np.ndarray | None:
        """Return the log-odds ``(P,)`` that the image shows each phrase; None without a calibration."""
        if calibration.phrase is None:
            return None
        inputs, of_rare = self.inputs, calibration.rare_phrase or calibration.phrase
        if self.indexed and calibration.indexed_phrase is not None:
            odds = calibration.indexed_phrase.log_odds(inputs)
        else:
            odds = np.where(self.rare, of_rare.log_odds(inputs), calibration.phrase.log_odds(inputs))
            if calibration.unnamed_phrase is not None and self.by == "densecap":
                odds = np.where(self.named, odds, calibration.unnamed_phrase.log_odds(inputs))
        if self.lacking is None:
            return odds
        kinds = np.minimum(self.best_kinds, np.log(MOST))
        return np.where(self.lacking, kinds - np.log1p(-np.exp(kinds)), odds)

    def place_inputs(self, config: GroundingConfig, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return the inputs of the calibration of boxes (are the boxes ``rows (P,)`` right?), ``(P,)`` each.

        ``share`` is the log-odds of the fit-weighted fraction of regions that match the box; it is low if another place
        fits equally well. ``box`` is the log-odds of the region's score.
        """
        fits, boxes = self._log_fits(config), self.regions.boxes
        weights = np.exp(fits - fits.max(axis=0)).T
        near = geometry.iou(boxes[rows], boxes) >= MATCH
        share = (weights * near).sum(axis=1) / weights.sum(axis=1)
        assert self.regions.scores is not None
        return {"share": logit(share), "box": logit(self.regions.scores[rows])}

    def box_probability(self, calibration: Calibration, config: GroundingConfig, rows: np.ndarray) -> np.ndarray:
        """Return the probability that the boxes ``rows (P,)`` are right, given presence; 1 without a calibration."""
        fit = self._place_fit(calibration)
        if fit is None:
            return np.ones(len(rows), np.float32)
        return fit.apply(self.place_inputs(config, rows)).astype(np.float32)

    def _place_fit(self, calibration: Calibration) -> Logistic | None:
        return calibration.densecap_place if self.by == "densecap" else calibration.aligner_place


@dataclass(frozen=True, eq=False)
class Placer:
    """Place phrases in images.

    Attributes:
        densecap, aligner, nouns: parts of a model; at least one of the first two.
        by: the part that chooses the region.
    """

    densecap: DenseCap | None
    aligner: Aligner | None
    nouns: NounEvidence | None
    by: Literal["densecap", "aligner"]
    calibration: Calibration

    def __repr__(self) -> str:
        return f"Placer(by {self.by})"

    @cached_property
    def lexicon(self) -> Lexicon:
        """The words that the model knows."""
        return Lexicon(self.densecap, self.aligner, self.nouns, self.by)

    @property
    def config(self) -> GroundingConfig:
        """Options of the aligner; the defaults without one."""
        return self.lexicon.config

    def ground(
        self, encoding: Encoding, asked: Sequence[str] | Layout, boxes: ArrayLike | None = None,
        limit: int | None = None, threshold: float | None = None,
    ) -> Regions:  # fmt: skip
        """Return the regions of the phrases that are found, and the other phrases as ``not_found``.

        For the arguments see :meth:`find` and :meth:`least`.
        """
        least, layout = self.least(threshold), asked if isinstance(asked, Layout) else Layout.of(asked)
        regions, presence, agree = self.find(encoding, layout, boxes, limit)
        if presence is None:
            return regions
        return replace(regions[presence >= least], not_found=layout.missing(presence, agree, least))

    def find(
        self, encoding: Encoding, layout: Layout, boxes: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[Regions, np.ndarray | None, np.ndarray]:
        """Return the best region of each phrase, whether it is found or not, and the probabilities of the phrases.

        Args:
            layout: P phrases with their places and relations, see :meth:`read`.
            boxes: ``(N, 4)`` in pixels of the image, to choose among.
            limit: maximum number of regions to choose among.

        Returns:
            the regions, with the phrases as captions; the probability ``(P,)`` that the image shows each phrase in its
            stated place; and the log-probability ``(P,)`` of place, number and colour alone. A score is the
            probability that the image shows the phrase and this box is right, or only the former if the model has no
            calibration of boxes. It is 0 for a phrase of only unknown words. Without a calibration of phrases the
            probabilities are None, and a score is the joint probability of the dense captioner; the aligner gives none.

        Raises:
            UserError: a phrase names nothing, or there is no region.
        """
        phrases = layout.phrases
        require_names(phrases)
        found, presence = self.presence(encoding, phrases, boxes, limit)
        rows, agree = found.place(self.config, layout, self.calibration)
        agree = agree + self.log_details(encoding, found, phrases, rows, everything=boxes is None and limit is None)
        fits = found.fits[rows, np.arange(len(phrases))]
        scores = np.exp(fits) if found.by == "densecap" else None
        if presence is not None:
            presence = presence * np.exp(agree).astype(np.float32)
            scores = presence * found.box_probability(self.calibration, self.config, rows)
        regions = replace(
            found.regions[rows],
            captions=layout.captions, caption_scores=None, unused=layout.unused,
            similarities=fits if found.by == "aligner" else None,
            scores=scores,
        )  # fmt: skip
        return regions, presence, agree

    def presence(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[Evidence, np.ndarray | None]:
        """Return the evidence for phrases, and the probability ``(P,)`` that the image shows what they name.

        That leaves out what :meth:`log_details` judges. It is 0 for unknown nouns, at most :data:`UNREAD` for those
        that were hardly read in training, and None without a calibration. Where two dogs are is a dog, and where a
        sparrow is, a bird; somebody is there if a man or a woman is. Arguments as for :meth:`find`.
        """
        phrases = [*map(spelt_out, phrases)]
        kinds = [noun_tree().widened(phrase) or phrase for phrase in phrases]
        wider = [(place, one_of(kind) if count_of(kind) > 1 else kind) for place, kind in enumerate(kinds)]
        wider = [(place, text) for place, text in wider if text != phrases[place]]
        somebody = np.array([_is_anybody(phrase) for phrase in phrases], bool)
        people = [each for each in PEOPLE if not self.lexicon.is_unknown(each)] if somebody.any() else []
        every = self.evidence(encoding, (*phrases, *people, *(text for _, text in wider)), boxes, limit)
        if (presence := every.presence(self.calibration)) is None:
            return every.first(len(phrases)), None
        own, of_people, of_wider = np.split(presence, np.cumsum([len(phrases), len(people)]))
        own = np.where(somebody, np.maximum(own, of_people.max(initial=0)), own)
        for (place, _), most in zip(wider, of_wider, strict=True):
            own[place] = min(own[place], most)
        unread = np.array([self.lexicon.is_unread(phrase) for phrase in phrases], bool)
        own[unread] = np.minimum(own[unread], UNREAD)
        own[[self.lexicon.is_unknown(phrase) for phrase in phrases]] = 0
        return every.first(len(phrases)), own

    def read(self, text: str) -> Layout:
        """Return the phrases of a text, with the places, relations and counts that can be interpreted."""
        return Layout.parse(text)

    def least(self, threshold: float | None = None) -> float:
        """Return the minimum probability of a found phrase: ``threshold``, or the configured one; 0 uncalibrated.

        ``UserError`` for a threshold above 0 without a calibration, or one outside 0 to 1.
        """
        require_probabilities(threshold=threshold)
        if self.calibration.phrase is not None:
            return self.config.threshold if threshold is None else threshold
        if threshold:
            raise UserError("the model does not know how probable phrases are; saywhere calibrate makes it so")
        return 0.0

    def evidence(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None = None, limit: int | None = None
    ) -> Evidence:
        """Return the scores of phrases in an image, even if they name nothing; arguments as for :meth:`find`."""
        texts, phrases = list[TextVectors](), [*map(self.lexicon.read, phrases)]
        if self.aligner is not None:
            known, details = self.aligner.vocabulary, self._details(phrases)
            both = (*(captioned(phrase, known) for phrase in phrases), *details.texts)
            texts = embed_texts(self.aligner, both, plain=True)
        if self.by == "densecap":
            regions, fits = self._described(encoding, phrases, boxes, limit)
            image = None if self.aligner is None else embed_images(self.aligner, [encoding], plain=True)[0]
        else:
            assert self.aligner is not None
            given = None if boxes is None else [boxes]
            image = embed_images(self.aligner, [encoding], given, limit, placing=True, plain=True)[0]
            regions = image.regions
            fits = word_fits(self.aligner, image, texts[: len(phrases)])
        kinds, named = self.log_kinds(encoding, regions, (*phrases, "a person"))
        tree = noun_tree()
        counted = np.where([tree.is_person(tree.find(phrase)) for phrase in phrases], kinds[:, -1:], kinds[:, :-1])
        similarity, compared = np.zeros(len(phrases), np.float32), None
        if self.aligner is not None and image is not None:
            similarities = plain_similarities(image, texts, self.aligner.config.score)
            similarity, compared = np.split(similarities, [len(phrases)])
        rare = np.array([self.lexicon.is_rare(phrase) for phrase in phrases], bool)
        bare = np.array([tree.is_bare(phrase) for phrase in phrases], bool)
        lacking = np.array([self.lexicon.needs_classes(phrase) for phrase in phrases], bool)
        return Evidence(
            regions, fits, kinds[:, :-1], named[:-1], rare, similarity, self.by, compared, bare, lacking,
            counted=counted,
        )  # fmt: skip

    def log_details(
        self, encoding: Encoding, found: Evidence, phrases: Sequence[str], rows: np.ndarray, everything: bool = True
    ) -> np.ndarray:
        """Return the log-probability ``(P,)`` that the numbers and colours of phrases are right.

        Most people who ask for a red car or two dogs in an image see them, so :data:`SEEN` and :data:`COUNTED` are
        added to the log-odds.

        Args:
            found: evidence for the phrases in the image.
            rows: ``(P,)`` region of each phrase.
            everything: whether its regions are those of the whole image, which tell how many things there are.
        """
        if found.compared is None:
            return np.zeros(len(phrases))
        known = self.calibration
        counted = known.placed_number if self.by == "densecap" else known.asked_number
        calibration = replace(
            known, asked_colour=_likelier(known.placed_colour, SEEN), asked_number=_likelier(counted, COUNTED)
        )
        colours = _colours_in(encoding, found.regions.boxes[rows])
        things = found.things if everything else None
        return self._details(phrases).log_probs(calibration, found.compared, colours, things)

    def detail_evidence(
        self, encoding: Encoding, phrases: Sequence[str], question: str
    ) -> list[tuple[int, dict[str, np.ndarray]]]:
        """Return the evidence of each colour or number, with the index of its phrase.

        ``question`` is ``asked_colour`` or ``asked_number``; the inputs are also those of ``placed_colour`` and
        ``placed_number``.
        """
        if self.aligner is None or not phrases:
            return []
        found, details = self.evidence(encoding, phrases), self._details(phrases)
        assert found.compared is not None
        colours = _colours_in(encoding, found.regions.boxes[found.rows(self.config)])
        evidence = details.evidence(found.compared, colours, found.things)
        return [(each.phrase, inputs) for each, inputs in evidence if each.question == question]

    def _details(self, phrases: Sequence[str]) -> Details:
        assert self.aligner is not None
        own = map(self.lexicon.read, phrases)
        return Details([noun_tree().widened(phrase) or phrase for phrase in own], self.aligner.vocabulary)

    def log_kinds(self, encoding: Encoding, regions: Regions, phrases: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the result of :meth:`NounEvidence.log_kinds`, or zeros and no named phrase without a classifier."""
        if self.nouns is None:
            return np.zeros((len(regions), len(phrases)), np.float32), np.zeros(len(phrases), bool)
        return self.nouns.log_kinds(encoding, regions, phrases)

    def _described(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None, limit: int | None
    ) -> tuple[Regions, np.ndarray]:
        assert self.densecap is not None
        own = frozenset(self.densecap.config.own_words) if self.nouns is None else frozenset[str]()
        taught = any(not own.isdisjoint(tokenize(phrase)) for phrase in phrases)  # and nothing translates these words
        detector = self.densecap if taught else self.densecap.start
        given, writer = None if boxes is None else [boxes], PhraseWriter(detector, greedy=True)
        look = partial(describe, detector, [encoding], writer=writer, nms_iou=self.config.nms_iou,
                       calibration=self.calibration)  # fmt: skip
        regions = look(given, limit)[0]
        if boxes is None and limit is None:
            strips = np.array(STRIPS, np.float32) * np.tile(np.array(encoding.input_size, np.float32), 2)
            wide = look(proposals=[strips])[0]
            assert wide.scores is not None
            wide = replace(wide, scores=wide.scores * np.float32(STRIP_WEIGHT))
            apart = geometry.iou(wide.boxes, regions.boxes).max(axis=1, initial=0) < MATCH
            regions = Regions.merge([regions, wide[apart]])
        if not len(regions):
            none = "the model finds no region in it" if boxes is None else "no box is given to choose among"
            raise UserError(f"{encoding.image}: {none}")
        known = detector.vocabulary
        asked = [familiar(phrase, known) for phrase in phrases]
        return regions, score_regions(detector.decoder, known, regions, asked).joint


def _are_groups(boxes: np.ndarray, shared: np.ndarray, sure: np.ndarray) -> np.ndarray:
    """Return which of the boxes ``(R, 4)`` are around two others that are about as sure, and apart: ``(R,)``.

    Args:
        shared: ``(R, R)``, see :func:`saywhere.boxes.containment`.
        sure: ``(R,)`` log-probabilities.
    """
    areas = geometry.area(boxes)
    inside = (shared >= INSIDE) & (areas < INSIDE * areas[:, None]) & (sure >= sure[:, None] - AS_SURE)
    rows = [np.flatnonzero(one) for one in inside]
    return np.array([len(one) > 1 and shared[np.ix_(one, one)].min() <= BESIDE for one in rows], bool)


def found_of(regions: Regions, there: np.ndarray) -> Regions:
    """Keep the regions of the phrases in the mask ``there (P,)``; the other phrases become ``not_found``."""
    assert regions.captions is not None
    missing = tuple(phrase for phrase, seen in zip(regions.captions, there, strict=True) if not seen)
    return replace(regions[there], not_found=missing)


def _is_anybody(phrase: str) -> bool:
    """Return whether a phrase names people and says nothing else of them: "a person", "two people"."""
    said = [word for word in tokenize(phrase) if word not in FUNCTION_WORDS]
    return len(said) == 1 and said[0] in ANYBODY


def cut_phrases(text: str) -> list[str]:
    """Return the phrases of a text that name something visible; the text itself if there is none."""
    return [phrase.words for phrase in Chunker.load().chunk(text) if phrase.visible] or [text]


def unused_words(text: str) -> tuple[str, ...]:
    """Return the words between the phrases of :func:`cut_phrases`, without words that only join phrases.

    Example:
        >>> unused_words("the man on the left and a dog")
        ('on the left',)
    """
    inside = {i for p in Chunker.load().chunk(text) if p.visible for i in range(p.start, p.stop)}
    return unused_runs(tokenize(text), inside) if inside else ()


def _likelier(fit: Logistic | None, odds: float) -> Logistic | None:
    return None if fit is None else replace(fit, constant=fit.constant + odds)


def _colours_in(encoding: Encoding, boxes: np.ndarray) -> Colours:
    """Return the function that tells colours in the boxes ``(P, 4)`` of an image's phrases."""
    return lambda asked, nouns: colours_of_boxes(encoding, boxes[asked], nouns)


def word_fits(aligner: Aligner, image: ImageVectors, texts: Sequence[TextVectors]) -> np.ndarray:
    """Return the mean product ``(R, P)`` of each phrase's words with each region, plus the region's bonus.

    Each phrase is encoded separately.
    """
    sums = np.zeros((len(image), len(texts)), np.float32)
    for column, text in enumerate(texts):
        share = 1 if aligner.config.mean_over_words else 1 / len(text.words)
        sums[:, column] = image.vectors @ text.vectors[: len(text.words)].sum(axis=0) * share
    return sums + region_bonus(aligner.config, image)[:, None].astype(np.float32)

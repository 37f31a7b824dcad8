"""Grounding of phrases by all parts of a model, and the probability that an image shows a phrase at all.

The dense captioner chooses the region: the most probable pair of region and phrase. A model without one uses the
aligner. The noun classifier (docs/nouns.md) helps where a phrase names a kind of thing, most of all for rare nouns.
Presence in the image is a logistic regression on the aligner's similarity and the classifier's log-odds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property, partial
from math import log, log10
from typing import Literal, NamedTuple

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
from saywhere.models.encoding import Encoding
from saywhere.models.layout import (
    EMPTY,
    MOST_SAID,
    Layout,
    as_many,
    count_of,
    one_of,
    require_names,
    unused_runs,
)
from saywhere.models.nouns import (
    COLOUR_NAMES,
    FUNCTION_WORDS,
    LEAST,
    MOST,
    SHADES,
    Noun,
    NounEvidence,
    colour_of,
    end_of_colours,
    known_form,
    noun_of,
    noun_tree,
    plural,
    singulars,
)
from saywhere.models.phrase_scores import score_regions, unknown_words
from saywhere.models.phrases import PhraseWriter, colours_of_boxes
from saywhere.options import dataclass, require_probabilities
from saywhere.regions import Regions
from saywhere.text import Vocabulary, tokenize, with_articles

FIT_SCALE = 50.0
"""Scale of the aligner's similarities relative to log-probabilities, if no weight of the noun classifier gives it."""
A_PERSON = (["person"], ["a", "person"], ["the", "person"], ["persons"], ["somebody"], ["someone"])
"""Phrases that the aligner reads as "people", see :func:`captioned`."""
ANYBODY = frozenset({"people", "person", "persons", "somebody", "someone"})
"""Words for people of whom nothing else is said."""
PEOPLE = ("a man", "a woman", "a boy", "a girl")
"""Captions name these rather than a person, so an image that shows one of them shows somebody."""
FIT_WEIGHTS = {"densecap": 0.3, "aligner": 0.01}
"""Weight of a region's fit next to the classifier's log-odds when deciding whether an image shows a phrase. Without it
the classifier takes any thin dark box for a person (docs/experiments.md)."""

APART = 0.3
"""Maximum IoU of two regions that count as two things."""
SCORE_SHARE = 0.5
"""Power of the score of a region that counts as one of several things."""
STRIPS = ((0, 0, 1, 0.33), (0, 0, 1, 0.5), (0, 0.67, 1, 1))
"""Parts of the image, ``x1 y1 x2 y2`` in shares of its sides, that are regions to place phrases in, too.

Few proposals cover sky or grass (docs/experiments.md). The region head moves their borders. A user's limit of the
number of regions leaves them out.
"""
SELDOM = 6
"""A word that the text encoder read fewer times has a vector that says nothing (docs/experiments.md)."""
UNREAD = 0.4
"""Maximum probability of a noun that the text encoder hardly read and of which the tree has no kind: similarity and fit
rank .53 to .72 of such pairs right, where chance would rank .5 (docs/experiments.md)."""
STRIP_WEIGHT = 0.15
"""Factor of the scores of these regions, because most phrases name things that proposals cover."""
SEEN = log(9.0)
"""Log-odds that a phrase's colour is right in the one image that is asked about (docs/experiments.md)."""
COUNTED = log(3.0)
"""The same for its number."""
WITH_PARTS = frozenset({
    "backed", "beaked", "bellied", "billed", "breasted", "chested", "collared", "crested", "crowned", "eared", "edged",
    "eyed", "faced", "footed", "handled", "headed", "horned", "legged", "lidded", "maned", "necked", "nosed", "pawed",
    "rimmed", "roofed", "tailed", "throated", "tipped", "topped", "trimmed", "wheeled", "winged",
})  # fmt: skip
"""Words before which a colour is that of a part: "a green-eyed cat"."""
ALIKE, SHORT = 0.8, 3
"""Minimum similarity ratio of two words for a spelling suggestion. Words of at most SHORT letters get none, and the
lengths differ by less than SHORT."""


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
    lacking: np.ndarray | None = None
    indexed: bool = False
    counted: np.ndarray | None = None

    def first(self, count: int) -> Evidence:
        """Return the scores of the first ``count`` phrases."""
        names = ("fits", "kinds", "named", "rare", "similarity", "lacking", "counted")
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
        up to the ``number``-th. Regions that overlap by more than :data:`APART` count once.
        """
        if not self.named[phrase] or self.regions.scores is None:
            return None
        kinds = self.kinds if self.counted is None else self.counted
        sure = kinds[:, phrase] + SCORE_SHARE * np.log(np.maximum(self.regions.scores, LEAST))
        kept = sure[geometry.nms(self.regions.boxes, sure, APART)]
        return float(kept[number - 1]) if len(kept) >= number else (1 + SCORE_SHARE) * log(LEAST)

    def fits_in(self, config: GroundingConfig) -> np.ndarray:
        """Return how well each region fits each phrase ``(R, P)``, including the noun classifier."""
        if self.by == "aligner":
            return self.fits + np.float32(config.similarity_kind_weight) * self.kinds
        weights = np.where(self.rare, config.rare_kind_weight, config.kind_weight)
        fits = self.fits + weights.astype(np.float32) * self.kinds
        if self.regions.scores is not None and config.score_weight != 1:  # the fits already include it with weight 1
            fits = fits + np.float32(config.score_weight - 1) * np.log(np.maximum(self.regions.scores, LEAST))[:, None]
        return fits

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

    @property
    def config(self) -> GroundingConfig:
        """Options of the aligner; the defaults without one."""
        return GroundingConfig() if self.aligner is None else self.aligner.config.grounding

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
        kinds = [noun_tree().widened(phrase) or phrase for phrase in phrases]
        wider = [(place, one_of(kind) if count_of(kind) > 1 else kind) for place, kind in enumerate(kinds)]
        wider = [(place, text) for place, text in wider if text != phrases[place]]
        somebody = np.array([_is_anybody(phrase) for phrase in phrases], bool)
        people = [each for each in PEOPLE if not self.is_unknown(each)] if somebody.any() else []
        every = self.evidence(encoding, (*phrases, *people, *(text for _, text in wider)), boxes, limit)
        if (presence := every.presence(self.calibration)) is None:
            return every.first(len(phrases)), None
        own, of_people, of_wider = np.split(presence, np.cumsum([len(phrases), len(people)]))
        own = np.where(somebody, np.maximum(own, of_people.max(initial=0)), own)
        for (place, _), most in zip(wider, of_wider, strict=True):
            own[place] = min(own[place], most)
        unread = np.array([self.is_unread(phrase) for phrase in phrases], bool)
        own[unread] = np.minimum(own[unread], UNREAD)
        own[[self.is_unknown(phrase) for phrase in phrases]] = 0
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
        texts, phrases = list[TextVectors](), [self.translate(phrase) for phrase in phrases]
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
        rare = np.array([self.is_rare(phrase) for phrase in phrases], bool)
        lacking = np.array([self.needs_classes(phrase) for phrase in phrases], bool)
        return Evidence(
            regions, fits, kinds[:, :-1], named[:-1], rare, similarity, self.by, compared, lacking, counted=counted
        )

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
        own = [self.translate(phrase) for phrase in phrases]
        return Details([noun_tree().widened(phrase) or phrase for phrase in own], self.aligner.vocabulary)

    def translate(self, phrase: str) -> str:
        """Return a phrase in words that the parts know, if the noun tree has any: "a truck" for "a lorry".

        That is :meth:`NounEvidence.translate`, and the kind in place of a narrower noun that no part has read.
        """
        if self.nouns is None:
            return phrase
        phrase = self.nouns.translate(phrase)
        found = noun_tree().narrower(phrase)
        parts = (self.densecap if self.by == "densecap" else None, self.aligner)
        known = [part.vocabulary for part in parts if part is not None]
        if found is None or any(usual_form(found[0], words) in words for words in known):
            return phrase
        return noun_tree().widened(phrase) or phrase

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

    @property
    def _vocabulary(self) -> Vocabulary:
        """Vocabulary of the text encoder that decides about presence."""
        return (self.aligner or self.densecap).vocabulary  # pyright: ignore[reportOptionalMemberAccess]

    def is_rare(self, phrase: str) -> bool:
        """Return whether the phrase's noun was rare in the text encoder's training data."""
        counts, phrase = self._vocabulary.counts, self.translate(phrase)
        return any(counts.get(word, 0) < self.config.rare for word in noun_words(familiar(phrase, self._vocabulary)))

    def class_noun(self, phrase: str) -> Noun | None:
        """Return the noun of a phrase if the noun classifier can detect it, else None."""
        noun = None if self.nouns is None else self.nouns.lookup(self.translate(phrase))
        return noun if noun is not None and self.nouns is not None and self.nouns.tells(noun) else None

    def needs_classes(self, phrase: str) -> bool:
        """Return whether the noun classifier knows the phrase's noun and the text encoder does not.

        The text encoder also does not know a rare role ("a chef"): it takes it for any person.
        """
        phrase = self.translate(phrase)
        words, role = noun_words(familiar(phrase, self._vocabulary)), noun_tree().share(phrase) < 1
        unread = any(word not in self._vocabulary for word in words) or (role and self.is_rare(phrase))
        return unread and self.class_noun(phrase) is not None

    def is_unknown(self, phrase: str) -> bool:
        """Return whether none of the parts in use knows the noun of a phrase."""
        return not self._has_read(phrase) and self.class_noun(phrase) is None

    def is_unread(self, phrase: str) -> bool:
        """Return whether a phrase is unknown, or the parts read its noun too seldom and the tree has no kind for it."""
        if noun_tree().find_kind(self.translate(phrase)) is not None:
            return self.is_unknown(phrase)
        return not self._has_read(phrase, self.config.least_seen)

    def _has_read(self, phrase: str, least: int = 0) -> bool:
        """Return whether a part in use read a word of a phrase's noun in training, ``least`` times or more.

        That the dense captioner was fine-tuned to say a word does not tell whether an image shows it.
        """
        own = () if self.densecap is None or self.aligner is None else self.densecap.config.own_words
        asked = ((self.densecap if self.by == "densecap" else None, own), (self.aligner, ()))
        return any(
            (form := usual_form(word, part.vocabulary)) in part.vocabulary
            and form not in taught
            and part.vocabulary.counts[form] >= least
            for part, taught in asked
            if part is not None
            for word in noun_words(self.translate(phrase))
        )

    def knows_none(self, phrases: Iterable[str]) -> bool:
        """Return whether all phrases are unknown, such as those in another language."""
        return all(map(self.is_unknown, phrases))

    def unknown(self, phrases: Sequence[str]) -> dict[str, str | None]:
        """Return the words outside the vocabulary that are also no nouns of the classifier, with suggestions.

        Words such as "my", which name nothing, are left out, and so are shades of colours, which count as these.

        A suggestion is a known word with the same first letter and similar spelling ("pizza" for "piza"), or None.
        Nouns of the tree and frequent words are slightly preferred.
        """
        part = self.densecap if self.by == "densecap" else self.aligner
        assert part is not None
        found: dict[str, str | None] = {}
        for phrase in map(self.translate, phrases):
            words = tokenize(phrase)
            kind = noun_tree().widened(phrase) if not self.is_unread(phrase) else None
            told = EMPTY.union(noun_words(phrase) if self.class_noun(kind or phrase) is not None else ())
            told |= set(words).difference(tokenize(kind)) if kind else EMPTY
            told = told.union(words[place] for place in asked_colours(phrase))
            unknown = (
                *unknown_words(part.vocabulary, familiar(phrase, part.vocabulary)),
                *(noun_words(phrase) if self.is_unread(phrase) else ()),
            )  # a user's own words, too
            found |= {word: self._spelt_alike(word, part.vocabulary) for word in unknown if word not in told}
        return found

    def judged_as(self, phrases: Iterable[str]) -> tuple[str, ...]:
        """Return the nouns that are judged as their kind of thing, with the kind: ``sparrow as bird``.

        A user's own names are too, such as ``trash panda as raccoon``.
        """
        known = [phrase for phrase in phrases if not self.is_unread(phrase)]
        own = [None if self.nouns is None else self.nouns.named(phrase) for phrase in known]
        found = (name or noun_tree().narrower(phrase) for phrase, name in zip(known, own, strict=True))
        pairs = dict(pair for pair in found if pair is not None and self.class_noun(pair[1]) is not None)
        return tuple(f"{word} as {kind}" for word, kind in pairs.items())

    def _spelt_alike(self, word: str, vocabulary: Vocabulary) -> str | None:
        if known_form(word, self._vocabulary) in self._vocabulary:  # right, and hardly read
            return None
        names = {one for name, _ in noun_tree().names() for one in name.split()}
        known = (one for one in names | {*vocabulary.counts} if abs(len(one) - len(word)) < SHORT)
        begins = {one for one in known if one[0] == word[0]}

        def likely(one: str) -> float:
            often = 0.03 * log10(1 + vocabulary.counts.get(one, 0))
            return SequenceMatcher(None, one, word).ratio() + often + 0.05 * (one in names)

        close = get_close_matches(word, begins, 5, cutoff=ALIKE)
        meant = [one for one in close if one != word and len(word) > SHORT and not self.is_unknown(one)]
        forms = (*singulars(word), plural(word))  # "labradors" is right, and labradors are as unknown as a labrador
        meant = [one for one in meant if one not in forms or not self.is_unread(one)]
        return max(meant, key=likely, default=None)


def did_you_mean(unknown: Mapping[str, str | None]) -> str:
    """Return unknown words with their spelling suggestions, as a text for users.

    Example:
        >>> did_you_mean({"un": None, "piza": "pizza"})
        'un, piza (did you mean pizza?)'
    """
    return ", ".join(f"{word} (did you mean {other}?)" if other else word for word, other in unknown.items())


def knows_none(unknown: Mapping[str, str | None]) -> str:
    """Return the message for a text of which the model knows no word."""
    return f"the model knows none of these words: {did_you_mean(unknown)}; it reads English"


def found_of(regions: Regions, there: np.ndarray) -> Regions:
    """Keep the regions of the phrases in the mask ``there (P,)``; the other phrases become ``not_found``."""
    assert regions.captions is not None
    missing = tuple(phrase for phrase, seen in zip(regions.captions, there, strict=True) if not seen)
    return replace(regions[there], not_found=missing)


def familiar(phrase: str, vocabulary: Vocabulary) -> str:
    """Replace each unknown word of a phrase by its singular or plural if the vocabulary has that.

    A number above ten, or one that is unknown, becomes "many".
    """
    phrase = as_many(phrase, vocabulary)
    if all(word in vocabulary for word in tokenize(phrase)):
        return phrase
    return " ".join(known_form(word, vocabulary) for word in tokenize(phrase))


def usual_form(word: str, vocabulary: Vocabulary) -> str:
    """Return :func:`known_form`, or the singular or plural of a word that occurs less than :data:`SELDOM` if that does
    not: the text encoder has read "eggs", but hardly "egg"."""
    form, counts = known_form(word, vocabulary), vocabulary.counts
    if counts.get(form, SELDOM) >= SELDOM:
        return form
    return max((form, *singulars(form), plural(form)), key=lambda each: counts.get(each, 0) >= SELDOM)


def captioned(phrase: str, vocabulary: Vocabulary) -> str:
    """Return a phrase in the words of captions, which the aligner was trained on: "a person" alone becomes "people".

    A noun is read in its more usual form, see :func:`usual_form`. Captions say "a person" for somebody who is hardly
    visible, so the aligner finds that this word fits any scene.
    """
    if "people" in vocabulary and tokenize(phrase) in A_PERSON:
        return "people"
    words = tokenize(familiar(phrase, vocabulary))
    head = noun_tree().head(words)
    nouns = (usual_form(word, vocabulary) for word in words[head.start : head.stop])
    return " ".join([*words[: head.start], *nouns, *words[head.stop :]])


def _is_anybody(phrase: str) -> bool:
    """Return whether a phrase names people and says nothing else of them: "a person", "two people"."""
    said = [word for word in tokenize(phrase) if word not in FUNCTION_WORDS]
    return len(said) == 1 and said[0] in ANYBODY


def noun_words(phrase: str) -> tuple[str, ...]:
    """Return the words of the noun of a phrase."""
    words = tokenize(phrase)
    head = noun_tree().head(words)
    return tuple(words[head.start : head.stop])


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


class Compared(NamedTuple):
    """A number or a colour of a phrase.

    Attributes:
        question: ``asked_number`` or ``asked_colour`` (:data:`saywhere.calibration.QUESTIONS`).
        phrase: index of the phrase.
        text: index of its text.
        others: indices of texts that say something else instead: "a dog" for "two dogs", and "a red car" in other
            colours.
        value: the number, or the index of the colour.
        noun: noun of the coloured thing; empty for numbers.
    """

    question: str
    phrase: int
    text: int
    others: list[int]
    value: int
    noun: str = ""


Things = Callable[[int, int], float | None]
"""Return how surely an image shows a number of things of a phrase, see :meth:`Evidence.things`."""
Colours = Callable[[Sequence[int], Sequence[str]], np.ndarray]
"""Return log-probabilities ``(C, 15)`` of colours in the boxes of C phrases, given by index, as things of C nouns."""


class Details:
    """Numbers and colours of phrases; similarities with further texts tell whether they are right.

    Colours of people do not count, because their clothes have others.

    Args:
        phrases: P phrases.
        vocabulary: of the aligner; words outside it are ignored.

    Attributes:
        texts: T different texts to compare with an image.
        compared: what the texts are for.
    """

    def __init__(self, phrases: Sequence[str], vocabulary: Vocabulary) -> None:
        texts, self._phrases, self.compared = dict[str, int](), len(phrases), list[Compared]()
        self._either = set[int]()  # phrases with "or" between their colours

        def place(text: str) -> int:
            return texts.setdefault(familiar(text, vocabulary), len(texts))

        for column, phrase in enumerate(phrases):
            words, number = tokenize(phrase), count_of(phrase)
            if number > 1:
                self.compared.append(Compared("asked_number", column, place(phrase), [place(one_of(phrase))], number))
            colours = asked_colours(phrase)
            if alternatives := "or" in words[min(colours, default=0) : max(colours, default=0)]:
                self._either.add(column)
            for each, colour in colours.items():
                shade, first, stop = words[each] in SHADES, each, each + 1
                if (colour if shade else words[each]) not in vocabulary:
                    continue
                if alternatives:  # "a red car" and "a blue car" for "a red or blue car"
                    first, stop = min(colours), max(colours) + 1
                others = [[*words[:first], other, *words[stop:]] for other in (colour, *COLOUR_NAMES)]
                own, *rows = (with_articles(" ".join(other)) for other in others)
                del rows[value := COLOUR_NAMES.index(colour)]
                text = place(own if shade or alternatives else phrase)
                noun = noun_of(words, max(colours))
                self.compared.append(Compared("asked_colour", column, text, [*map(place, rows)], value, noun))
        self.texts = tuple(texts)

    def evidence(
        self, similarities: np.ndarray, colours: Colours | None, things: Things | None = None
    ) -> Iterator[tuple[Compared, dict[str, np.ndarray]]]:
        """Yield what is compared with the inputs of its calibration, from ``(T,)`` similarities of an image.

        ``words`` is how much better the phrase fits the image than its singular, or other colours on average;
        ``pixels`` the colour's log-probability; ``region`` how surely there are so many (:meth:`Evidence.things`), and
        ``number`` the logarithm of the number.
        None for ``colours`` or ``things`` leaves them out; numbers of what is no kind of thing are left out, too.
        """
        asked = [(each.phrase, each.noun) for each in self.compared if each.question == "asked_colour" and colours]
        seen = iter(colours([row for row, _ in asked], [noun for _, noun in asked]) if colours and asked else ())
        for each in self.compared:
            inputs = {"words": similarities[each.text] - similarities[each.others].mean()}
            if each.question == "asked_colour":
                if not asked:
                    continue
                inputs["pixels"] = next(seen)[each.value]
            else:
                region = None if things is None else things(each.phrase, each.value)
                if region is None:
                    continue
                number = log(min(each.value, MOST_SAID))
                inputs |= {"region": np.array(region), "number": np.array(number)}
            yield each, inputs

    def log_probs(
        self, calibration: Calibration, similarities: np.ndarray, colours: Colours | None, things: Things | None = None
    ) -> np.ndarray:
        """Return the log-probability ``(P,)`` that the number and the colours of each phrase are right.

        0 for phrases without any, or for a model that is not calibrated for them. Of several colours the least
        probable counts, or with "or" between them the most probable.

        Args:
            calibration: of the model; its answers to ``asked_number`` and ``asked_colour`` are used.
            similarities, colours, things: see :meth:`evidence`.
        """
        found, colour = np.zeros(self._phrases), dict[int, float]()
        for each, inputs in self.evidence(similarities, colours, things):
            fit: Logistic | None = getattr(calibration, each.question)
            if fit is None:
                continue
            value = float(np.log(np.maximum(fit.apply(inputs), LEAST)))
            if each.question == "asked_colour":
                chosen = max if each.phrase in self._either else min
                colour[each.phrase] = chosen(colour.get(each.phrase, value), value)
            else:
                found[each.phrase] += value
        for phrase, value in colour.items():
            found[phrase] += value
        return found


def _likelier(fit: Logistic | None, odds: float) -> Logistic | None:
    return None if fit is None else replace(fit, constant=fit.constant + odds)


def _colours_in(encoding: Encoding, boxes: np.ndarray) -> Colours:
    """Return the function that tells colours in the boxes ``(P, 4)`` of an image's phrases."""
    return lambda asked, nouns: colours_of_boxes(encoding, boxes[asked], nouns)


def asked_colours(phrase: str) -> dict[int, str]:
    """Return the colours that a phrase gives its noun, by the index of the word; none for people, who wear others.

    Colours of its parts, or of what it belongs to, are left out.

    Example:
        >>> asked_colours("two black and golden cars"), asked_colours("a black man")
        ({1: 'black', 3: 'gold'}, {})
        >>> asked_colours("a black faced sheep"), asked_colours("a brown dog's maroon collar")
        ({}, {3: 'red'})
    """
    words, tree = tokenize(phrase), noun_tree()
    head = tree.head(words)
    if head.noun is not None and any(tree.nouns[row].name == "person" for row in head.noun.ancestors):
        return {}
    owners = (place + 1 for place in range(head.start) if words[place] == "of" or words[place].endswith("'s"))
    found = dict[int, str]()
    for place in range(max(owners, default=0), head.start):
        following = [*words, ""][max(end_of_colours(words, place), place + 1)]
        colour = colour_of(words, place)
        if colour is None and colour_of(words, place + 1) is None:  # the latter is the colour in "maroon red"
            colour = SHADES.get(words[place])
        if colour is not None and following not in WITH_PARTS:
            found[place] = colour
    return found


def word_fits(aligner: Aligner, image: ImageVectors, texts: Sequence[TextVectors]) -> np.ndarray:
    """Return the mean product ``(R, P)`` of each phrase's words with each region, plus the region's bonus.

    Each phrase is encoded separately.
    """
    sums = np.zeros((len(image), len(texts)), np.float32)
    for column, text in enumerate(texts):
        share = 1 if aligner.config.mean_over_words else 1 / len(text.words)
        sums[:, column] = image.vectors @ text.vectors[: len(text.words)].sum(axis=0) * share
    return sums + region_bonus(aligner.config, image)[:, None].astype(np.float32)

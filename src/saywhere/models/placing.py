"""Phrases placed in an image by all that a model knows, and how probable it is that they are in it at all.

The dense captioner says where: the region that is likeliest to be there and to be called so; a model without one asks
the aligner. The classes (docs/nouns.md) count where a phrase names a kind of thing, the more so if its noun is rare.
That the image shows it at all is a logistic regression on the aligner's similarity and on the classes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher, get_close_matches
from functools import cached_property
from math import log10
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
from saywhere.models.encoding import Encoding
from saywhere.models.layout import EMPTY, Layout, count_of, one_of, require_names, unused_runs
from saywhere.models.nouns import LEAST, MOST, Noun, NounEvidence, known_form, noun_tree
from saywhere.models.phrase_scores import score_regions, unknown_words
from saywhere.models.phrases import PhraseWriter
from saywhere.options import require_numbers
from saywhere.regions import Regions
from saywhere.text import Vocabulary, tokenize

FIT_SCALE = 50.0
"""Similarities of words and regions are so much larger than log-probabilities, if no weight of the classes says it."""
A_PERSON = (["person"], ["a", "person"], ["the", "person"])
"""Words of phrases that the aligner is asked for as people, see :func:`captioned`."""
FIT_WEIGHTS = {"densecap": 0.3, "aligner": 0.01}
"""How much a region's fit counts beside the classes' log-odds where its image is to show a phrase: without it, any thin
dark box is a person to the classes (docs/experiments.md)."""

ALIKE, SHORT = 0.8, 3
"""Share of the letters that two words have in common, by which one may be meant for the other; one of so few letters is
not, nor one that has so many more."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """Scores of P phrases in an image's regions.

    Attributes:
        regions: R that the phrases may be about; a score is the probability that there is something.
        fits: ``(R, P)`` how well each region fits each phrase: a log-probability (dense captioner) or a similarity
            (aligner), before the classes are asked.
        kinds: ``(R, P)`` log-probability that a region is of the kind that a phrase names; 0 if it names none.
        named: ``(P,)`` whether the phrase names a kind that the classes know.
        rare: ``(P,)`` whether the text encoder hardly saw the noun of the phrase in training.
        similarity: ``(P,)`` of the phrase with the image (Eq. 8); 0 without an aligner.
        by: the part that the fits are of.
        counted: ``(P,)`` log-probability that there are as many things as each phrase says; None for 0.
        lacking: ``(P,)`` whether the text encoder does not know the noun and the classes do: they alone tell; None for
            no phrase.
    """

    regions: Regions
    fits: np.ndarray
    kinds: np.ndarray
    named: np.ndarray
    rare: np.ndarray
    similarity: np.ndarray
    by: Literal["densecap", "aligner"]
    counted: np.ndarray | None = None
    lacking: np.ndarray | None = None

    def place(
        self, config: GroundingConfig, layout: Layout, calibration: Calibration | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the region of each phrase ``(P,)``, and the log-probability ``(P,)`` of what the layout says of it.

        A calibration says how much the fits count: "the dog on the right" is there if it fits a little less than
        another dog.
        """
        counted = np.zeros(len(layout.phrases)) if self.counted is None else self.counted
        if not layout.places and not layout.relations:
            return self.rows(config), counted
        size = self.regions.width, self.regions.height
        fit = None if calibration is None else self._place_fit(calibration)
        weight = 1.0 if fit is None else min(max(fit.weights["share"], 0.0), 1.0)
        rows, agree = layout.choose(self._log_fits(config), self.regions.boxes, size, weight)
        return rows, agree + counted

    def rows(self, config: GroundingConfig) -> np.ndarray:
        """Return for each phrase ``(P,)`` the number of the region that it is about."""
        return self.fits_in(config).argmax(axis=0)

    def fits_in(self, config: GroundingConfig) -> np.ndarray:
        """Return how well each region fits each phrase ``(R, P)`` when the classes are asked, too."""
        if self.by == "aligner":
            return self.fits + np.float32(config.similarity_kind_weight) * self.kinds
        weights = np.where(self.rare, config.rare_kind_weight, config.kind_weight)
        fits = self.fits + weights.astype(np.float32) * self.kinds
        if self.regions.scores is not None and config.score_weight != 1:  # the fits have it once
            fits = fits + np.float32(config.score_weight - 1) * np.log(np.maximum(self.regions.scores, LEAST))[:, None]
        return fits

    def _log_fits(self, config: GroundingConfig) -> np.ndarray:
        """The fits ``(R, P)`` as log-probabilities, up to a constant."""
        scale = 1 if self.by == "densecap" else config.similarity_kind_weight or FIT_SCALE
        return self.fits_in(config).astype(np.float64) / scale

    @cached_property
    def inputs(self) -> dict[str, np.ndarray]:
        """What says how probably the image shows each phrase, ``(P,)`` each, by its names in a calibration.

        ``region`` is of the region for which it is highest: the log-odds that it is of the kind that the phrase names,
        and its fit, times :data:`FIT_WEIGHTS`.
        """
        odds = logit(np.clip(np.exp(self.kinds), LEAST, MOST)) + FIT_WEIGHTS[self.by] * self.fits
        best = odds.max(axis=0, initial=float(logit(np.array(LEAST)))) * self.named
        columns = {"similarity": self.similarity, "region": best, "named": self.named}
        return {name: column.astype(np.float64) for name, column in columns.items()}

    @property
    def best_kinds(self) -> np.ndarray:
        """The highest log-probability ``(P,)`` that a region is of the kind that a phrase names; 0 if it names none."""
        return self.kinds.max(axis=0, initial=np.log(LEAST)) * self.named

    def presence(self, calibration: Calibration) -> np.ndarray | None:
        """Return the probabilities ``(P,)`` that the phrases are in the image; None if they are not calibrated."""
        odds = self.log_odds(calibration)
        return None if odds is None else logistic(odds).astype(np.float32)

    def log_odds(self, calibration: Calibration, indexed: bool = False) -> np.ndarray | None:
        """Return the log-odds ``(P,)`` that the phrases are in the image; None if they are not calibrated.

        ``indexed`` says that an index, and not the pixels, knows what the regions show.
        """
        if calibration.phrase is None:
            return None
        inputs, of_rare = self.inputs, calibration.rare_phrase or calibration.phrase
        if indexed and calibration.indexed_phrase is not None:
            odds = calibration.indexed_phrase.log_odds(inputs)
        else:
            odds = np.where(self.rare, of_rare.log_odds(inputs), calibration.phrase.log_odds(inputs))
        if self.lacking is None:
            return odds
        kinds = np.minimum(self.best_kinds, np.log(MOST))
        return np.where(self.lacking, kinds - np.log1p(-np.exp(kinds)), odds)

    def place_inputs(self, config: GroundingConfig, rows: np.ndarray) -> dict[str, np.ndarray]:
        """Return what says how probably the boxes of regions ``rows (P,)`` are right for the phrases, ``(P,)`` each.

        ``share`` is the log-odds of the share of all regions, by how well they fit the phrase, that those have which
        match the box: it is low if another place fits as well. ``box`` is the log-odds of the region's score.
        """
        fits, boxes = self._log_fits(config), self.regions.boxes
        weights = np.exp(fits - fits.max(axis=0)).T
        near = geometry.iou(boxes[rows], boxes) >= MATCH
        share = (weights * near).sum(axis=1) / weights.sum(axis=1)
        assert self.regions.scores is not None
        return {"share": logit(share), "box": logit(self.regions.scores[rows])}

    def box_probability(self, calibration: Calibration, config: GroundingConfig, rows: np.ndarray) -> np.ndarray:
        """Return how probably the boxes of ``rows (P,)`` are right, if the phrases are there; 1 without calibration."""
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
        densecap, aligner, nouns: the parts of a model; of the first two at least one.
        by: the part that says where.
    """

    densecap: DenseCap | None
    aligner: Aligner | None
    nouns: NounEvidence | None
    by: Literal["densecap", "aligner"]
    calibration: Calibration

    @property
    def config(self) -> GroundingConfig:
        """The options; without an aligner the defaults."""
        return GroundingConfig() if self.aligner is None else self.aligner.config.grounding

    def ground(
        self, encoding: Encoding, asked: Sequence[str] | Layout, boxes: ArrayLike | None = None,
        limit: int | None = None, threshold: float | None = None,
    ) -> Regions:  # fmt: skip
        """Return the regions of the phrases that are found, and the others as ``not_found``.

        Arguments are those of :meth:`find` and :meth:`least`.
        """
        least, layout = self.least(threshold), asked if isinstance(asked, Layout) else Layout.of(asked)
        regions, presence, agree = self.find(encoding, layout, boxes, limit)
        if presence is None:
            return regions
        return replace(regions[presence >= least], not_found=layout.missing(presence, agree, least))

    def find(
        self, encoding: Encoding, layout: Layout, boxes: ArrayLike | None = None, limit: int | None = None
    ) -> tuple[Regions, np.ndarray | None, np.ndarray]:
        """Return the region of each phrase, found or not, and what is known of the phrases.

        Args:
            layout: P phrases with their places and relations, see :meth:`read`.
            boxes: ``(N, 4)`` in pixels of the image: choose among these.
            limit: choose among at most this many regions.

        Returns:
            the regions, whose captions are the phrases; the probabilities ``(P,)`` that the image shows the phrases
            where the layout says; the log-probabilities ``(P,)`` of the latter alone. A score is the probability that
            the image shows the phrase and that this box is right; that the image shows it, if the model is not
            calibrated for boxes; 0 for a phrase of none but unknown words. If the model is not calibrated for phrases,
            the probabilities are None, and the dense captioner's score is the joint probability, the aligner has none.

        Raises:
            UserError: a phrase that names nothing, or no region.
        """
        phrases = layout.phrases
        require_names(phrases)
        found = self.evidence(encoding, phrases, boxes, limit)
        (rows, agree), columns = found.place(self.config, layout, self.calibration), np.arange(len(phrases))
        fits, presence = found.fits[rows, columns], found.presence(self.calibration)
        scores = np.exp(fits) if found.by == "densecap" else None
        if presence is not None:
            presence = np.where([self.is_unknown(phrase) for phrase in phrases], np.float32(0), presence)
            presence = presence * np.exp(agree).astype(np.float32)
            scores = presence * found.box_probability(self.calibration, self.config, rows)
        regions = replace(
            found.regions[rows],
            captions=layout.captions, caption_scores=None, unused=layout.unused,
            similarities=fits if found.by == "aligner" else None,
            scores=scores,
        )  # fmt: skip
        return regions, presence, agree

    def read(self, text: str) -> Layout:
        """Return the phrases of a text, and what it says of their places, relations and numbers that can be used."""
        return Layout.parse(text)

    def least(self, threshold: float | None = None) -> float:
        """Return the least probability of a phrase that is found: the configuration's if none is given; 0 uncalibrated.

        ``UserError`` for a threshold above 0 without a calibration, or one that is no probability.
        """
        if threshold is not None:
            require_numbers(threshold=threshold)
            if not 0 <= threshold <= 1:
                raise UserError(f"threshold must be a probability, not {threshold:g}")
        if self.calibration.phrase is not None:
            return self.config.threshold if threshold is None else threshold
        if threshold:
            raise UserError("the model does not know how probable phrases are; saywhere calibrate makes it so")
        return 0.0

    def evidence(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None = None, limit: int | None = None
    ) -> Evidence:
        """Return what is known of phrases in an image, of those that name nothing too; arguments as of :meth:`find`."""
        texts: list[TextVectors] = []
        if self.aligner is not None:
            known = self.aligner.vocabulary
            texts = embed_texts(self.aligner, [captioned(phrase, known) for phrase in phrases], plain=True)
        if self.by == "densecap":
            regions, fits = self._described(encoding, phrases, boxes, limit)
            image = None if self.aligner is None else embed_images(self.aligner, [encoding], plain=True)[0]
        else:
            assert self.aligner is not None
            given = None if boxes is None else [boxes]
            image = embed_images(self.aligner, [encoding], given, limit, placing=True, plain=True)[0]
            regions = image.regions
            fits = word_fits(self.aligner, image, texts)
        kinds, named = self.log_kinds(encoding, regions, phrases)
        similarity = np.zeros(len(phrases), np.float32)
        if self.aligner is not None and image is not None:
            similarity = plain_similarities(image, texts, self.aligner.config.score)
        rare = np.array([self.is_rare(phrase) for phrase in phrases], bool)
        counted = None
        if self.aligner is not None and image is not None:
            counted = log_counted(self.aligner, self.calibration, phrases, image, texts)
        lacking = np.array([self.needs_classes(phrase) for phrase in phrases], bool)
        return Evidence(regions, fits, kinds, named, rare, similarity, self.by, counted, lacking)

    def log_kinds(self, encoding: Encoding, regions: Regions, phrases: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return what :meth:`NounEvidence.log_kinds` does; without classes no phrase names a kind that they know."""
        if self.nouns is None:
            return np.zeros((len(regions), len(phrases)), np.float32), np.zeros(len(phrases), bool)
        return self.nouns.log_kinds(encoding, regions, phrases)

    def _described(
        self, encoding: Encoding, phrases: Sequence[str], boxes: ArrayLike | None, limit: int | None
    ) -> tuple[Regions, np.ndarray]:
        assert self.densecap is not None
        given = None if boxes is None else [boxes]
        regions = describe(
            self.densecap, [encoding], given, limit, writer=PhraseWriter(self.densecap, greedy=True),
            nms_iou=self.config.nms_iou, calibration=self.calibration,
        )[0]  # fmt: skip
        if not len(regions):
            none = "the model finds no region in it" if boxes is None else "no box is given to choose among"
            raise UserError(f"{encoding.image}: {none}")
        known = self.densecap.vocabulary
        asked = [familiar(phrase, known) for phrase in phrases]
        return regions, score_regions(self.densecap.decoder, known, regions, asked).joint

    @property
    def _vocabulary(self) -> Vocabulary:
        """That of the text encoder which says how probably phrases are there."""
        return (self.aligner or self.densecap).vocabulary  # pyright: ignore[reportOptionalMemberAccess]

    def is_rare(self, phrase: str) -> bool:
        """Return whether the text encoder hardly saw the noun of a phrase in training."""
        counts = self._vocabulary.counts
        return any(counts.get(word, 0) < self.config.rare for word in noun_words(familiar(phrase, self._vocabulary)))

    def class_noun(self, phrase: str) -> Noun | None:
        """Return the noun of a phrase if the classes can tell where it is, else None."""
        noun = None if self.nouns is None else self.nouns.lookup(phrase)
        return noun if noun is not None and self.nouns is not None and self.nouns.tells(noun) else None

    def needs_classes(self, phrase: str) -> bool:
        """Return whether the text encoder does not know the noun of a phrase, and the classes do.

        A role of people that it hardly saw ("a chef") it takes for anybody.
        """
        words, role = noun_words(familiar(phrase, self._vocabulary)), noun_tree().share(phrase) < 1
        unread = any(word not in self._vocabulary for word in words) or (role and self.is_rare(phrase))
        return unread and self.class_noun(phrase) is not None

    def is_unknown(self, phrase: str) -> bool:
        """Return whether no part that is asked knows the noun of a phrase."""
        asked = (self.densecap if self.by == "densecap" else None, self.aligner)
        known = [part.vocabulary for part in asked if part is not None]
        heard = any(known_form(word, words) in words for word in noun_words(phrase) for words in known)
        return not heard and self.class_noun(phrase) is None

    def knows_none(self, phrases: Iterable[str]) -> bool:
        """Return whether all phrases are unknown, as those of another language."""
        return all(map(self.is_unknown, phrases))

    def unknown(self, phrases: Sequence[str]) -> dict[str, str | None]:
        """Return the words that no part knows that was asked: neither the vocabulary nor, as a noun, the classes.

        Words such as "my", which name nothing, are none of them.

        Each comes with the known word that begins alike and is spelt nearly so ("pizza" for "piza"), or None; nouns of
        the tree and words that people say often count a little more than others.
        """
        part = self.densecap if self.by == "densecap" else self.aligner
        assert part is not None
        found: dict[str, str | None] = {}
        for phrase in phrases:
            told = EMPTY.union(noun_words(phrase) if self.class_noun(phrase) is not None else ())
            unknown = unknown_words(part.vocabulary, familiar(phrase, part.vocabulary))
            found |= {word: self._spelt_alike(word, part.vocabulary) for word in unknown if word not in told}
        return found

    def _spelt_alike(self, word: str, vocabulary: Vocabulary) -> str | None:
        names = {one for name, _ in noun_tree().names() for one in name.split()}
        known = (one for one in names | {*vocabulary.counts} if abs(len(one) - len(word)) < SHORT)
        begins = {one for one in known if one[0] == word[0]}

        def likely(one: str) -> float:
            often = 0.03 * log10(1 + vocabulary.counts.get(one, 0))
            return SequenceMatcher(None, one, word).ratio() + often + 0.05 * (one in names)

        close = get_close_matches(word, begins, 5, cutoff=ALIKE)
        meant = [one for one in close if one != word and len(word) > SHORT and not self.is_unknown(one)]
        return max(meant, key=likely, default=None)


def did_you_mean(unknown: Mapping[str, str | None]) -> str:
    """Return words that a model does not know, with those that are spelt alike, as people are told them.

    Example:
        >>> did_you_mean({"un": None, "piza": "pizza"})
        'un, piza (did you mean pizza?)'
    """
    return ", ".join(f"{word} (did you mean {other}?)" if other else word for word, other in unknown.items())


def knows_none(unknown: Mapping[str, str | None]) -> str:
    """Return the line for a text of which a model knows no word."""
    return f"the model knows none of these words: {did_you_mean(unknown)}; it reads English"


def found_of(regions: Regions, there: np.ndarray) -> Regions:
    """Return the regions of the phrases ``(P,)`` that are there, and the other phrases as ``not_found``."""
    assert regions.captions is not None
    missing = tuple(phrase for phrase, seen in zip(regions.captions, there, strict=True) if not seen)
    return replace(regions[there], not_found=missing)


def familiar(phrase: str, vocabulary: Vocabulary) -> str:
    """Return a phrase with the singular (or plural) of words of which a vocabulary has only that."""
    if all(word in vocabulary for word in tokenize(phrase)):
        return phrase
    return " ".join(known_form(word, vocabulary) for word in tokenize(phrase))


def captioned(phrase: str, vocabulary: Vocabulary) -> str:
    """Return a phrase as captions would say it, for the aligner that learnt from them: a mere person is "people".

    Captions have "a person" for somebody of whom hardly anything is seen: the aligner finds the word to fit any scene.
    """
    if "people" in vocabulary and tokenize(phrase) in A_PERSON:
        return "people"
    return familiar(phrase, vocabulary)


def noun_words(phrase: str) -> tuple[str, ...]:
    """Return the words of the noun of a phrase."""
    words = tokenize(phrase)
    head = noun_tree().head(words)
    return tuple(words[head.start : head.stop])


def cut_phrases(text: str) -> list[str]:
    """Return the phrases of a text that name something visible; the text itself if there is none."""
    return [phrase.words for phrase in Chunker.load().chunk(text) if phrase.visible] or [text]


def unused_words(text: str) -> tuple[str, ...]:
    """Return the words between the phrases of :func:`cut_phrases`; those that only join phrases are left out.

    Example:
        >>> unused_words("the man on the left and a dog")
        ('on the left',)
    """
    inside = {i for p in Chunker.load().chunk(text) if p.visible for i in range(p.start, p.stop)}
    return unused_runs(tokenize(text), inside) if inside else ()


def log_counted(
    aligner: Aligner,
    calibration: Calibration,
    phrases: Sequence[str],
    image: ImageVectors,
    texts: Sequence[TextVectors],
) -> np.ndarray | None:
    """Return the log-probability ``(P,)`` that an image shows as many things as each phrase says; None for all 0.

    It rests on how much better the image fits the phrase than the phrase for one of the things.
    """
    numbered = [column for column, phrase in enumerate(phrases) if count_of(phrase) > 1]
    if calibration.count is None or not numbered:
        return None
    single = [familiar(one_of(phrases[column]), aligner.vocabulary) for column in numbered]
    both = [*(texts[column] for column in numbered), *embed_texts(aligner, single, plain=True)]
    several, one = plain_similarities(image, both, aligner.config.score).reshape(2, -1)
    found = np.zeros(len(phrases))
    found[numbered] = np.log(np.maximum(calibration.count.apply({"words": several - one}), LEAST))
    return found


def word_fits(aligner: Aligner, image: ImageVectors, texts: Sequence[TextVectors]) -> np.ndarray:
    """Return the mean product ``(R, P)`` of each phrase's words with each region, and the bonus of the region.

    Each phrase is encoded by itself.
    """
    sums = np.zeros((len(image), len(texts)), np.float32)
    for column, text in enumerate(texts):
        share = 1 if aligner.config.mean_over_words else 1 / len(text.words)
        sums[:, column] = image.vectors @ text.vectors[: len(text.words)].sum(axis=0) * share
    return sums + region_bonus(aligner.config, image)[:, None].astype(np.float32)

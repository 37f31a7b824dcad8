"""Queries: phrases that are wanted and not, placed in images by the vectors of an index, and how probable hits are.

An index has no pixels, so that the aligner alone says where a phrase is and how probable it is. That a found image
shows all of a query is a logistic regression of its own: what a search finds was chosen by the very similarity that the
phrases are judged by, so that the product of their probabilities promises too much. It also knows how often people say
what is looked for, for a search for something rare finds what is most like it, by how much the image stands out among
all, and how few these are. That any image of the index shows a query is
by chance, for it is common and the images are many; or it is in one image, which then fits well.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log

import numpy as np

from saywhere.calibration import DIGITS, RIDGE, Logistic, climb, standardised
from saywhere.errors import UserError
from saywhere.models.aligner import ImageVectors, TextVectors, hubness_of, plain_similarities
from saywhere.models.layout import CHOOSES, Layout
from saywhere.models.model import Model
from saywhere.models.nouns import noun_tree
from saywhere.models.placing import Evidence, embed_single, familiar, log_counted, noun_words, word_fits
from saywhere.regions import Regions
from saywhere.search.scan import Question
from saywhere.text import Vocabulary, tokenize

_SIGN = re.compile(r"(?:^|\s)([+-])(?=\s|$|[^\W\d])")


@dataclass(frozen=True)
class Query:
    """Phrases to look for; a sentence is one phrase.

    Attributes:
        wanted: phrases whose similarities with an image are added.
        unwanted: phrases; images that show one of them are left out.

    Raises:
        UserError: no phrase is wanted, or a phrase has no word.
    """

    wanted: tuple[str, ...]
    unwanted: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.wanted:
            raise UserError("a search needs a phrase that is wanted, such as 'a dog + snow - people'")
        if wordless := [phrase for phrase in (*self.wanted, *self.unwanted) if not tokenize(phrase)]:
            raise UserError(f"the phrase {wordless[0]!r} has no word")

    @classmethod
    def parse(cls, text: str) -> Query:
        """Read phrases with ``+`` or ``-`` before them: a sign follows a space, hyphens in words do not count.

        Images that show what follows a ``-`` are left out.

        Example:
            >>> Query.parse("a dog + snow - people in t-shirts")
            Query(wanted=('a dog', 'snow'), unwanted=('people in t-shirts',))
            >>> Query.parse("a cat -people")
            Query(wanted=('a cat',), unwanted=('people',))
        """
        first, *rest = _SIGN.split(text)
        signed = [*([("+", first)] if first.strip() or not rest else []), *zip(rest[::2], rest[1::2], strict=True)]
        wanted, unwanted = (tuple(phrase.strip() for mark, phrase in signed if mark == sign) for sign in "+-")
        return cls(wanted, unwanted)

    @property
    def phrases(self) -> tuple[str, ...]:
        """All phrases, those that are wanted first."""
        return self.wanted + self.unwanted


def base_words(words: Iterable[str]) -> list[str]:
    """Return words in the singular, where the tree of nouns or a final ``s`` tells, and by the name people use."""
    tree = noun_tree()
    named = [(word, tree.named(word)) for word in words]
    return [word.removesuffix("s") if noun is None else noun.name for word, noun in named]


def kinds(words: Iterable[str]) -> list[str]:
    """Return the base words of words, and the names of what these are kinds of: of ``men`` also ``person``."""
    tree, several = noun_tree(), list(words)
    nouns = (noun for word in several if (noun := tree.named(word)) is not None)
    above = (tree.nouns[row].name for noun in nouns for row in noun.ancestors)
    return list(dict.fromkeys((*base_words(several), *above)))


class Commonness:
    """Frequencies of nouns in captions; other words for the same thing, and for kinds of it, are counted together.

    Args:
        vocabulary: with the counts of words in the sentences of training.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        tree, self._counts = noun_tree(), Counter[str]()
        for word, count in vocabulary.counts.items():
            self._counts.update(dict.fromkeys(kinds([word]), count))
        nouns = (base for base in self._counts if tree.named(base) is not None)
        self._most = max((self._counts[base] for base in nouns), default=0)

    def rarest(self, phrases: Iterable[str]) -> float:
        """Return the log-frequency of the rarest noun of phrases, relative to the commonest noun; 0 without a noun."""
        return min(self._frequencies(phrases), default=0.0)

    def together(self, phrases: Iterable[str]) -> float:
        """Return the log-frequency of all nouns of phrases together, if one says nothing of another: their sum."""
        return sum(self._frequencies(phrases))

    def _frequencies(self, phrases: Iterable[str]) -> list[float]:
        """The log-frequencies of the nouns, each once."""
        nouns = {base for phrase in phrases for base in base_words(noun_words(phrase))}
        return [log((1 + self._counts[base]) / (1 + self._most)) for base in sorted(nouns)]


@lru_cache(maxsize=4)
def commonness_of(vocabulary: Vocabulary) -> Commonness:
    """Return the commonness of nouns in a model's vocabulary: counted once, for all queries."""
    return Commonness(vocabulary)


LIKELY = 0.25
"""A hit with a lower probability is probably not what was looked for (docs/search.md)."""
RERANKED = 3
"""This many times the hits that are asked for, :data:`FEWEST` at least, are put in order by probability where a query
says where things are or how many there are: the similarity knows little of that."""
FEWEST = 30
FEW = 100
"""How few the images are is the share that so many have beside them: of a lead it needs less in a small album."""
START = np.array([1.0, -5.0, 1.0, 0.0])
"""Weights of scaled evidence from which the likelihood is climbed: few images by chance, half of the queries meant."""


def in_index_evidence(together: float, images: int, similarity: float) -> np.ndarray:
    """Return what :func:`in_index_probability` judges by.

    Args:
        together: how often the nouns of the query are said, see :meth:`saywhere.search.phrases.Commonness.together`.
        images: of the index.
        similarity: of the best hit with the query.
    """
    return np.array([together + math.log(max(images, 1)), similarity], np.float64)


def in_index_probability(evidence: np.ndarray, chance: Logistic, meant: Logistic) -> np.ndarray:
    """Return the probabilities ``(...)`` that any image shows all of a query.

    Images that show it by chance are a Poisson process, whose rate grows with their expected number; beside them there
    is one that was meant, with a probability that grows with the similarity of the best hit.

    Args:
        evidence: ``(..., 2)`` the log of how many images would show all nouns of the query if these fell on images
            independently; and the similarity of the best hit.
        chance, meant: of a :class:`saywhere.calibration.Calibration`.
    """
    rate = _rate(chance.log_odds({"expected": evidence[..., 0]}))
    return 1 - np.exp(-rate) * (1 - meant.apply({"similarity": evidence[..., 1]}))


def fit_in_index(evidence: np.ndarray, in_index: np.ndarray) -> tuple[Logistic, Logistic]:
    """Return ``chance`` and ``meant`` of the largest likelihood, with a little ridge.

    Args:
        evidence: ``(Q, 2)`` of :func:`in_index_probability`.
        in_index: ``(Q,)`` whether any image shows the query.
    """
    scaled, mean, scale = standardised(evidence)

    def probability(weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        chance, meant = _parts(weights)
        rate = _rate(chance.log_odds({"expected": scaled[:, 0]}))
        share = meant.apply({"similarity": scaled[:, 1]})
        none = np.exp(-rate) * (1 - share)
        slopes = np.stack((scaled[:, 0] * rate, rate, scaled[:, 1] * share, share), axis=1)
        return 1 - none, slopes * none[:, None]

    found = climb(probability, in_index, START, np.array([RIDGE, 0, RIDGE, 0]))
    found[[0, 2]] /= scale
    found[[1, 3]] -= found[[0, 2]] * mean
    return _parts(found.round(DIGITS))


def _rate(log_rate: np.ndarray) -> np.ndarray:
    return np.exp(np.clip(log_rate, -80, 5))


def _parts(weights: np.ndarray) -> tuple[Logistic, Logistic]:
    a, b, c, d = weights.tolist()
    return Logistic({"expected": a}, b), Logistic({"similarity": c}, d)


LEAST = 1e-6
"""No phrase is taken to be less probable than this, nor more probable than the rest of 1."""


@dataclass(frozen=True, eq=False)
class Placed:
    """The place of a query in an image.

    Attributes:
        regions: of the wanted phrases that are probably there, with similarities, and with probabilities unless all of
            the query is one phrase; the others as ``not_found``.
        evidence: ``(5,)`` of the question ``hit``: the mean similarity of the wanted phrases with the image; the
            log-probability that they are all there; how often their rarest
            noun is said (:class:`saywhere.search.phrases.Commonness`); and what :meth:`PhrasesInImages.find` was told
            of the other images. None if the model is not calibrated for phrases.
        probability: that the image shows all of the query; None if the model is not calibrated for that.
        agree: log-probability that things are where, and as many as, the query says; a part of the probability.
    """

    regions: Regions
    evidence: np.ndarray | None
    probability: float | None
    agree: float = 0.0


class PhrasesInImages:
    """Find the region of each wanted phrase of a query; a sentence alone is cut into phrases as people cut it.

    Args:
        model: that embedded the images.
        query: what is looked for.

    Attributes:
        layout: the phrases that are wanted, and what is said of their places, relations and numbers.
        together: how often their nouns are said (:meth:`saywhere.search.phrases.Commonness.together`).

    Raises:
        UserError: something is not wanted, and the model is not calibrated for phrases.
    """

    def __init__(self, model: Model, query: Query) -> None:
        self._model, self._aligner = model, model.require("aligner", "search")
        if query.unwanted and model.calibration.phrase is None:
            raise UserError(
                f"{model.name} does not know how probably images show {query.unwanted[0]!r}, so that none can be left "
                "out: saywhere calibrate --what phrase"
            )
        alone = len(query.wanted) == 1
        self.layout = Layout.parse(query.wanted[0]) if alone else Layout(query.wanted)
        texts = list(dict.fromkeys((*self.layout.phrases, *query.phrases)))
        asked = [familiar(text, self._aligner.vocabulary) for text in texts]
        known = dict(zip(texts, model.embed_text(asked), strict=True))
        self._texts, self._wanted, self._unwanted = (
            [known[text] for text in some] for some in (self.layout.phrases, query.wanted, query.unwanted)
        )
        self._single = embed_single(self._aligner, self.layout.phrases) if model.calibration.count is not None else {}
        placer = model.placer("aligner")
        self._least = placer.least()
        self._unknown = np.array([placer.is_unknown(phrase) for phrase in self.layout.phrases], bool)
        common = commonness_of(self._aligner.vocabulary)
        self._rarest, self.together = common.rarest(self.layout.phrases), common.together(self.layout.phrases)
        self._rare = np.array([placer.is_rare(phrase) for phrase in (*self.layout.phrases, *query.unwanted)], bool)

    def question(self) -> Question:
        """Return the query as images are compared with it; its :attr:`hubness` is left out."""
        weights = np.ones((len(self._wanted), 1), np.float32)
        return Question.of(self._wanted, weights, self._aligner.config.score)

    @property
    def hubness(self) -> float:
        """The hubness of what is wanted: the same for all images."""
        return float(hubness_of(self._wanted).sum())

    @property
    def reranks(self) -> bool:
        """Whether the query says where things are or how many, so that hits are put in order by probability."""
        said = self.layout.places or any(name not in CHOOSES for name, _, _ in self.layout.relations)
        counts = self._model.calibration.count is not None and max(self.layout.counts) > 1
        return self._model.calibration.hit is not None and bool(said or counts)

    def shows_unwanted(self, image: ImageVectors) -> bool:
        """Return whether an image probably shows something that is not wanted."""
        if not self._unwanted:
            return False
        found = self._evidence(image, self._unwanted, self._rare[len(self._texts) :]).presence(self._model.calibration)
        assert found is not None
        return bool((found >= self._least).any())

    def find(self, image: ImageVectors, lead: float = 0.0, among: int = 1) -> Placed:
        """Return where the query is in an image.

        Args:
            image: that was found.
            lead: by how many standard deviations its similarity is above the mean of all images that were searched.
            among: number of these.
        """
        calibration, several, phrases = self._model.calibration, len(self._texts), self.layout.phrases
        evidence = self._evidence(image, self._texts, self._rare[:several])
        counted = log_counted(self._aligner, calibration, image, phrases, self._texts, self._single)
        (rows, agree), columns = (
            replace(evidence, counted=counted).place(self._aligner.config.grounding, self.layout), np.arange(several)
        )  # fmt: skip
        scores, found = evidence.presence(calibration), 0.0
        if scores is not None:
            scores = np.where(self._unknown, np.float32(0), scores)
            found = np.log(np.clip(scores, LEAST, 1 - LEAST)).sum()
            scores = scores * np.exp(agree).astype(np.float32)
        there = np.ones(several, bool) if scores is None else scores >= self._least
        whole = several == 1 and calibration.hit is not None  # the hit's probability says it
        regions = Regions(
            image.width, image.height, image.boxes[rows[there]], None if scores is None or whole else scores[there],
            tuple(phrase for phrase, seen in zip(phrases, there, strict=True) if seen), image=image.image,
            similarities=evidence.fits[rows, columns][there],
            not_found=tuple(phrase for phrase, seen in zip(phrases, there, strict=True) if not seen),
            unused=self.layout.unused,
        )  # fmt: skip
        if scores is None:
            return Placed(regions, None, None)
        similarity = self._model.similarity([image], self._wanted).mean()
        joint = np.array([similarity, found, self._rarest, lead, FEW / (FEW + among)], np.float64)
        shown = None if calibration.hit is None else float(calibration.hit.apply(joint) * np.exp(agree.sum()))
        return Placed(regions, joint, shown, float(agree.sum()))

    def in_index_probability(self, best: Placed, images: int) -> float | None:
        """Return the probability that any image of an index shows what is wanted; None if the model cannot tell.

        Args:
            best: the query in the image that fits best.
            images: of the index.
        """
        chance, meant = self._model.calibration.chance, self._model.calibration.meant
        if chance is None or meant is None or best.evidence is None:
            return None
        return float(in_index_probability(in_index_evidence(self.together, images, best.evidence[0]), chance, meant))

    def _evidence(self, image: ImageVectors, texts: list[TextVectors], rare: np.ndarray) -> Evidence:
        """What the vectors say of phrases in an image."""
        fits = word_fits(self._aligner, image, texts)
        regions = Regions(image.width, image.height, image.boxes, image=image.image)
        return Evidence(
            regions=regions, fits=fits, kinds=np.zeros_like(fits), named=np.zeros(len(texts), bool),
            rare=rare, similarity=plain_similarities(image, texts, self._aligner.config.score), by="aligner",
        )  # fmt: skip

"""The phrases of a query placed in images by the vectors of an index, and how probable it is that all are there.

An index has no pixels, so that the aligner alone says where a phrase is and how probable it is. That a found image
shows all of a query is a logistic regression of its own: what a search finds was chosen by the very similarity that the
phrases are judged by, so that the product of their probabilities promises too much. It also knows how often people say
what is looked for: a search for something rare finds what is most like it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from saywhere.models.aligner import ImageVectors, TextVectors, hubness_of, plain_similarities
from saywhere.models.model import Model
from saywhere.models.placing import Evidence, cut_phrases, word_fits
from saywhere.regions import Regions
from saywhere.search.anywhere import anywhere_evidence, anywhere_probability
from saywhere.search.commonness import commonness_of
from saywhere.search.query import Query
from saywhere.search.scan import Question

LEAST = 1e-6
"""No phrase is taken to be less probable than this, nor more probable than the rest of 1."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Where a query is in an image.

    Attributes:
        regions: of the wanted phrases that are probably there, with similarities; the others as ``not_found``.
        evidence: ``(3,)`` of the question ``hit``: the mean similarity of the wanted phrases with the image, the
            log-probability that they are all there and the unwanted ones are not, and how often the rarest noun of the
            wanted ones is said (:class:`saywhere.search.commonness.Commonness`); None if the model is not calibrated
            for phrases.
        probability: that the image shows all of the query; None if the model is not calibrated for that.
    """

    regions: Regions
    evidence: np.ndarray | None
    probability: float | None


class PhrasesInImages:
    """Find the region of each wanted phrase of a query; a sentence alone is cut into phrases as people cut it.

    Args:
        model: that embedded the images.
        query: what is looked for.

    Attributes:
        phrases: that are wanted.
        together: how often their nouns are said (:meth:`saywhere.search.commonness.Commonness.together`).
    """

    def __init__(self, model: Model, query: Query) -> None:
        self._model, self._aligner = model, model.require("aligner", "search")
        self.phrases = tuple(cut_phrases(query.wanted[0])) if len(query.wanted) == 1 else query.wanted
        texts = list(dict.fromkeys((*self.phrases, *query.phrases)))
        known = dict(zip(texts, model.embed_text(texts), strict=True))
        self._texts, self._wanted, self._unwanted = (
            [known[text] for text in some] for some in (self.phrases, query.wanted, query.unwanted)
        )
        self._signs = np.array([1.0] * len(self._wanted) + [-1.0] * len(self._unwanted), np.float32)
        placer = model.placer("aligner")
        self._least = placer.least()
        self._unknown = np.array([placer.is_unknown(phrase) for phrase in self.phrases], bool)
        common = commonness_of(self._aligner.vocabulary)
        self._rarest, self.together = common.rarest(self.phrases), common.together(self.phrases)
        self._rare = np.array([placer.is_rare(phrase) for phrase in (*self.phrases, *query.unwanted)], bool)

    def question(self) -> Question:
        """Return the query as images are compared with it; its :attr:`hubness` is left out."""
        return Question.of([*self._wanted, *self._unwanted], self._signs[:, None], self._aligner.config.score)

    @property
    def hubness(self) -> float:
        """The hubness of what is wanted less that of what is not: the same for all images."""
        return float(hubness_of([*self._wanted, *self._unwanted]) @ self._signs)

    def find(self, image: ImageVectors) -> Placed:
        """Return where the query is in an image."""
        calibration, several = self._model.calibration, len(self._texts)
        evidence = self._evidence(image, self._texts, self._rare[:several])
        rows, columns = evidence.rows(self._aligner.config.grounding), np.arange(several)
        scores = evidence.presence(calibration)
        if scores is not None:
            scores = np.where(self._unknown, np.float32(0), scores)
        there = np.ones(several, bool) if scores is None else scores >= self._least
        regions = Regions(
            image.width, image.height, image.boxes[rows[there]], None if scores is None else scores[there],
            tuple(phrase for phrase, seen in zip(self.phrases, there, strict=True) if seen), image=image.image,
            similarities=evidence.fits[rows, columns][there],
            not_found=tuple(phrase for phrase, seen in zip(self.phrases, there, strict=True) if not seen),
        )  # fmt: skip
        if scores is None:
            return Placed(regions, None, None)
        unwanted = self._evidence(image, self._unwanted, self._rare[several:]).presence(calibration)
        assert unwanted is not None
        found = np.log(np.clip((*scores, *(1 - unwanted)), LEAST, 1 - LEAST)).sum()
        similarity = self._model.similarity([image], self._wanted).mean()
        joint = np.array([similarity, found, self._rarest], np.float64)
        return Placed(regions, joint, None if calibration.hit is None else float(calibration.hit.apply(joint)))

    def in_index_probability(self, best: Placed, images: int) -> float | None:
        """Return the probability that any image of an index shows what is wanted; None if the model cannot tell.

        Args:
            best: the query in the image that fits best.
            images: of the index.
        """
        chance, meant = self._model.calibration.chance, self._model.calibration.meant
        if chance is None or meant is None or best.evidence is None:
            return None
        return float(anywhere_probability(anywhere_evidence(self.together, images, best.evidence[0]), chance, meant))

    def _evidence(self, image: ImageVectors, texts: list[TextVectors], rare: np.ndarray) -> Evidence:
        """What the vectors say of phrases in an image."""
        fits = word_fits(self._aligner, image, texts)
        regions = Regions(image.width, image.height, image.boxes, image=image.image)
        return Evidence(
            regions=regions, fits=fits, kinds=np.zeros_like(fits), named=np.zeros(len(texts), bool),
            rare=rare, similarity=plain_similarities(image, texts, self._aligner.config.score), by="aligner",
        )  # fmt: skip

"""The phrases of a query placed in images by the vectors of an index."""

from __future__ import annotations

import numpy as np

from saywhere.models.grounding import ImageVectors
from saywhere.models.model import Model
from saywhere.models.placing import Evidence, cut_phrases, word_fits
from saywhere.regions import Regions
from saywhere.search.query import Query


class PhrasesInImages:
    """Find the region of each wanted phrase of a query; a sentence alone is cut into phrases as people cut it.

    The aligner says where. An index has no pixels, so that the other parts of a model have no say.

    Args:
        model: that embedded the images.
        query: what is looked for.
    """

    def __init__(self, model: Model, query: Query) -> None:
        self._model, self._aligner = model, model.require("aligner", "search")
        alone = len(query.phrases) == 1
        self.phrases = tuple(cut_phrases(query.wanted[0])) if alone else query.wanted
        self._texts = model.embed_text(list(self.phrases))
        placer = model.placer("aligner")
        self._least = placer.least()
        self._rare = np.array([placer.is_rare(phrase) for phrase in self.phrases], bool)

    def evidence(self, image: ImageVectors) -> Evidence:
        """Return what the vectors say of the phrases in an image."""
        fits = word_fits(self._aligner, image, self._texts)
        regions = Regions(image.width, image.height, image.boxes, image=image.name)
        return Evidence(
            regions=regions, fits=fits, kinds=np.zeros_like(fits), named=np.zeros(len(self.phrases), bool),
            rare=self._rare, similarity=self._model.similarity([image], self._texts)[0], by="aligner",
        )  # fmt: skip

    def find(self, image: ImageVectors) -> Regions:
        """Return the regions of the phrases that are probably there, with similarities; the others as ``not_found``."""
        evidence, config = self.evidence(image), self._aligner.config.grounding
        rows, columns = evidence.rows(config), np.arange(len(self.phrases))
        scores = evidence.presence(config)
        there = np.ones(len(rows), bool) if scores is None else scores >= self._least
        return Regions(
            image.width, image.height, image.boxes[rows[there]], None if scores is None else scores[there],
            tuple(phrase for phrase, seen in zip(self.phrases, there, strict=True) if seen), image=image.name,
            similarities=evidence.fits[rows, columns][there],
            not_found=tuple(phrase for phrase, seen in zip(self.phrases, there, strict=True) if not seen),
        )  # fmt: skip

"""Ensembles of captioners, as in a row of Table 4 of Areas of Attention."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from saywhere.engines.engine import Decoder, State
from saywhere.errors import UserError
from saywhere.evaluation.captions import CaptionScores, score_captioner
from saywhere.evaluation.session import Session
from saywhere.images import LoadedImage
from saywhere.models.captioner import Caption, bind
from saywhere.models.decoding import decode
from saywhere.models.model import Model


class EnsembleDecoder:
    """Decode with the mean of several decoders' probabilities, see :class:`saywhere.engines.engine.Decoder`.

    The embedding of an item is the tuple of the members' embeddings, since each member may encode the image with its
    own network. All members must have the same vocabulary.
    """

    def __init__(self, decoders: Sequence[Decoder]) -> None:
        self.decoders = tuple(decoders)
        self._lengths: list[int] = []  # of the members' states, known after start
        self.never, self.unknown = decoders[0].never, decoders[0].unknown
        self.independent = all(decoder.independent for decoder in decoders)

    def start(self, embeddings: Any) -> State:
        """Return the members' states one after the other, for a list of N tuples of embeddings."""
        columns = zip(*embeddings, strict=True)
        states = [d.start(np.stack(rows)) for d, rows in zip(self.decoders, columns, strict=True)]
        self._lengths = [len(state) for state in states]
        return tuple(part for state in states for part in state)

    def step(self, token_ids: np.ndarray, state: State) -> tuple[np.ndarray, State]:
        log_probs: list[np.ndarray] = []
        following: State = ()
        for decoder, part in zip(self.decoders, self._split(state), strict=True):
            member, stepped = decoder.step(token_ids, part)
            log_probs.append(member)
            following += stepped
        return np.logaddexp.reduce(np.stack(log_probs)) - np.float32(math.log(len(log_probs))), following

    def select(self, state: State, rows: np.ndarray) -> State:
        parts = zip(self.decoders, self._split(state), strict=True)
        return tuple(part for decoder, member in parts for part in decoder.select(member, rows))

    def join(self, states: Sequence[State]) -> State:
        members = zip(*(self._split(state) for state in states), strict=True)
        return tuple(part for d, rows in zip(self.decoders, members, strict=True) for part in d.join(rows))

    def _split(self, state: State) -> list[State]:
        ends = np.cumsum(self._lengths)
        return [state[end - length : end] for end, length in zip(ends, self._lengths, strict=True)]


class CaptionEnsemble:
    """Caption with several models, each with its own encoding of the image and attention to its regions.

    Decoding follows the configuration of the first model. ``UserError`` for a single model, one without a captioner, or
    different vocabularies.
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = tuple(models)
        if len(models) < 2:
            raise UserError("an ensemble is several models; one alone is measured by saywhere evaluate caption")
        self._captioners = [model.require("captioner", "caption images") for model in models]
        first = self._captioners[0].vocabulary
        for other in self._captioners[1:]:
            if other.vocabulary.tokens != first.tokens:
                sizes = f"{len(first.counts)} and {len(other.vocabulary.counts)} words"
                raise UserError(f"an ensemble needs captioners of one vocabulary; these have {sizes}, not the same")

    @property
    def long_side(self) -> int:
        """Minimum long side of images, in pixels."""
        return max(model.long_side for model in self.models)

    def caption(
        self, images: Sequence[LoadedImage], *, beam_size: int | None = None, attention: bool = False
    ) -> list[Caption]:
        """Return a sentence for each image, without attention; ``UserError`` if ``beam_size`` is below 1."""
        encodings = [model.encode(list(images)) for model in self.models]
        bound = [bind(c, e) for c, e in zip(self._captioners, encodings, strict=True)]
        together = EnsembleDecoder([member.decoder for member in bound])
        embeddings = list(zip(*(member.embeddings for member in bound), strict=True))
        first = self._captioners[0]
        decoded = decode(together, embeddings, first.config.decoding, beam_size)
        texts = [first.vocabulary.decode(row) for row in decoded.token_ids.tolist()]
        return [
            Caption(text, tuple(text.split()), image.width, image.height, image.name)
            for text, image in zip(texts, images, strict=True)
        ]


def run(models: Sequence[Model], session: Session, beam_size: int | None = None) -> CaptionScores:
    """Caption the images of a data set with several models together, and score the sentences.

    ``beam_size`` None means that of the first model. Raises as :class:`CaptionEnsemble` and
    :func:`saywhere.evaluation.captions.run`.
    """
    together = CaptionEnsemble(models)
    settings = {"model": ", ".join(model.digest() for model in models), "beam_size": beam_size}
    return score_captioner(together, session, settings)

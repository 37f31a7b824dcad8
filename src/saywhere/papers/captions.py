"""Rows of the papers' tables of captions: several models together, and the sentence of the most similar image.

Areas of Attention has an ensemble in Table 4; Deep Visual-Semantic Alignments has the nearest neighbour as the baseline
of section 4.2.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, overload

import numpy as np

from saywhere import data as datasets
from saywhere.engines.engine import Captioner, Decoder, State
from saywhere.errors import UserError
from saywhere.evaluation.captions import CaptionScores, score_captioner
from saywhere.evaluation.session import ArrayStore, Session, image_sources
from saywhere.images import ImageLike, LoadedImage, open_image
from saywhere.models.captioner import Caption, bind
from saywhere.models.decoding import decode
from saywhere.models.encoding import Encoding, answer
from saywhere.models.model import Model

TRAIN = "train"
"""The split whose images are neighbours."""
NEIGHBOURS = "neighbours"
"""The folder of a run with the training images' vectors."""
One = ImageLike | LoadedImage


class EnsembleDecoder:
    """Decode with the mean of several decoders' probabilities of each word.

    Its embeddings are, for each item, the tuple of the members' embeddings: each member may see the image with its own
    network. All must have one vocabulary.

    Args:
        decoders: one or more.
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
        """Return log-probabilities ``(N, V)`` of the word after ``token_ids (N,)``, and the next state.

        Raises:
            ValueError: the members' vocabularies have different sizes.
        """
        log_probs: list[np.ndarray] = []
        following: State = ()
        for decoder, part in zip(self.decoders, self._split(state), strict=True):
            member, stepped = decoder.step(token_ids, part)
            log_probs.append(member)
            following += stepped
        if len(sizes := {member.shape[1] for member in log_probs}) > 1:
            raise ValueError(f"an ensemble of vocabularies of {' and '.join(map(str, sorted(sizes)))} words")
        return np.logaddexp.reduce(np.stack(log_probs)) - np.float32(math.log(len(log_probs))), following

    def select(self, state: State, rows: np.ndarray) -> State:
        """Return the rows of a state."""
        parts = zip(self.decoders, self._split(state), strict=True)
        return tuple(part for decoder, member in parts for part in decoder.select(member, rows))

    def join(self, states: Sequence[State]) -> State:
        """Return the rows of several states one after the other."""
        members = zip(*(self._split(state) for state in states), strict=True)
        return tuple(part for d, rows in zip(self.decoders, members, strict=True) for part in d.join(rows))

    def _split(self, state: State) -> list[State]:
        ends = np.cumsum(self._lengths)
        return [state[end - length : end] for end, length in zip(ends, self._lengths, strict=True)]


class CaptionEnsemble:
    """Caption with several models; each attends to the image, and to its regions, by itself.

    Decoding follows the configuration of the first one.

    Args:
        models: one or more with a captioner, of one vocabulary.

    Raises:
        UserError: there is no model, one has no captioner, or their vocabularies differ.

    Example:
        >>> from saywhere.papers.captions import CaptionEnsemble
        >>> members = [saywhere.load(f"runs/{name}/model") for name in ("a", "b")]
        >>> CaptionEnsemble(members).caption("photo.jpg").sentence
    """

    def __init__(self, models: Sequence[Model]) -> None:
        self.models = tuple(models)
        if not self.models:
            raise UserError("an ensemble needs one captioner or more")
        self._captioners = [model.require("captioner", "caption images") for model in models]
        first = self._captioners[0].vocabulary
        for other in self._captioners[1:]:
            if other.vocabulary.tokens != first.tokens:
                sizes = f"{len(first.counts)} and {len(other.vocabulary.counts)} words"
                raise UserError(f"an ensemble needs captioners of one vocabulary; these have {sizes}, not the same")

    @property
    def long_side(self) -> int:
        """Pixels on the long side that images should have at least."""
        return max(model.long_side for model in self.models)

    @overload
    def caption(self, images: One, *, beam_size: int | None = None) -> Caption: ...
    @overload
    def caption(self, images: Sequence[One], *, beam_size: int | None = None) -> list[Caption]: ...
    def caption(self, images: Any, *, beam_size: int | None = None) -> Any:
        """Return a sentence for an image, or for each of a list or generator of images, without attention.

        Raises:
            ImageError: an image cannot be read.
            UserError: ``beam_size`` is below 1, or an encoding is given, which is one model's.
        """
        return answer(lambda some: self._caption(some, beam_size), self._open, images)

    def _open(self, images: Sequence[One]) -> list[LoadedImage]:
        if any(isinstance(image, Encoding) for image in images):
            raise UserError("an encoding is one model's: give an ensemble the image itself")
        return [open_image(image, self.long_side) for image in images]

    def _caption(self, images: Sequence[LoadedImage], beam_size: int | None) -> list[Caption]:
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


class NearestNeighbour:
    """Caption an image with the first sentence of the training image whose vector is nearest.

    Args:
        model: whose captioner's image network sees the images.
        vectors: ``(N, D)`` of the training images, from :func:`image_vectors`.
        sentences: one of each.
    """

    def __init__(self, model: Model, vectors: np.ndarray, sentences: Sequence[str]) -> None:
        if len(vectors) != len(sentences) or not sentences:
            raise ValueError(f"{len(vectors)} vectors and {len(sentences)} sentences")
        self.long_side = model.long_side
        self._model, self._sentences = model, tuple(sentences)
        self._vectors = np.asarray(vectors, np.float64)

    def caption(self, images: Sequence[LoadedImage], *, beam_size: int | None = None) -> list[Caption]:
        """Return a sentence for each image; there is no search, so ``beam_size`` changes nothing."""
        if not images:
            return []
        vectors = image_vectors(self._model, images).astype(np.float64)
        squares = (self._vectors**2).sum(axis=1) - 2 * vectors @ self._vectors.T  # and a constant for each image
        texts = [self._sentences[row] for row in squares.argmin(axis=1).tolist()]
        return [
            Caption(text, tuple(text.split()), image.width, image.height, image.name)
            for image, text in zip(images, texts, strict=True)
        ]


def image_vectors(model: Model, images: Sequence[Any]) -> np.ndarray:
    """Return what the captioner sees of whole images ``(N, D)``."""
    captioner: Captioner = model.require("captioner", "see images as a captioner does")
    encodings = model.encode(list(images))
    bound = captioner.bind_images([e.maps for e in encodings], [None] * len(encodings))
    return np.asarray(bound.embeddings, np.float32)


def learn_neighbours(model: Model, session: Session) -> NearestNeighbour:
    """Return the neighbours of the training images with sentences; their vectors are kept in ``session.out``.

    Training images that cannot be read are left out.

    Raises:
        UserError: there are no such images, or none can be read.
    """
    samples = datasets.read(session.data, session.format, TRAIN)
    sources = {source.path: source for source in image_sources(samples, session.data)}
    sentences: dict[str, str] = {}
    for sample in samples:
        if sample.sentences:
            sentences.setdefault(sources[sample.image].name, sample.sentences[0])
    if not sentences:
        raise UserError("nearest: the training split has no image with a sentence")
    store = ArrayStore(session.out / NEIGHBOURS / model.digest())
    lookup = Session(session.data, session.out, batch=session.batch, progress=session.progress)
    seen = lookup.each(
        lambda images, _: list(image_vectors(model, images)),
        [source for source in sources.values() if source.name in sentences],
        store,
        lambda name, vector: store.write(name, {"vector": vector}),
        long_side=model.long_side,
        what="looking at training images",
    )
    vectors = np.stack([store.read(source.name)["vector"] for source in seen])
    return NearestNeighbour(model, vectors, [sentences[source.name] for source in seen])


def run(
    models: Sequence[Model], session: Session, beam_size: int | None = None, nearest: bool = False
) -> CaptionScores:
    """Caption the images of a data set as a row of a paper's table does, and score the sentences.

    Args:
        models: with a captioner; they caption together.
        session: the data and the results.
        beam_size: hypotheses in decoding; that of the first model if None.
        nearest: instead of decoding answer with a sentence of the training image that looks most alike to the model.

    Raises:
        UserError: a model has no captioner, there is one where several are needed or the other way round, or as
            :func:`saywhere.evaluation.captions.run`.
    """
    for model in models:
        model.check("captioner", "caption images")
    if nearest and len(models) > 1:
        raise UserError("nearest: one model finds the most similar image, not several together")
    if not nearest and len(models) < 2:
        raise UserError("an ensemble is several models; one alone is measured by saywhere evaluate caption")
    settings = {"model": ", ".join(model.digest() for model in models), "beam_size": beam_size}
    if nearest:
        (model,) = models
        return score_captioner(
            lambda: learn_neighbours(model, session), model.long_side, session, settings | {"nearest": True}
        )
    together = CaptionEnsemble(models)
    return score_captioner(lambda: together, together.long_side, session, settings)

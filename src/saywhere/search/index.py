"""An index: a folder of embedded images, searched by words or by another image."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import DEFAULT_MODEL, loading
from saywhere.errors import UserError
from saywhere.images import ImageLike, LoadedImage
from saywhere.inference import Source
from saywhere.models.model import Model
from saywhere.models.placing import knows_none
from saywhere.options import require_texts
from saywhere.regions import TEXTS, Regions
from saywhere.report import counted
from saywhere.search.indexing import Changes, Indexing, absolute, index_digest
from saywhere.search.phrases import LIKELY, MORE, PhrasesInImages, Query
from saywhere.search.qdrant import Qdrant, QdrantStore, path_to_text, text_to_path
from saywhere.search.scan import Question
from saywhere.search.store import DATABASE, Store
from saywhere.search.stores import Only

TOP = 10
"""Hits unless the user says otherwise."""


@dataclass(frozen=True, eq=False)
class Hit:
    """An image that was found.

    Attributes:
        image: its path, from the root on; that of the video, if it is a moment of one.
        similarity: to the query; larger is better. It is no probability: compare hits of one search only.
        regions: where each wanted phrase is in the image, with similarities and, if the model is calibrated for it and
            the query is more than one phrase, the probabilities that it is there at all; none if an image was the
            query. ``not_found`` has those that are probably not there.
        probability: that the image shows all of the query; None if an image was the query, or the model is not
            calibrated for that.
        time: of the moment in the video, in seconds; None for an image.
        in_index_probability: probability that any image of the index shows all that is wanted, the same for all hits
            of a search; None as ``probability``.
        entry: by which the index finds it again (:meth:`saywhere.search.store.Store.locate`), until it is indexed
            anew.
        unknown: words of the query that the model does not know, the same for all hits of a search: nothing was looked
            for by them. Each with a word that it does know and that is spelt nearly so, or None.
        without_noun: phrases of the query in which nothing is read as the name of a thing, the same for all hits: they
            are compared as a whole, and how probably they are there rests on the words alone.
        left_out: images that fit as well, but probably show what is not wanted, the same for all hits; None if nothing
            was unwanted.

    Example:
        >>> with saywhere.Index("holiday.index") as index:
        ...     index.add(["holiday/"])
        ...     hit = index.search("a motorcycle", top=1)[0]
        Changes(added=3, updated=0, unchanged=0, removed=0, skipped={}, damaged={})
        >>> hit.image.endswith("motorcycle.jpg"), hit.regions.image == hit.image
        (True, True)
    """

    image: str
    similarity: float
    regions: Regions
    probability: float | None = None
    time: float | None = None
    in_index_probability: float | None = None
    entry: str = ""
    unknown: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    without_noun: tuple[str, ...] = ()
    left_out: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all but ``regions`` and ``entry`` as they are called here, of each phrase its place."""
        found, phrases = self.regions, []
        values = [] if found.similarities is None else found.similarities.tolist()
        for region, value in zip(found, values, strict=True):
            row = {"words": region.caption, "box": [round(v, 2) for v in region.box], "similarity": round(value, 5)}
            phrases.append(row if region.score is None else {**row, "score": round(region.score, 5)})
        missing = {name: list(texts) for name in TEXTS if (texts := getattr(found, name))}
        missing |= {"unknown": dict(self.unknown)} if self.unknown else {}
        missing |= {"without_noun": list(self.without_noun)} if self.without_noun else {}
        missing |= {} if self.left_out is None else {"left_out": self.left_out}
        size = {"width": found.width, "height": found.height}
        chances = {"probability": self.probability, "in_index_probability": self.in_index_probability}
        likely = {name: round(value, 5) for name, value in chances.items() if value is not None}
        place = {"image": self.image} if self.time is None else {"image": self.image, "time": self.time}
        similarity = round(self.similarity, 5)
        return {**place, "similarity": similarity, **likely, **size, "phrases": phrases, **missing}


def why_improbable(hits: Sequence[Hit]) -> str | None:
    """Return why hits probably do not show what was looked for; None if some do, or where nothing says how likely."""
    best = max((hit.probability for hit in hits if hit.probability is not None), default=1.0)
    return None if best >= LIKELY else f"no image shows all of this with a probability of more than {best:.2f}"


class Index:
    """Find images, and the regions in them, by words.

    Args:
        place: folder of the index, or where else it is (:class:`saywhere.search.Qdrant`); :meth:`add` makes it.
        model: the model, its name, or its folder. If None, the one by which the index was made, and for a new index
            the bundled one. It is loaded when it is first needed.
        load: makes a model of its name.
        threads: that a search uses; all processors there are if None.

    Raises:
        UserError: there is an index of another version, or a damaged one.

    Example:
        >>> with saywhere.Index("holiday.index") as index:
        ...     print(index.add(["holiday/"]))
        ...     names = [hit.image.split("/")[-1] for hit in index.search("a motorcycle", top=1)]
        3 added, 0 updated, 0 unchanged, 0 removed, 0 skipped
        >>> names
        ['motorcycle.jpg']
    """

    def __init__(
        self,
        place: str | Path | Qdrant,
        model: Model | str | Path | None = None,
        *,
        load: Callable[[str], Model] = loading.load,
        threads: int | None = None,
    ) -> None:
        self.place = Path(place) if isinstance(place, str) else place
        self._given, self._load, self._threads = model, load, threads
        self._model = model if isinstance(model, Model) else None
        self._checked = False
        there = self.place.exists() if isinstance(self.place, Qdrant) else (self.place / DATABASE).exists()
        self._store = self._open() if there else None

    def _open(self, facts: Mapping[str, str] | None = None) -> Store | QdrantStore:
        return QdrantStore(self.place, facts) if isinstance(self.place, Qdrant) else Store(self.place, facts)

    @property
    def folder(self) -> Path | None:
        """The folder that has the index; None if it is elsewhere."""
        return None if isinstance(self.place, Qdrant) else self.place

    @property
    def store(self) -> Store | QdrantStore:
        """Where the vectors are.

        Raises:
            UserError: there is no index yet.
        """
        if self._store is None:
            self._store = self._open()
        return self._store

    @property
    def model(self) -> Model:
        """The model that embeds images and words.

        Raises:
            UserError: there is no such model, it has no aligner, or the index was made by another one.
        """
        if self._model is None:
            self._model = self._load(self._name)
        if not self._checked:
            self._model.require("aligner", "search")
            if self._store is not None and index_digest(self._model) != self._store.facts["digest"]:
                made = text_to_path(self._store.facts["model"])
                raise UserError(f"{self.place}: {self._difference(made)}, or make another index")
            self._checked = self._store is not None
        return self._model

    @property
    def _name(self) -> str:
        if self._given is not None:
            return str(self._given)
        return DEFAULT_MODEL if self._store is None else text_to_path(self._store.facts["model"])

    @property
    def _full_name(self) -> str:
        """What a new index says of its model: the name, or the folder from the root on."""
        name = self._given.name if isinstance(self._given, Model) else self._name
        return os.path.abspath(name) if os.path.isdir(name) else name

    def _difference(self, made: str) -> str:
        """How the model differs from the one that made the index, and what to do."""
        if made == self._full_name:
            return f"{made} made it in another version, or with other --precision, --engine or --set; give those"
        return f"was made by another model (then named {made}) than {self._full_name}; give that one"

    def __len__(self) -> int:
        return 0 if self._store is None else len(self._store)

    def __repr__(self) -> str:
        return f"Index({str(self.place)!r}: {counted(len(self), 'image')})"

    # Writing

    def begin(
        self, paths: Sequence[str | Path] | Sequence[Source], *, components: int | None = None, repair: bool = False,
        every: float | None = None,
    ) -> Indexing:  # fmt: skip
        """Return a run that brings the index up to date, to be watched image by image; :meth:`add` is all of it.

        Args:
            paths: see :meth:`add`; or sources of :func:`saywhere.inference.find_images`, which only adds and updates.
            components, every: see :meth:`add`.
            repair: look for damaged vectors first, and forget their images, so that the run embeds them anew.
        """
        if self.folder is None and (components or repair):
            raise UserError(f"codes and repair are for an index in a folder, not for {self.place}")
        model = self.model
        if self._store is None:
            facts = {
                "digest": index_digest(model),
                "model": path_to_text(self._full_name),
                "size": str(model.require("aligner", "search").config.embed_dim + 1),  # with the hubness
            }
            self._store = self._open(facts)
        if repair:
            self._store.repair()
        return Indexing(self._store, self.model, paths, components, every)

    def add(
        self,
        paths: str | Path | Sequence[str | Path],
        *,
        components: int | None = None,
        batch: int = 8,
        repair: bool = False,
        every: float | None = None,
    ) -> Changes:
        """Bring the index up to date: new and changed images and videos are embedded, vanished ones forgotten.

        Args:
            paths: images, videos, folders (all below them), patterns, tar archives, or lists of paths (``@list.txt``).
                What of these folders and archives is in the index, but not on the disk any more, is forgotten.
            components: make codes of so many principal components, a byte each, for all vectors: a search of a large
                index finds its candidates on them, and compares only these by their whole vectors. 0 for none; if None,
                an index that has codes keeps them up to date.
            batch: images at a time; each batch is committed.
            repair: see :meth:`begin`.
            every: seconds from one look at a video to the next; if None, those that the index has of it, or 0.5.

        Raises:
            UserError: a path is not there, or another run is writing to the index.
        """
        several = [paths] if isinstance(paths, str | Path) else paths
        run = self.begin(several, components=components, repair=repair, every=every)
        for _ in run.results(batch):
            pass
        return run.changes

    def remove(self, paths: str | Path | Iterable[str | Path]) -> int:
        """Forget images and videos; return how many were in the index. Their files are left alone."""
        several = [paths] if isinstance(paths, str | Path) else paths
        return self.store.remove([absolute(path) for path in several])

    # Reading

    def search(
        self, query: str | Query | None = None, *, image: ImageLike | LoadedImage | None = None, top: int = TOP,
        exact: bool = False, without: str | Sequence[str] = (), after: str | date | None = None,
        before: str | date | None = None, under: str | Path | Sequence[str | Path] = (),
    ) -> list[Hit]:  # fmt: skip
        """Return the images that fit best, those that most probably show all of a text first.

        Args:
            query: a sentence, or phrases with ``+`` and ``-`` between them, see :meth:`saywhere.search.Query.parse`.
            image: instead of a text: what an image has in common with this one, region by region.
            top: at most this many.
            exact: compare all images by their whole vectors, also if the index has codes, see :meth:`add`.
            without: phrases; images that probably show one of them are left out, as those of what follows a ``-``.
            after: the first day, such as ``2024-05-01``, on which an image was taken.
            before: the first day that is too late.
            under: folders, by their names or paths, in one of which an image is.

        Raises:
            UserError: not one of the two, a text without a word or without one that the model knows, a damaged index,
                or another model's; dates are asked for that the index does not have.
            ImageError: the image cannot be read.
        """
        if (query is None) == (image is None):
            raise UserError("a search needs a text or an image, and not both")
        if top < 1:
            raise UserError(f"top must be at least 1, not {top}")
        if query is not None and not isinstance(query, (str, Query)):
            raise UserError(f"query must be a string or a Query, not {type(query).__name__}")
        require_texts(without=without)
        only = Only.of(after, before, under)
        unwanted = (without,) if isinstance(without, str) else tuple(without)
        parsed = Query.parse(query) if isinstance(query, str) else query
        if parsed is None:
            if unwanted:
                raise UserError("without is for a search by words, and not for one by an image")
            found = self.store.nearest(self._image_question(image), top, exact=exact, threads=self._workers, only=only)
            return [
                Hit(v.image, value, Regions.empty(v.width, v.height, v.image), time=t, entry=entry)
                for value, v, t, entry, *_ in found
            ]
        phrases = PhrasesInImages(self.model, Query(parsed.wanted, parsed.unwanted + unwanted))
        if not phrases.known:
            raise UserError(knows_none(phrases.unknown))
        question, many = phrases.question(), max(top, TOP) + MORE
        asked = many
        while True:
            found = self.store.nearest(question, asked, exact=exact, threads=self._workers, only=only)
            ranks = [i for i, each in enumerate(found) if not phrases.shows_unwanted(each.vectors)][:many]
            if len(ranks) == many or len(found) < asked:
                break
            asked *= 4
        kept, seen = [found[i] for i in ranks], ranks[-1] + 1 if len(ranks) == many else len(found)
        left_out = seen - len(kept) if parsed.unwanted + unwanted else None
        placed = [phrases.find(each.vectors, each.lead, each.among) for each in kept]
        in_index = phrases.in_index_probability(placed, kept[0].among) if placed else None
        best = sorted(zip(kept, placed, strict=True), key=lambda one: -(one[1].probability or 0))[:top]
        return [
            Hit(each.vectors.image, each.similarity - phrases.hubness, there.regions, there.probability, each.time,
                in_index, each.entry, phrases.unknown, phrases.layout.without_noun, left_out)
            for each, there in best
        ]  # fmt: skip

    @property
    def _workers(self) -> int:
        from saywhere.engines.onnx import available_threads

        return self._threads or available_threads()

    def _image_question(self, image: Any) -> Question:
        """The regions of an image in place of words, all of one length: strong ones are not to outweigh the others."""
        vectors = self.model.embed(image).vectors
        words = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        weights = np.full((len(vectors), 1), 1 / len(vectors), np.float32)
        score = self.model.require("aligner", "search").config.score
        return Question(np.pad(words, ((0, 0), (0, 1))), weights, score)

    def close(self) -> None:
        """Let go of the files."""
        if self._store is not None:
            self._store.close()
            self._store = None

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

"""An index: embedded images, in a folder or in Qdrant, that can be searched by words or by another image."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import DEFAULT_MODEL, loading
from saywhere.engines.onnx import available_threads
from saywhere.errors import UserError
from saywhere.images import ImageLike, LoadedImage
from saywhere.inference import Source
from saywhere.inference.sources import list_paths, name_images
from saywhere.models.lexicon import knows_none
from saywhere.models.model import Model
from saywhere.options import require_ints, require_texts
from saywhere.regions import TEXTS, Regions
from saywhere.report import counted
from saywhere.search.indexing import INDEXED, Changes, Indexing, absolute, index_digest
from saywhere.search.phrases import LIKELY, MORE, PhrasesInImages, Query
from saywhere.search.qdrant import Qdrant, QdrantStore, path_to_text, text_to_path
from saywhere.search.scan import Question
from saywhere.search.store import DATABASE, Store
from saywhere.search.stores import Found, Only

TOP = 10
"""Default number of hits."""


@dataclass(frozen=True, eq=False)
class Hit:
    """A search result.

    Attributes:
        image: absolute path of the image, or of the video that the frame is from.
        similarity: similarity to the query, larger is better. Not a probability: comparable only within one search.
        regions: where the image shows each wanted phrase, with similarities. If the model has the calibration and the
            query has several phrases, also with the probability of each. Phrases that are probably not shown are in
            ``not_found``. Empty if the query was an image.
        probability: probability that the image shows the whole query. None if the query was an image or only says what
            is unwanted, or without the calibration.
        time: time of the frame in the video in seconds; None for an image.
        entry: key of the image for :meth:`saywhere.search.store.Store.locate`, valid until the image is indexed again.
        unknown: words of the query that the model does not know and that were ignored, equal for all hits of a search.
            Each comes with a known word of similar spelling, or None.
        without_noun: phrases of the query without a recognised noun, equal for all hits. They are compared as a whole,
            and their probability depends on the aligner alone.
        left_out: number of equally similar images that were left out because they probably show something unwanted,
            equal for all hits; None if nothing was unwanted.

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
    entry: str = ""
    unknown: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    without_noun: tuple[str, ...] = ()
    left_out: int | None = None

    def __repr__(self) -> str:
        place = repr(self.image) if self.time is None else f"{self.image!r} at {self.time:g} s"
        likely = f"similarity {self.similarity:.2f}" if self.probability is None else f"{self.probability:.2f}"
        return f"Hit({place}: {', '.join([likely, *(repr(phrase) for phrase in self.regions.captions or ())])})"

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: all attributes except ``regions`` and ``entry``, and each phrase with its box."""
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
        likely = {} if self.probability is None else {"probability": round(self.probability, 5)}
        place = {"image": self.image} if self.time is None else {"image": self.image, "time": self.time}
        similarity = round(self.similarity, 5)
        return {**place, "similarity": similarity, **likely, **size, "phrases": phrases, **missing}


def why_improbable(hits: Sequence[Hit]) -> str | None:
    """Return why the hits probably do not show what was searched for; None if some do, or without probabilities."""
    best = max((hit.probability for hit in hits if hit.probability is not None), default=1.0)
    return None if best >= LIKELY else f"no image shows all of this with a probability of more than {best:.2f}"


class Index:
    """Find images, and the regions in them, by words.

    Args:
        place: folder of the index, or another location (:class:`saywhere.search.Qdrant`); :meth:`add` creates it.
        model: model, its name, or its folder. Default: the one that made the index, or the bundled one for a new
            index. It is loaded at first use.
        load: function that loads a model by name.
        threads: number of threads of a search. Default: all processors.

    Raises:
        UserError: the index has another version or is damaged.

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
        self._turn, self._counting, self._writers = threading.Lock(), threading.Lock(), 0
        there = self.place.exists() if isinstance(self.place, Qdrant) else (self.place / DATABASE).exists()
        self._store = self._open() if there else None

    def _open(self, facts: Mapping[str, str] | None = None) -> Store | QdrantStore:
        return QdrantStore(self.place, facts) if isinstance(self.place, Qdrant) else Store(self.place, facts)

    @property
    def folder(self) -> Path | None:
        """The folder of the index; None if it is not in a folder."""
        return None if isinstance(self.place, Qdrant) else self.place

    @property
    def store(self) -> Store | QdrantStore:
        """The store of the vectors.

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
            UserError: there is no such model, it has no aligner, or another model made the index.
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
        """Name of the model for a new index: its name, or the absolute path of its folder."""
        name = self._given.name if isinstance(self._given, Model) else self._name
        return os.path.abspath(name) if os.path.isdir(name) else name

    def _difference(self, made: str) -> str:
        """Return how the model differs from the one that made the index, and what to do."""
        if made == self._full_name:
            return f"{made} made it in another version, or with other --precision, --engine or --set; give those"
        return f"was made by another model (then named {made}) than {self._full_name}; give that one"

    def __len__(self) -> int:
        return 0 if self._store is None else len(self._store)

    def __repr__(self) -> str:
        return f"Index({str(self.place)!r}: {counted(len(self), 'image')})"

    # Writing

    @contextmanager
    def _writing(self, keep: bool = False) -> Iterator[None]:
        """Let other processes write again at the end, unless a thread still writes; with ``keep`` only after errors."""
        with self._counting:
            self._writers += 1
        kept = False
        try:
            yield
            kept = keep
        finally:
            with self._counting:
                self._writers = max(self._writers - (not kept), 0)
                if not self._writers and isinstance(self._store, Store):
                    self._store.release()

    def begin(
        self, paths: Sequence[str | Path] | Sequence[Source], *, components: int | None = None, repair: bool = False,
        every: float | None = None,
    ) -> Indexing:  # fmt: skip
        """Prepare a run that updates the index, whose images can be followed one by one; :meth:`add` does all of it.

        No other process can write from then on until :meth:`close`; after :meth:`add` others can at once.

        Args:
            paths: see :meth:`add`. With sources of :func:`saywhere.inference.find_images` the run removes nothing.
            components, every: see :meth:`add`.
            repair: first look for damaged vectors; the run embeds their images and videos again, also those that are
                not in ``paths``.
        """
        with self._writing(keep=True):
            return self._begin(paths, components, repair, every)

    def _begin(
        self, paths: Sequence[str | Path] | Sequence[Source], components: int | None, repair: bool, every: float | None
    ) -> Indexing:
        require_ints(0, components=components)
        if self.folder is None and (components or repair):
            raise UserError(f"codes and repair are for an index in a folder, not for {self.place}")
        model = self.model
        if self._store is None:
            own = [] if self.folder is None else [self.folder]
            given = [path for path in paths if not isinstance(path, Source)]
            name_images(given, own, INDEXED)  # raises before a folder is made
            facts = {
                "digest": index_digest(model),
                "model": path_to_text(self._full_name),
                "size": str(model.require("aligner", "search").config.embed_dim + 1),  # one for the hubness
            }
            self._store = self._open(facts)
        if isinstance(self._store, Store):
            self._store.claim()
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
        """Update the index: embed new and changed images and videos, and remove those that are gone.

        Args:
            paths: images, videos, folders (recursive), glob patterns, tar archives, or lists of paths (``@list.txt``).
                Images of these folders and archives that no longer exist are removed from the index.
            components: number of principal components of the codes, one byte each. In a large index a search selects
                candidates by codes, and compares only these by their full vectors. 0: no codes. Default: keep the codes
                that the index has up to date.
            batch: batch size; each batch is committed.
            repair: see :meth:`begin`.
            every: seconds between the sampled frames of a video. Default: as the index has the video, else 0.5.

        Raises:
            UserError: a path does not exist, or another run is writing to the index.
        """
        several = list_paths(paths=paths)
        with self._turn, self._writing():
            run = self._begin(several, components, repair, every)
            for _ in run.results(batch):
                pass
        return run.changes

    def remove(self, paths: str | Path | Iterable[str | Path]) -> int:
        """Remove images and videos from the index, not from disk; return how many were in the index."""
        several = [absolute(path) for path in list_paths(paths=paths)]
        with self._turn, self._writing():
            return self.store.remove(several)

    # Reading

    def search(
        self, query: str | Query | None = None, *, image: ImageLike | LoadedImage | None = None, top: int | None = TOP,
        exact: bool = False, without: str | Sequence[str] = (), after: str | date | None = None,
        before: str | date | None = None, under: str | Path | Sequence[str | Path] = (),
    ) -> list[Hit]:  # fmt: skip
        """Return the best images, for a text those first that most probably show all of it.

        Args:
            query: a sentence, or phrases separated by ``+`` and ``-``, see :meth:`saywhere.search.Query.parse`.
            image: image to compare with region by region, instead of a text.
            top: maximum number of hits; None: :data:`TOP`.
            exact: compare all images by their full vectors even if the index has codes, see :meth:`add`.
            without: phrases; images that probably show one of them are left out, as for a ``-`` in the query.
            after: first date on which an image may have been taken, such as ``2024-05-01``.
            before: first date that is too late.
            under: names or paths of folders, one of which an image must be in.

        Raises:
            UserError: both or neither of text and image are given, the text has no known word, the index is damaged or
                another model's, or a date is invalid.
            ImageError: the image cannot be read.
        """
        if (query is None) == (image is None):
            raise UserError("a search needs a text or an image, and not both")
        require_ints(1, top=top)
        top = TOP if top is None else top
        if query is not None and not isinstance(query, (str, Query)):
            raise UserError(f"query must be a string or a Query, not {type(query).__name__}")
        require_texts(without=without)
        threads = self._threads or available_threads()
        find = partial(self.store.nearest, exact=exact, threads=threads, only=Only.of(after, before, under))
        unwanted = (without,) if isinstance(without, str) else tuple(without)
        if query is not None:
            parsed = Query.parse(query) if isinstance(query, str) else query
            return self._by_words(parsed.less(*unwanted), top, find)
        if unwanted:
            raise UserError("without is for a search by words, and not for one by an image")
        return [_without_regions(one) for one in find(self._image_question(image), top)]

    def _by_words(self, query: Query, top: int, find: Callable[[Question, int], list[Found]]) -> list[Hit]:
        """Return the hits of a query, given the function that finds the images nearest to a question."""
        phrases = PhrasesInImages(self.model, replace(query, wanted=query.wanted or query.unwanted))
        if not phrases.known:
            raise UserError(knows_none(phrases.unknown))
        question = phrases.question() if query.wanted else phrases.question().opposite()
        kept, asked, count = _acceptable(find, question, max(top, TOP) + MORE, phrases)
        left_out = count if query.unwanted else None
        if not query.wanted:
            return [replace(_without_regions(one), unknown=phrases.unknown, left_out=left_out) for one in kept[:top]]
        leads = {each.entry: each.lead for each in kept}
        if (wider := phrases.kind_question()) is not None:  # no sparrow without a bird
            others = find(wider, asked)
            of_kind, least = {each.entry: each.lead for each in others}, min((each.lead for each in others), default=0)
            leads = {entry: min(lead, of_kind.get(entry, least)) for entry, lead in leads.items()}
        placed = [phrases.find(each.vectors, leads[each.entry], each.among) for each in kept]
        best = sorted(zip(kept, placed, strict=True), key=lambda one: -(one[1].probability or 0))[:top]
        return [
            Hit(each.vectors.image, each.similarity - phrases.hubness, there.regions, there.probability, each.time,
                each.entry, phrases.unknown, phrases.layout.without_noun, left_out)
            for each, there in best
        ]  # fmt: skip

    def _image_question(self, image: Any) -> Question:
        """Use the regions of an image as words, normalised so that strong ones do not outweigh the others."""
        vectors = self.model.embed(image).vectors
        words = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
        weights = np.full((len(vectors), 1), 1 / len(vectors), np.float32)
        score = self.model.require("aligner", "search").config.score
        return Question(np.pad(words, ((0, 0), (0, 1))), weights, score)

    def close(self) -> None:
        """Close the files."""
        if self._store is not None:
            self._store.close()
            self._store = None
        with self._counting:
            self._writers = 0

    def __enter__(self) -> Index:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _without_regions(found: Found) -> Hit:
    image = found.vectors
    nothing = Regions.empty(image.width, image.height, image.image)
    return Hit(image.image, found.similarity, nothing, time=found.time, entry=found.entry)


def _acceptable(
    find: Callable[[Question, int], list[Found]], question: Question, count: int, phrases: PhrasesInImages
) -> tuple[list[Found], int, int]:
    """Return the first ``count`` images without what is unwanted, how many were asked for, and how many left out."""
    asked = count
    while True:
        found = find(question, asked)
        rows = [i for i, each in enumerate(found) if not phrases.shows_unwanted(each.vectors, each.among)][:count]
        if len(rows) == count or len(found) < asked:
            break
        asked *= 4
    seen = rows[-1] + 1 if len(rows) == count else len(found)
    return [found[row] for row in rows], asked, seen - len(rows)

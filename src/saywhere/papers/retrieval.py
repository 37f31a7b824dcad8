"""Retrieval of images by phrases of their regions (DenseCap, section 4.2): queries, metric, report, and the run.

A query is four phrases of one image. In each image, each phrase is matched with the region that most likely has this
caption; images are ranked by the mean over the four phrases, and the image of the query should come first.

On disk are the regions of each image with their features, and for each image the best region of each phrase; a run that
was stopped goes on from there.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from saywhere.data import Sample
from saywhere.engines.engine import Decoder
from saywhere.errors import UserError
from saywhere.evaluation.grounding import pair_ious
from saywhere.evaluation.ranking import Recall
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.session import REGIONS, RegionStore, Session
from saywhere.files import write_text
from saywhere.models.model import Model
from saywhere.models.phrase_scores import encode_phrases, phrase_log_probs, unknown_words
from saywhere.text import Vocabulary, tokenize

Protocol = Literal["clean", "original"]
Box = tuple[float, float, float, float]

PHRASES = 4
"""Phrases in a query."""

IOUS = (0.1, 0.3, 0.5)


@dataclass(frozen=True)
class Query:
    """Phrases of one image, each with the true box that it describes, in pixels of the image."""

    image: str
    phrases: tuple[str, ...]
    boxes: tuple[Box, ...]


def sample_queries(
    samples: Sequence[Sample], names: Sequence[str], count: int, seed: int, phrases: int = PHRASES
) -> list[Query]:
    """Sample queries from images with enough phrases, each image once before any is used again.

    The phrases of a query differ in their words. Of a phrase with several boxes, one box is sampled.

    Args:
        samples: the images.
        names: the name of each image.
        count: number of queries.
        seed: the same seed samples the same queries.
        phrases: number of phrases in a query.

    Raises:
        UserError: no image has so many phrases.
    """
    by_words = [(name, _by_words(sample)) for name, sample in zip(names, samples, strict=True)]
    rich = [(name, found) for name, found in by_words if len(found) >= phrases]
    if not rich:
        raise UserError(f"no image has {phrases} different phrases, which a query needs")
    draw, queries, waiting = random.Random(seed), list[Query](), list[int]()
    while len(queries) < count:
        if not waiting:
            waiting = draw.sample(range(len(rich)), len(rich))
        name, found = rich[waiting.pop()]
        chosen = [draw.choice(found[words]) for words in draw.sample(list(found), phrases)]
        queries.append(Query(name, tuple(phrase for phrase, _ in chosen), tuple(box for _, box in chosen)))
    return queries


def _by_words(sample: Sample) -> dict[tuple[str, ...], list[tuple[str, Box]]]:
    """Return the phrases of an image and their boxes, by their words; phrases without a word are left out."""
    found: dict[tuple[str, ...], list[tuple[str, Box]]] = {}
    for (x1, y1, x2, y2), phrases in zip(sample.boxes.tolist(), sample.phrases, strict=True):
        for phrase in phrases:
            if words := tuple(tokenize(phrase)):
                found.setdefault(words, []).append((phrase, (x1, y1, x2, y2)))
    return found


@dataclass(frozen=True)
class RetrievalResult:
    """Figures of how well images and boxes are found.

    Attributes:
        protocol: how images are scored, see :func:`image_scores`.
        images, queries: number of images that were ranked, and of queries.
        r1, r5, r10: share of the queries whose image is among the first 1, 5, 10.
        median_rank: median rank of the queries' own images, from 1.
        iou_recall: share of the phrases whose region, in the query's own image, has an IoU with the true box of more
            than 0.1, 0.3 and 0.5.
        median_iou: median of these IoUs.
    """

    protocol: str
    images: int
    queries: int
    r1: float
    r5: float
    r10: float
    median_rank: float
    iou_recall: dict[str, float]
    median_iou: float

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: every attribute by its name."""
        return asdict(self)


def evaluate_retrieval(
    log_probs: ArrayLike, found: ArrayLike, sources: Sequence[int], truths: ArrayLike, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Return the result of Q queries of K phrases over N images.

    Args:
        log_probs: ``(Q, K, N)`` natural ``log P(phrase | region)`` of each image's best region; -inf if it has none.
        found: ``(Q, K, 4)`` the box of that region in the query's own image; a box without area if it has none.
        sources: for each query the index of its own image.
        truths: ``(Q, K, 4)`` the true boxes of the phrases.
        protocol: see :func:`image_scores`.
    """
    scores = image_scores(log_probs, protocol)
    recall = Recall.of(source_ranks(scores, sources))
    a, b = (np.asarray(boxes, np.float64).reshape(-1, 4) for boxes in (found, truths))
    overlaps = pair_ious(a, b)
    return RetrievalResult(
        protocol=protocol,
        images=scores.shape[1],
        queries=len(scores),
        r1=recall.r1,
        r5=recall.r5,
        r10=recall.r10,
        median_rank=recall.median_rank,
        iou_recall={str(t): float((overlaps > t).mean()) for t in IOUS},
        median_iou=float(np.quantile(overlaps, 0.5)),
    )


def image_scores(log_probs: ArrayLike, protocol: Protocol = "clean") -> np.ndarray:
    """Return scores ``(Q, N)`` of images from ``log_probs (Q, K, N)`` of the K phrases of each query.

    ``"original"`` is the mean of the probabilities, as in the paper; the shortest phrase nearly decides it alone.
    ``"clean"`` is the mean of their logarithms, so that each counts: images are ranked by the probability of all
    phrases together.
    """
    table = np.asarray(log_probs, np.float64)
    return np.exp(table).mean(axis=1) if protocol == "original" else table.mean(axis=1)


def source_ranks(scores: np.ndarray, sources: Sequence[int]) -> np.ndarray:
    """Return the rank ``(Q,)``, from 1, of each query's own image; images that score the same rank before it."""
    own = np.take_along_axis(scores, np.asarray(sources, np.int64)[:, None], axis=1)
    return (scores >= own).sum(axis=1)


# For each image the best region of each phrase, on disk: all that ranking the images needs

TOGETHER = 128
"""Regions of several images that are scored at once, at least."""


@dataclass(frozen=True)
class Asked:
    """Queries and the images they are put to.

    Attributes:
        queries: what is asked.
        names: the images, in order.
    """

    queries: tuple[Query, ...]
    names: tuple[str, ...]

    @property
    def phrases(self) -> tuple[str, ...]:
        """The different phrases of all queries, in their order."""
        return tuple(dict.fromkeys(phrase for query in self.queries for phrase in query.phrases))

    def digest(self) -> str:
        """Return a hash that tells whether scores on disk belong to these queries and images."""
        text = json.dumps([[asdict(query) for query in self.queries], self.names])
        return hashlib.blake2b(text.encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


class BestRegions:
    """File with the log-probability of the best region and its index, for each image and phrase.

    Rows of the file are images: P float32 log-probabilities, then P float32 indices; -inf and -1 for an image without
    regions. The scores of other queries are dropped.
    """

    def __init__(self, folder: Path, asked: Asked) -> None:
        self.asked, self._width = asked, len(asked.phrases)
        self._path = folder / "scores.bin"
        note, digest = folder / "scores.txt", asked.digest()
        if not (note.is_file() and self._path.is_file() and note.read_text() == digest):
            self._path.unlink(missing_ok=True)
            self._path.touch()
            write_text(note, digest)
        whole = self._path.stat().st_size // self._row * self._row
        with open(self._path, "ab") as file:
            file.truncate(whole)

    @property
    def _row(self) -> int:
        return 2 * 4 * self._width

    @property
    def done(self) -> int:
        """Number of images, from the first on, that are scored."""
        return self._path.stat().st_size // self._row

    def append(self, log_probs: Sequence[np.ndarray]) -> None:
        """Add the next images, of each the table ``(R, P)`` of its regions."""
        rows = [part for table in log_probs for part in _best_of_each(table)]
        with open(self._path, "ab") as file:
            file.write(np.stack(rows).astype("<f4").tobytes())

    def tables(self) -> tuple[np.ndarray, np.ndarray]:
        """Return log-probabilities ``(N, P)`` and indices ``(N, P)`` of the best regions of all images."""
        table = np.fromfile(self._path, dtype="<f4").reshape(-1, 2, self._width)
        return table[:, 0], table[:, 1].astype(np.int64)


def _best_of_each(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    if not len(table):
        return np.full(table.shape[1], -np.inf), np.full(table.shape[1], -1.0)
    return table.max(axis=0), table.argmax(axis=0)


def score_images(
    decoder: Decoder,
    vocabulary: Vocabulary,
    store: RegionStore,
    best: BestRegions,
    advance: Callable[[], None] = lambda: None,
) -> None:
    """Score each phrase against the regions of each image that is not yet in ``best``; ``advance`` after each.

    A few images' regions are scored together, by :func:`saywhere.models.phrase_scores.phrase_log_probs`.
    """
    token_ids = encode_phrases(vocabulary, best.asked.phrases)
    waiting: list[np.ndarray] = []
    names = best.asked.names[best.done :]
    for number, name in enumerate(names, 1):
        features = store.load(name).features
        assert features is not None
        waiting.append(features)
        counts = [len(features) for features in waiting]
        if sum(counts) >= TOGETHER or number == len(names):
            table = phrase_log_probs(decoder, np.concatenate(waiting), token_ids)
            best.append(np.split(table, np.cumsum(counts)[:-1]))
            waiting.clear()
            for _ in counts:
                advance()


def answers(
    asked: Asked, best: BestRegions, store: RegionStore
) -> tuple[np.ndarray, np.ndarray, list[int], np.ndarray]:
    """Return what :func:`evaluate_retrieval` takes."""
    log_probs, rows = best.tables()
    column = {phrase: number for number, phrase in enumerate(asked.phrases)}
    place = {name: number for number, name in enumerate(asked.names)}
    columns = np.array([[column[phrase] for phrase in query.phrases] for query in asked.queries])
    sources = [place[query.image] for query in asked.queries]
    found = np.stack(
        [_boxes(store, query.image, rows[s, c]) for query, s, c in zip(asked.queries, sources, columns, strict=True)]
    )
    truths = np.array([query.boxes for query in asked.queries], np.float32)
    return log_probs.T[columns], found, sources, truths


def _boxes(store: RegionStore, name: str, rows: np.ndarray) -> np.ndarray:
    """Return the boxes ``(K, 4)`` of regions ``rows (K,)`` of an image; those of no region have no area."""
    return np.concatenate((store.load(name).boxes, np.zeros((1, 4), np.float32)))[rows]


# The report: figures beside those of the paper, and a page of examples

PAPER = {
    "Full Image RNN": (0.10, 0.30, 0.43, 13, None, None, None, None),
    "EB + Full Image RNN": (0.11, 0.40, 0.55, 9, 0.348, 0.156, 0.053, 0.020),
    "Region RNN": (0.18, 0.43, 0.59, 7, 0.460, 0.273, 0.108, 0.077),
    "FCLN": (0.27, 0.53, 0.67, 5, 0.560, 0.345, 0.153, 0.137),
}
"""Table 2 of the paper: 100 queries, 1,000 images of Visual Genome, 100 regions each."""


def write_retrieval_report(folder: Path, result: RetrievalResult, known: Mapping[str, Any]) -> list[Path]:
    """Write ``report.json`` and ``report.md``, and return their paths.

    Args:
        folder: where to.
        result: the figures.
        known: how they came about, by name; has ``data``, ``split``, ``model``, ``seed``, ``skipped`` and ``command``.
    """
    scores = result.to_dict()
    row = {"task": "retrieval", "protocol": scores.pop("protocol"), "data": known["data"], "split": known["split"]}
    ours = (
        *(f"{value:.3f}" for value in (result.r1, result.r5, result.r10)),
        f"{result.median_rank:g}",
        *(f"{result.iou_recall[str(t)]:.3f}" for t in IOUS),
        f"{result.median_iou:.3f}",
    )
    head = ("", "R@1", "R@5", "R@10", "median rank", *(f"IoU > {t}" for t in IOUS), "median IoU")
    paper = [(f"paper: {name}", *values) for name, values in PAPER.items()]
    lines = [
        "# Retrieval of images by phrases of their regions",
        "",
        *table(head, [(f"**{known['model']}**", *ours), *paper]),
        "",
        "The paper's rows (Table 2) are for 100 queries to 1,000 images of Visual Genome, with 100 regions each: "
        "another data set, with longer phrases.",
        "",
        *facts(
            {
                "protocol": result.protocol,
                "data": f"{known['data']}, split {known['split']}",
                "images": result.images,
                "queries": result.queries,
                **{name: value for name, value in known.items() if name not in ("data", "split", "command", "skipped")},
                "seed": str(known["seed"]),
                "images skipped": known["skipped"],
                "command": f"`{known['command']}`",
            }
        ),
    ]
    return write_report(folder, row | scores | dict(known), lines)


# The run


def run(
    model: Model, session: Session, regions: int = 20, queries: int = 100, seed: int = 0, protocol: Protocol = "clean"
) -> RetrievalResult:
    """Find images by four phrases of their regions, and the regions in them (DenseCap, section 4.2).

    Args:
        model: with a dense captioner.
        session: the data and the results.
        regions: at most so many regions of an image, the best.
        queries: how many are drawn.
        seed: of the draw.
        protocol: the mean over phrases is of ``log P`` (``clean``) or of ``P`` (``original``).

    Raises:
        UserError: the model has no dense captioner, no image can be read, or none has four phrases.
    """
    detector = model.require("densecap", "score phrases of regions")
    samples = session.read()
    sources = session.sources(samples)
    settings = {"model": model.digest(), "data": samples.name, "split": samples.split, "regions": regions}
    session.resume(settings, REGIONS)
    store = RegionStore(session.out / REGIONS)
    seen = session.each(
        lambda images, _: model.describe(images, top=regions), sources, store, store.save, long_side=model.long_side
    )
    names = {source.path: source.name for source in seen}
    pairs = [(sample, names[sample.image]) for sample in samples if sample.image in names]
    drawn = sample_queries([sample for sample, _ in pairs], [name for _, name in pairs], queries, seed)
    asked = Asked(tuple(drawn), tuple(dict.fromkeys(name for _, name in pairs)))
    best = BestRegions(session.out, asked)
    with session.steps("scoring", len(asked.names), best.done) as advance:
        score_images(detector.decoder, detector.vocabulary, store, best, advance)
    about = {"regions": regions, "seed": seed, "phrases": len(asked.phrases)}
    about["phrases_with_unknown_words"] = sum(bool(unknown_words(detector.vocabulary, p)) for p in asked.phrases)
    return _report(session, samples.name, asked, best, store, protocol, about)


def _report(
    session: Session, data: str, asked: Asked, best: BestRegions, store: RegionStore, protocol: Protocol,
    about: dict[str, int],
) -> RetrievalResult:  # fmt: skip
    log_probs, found, sources, truths = answers(asked, best, store)
    result = evaluate_retrieval(log_probs, found, sources, truths, protocol)
    scores = image_scores(log_probs, protocol)
    ranks: list[int] = source_ranks(scores, sources).tolist()
    rows = [asdict(query) | {"rank": rank} for query, rank in zip(asked.queries, ranks, strict=True)]
    write_text(session.out / "queries.json", json.dumps(rows, indent=2) + "\n")
    write_retrieval_report(session.out, result, session.known(data, **about))
    return result

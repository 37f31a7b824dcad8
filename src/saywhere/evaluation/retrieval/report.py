"""The report of an evaluation of retrieval: figures beside those of the paper, and a page of examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from saywhere import boxes as geometry
from saywhere.evaluation.pages import Page, choose
from saywhere.evaluation.region_store import REGIONS, RegionStore
from saywhere.evaluation.report import facts, table, write_report
from saywhere.evaluation.retrieval.best_regions import Asked, BestRegions
from saywhere.evaluation.retrieval.metric import IOUS, Query, RetrievalResult
from saywhere.regions import Regions

PAPER = {
    "Full Image RNN": (0.10, 0.30, 0.43, 13, None, None, None, None),
    "EB + Full Image RNN": (0.11, 0.40, 0.55, 9, 0.348, 0.156, 0.053, 0.020),
    "Region RNN": (0.18, 0.43, 0.59, 7, 0.460, 0.273, 0.108, 0.077),
    "FCLN": (0.27, 0.53, 0.67, 5, 0.560, 0.345, 0.153, 0.137),
}
"""Table 2 of the paper: 100 queries, 1,000 images of Visual Genome, 100 regions each."""

SHOWN = 3
"""Images shown for a query, the best."""

PHRASES = 6
"""Single phrases that are shown."""


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


def write_retrieval_examples(
    folder: Path, asked: Asked, scores: np.ndarray, ranks: Sequence[int], best: BestRegions, images: Sequence[Path]
) -> Path:
    """Write ``examples.html``: the queries with the best, median and worst ranks, and single phrases in all images.

    Args:
        folder: of the evaluation, which has the regions of the images.
        asked: the queries and images.
        scores: ``(Q, N)`` of images.
        ranks: of the queries' own images, from 1.
        best: the best region of each phrase in each image.
        images: folders that the names of images are relative to.
    """
    log_probs, rows = best.tables()
    column = {phrase: number for number, phrase in enumerate(asked.phrases)}
    store = RegionStore(folder / REGIONS)
    about = (
        "Queries by the rank of their own image, which is drawn first with the true boxes; then the images that "
        "were found, with each phrase at its most likely region. Below, single phrases in all images."
    )
    page = Page(folder, "Images found by phrases of their regions", about, images, across=4)
    order = sorted(range(len(ranks)), key=lambda number: (ranks[number], number))
    for number, (kind, q) in enumerate(choose(order), 1):
        query, columns = asked.queries[q], [column[phrase] for phrase in asked.queries[q].phrases]
        page.heading(f"{kind}, rank {ranks[q]}: {'; '.join(query.phrases)}")
        page.figure(f"query-{number:02}-0.png", query.image, _true(query, store), "the query's image")
        for place, n in enumerate(_descending(scores[q])[:SHOWN], 1):
            shown = _best(store, asked.names[n], rows[n, columns], query.phrases)
            page.figure(f"query-{number:02}-{place}.png", asked.names[n], shown, f"{place}. {asked.names[n]}")
    for number, phrase in enumerate(_spread(asked.phrases, PHRASES), 1):
        page.heading(f"“{phrase}” in {len(asked.names):,} images")
        values = log_probs[:, column[phrase]]
        for place, n in enumerate(_descending(values)[: SHOWN + 1], 1):
            shown = _best(store, asked.names[n], rows[n, [column[phrase]]], [phrase])
            below = f"{asked.names[n]}, log P {float(values[n]):.2f}"
            page.figure(f"phrase-{number:02}-{place}.png", asked.names[n], shown, below)
    return page.write()


def _descending(scores: np.ndarray) -> list[int]:
    """Return the indices of ``scores (N,)``, best first; of equal ones in order."""
    return np.argsort(-scores, kind="stable").tolist()


def _spread(phrases: Sequence[str], count: int) -> Sequence[str]:
    """Return about ``count`` of the phrases with at least two words (of all if there are none), evenly spread."""
    several = [phrase for phrase in phrases if " " in phrase.strip()] or list(phrases)
    return several[:: max(1, len(several) // count)][:count]


def _true(query: Query, store: RegionStore) -> Regions:
    size = store.load(query.image)
    return _drawn(size, np.array(query.boxes, np.float32), query.phrases)


def _best(store: RegionStore, name: str, rows: np.ndarray, phrases: Sequence[str]) -> Regions:
    """Return the regions ``rows (K,)`` of an image with their K phrases; -1 stands for no region."""
    regions = store.load(name)
    there: list[int] = np.flatnonzero(rows >= 0).tolist()
    return _drawn(regions, regions.boxes[rows[there]], (phrases[i] for i in there))


def _drawn(image: Regions, boxes: np.ndarray, phrases: Iterable[str]) -> Regions:
    """Return boxes of an image with captions, the captions of equal boxes joined."""
    joined: dict[tuple[float, ...], list[str]] = {}
    for box, phrase in zip(boxes.tolist(), phrases, strict=True):
        joined.setdefault(tuple(box), []).append(phrase)
    corners = np.array(list(joined), np.float32).reshape(-1, 4)
    inside = geometry.clip(corners, image.width, image.height)  # the data may round the size of an image otherwise
    return Regions(image.width, image.height, inside, captions=tuple(" / ".join(p) for p in joined.values()))

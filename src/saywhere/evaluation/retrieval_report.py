"""What an evaluation of retrieval leaves behind: figures beside the paper's, and a page of examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from saywhere.evaluation.examples import choose
from saywhere.evaluation.pages import Page
from saywhere.evaluation.retrieval import IOUS, Query, RetrievalResult
from saywhere.evaluation.retrieval_run import Asked, BestRegions, RegionStore
from saywhere.evaluation.task_report import facts, table, write_report
from saywhere.regions import Regions

PAPER = {
    "Full Image RNN": (0.10, 0.30, 0.43, 13, None, None, None, None),
    "EB + Full Image RNN": (0.11, 0.40, 0.55, 9, 0.348, 0.156, 0.053, 0.020),
    "Region RNN": (0.18, 0.43, 0.59, 7, 0.460, 0.273, 0.108, 0.077),
    "FCLN": (0.27, 0.53, 0.67, 5, 0.560, 0.345, 0.153, 0.137),
}
"""Table 2 of the paper: 100 queries, 1,000 pictures of Visual Genome, 100 regions each."""

PICTURES = 3
"""Pictures shown for a query or a phrase, the best."""

PHRASES = 6
"""Single phrases shown."""


def write_retrieval_report(folder: Path, result: RetrievalResult, known: Mapping[str, Any]) -> None:
    """Write ``report.json`` and ``report.md``.

    Args:
        folder: where to.
        result: the figures.
        known: how they came about: ``data``, ``split``, ``model``, ``regions``, ``seed`` and whatever else is known.
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
        "# Retrieval of pictures by phrases of their regions",
        "",
        *table(head, [(f"**{known['model']}**", *ours), *paper]),
        "",
        "The paper's rows (Table 2) are for 100 queries to 1,000 pictures of Visual Genome, with 100 regions each: "
        "another data set, with longer phrases.",
        "",
        *facts(
            {
                "protocol": result.protocol,
                "data": f"{known['data']}, split {known['split']}",
                "pictures": result.images,
                "queries": result.queries,
                **{name: value for name, value in known.items() if name not in ("data", "split", "command", "skipped")},
                "seed": str(known["seed"]),
                "pictures skipped": len(known["skipped"]),
                "command": f"`{known['command']}`",
            }
        ),
    ]
    write_report(folder, row | scores | dict(known), lines)


def write_retrieval_examples(
    folder: Path, asked: Asked, scores: Tensor, ranks: Sequence[int], best: BestRegions, pictures: Sequence[Path]
) -> Path:
    """Write ``examples.html``: queries with the best, median and worst ranks, and phrases in all pictures.

    Args:
        folder: where to; it has the regions as well.
        asked: the queries and pictures.
        scores: ``(Q, N)`` of pictures.
        ranks: of the queries' own pictures.
        best: the best region of each phrase in each picture.
        pictures: folders that the names of the pictures may start from.
    """
    log_probs, rows = best.tables()
    column = {phrase: number for number, phrase in enumerate(asked.phrases)}
    store = RegionStore(folder / "regions")
    about = (
        "Queries by the rank of their own picture, which is drawn first with the true boxes; then the pictures that "
        "were found, each phrase at its most likely region. Below, single phrases in all pictures."
    )
    page = Page(folder, "Pictures found by phrases of their regions", about, pictures, across=4)
    order = sorted(range(len(ranks)), key=lambda number: (ranks[number], number))
    for number, (kind, q) in enumerate(choose(order), 1):
        query, columns = asked.queries[q], [column[phrase] for phrase in asked.queries[q].phrases]
        page.heading(f"{kind}, rank {ranks[q]}: {'; '.join(query.phrases)}")
        page.figure(f"query-{number:02}-0.png", query.picture, _true(query, store), "the query's picture")
        for place, n in enumerate(scores[q].argsort(descending=True, stable=True)[:PICTURES].tolist(), 1):
            shown = _best(store, asked.names[n], rows[n, columns], query.phrases)
            page.figure(f"query-{number:02}-{place}.png", asked.names[n], shown, f"{place}. {asked.names[n]}")
    for number, phrase in enumerate(_spread(asked.phrases, PHRASES), 1):
        page.heading(f"“{phrase}” in {len(asked.names):,} pictures")
        values = log_probs[:, column[phrase]]
        for place, n in enumerate(values.argsort(descending=True, stable=True)[: PICTURES + 1].tolist(), 1):
            shown = _best(store, asked.names[n], rows[n, [column[phrase]]], [phrase])
            below = f"{asked.names[n]}, log P {float(values[n]):.2f}"
            page.figure(f"phrase-{number:02}-{place}.png", asked.names[n], shown, below)
    return page.write()


def _spread(phrases: Sequence[str], count: int) -> Sequence[str]:
    """So many of the phrases with at least two words (of others if there are none), evenly spread."""
    several = [phrase for phrase in phrases if " " in phrase.strip()] or list(phrases)
    return several[:: max(1, len(several) // count)][:count]


def _true(query: Query, store: RegionStore) -> Regions:
    size = store.load(query.picture)
    return _drawn(size, torch.tensor(query.boxes), query.phrases)


def _best(store: RegionStore, name: str, rows: Tensor, phrases: Sequence[str]) -> Regions:
    """The chosen regions of a picture with the phrases; none for the number -1."""
    regions = store.load(name)
    there: list[int] = (rows >= 0).nonzero().flatten().tolist()
    return _drawn(regions, regions.boxes[rows[there]], (phrases[i] for i in there))


def _drawn(picture: Regions, boxes: Tensor, phrases: Iterable[str]) -> Regions:
    """Boxes with captions, those of the same box joined."""
    joined: dict[tuple[float, ...], list[str]] = {}
    for box, phrase in zip(boxes.tolist(), phrases, strict=True):
        joined.setdefault(tuple(box), []).append(phrase)
    corners = torch.tensor(list(joined)).reshape(-1, 4)
    limits = torch.tensor([picture.width, picture.height] * 2)
    inside = torch.minimum(corners.clamp(min=0), limits)  # the data's size of a picture may be rounded otherwise
    return Regions(picture.width, picture.height, inside, captions=tuple(" / ".join(p) for p in joined.values()))

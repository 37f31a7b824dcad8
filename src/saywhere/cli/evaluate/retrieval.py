"""``saywhere evaluate retrieval``: pictures found by phrases of their regions, and the phrases found in them."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import (
    Batch,
    DataFormat,
    Device,
    Limit,
    Out,
    Protocol,
    Split,
)
from saywhere.cli.evaluate.pictures import describe_each, first_reason, skip_notes
from saywhere.cli.evaluate.progress import progress

if TYPE_CHECKING:
    from saywhere.evaluation.retrieval import RetrievalResult
    from saywhere.evaluation.retrieval_run import Asked, RegionStore


def retrieval(
    model: str = typer.Option(..., metavar="NAME|DIR", help="A model's name or folder."),
    data: Path = typer.Option(..., metavar="ROOT", help="Folder of the data set, or a .jsonl file."),
    format: DataFormat = None,
    split: Split = None,
    regions: int = typer.Option(20, min=1, metavar="N", help="At most so many regions of a picture, the best."),
    queries: int = typer.Option(100, min=1, metavar="N", help="So many queries of four phrases of one picture."),
    seed: int = typer.Option(0, metavar="N", help="Of the queries that are drawn."),
    protocol: Protocol = typer.Option(Protocol.clean, help="Mean over phrases: of log P (clean), of P (original)."),
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
) -> None:
    """Retrieval of pictures by four phrases of their regions, and of the regions (DenseCap, section 4.2).

    Exit code 0 if all went well, 1 if pictures were skipped or the data set is not whole, 2 if the command is wrong.
    """
    import saywhere
    from saywhere import data as datasets
    from saywhere.cli.describe import best_device
    from saywhere.errors import UserError
    from saywhere.evaluation import dense_run, resuming, retrieval_run

    started = time.monotonic()
    samples = datasets.read(data, format, split or "dev")
    report, samples = samples.report, samples[:limit]
    sources = dense_run.picture_sources(samples, data)
    if not sources:
        raise UserError(f"{data}: the split {samples.split} has no picture that can be read")
    loaded = saywhere.load(model, device=device or best_device())
    if not hasattr(loaded, "score"):
        raise UserError(f"--model {model}: does not score phrases of regions; a densecap model is needed")
    wanted = {"model": resuming.model_digest(loaded), "data": samples.name, "split": samples.split, "regions": regions}
    resuming.take_up(out, wanted, retrieval_run.REGIONS)
    store = retrieval_run.RegionStore(out / retrieval_run.REGIONS)
    done = {source.name for source in sources if source.name in store}
    skipped = describe_each(loaded, sources, done, store.save, batch, top=regions)
    names = {source.path: source.name for source in sources}
    seen = [(sample, names[sample.image]) for sample in samples if names[sample.image] not in skipped]
    if not seen:
        raise UserError(f"none of the {len(sources)} pictures could be described; {first_reason(skipped)}")
    asked, unknown = _ask([s for s, _ in seen], [name for _, name in seen], queries, seed, loaded.vocabulary)
    known = {"data": samples.name, "split": samples.split, "model": model, "regions": regions, "seed": seed}
    known |= {"phrases": len(asked.phrases), "phrases_with_unknown_words": unknown, "skipped": skipped}
    known |= {"data_problems": {kind: len(found) for kind, found in report.problems.items()}}
    known |= {"command": shlex.join(["saywhere", *sys.argv[1:]])}
    result = _score(loaded, asked, store, protocol, out, known, [data if data.is_dir() else data.parent], started)
    for note in skip_notes(skipped) + ([] if report.ok else [f"{data}: {line}" for line in report.lines()]):
        typer.echo(note, err=True)
    _print(result, out)
    if skipped or not report.ok:
        raise typer.Exit(1)


def _ask(samples: Sequence[Any], names: list[str], count: int, seed: int, vocabulary: Any) -> tuple[Asked, int]:
    """The queries, and how many of their phrases have words that the model does not know."""
    from saywhere.evaluation.retrieval import sample_queries
    from saywhere.evaluation.retrieval_run import Asked
    from saywhere.text import tokenize

    asked = Asked(tuple(sample_queries(samples, names, count, seed)), tuple(dict.fromkeys(names)))
    return asked, sum(any(word not in vocabulary for word in tokenize(phrase)) for phrase in asked.phrases)


def _score(
    model: Any,
    asked: Asked,
    store: RegionStore,
    protocol: Protocol,
    out: Path,
    known: dict[str, Any],
    folders: list[Path],
    started: float,
) -> RetrievalResult:
    """Score what is not yet scored, and write everything."""
    import json

    import torch

    from saywhere.evaluation import retrieval, retrieval_report, retrieval_run
    from saywhere.files import write_text

    best = retrieval_run.BestRegions(out, asked)
    with progress("scoring", len(asked.names), best.done) as advance:
        try:
            retrieval_run.score_pictures(model.speaker, model.vocabulary, store, best, model.device, advance)
        except KeyboardInterrupt:
            typer.echo(
                f"interrupted after scoring {best.done} of {len(asked.names)} pictures; the same command goes on",
                err=True,
            )
            raise typer.Exit(130) from None
    log_probs, found, sources, truths = retrieval_run.answers(asked, best, store)
    result = retrieval.evaluate_retrieval(log_probs, found, sources, truths, protocol.value)
    scores = retrieval.picture_scores(log_probs, protocol.value)
    ranks: list[int] = retrieval.source_ranks(scores, torch.tensor(sources)).tolist()
    rows = retrieval_run.query_rows(asked.queries, ranks)
    write_text(out / "queries.json", json.dumps(rows, indent=2) + "\n")
    retrieval_report.write_retrieval_examples(out, asked, scores, ranks, best, folders)
    known["seconds"] = round(time.monotonic() - started, 3)
    retrieval_report.write_retrieval_report(out, result, known)
    return result


def _print(result: RetrievalResult, out: Path) -> None:
    typer.echo(
        f"{result.queries} queries to {result.images} pictures, protocol {result.protocol}: "
        f"R@1 {result.r1:.3f}, R@5 {result.r5:.3f}, R@10 {result.r10:.3f}, median rank {result.median_rank:g}; "
        f"IoU > 0.5 {result.iou_recall['0.5']:.3f}, median IoU {result.median_iou:.3f}"
    )
    typer.echo(f"written: {out / 'report.md'}, report.json, queries.json, examples.html")

"""``saywhere evaluate rank``: sentences found for pictures, and pictures for sentences."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from saywhere.cli.evaluate.options import Areas, Batch, DataFormat, Device, Limit, Out, Split
from saywhere.cli.evaluate.pictures import first_reason, skip_notes
from saywhere.cli.evaluate.progress import progress

if TYPE_CHECKING:
    from saywhere.describing import Source
    from saywhere.evaluation.ranking import RankingResult
    from saywhere.evaluation.retrieval_run import RegionStore
    from saywhere.models.aligner import Aligner


def rank(
    model: str = typer.Option(..., metavar="NAME|DIR", help="An aligner's name or folder."),
    data: Path = typer.Option(..., metavar="ROOT", help="Folder of the data set, or a .jsonl file."),
    format: DataFormat = None,
    split: Split = None,
    areas: Areas = None,
    limit: Limit = None,
    out: Out = Path("evaluation"),
    batch: Batch = 8,
    device: Device = None,
) -> None:
    """Ranking of sentences for each picture and of pictures for each sentence (Alignments, section 4.1).

    Exit code 0 if all went well, 1 if pictures were skipped or the data set is not whole, 2 if the command is wrong.
    """
    from saywhere import data as datasets
    from saywhere.errors import UserError
    from saywhere.evaluation import dense_run
    from saywhere.evaluation.ranking_report import write_ranking_report

    started = time.monotonic()
    samples = datasets.read(data, format, split or "dev")
    report, samples = samples.report, samples[:limit]
    sources = dense_run.picture_sources(samples, data)
    sentences = {source.path: sample.sentences for source, sample in zip(sources, samples, strict=True)}
    if not any(sentences.values()):
        raise UserError(f"{data}: the split {samples.split} has no picture with a sentence")
    loaded = load_aligner(model, device)
    store, skipped = embed(loaded, sources, out, batch, areas, {"data": samples.name, "split": samples.split})
    seen = [source for source in sources if source.name not in skipped]
    if not seen:
        raise UserError(f"none of the {len(sources)} pictures could be read; {first_reason(skipped)}")
    result = _rank(loaded, store, [s.name for s in seen], [sentences[s.path] for s in seen])
    known: dict[str, Any] = {"data": samples.name, "split": samples.split, "model": model, "images": len(seen)}
    known |= {"sentences": result.text_to_image.queries, "areas": areas, "skipped": skipped}
    known |= {"data_problems": {kind: len(found) for kind, found in report.problems.items()}}
    known |= {"seconds": round(time.monotonic() - started, 3), "command": shlex.join(["saywhere", *sys.argv[1:]])}
    write_ranking_report(out, result, known)
    for note in skip_notes(skipped) + ([] if report.ok else [f"{data}: {line}" for line in report.lines()]):
        typer.echo(note, err=True)
    _print(result, out)
    if skipped or not report.ok:
        raise typer.Exit(1)


def load_aligner(name: str, device: str | None) -> Aligner:
    """The model; ``UserError`` if it is none that aligns."""
    from saywhere.cli.describe import load_model
    from saywhere.errors import UserError
    from saywhere.models.aligner import Aligner

    loaded = load_model(name, device, [])
    if not isinstance(loaded, Aligner):
        raise UserError(f"--model {name}: does not align sentences with pictures; an aligner is needed")
    return loaded


def embed(
    model: Aligner, sources: Sequence[Source], out: Path, batch: int, areas: int | None, facts: dict[str, object]
) -> tuple[RegionStore, dict[str, str]]:
    """The vectors of all pictures below ``out``, those of an earlier run with the same settings taken over."""
    from saywhere.cli.describe import little_memory
    from saywhere.evaluation import resuming, retrieval_run
    from saywhere.evaluation.embedding_run import embed_missing

    wanted = {"model": resuming.model_digest(model), **facts, "areas": areas}
    resuming.take_up(out, wanted, retrieval_run.REGIONS)
    store = retrieval_run.RegionStore(out / retrieval_run.REGIONS)
    count = sum(source.name in store for source in sources)
    with little_memory(batch), progress("looking", len(sources), count) as advance:
        try:
            return store, embed_missing(model, sources, store, batch, areas, advance)
        except KeyboardInterrupt:
            count = sum(source.name in store for source in sources)
            typer.echo(f"interrupted after {count} of {len(sources)} pictures; the same command goes on", err=True)
            raise typer.Exit(130) from None


def _rank(model: Aligner, store: RegionStore, names: list[str], sentences: list[tuple[str, ...]]) -> RankingResult:
    """Embed the sentences and rank, in blocks."""
    from saywhere.evaluation.embedding_run import load_vectors
    from saywhere.evaluation.ranking_run import rank_embedded

    pictures = [load_vectors(store, name) for name in names]
    spoken = [(row, text) for row, texts in enumerate(sentences) for text in texts]
    found = model.embed_sentences([text for _, text in spoken])
    return rank_embedded(pictures, found, [row for row, _ in spoken], model.config.score)


def _print(result: RankingResult, out: Path) -> None:
    for title, recall in (("annotation", result.image_to_text), ("search", result.text_to_image)):
        typer.echo(
            f"{title}: R@1 {recall.r1:.3f}, R@5 {recall.r5:.3f}, R@10 {recall.r10:.3f}, "
            f"median rank {recall.median_rank:g} ({recall.queries} queries)"
        )
    typer.echo(f"written: {out / 'report.md'}, report.json")

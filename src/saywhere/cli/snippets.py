"""``saywhere snippets``: a data set of regions from one that has only sentences, made by an aligner."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from saywhere.regions import Regions


def snippets(
    data: Path = typer.Argument(..., metavar="DATA", help="Folder of the data set, or a .jsonl file."),
    out: Path = typer.Option(Path("snippets"), metavar="DIR", help="Folder of the new data set, snippets.jsonl in it."),
    split: list[str] = typer.Option([], help="Split to read; may be given several times. All of them if not given."),
    format: str | None = typer.Option(None, help="Of the data set; guessed from the files if not given."),
    beta: float | None = typer.Option(
        None, min=0, metavar="B", help="How much neighbouring words want the same box (0: word by word)."
    ),
    limit: int | None = typer.Option(None, min=1, metavar="N", help="Only the first N pictures of each split."),
    model: str = typer.Option("aligner-flickr8k", metavar="NAME|DIR", help="An aligner's name or folder."),
    device: str | None = typer.Option(None, metavar="D", help="cpu, cuda, mps, ...; a GPU if there is one."),
    batch: int = typer.Option(8, min=1, metavar="N", help="Pictures at a time."),
) -> None:
    """Cut the sentences of a data set into snippets, and put each on the box that it is about.

    The same command goes on after a stop. Exit code 0 if all went well, 1 if pictures are broken, 2 if it is wrong.
    """
    from saywhere import data as data_sets
    from saywhere.cli.evaluate.pictures import describe_each, skip_notes
    from saywhere.cli.evaluate.rank import load_aligner
    from saywhere.describing import ResultsFile, Source
    from saywhere.evaluation import resuming
    from saywhere.training.snippets import Snippets, write_snippets

    names = split or data_sets.splits(data, format) or ["train"]
    read = {name: data_sets.read(data, format, name) for name in names}
    found = {name: [sample for sample in samples[:limit] if sample.sentences] for name, samples in read.items()}
    sentences = {str(sample.image): sample.sentences for samples in found.values() for sample in samples}
    aligner = load_aligner(model, device)
    wanted: dict[str, Any] = {"model": resuming.model_digest(aligner), "data": str(data), "beta": beta}
    resuming.take_up(out, wanted, "aligned")
    with contextlib.closing(ResultsFile(out / "aligned" / "regions.json-lines")) as lines:
        sources = [Source(Path(name), name, Path(name)) for name in sentences]

        def keep(name: str, regions: Regions) -> None:
            lines.append(regions, name)

        skipped = describe_each(Snippets(aligner, sentences, beta), sources, lines.done, keep, batch)
        rows = [
            (sample.image, name, lines[str(sample.image)])
            for name, samples in found.items()
            for sample in samples
            if str(sample.image) in lines.done
        ]
        count = write_snippets(rows, out / "snippets.jsonl")
    typer.echo(f"written: {out / 'snippets.jsonl'}, {count} snippets of {len(rows)} pictures")
    problems = [f"{name}: {line}" for name, samples in read.items() if samples.report.problems
                for line in samples.report.lines()]  # fmt: skip
    for note in [*skip_notes(skipped), *problems]:
        typer.echo(note, err=True)
    if skipped or problems:
        raise typer.Exit(1)

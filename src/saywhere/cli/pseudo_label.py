"""``saywhere pseudo-label``: a data set of regions with phrases from one that has only sentences, or only classes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import Batch, Beta, Chosen, DataFormat, Limit, Splits
from saywhere.cli.printing import skip_notes
from saywhere.loading import DeferredModel

if TYPE_CHECKING:
    from saywhere.data import Sample
    from saywhere.images import LoadedImage
    from saywhere.inference import ResultsFile
    from saywhere.regions import Regions


def pseudo_label(
    data: Path = typer.Argument(metavar="DATA", help="Folder of the data set, or a .jsonl file."),
    out: Path = typer.Option(Path("snippets"), metavar="DIR", help="Folder of the new data set, snippets.jsonl in it."),
    split: Splits = None,
    format: DataFormat = None,
    beta: Beta = None,
    boxes: bool = typer.Option(
        False, "--boxes", help="Keep the data set's boxes and nouns; the dense captioner adds what else it sees."
    ),
    limit: Limit = None,
    batch: Batch = 8,
    chosen: Chosen = Chosen(),
) -> None:
    """Cut the sentences of a data set into snippets, and put each on the box that it is about.

    With --boxes, give boxes that have only the names of classes fuller phrases: "a wooden chair" for "a chair".

    An interrupted run is resumed by the same command. Exit code 0 if all went well, 1 if images are broken, 2 if the
    command is wrong.
    """
    from saywhere import data as data_sets
    from saywhere.evaluation.session import ensure_same_run
    from saywhere.inference import ResultsFile
    from saywhere.inference.snippets import write_snippets

    names = split or data_sets.splits(data, format) or ["train"]
    read = {name: data_sets.read(data, format, name) for name in names}
    found = {
        name: [sample for sample in samples[:limit] if (len(sample.boxes) if boxes else sample.sentences)]
        for name, samples in read.items()
    }
    samples = [sample for samples in found.values() for sample in samples]
    part, use = ("densecap", "describe boxes") if boxes else ("aligner", "align words with regions")
    deferred = chosen.deferred(part)
    deferred().require(part, use)
    done = {"model": deferred().digest(), "data": str(data), "beta": beta, "boxes": boxes}
    ensure_same_run(out, done, "aligned")
    with ResultsFile(out / "aligned" / "regions.json-lines") as lines:
        skipped = _label(deferred, samples, boxes, beta, batch, lines)
        rows = [
            (sample.image, name, lines.regions(str(sample.image)))
            for name, samples in found.items()
            for sample in samples
            if str(sample.image) in lines.done
        ]
        count = write_snippets(rows, out / "snippets.jsonl")
    typer.echo(f"written: {out / 'snippets.jsonl'}, {count} snippets of {len(rows)} images")
    problems = [f"{name}: {line}" for name, samples in read.items() if samples.report.problems
                for line in samples.report.lines()]  # fmt: skip
    for note in [*skip_notes(skipped), *problems]:
        typer.echo(note, err=True)
    if skipped or problems:
        raise typer.Exit(1)


def _label(
    model: DeferredModel, samples: list[Sample], boxes: bool, beta: float | None, batch: int, lines: ResultsFile
) -> dict[str, str]:
    """Add the regions of the images that are not in the file; the images that were skipped, with the reasons."""
    from saywhere.inference import Outputs, Source
    from saywhere.inference.run import Run
    from saywhere.inference.snippets import find_phrases, find_snippets

    named = {str(sample.image): sample for sample in samples}

    def label(images: list[LoadedImage], _: object) -> list[Regions]:
        asked = {image.name: named[image.name] for image in images}
        if not boxes:
            return find_snippets(model(), images, {name: one.sentences for name, one in asked.items()}, beta)
        labelled = {name: (one.boxes, [phrases[0] for phrases in one.phrases]) for name, one in asked.items()}
        return find_phrases(model(), images, labelled)

    run = Run(label, model, Outputs(lines), batch=batch, verbs=("labelling", "labelled"))
    return run([Source(one.image, name, one.image) for name, one in named.items()]).skipped

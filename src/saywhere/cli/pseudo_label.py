"""``saywhere pseudo-label``: a data set of regions with phrases from one that has only sentences, or only classes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.loading import Runtime, explain_oom, load_model
from saywhere.cli.options import (
    Batch,
    Beta,
    DataFormat,
    Device,
    Engine,
    Limit,
    Model,
    Precision,
    Set,
    Splits,
    Threads,
)
from saywhere.cli.progress import keep_each, skip_notes

if TYPE_CHECKING:
    import saywhere
    from saywhere.data import Sample
    from saywhere.images import LoadedImage
    from saywhere.inference import ImageResult, ResultsFile
    from saywhere.regions import Regions

    Label = Callable[[list[LoadedImage]], list[Regions]]


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
    model: Model = None,
    device: Device = None,
    engine: Engine = None,
    threads: Threads = None,
    precision: Precision = None,
    batch: Batch = 8,
    change: Set = None,
) -> None:
    """Cut the sentences of a data set into snippets, and put each on the box that it is about.

    With --boxes, give boxes that have only the names of classes fuller phrases: "a wooden chair" for "a chair".

    An interrupted run is resumed by the same command. Exit code 0 if all went well, 1 if images are broken, 2 if the
    command is wrong.
    """
    from saywhere import data as data_sets
    from saywhere.evaluation.resume import ensure_same_run
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
    loaded = load_model(model, Runtime(device, engine, threads, precision), change, part)
    loaded.require(part, use)
    done = {"model": loaded.digest(), "data": str(data), "beta": beta, "boxes": boxes}
    ensure_same_run(out, done, "aligned")
    with ResultsFile(out / "aligned" / "regions.json-lines") as lines:
        label = _from_boxes(loaded, samples) if boxes else _from_sentences(loaded, samples, beta)
        skipped = _label(label, [str(one.image) for one in samples], loaded.long_side, batch, lines)
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


def _from_sentences(model: saywhere.Model, samples: list[Sample], beta: float | None) -> Label:
    from saywhere.inference.snippets import find_snippets

    return partial(find_snippets, model, sentences={str(one.image): one.sentences for one in samples}, beta=beta)


def _from_boxes(model: saywhere.Model, samples: list[Sample]) -> Label:
    from saywhere.inference.snippets import find_phrases

    labelled = {str(one.image): (one.boxes, [references[0] for references in one.phrases]) for one in samples}
    return partial(find_phrases, model, regions=labelled)


def _label(
    label: Label,
    names: list[str],
    long_side: int,
    batch: int,
    lines: ResultsFile,
) -> dict[str, str]:
    """Add the regions of the images that are not in the file; the images that were skipped, with the reasons."""
    from saywhere.inference import Source, run_images

    def keep(one: ImageResult[Regions]) -> None:
        if one.result is not None:
            lines.append(one.result.to_dict(), one.source.name)

    todo = [Source(Path(name), name, Path(name)) for name in names if name not in lines.done]
    with explain_oom(batch):
        results = run_images(lambda images, _: label(images), todo, batch=batch, long_side=long_side)
        return keep_each(results, keep, len(names), len(names) - len(todo), "labelling")

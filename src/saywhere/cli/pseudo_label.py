"""``saywhere pseudo-label``: make a data set of regions with phrases from one that has only sentences."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import Batch, Beta, Chosen, DataFormat, Splits, check_folder
from saywhere.cli.printing import skip_notes
from saywhere.errors import UserError
from saywhere.report import counted

if TYPE_CHECKING:
    from saywhere.images import LoadedImage
    from saywhere.models.model import Model
    from saywhere.regions import Regions


def pseudo_label(
    data: Path = typer.Argument(metavar="DATA", help="Folder of the data set, or a .jsonl file."),
    out: Path = typer.Option(
        Path("snippets"), metavar="DIR", callback=check_folder, help="Folder for the new data set, snippets.jsonl."
    ),
    split: Splits = None,
    format: DataFormat = None,
    beta: Beta = None,
    limit: int | None = typer.Option(
        None, min=1, metavar="N", help="Only the first N images of each split.", show_default="all"
    ),
    batch: Batch = 8,
    chosen: Chosen = Chosen(),
) -> None:
    """Split the sentences of a data set into snippets, and assign each to the box that it is about.

    The same command resumes an interrupted run.

    Exit code: 0 success; 1 images are broken; 2 error.
    """
    from saywhere import data as data_sets
    from saywhere.data.sample import digest_of
    from saywhere.evaluation.session import ensure_same_run
    from saywhere.inference import Outputs, ResultsFile, Source
    from saywhere.inference.run import Run

    names = split or data_sets.splits(data, format) or ["train"]
    read = {name: data_sets.read(data, format, name) for name in names}
    found = {name: [sample for sample in samples[:limit] if sample.sentences] for name, samples in read.items()}
    sentences = {str(sample.image): sample.sentences for samples in found.values() for sample in samples}
    problems = [f"{name}: {line}" for name, samples in read.items() if samples.report.problems
                for line in samples.report.lines()]  # fmt: skip
    if not sentences:
        for note in problems:
            typer.echo(note, err=True)
        raise UserError(f"{data}: no image of split {', '.join(names)} has a sentence to cut into snippets")
    deferred = chosen.deferred("aligner")
    deferred().require("aligner", "align words with regions")
    digests = [digest_of(samples) for samples in read.values()]
    ensure_same_run(out, {"model": deferred().digest(), "data": digests, "beta": beta}, "aligned")

    def label(images: list[LoadedImage], _: object) -> list[Regions]:
        return find_snippets(deferred(), images, sentences, beta)

    with ResultsFile(out / "aligned" / "regions.json-lines") as lines:
        run = Run(label, deferred, Outputs(lines), batch=batch, verbs=("labelling", "labelled"))
        skipped = run([Source(Path(name), name, Path(name)) for name in sentences]).skipped
        rows = [
            (sample.image, name, lines.regions(str(sample.image)))
            for name, samples in found.items()
            for sample in samples
            if str(sample.image) in lines.done
        ]
        count = write_snippets(rows, out / "snippets.jsonl")
    typer.echo(f"written: {out / 'snippets.jsonl'}, {counted(count, 'snippet')} of {counted(len(rows), 'image')}")
    for note in [*skip_notes(skipped), *problems]:
        typer.echo(note, err=True)
    if skipped or problems:
        raise typer.Exit(1)


def find_snippets(
    model: Model, images: Sequence[LoadedImage], sentences: Mapping[str, Sequence[str]], beta: float | None = None
) -> list[Regions]:
    """Return each image's sentence snippets with the regions that they are about (Alignments, 3.1.4 and 3.2).

    Args:
        model: a model with an aligner.
        sentences: the sentences of each image, by image name.
        beta: smoothness weight β of Eq. 12, which favours the same region for neighbouring words. None: the model's.
    """
    import numpy as np

    from saywhere.models.aligner import align
    from saywhere.regions import Regions

    aligner = model.require("aligner", "align words with regions")
    found: list[Regions] = []
    for image, embedded in zip(images, model.embed(list(images)), strict=True):
        aligned = [align(aligner, embedded, sentence, beta) for sentence in sentences[image.name]]
        pairs = [pair for alignment in aligned for pair in alignment.snippets()]
        boxes = np.array([box for box, _ in pairs], np.float32).reshape(-1, 4)
        captions = tuple(text for _, text in pairs)
        found.append(Regions(image.width, image.height, boxes, captions=captions, image=image.name))
    return found


def write_snippets(rows: Iterable[tuple[Path, str, Regions]], file: Path) -> int:
    """Write a data set as JSON lines (docs/data.md), for :func:`saywhere.data.read`.

    Args:
        rows: file, split and snippets of each image.
        file: path with the ending ``.jsonl``; image paths are written relative to its folder.

    Returns:
        the number of snippets written.
    """
    from saywhere.files import write_text

    lines, count = [], 0
    for image, split, regions in rows:
        pairs = zip(regions.boxes.tolist(), regions.captions or (), strict=True)
        snippets = [{"box": box, "phrase": words} for box, words in pairs]
        name = Path(os.path.relpath(image.resolve(), file.resolve().parent)).as_posix()
        size = {"width": regions.width, "height": regions.height}
        lines.append(json.dumps({"image": name, "split": split, **size, "regions": snippets}, ensure_ascii=False))
        count += len(snippets)
    write_text(file, "".join(line + "\n" for line in lines))
    return count

"""``saywhere convert-results``: results in the formats of other programs, and back."""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from saywhere.cli.options import STDOUT, ClassMap, ClassNames, CopyImages, Embed, ResultFormat, require_folder
from saywhere.cli.printing import report_skipped
from saywhere.errors import UserError
from saywhere.report import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from saywhere.regions import Regions


NAMES = ", ".join(ResultFormat)


def convert_results(
    path: Path = typer.Argument(
        metavar="IN",
        help="File written by --json of describe, ground, search or caption, or a file or folder of another program; "
        "- reads standard input.",
    ),
    to: ResultFormat = typer.Option(ResultFormat.coco, "--to", metavar="F", help=f"Format to write: {NAMES}."),
    out: Path | None = typer.Option(
        None,
        metavar="PATH",
        help="New file, - to print it, or new folder for yolo and voc; optional for xmp, which is then written beside "
        "the images.",
    ),
    source: ResultFormat = typer.Option(
        ResultFormat.saywhere,
        "--from",
        metavar="F",
        help="Format of IN: as --to, except coco-results and fiftyone.",
    ),
    images: Path | None = typer.Option(
        None, metavar="DIR", help="Folder of the images: for --from yolo, and for --from xmp if they are elsewhere."
    ),
    embed: Embed = False,
    threshold: float | None = typer.Option(
        None,
        min=0,
        max=1,
        metavar="P",
        help="Minimum probability that a region's box and words are both right.",
        show_default="all regions",
    ),
    names: ClassNames = None,
    named: ClassMap = None,
    copy_images: CopyImages = False,
) -> None:
    """Convert results to or from COCO, Label Studio, CVAT, FiftyOne, YOLO, Pascal VOC, CSV and XMP.

    In formats with classes, the classes are the nouns of the phrases, or those of --classes or --map.

    Exit code: 0 success; 1 something was left out (broken, not an upright box, or with too long a name); 2 error.
    """
    from saywhere.formats import xmp
    from saywhere.formats.classes import NOUNS, Classes
    from saywhere.formats.registry import FORMATS
    from saywhere.report import Report

    classes = Classes.parse(names, named) or NOUNS
    old, new = FORMATS[source.value], FORMATS[to.value]
    if embed:
        xmp.check_embed(to.value, out)
    if old.read is None:
        raise UserError(f"--from {source.value}: this format can only be written")
    path = Path("/dev/stdin") if path == STDOUT else path
    printed = out == STDOUT
    _check_input(path, source)
    _check_places(source, to, out, images, copy_images)
    count, report = 0, Report()

    def kept() -> Iterator[Regions]:
        nonlocal count
        for regions in old.read(path, images, report) if old.read is not None else ():
            if threshold is not None:
                regions = regions.at_least(threshold)
            count += 1
            yield regions if regions.image is not None else replace(regions, image=f"image{count}")

    results = kept()
    results = itertools.chain([*itertools.islice(results, 1)], results)
    if not classes.names:  # those of the file are known once its first image is read
        alike = source == to or (source, to) == (ResultFormat.coco, ResultFormat.coco_results)
        classes = Classes.carried(report.classes, alike)
    if out is None:
        left_out = new.write_beside(results, report, embed, classes)
    elif printed:
        with tempfile.TemporaryDirectory() as folder:
            left_out = new.write_whole(Path(folder, new.name), results, report, classes=classes)
            typer.echo(Path(folder, new.name).read_bytes(), nl=False)
    else:
        left_out = new.write_whole(out, results, report, copy_images, classes)
    beside = "in the images or beside them" if embed else "beside the images"
    places = ", ".join(map(str, new.files(out))) if out else beside
    done = "printed" if printed else f"written: {places}"
    typer.echo(f"{done}, {counted(count - len(left_out), 'image')}", err=printed)
    if new.lacks is not None:
        typer.echo(f"not written: {new.lacks}, for which the format {to.value} has no place", err=True)
    for line in (*classes.notes(), *report.lines()):
        typer.echo(line, err=True)
    report_skipped(left_out)
    if not report.ok:
        raise typer.Exit(1)


def _check_input(path: Path, source: ResultFormat) -> None:
    """Check that there is a file or folder, as the format needs it; raise :class:`UserError` otherwise."""
    from saywhere.formats.registry import FORMATS

    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_dir() != FORMATS[source.value].folder:
        is_a, needs = ("folder", "file") if path.is_dir() else ("file", "folder")
        raise UserError(f"{path}: is a {is_a}, but the format {source.value} is a {needs}; name its format with --from")


def _check_places(
    source: ResultFormat, to: ResultFormat, out: Path | None, images: Path | None, copy_images: bool
) -> None:
    """Check that the formats fit the places; raise :class:`UserError` otherwise."""
    from saywhere.formats.registry import FORMATS

    new = FORMATS[to.value]
    if out == STDOUT and (new.folder or new.beside_suffix is not None):
        raise UserError(f"--out -: the format {to.value} is several files, which cannot be printed; give a name")
    if out is not None:
        if new.folder:
            require_folder("--out", out)
        new.require_new(out)
    elif new.beside is None:
        raise UserError(f"--to {to.value} needs --out PATH, the new {'folder' if new.folder else 'file'}")
    if images is not None and source not in (ResultFormat.yolo, ResultFormat.xmp, ResultFormat.xmp_names):
        raise UserError(f"--images is for --from yolo and xmp; {source.value} contains the sizes of the images")
    if images is not None and not images.is_dir():
        raise UserError(f"--images {images}: no such folder")
    if copy_images and new.with_images is None:
        raise UserError(f"--copy-images is for --to yolo, not for {to.value}")

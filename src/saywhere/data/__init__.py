"""Data sets in their official formats, read into one type of sample.

``read(root, format, split)`` returns :class:`Samples`: images, boxes in pixels of the image file, phrases and
sentences, and a report of what is missing or broken. docs/data.md describes the formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from saywhere.data import coco, corrected, flickr, jsonl, visual_genome
from saywhere.data.sample import Annotation, PhraseOptions, Sample, Samples, assemble
from saywhere.errors import NoSplitError, UserError
from saywhere.files import printable
from saywhere.formats import cvat, label_studio
from saywhere.options import dataclass
from saywhere.report import Report

__all__ = ["FORMATS", "PhraseOptions", "Report", "Sample", "Samples", "guess_format", "read", "splits"]


@dataclass(frozen=True)
class _Format:
    recognises: Callable[[Path], bool]
    splits: Callable[[Path], Iterable[str]]
    read_split: Callable[[Path, str, Report], list[Annotation]]


_READERS = {
    "flickr8k": _Format(flickr.recognises, flickr.splits, flickr.read_split),
    "visual-genome": _Format(visual_genome.recognises, visual_genome.splits, visual_genome.read_split),
    "coco": _Format(coco.recognises, coco.splits, coco.read_split),
    "label-studio": _Format(
        corrected.is_label_studio, corrected.splits, partial(corrected.read_export, label_studio.read)
    ),
    "cvat": _Format(corrected.is_cvat, corrected.splits, partial(corrected.read_export, cvat.read)),
    "jsonl": _Format(jsonl.recognises, jsonl.splits, jsonl.read_split),
    "xmp": _Format(corrected.is_xmp, corrected.splits, corrected.read_xmp),
}
FORMATS = tuple(_READERS)
"""Names of the formats that :func:`read` supports."""


def guess_format(root: str | Path) -> str:
    """Return the format of a data set, detected from its files.

    Raises:
        UserError: no such file or folder, or its files match no format.
    """
    if not Path(root).exists():
        raise UserError(f"{root}: no such file or folder")
    for name, reader in _READERS.items():
        if reader.recognises(Path(root)):
            return name
    what = f"{root}: not a data set in a known format ({', '.join(FORMATS)})"
    file = _main_file(Path(root))
    if any(reader.recognises(file) for reader in _READERS.values()):
        raise UserError(f"{what}; its file is one: give {file}")
    if other := _convertible(file):
        made = f"saywhere convert-results {file} --from {other} --to label-studio --out tasks.json"
        raise UserError(f"{what}; {made} may make one of it")
    raise UserError(f"{what}; docs/data.md describes them")


def _main_file(root: Path) -> Path:
    """Return the file of annotations in a folder, or the folder if it has none or a file for each image."""
    if root.is_file() or _is_yolo(root):
        return root
    first = next((file for end in ("json", "xml", "csv") for file in sorted(root.rglob(f"*.{end}"))), root)
    return root if first.suffix == ".xml" and not corrected.is_cvat(first) else first


def _is_yolo(root: Path) -> bool:
    return (root / "data.yaml").exists() and (root / "labels").is_dir()


def _convertible(root: Path) -> str | None:
    """Return the format of results that a file or folder seems to have, if it is not a data set by itself."""
    if root.is_file():
        kinds = {".csv": "csv", ".parquet": "parquet", ".json": "coco"}
        return kinds.get(root.suffix.lower())
    if _is_yolo(root):
        return f"yolo --images {root / 'images'}"
    return "voc" if next(root.rglob("*.xml"), None) is not None else None


def splits(root: str | Path, format: str | None = None) -> list[str]:
    """Return the names of the splits of a data set; there may be none.

    Raises:
        UserError: as :func:`read`.
    """
    root, format = _check(root, format)
    return list(_READERS[format].splits(root))


def read(
    root: str | Path, format: str | None = None, split: str = "train", options: PhraseOptions | None = None
) -> Samples:
    """Read one split of a data set.

    Args:
        root: the data set's folder, or its file (``jsonl``, ``label-studio`` and ``cvat``).
        format: one of :data:`FORMATS`; None detects it from the files.
        split: name of the split, or an unambiguous beginning of it (``train`` for COCO's ``train2017``).
        options: preprocessing of regions and phrases; none by default.

    Raises:
        UserError: ``root`` does not exist or has another format, the split is unknown, or a file cannot be read at all.
            Single missing images or broken annotations are left out and named in the report.

    Example:
        >>> samples = read("data/flickr8k", split="dev")  # doctest: +SKIP
        >>> samples[0].boxes.shape, samples[0].phrases[0], samples.report.lines()  # doctest: +SKIP
    """
    root, format = _check(root, format)
    split = _resolve(root, split, splits(root, format))
    report = Report()
    annotations = _READERS[format].read_split(root, split, report)
    samples = assemble(annotations, options or PhraseOptions(), report)
    return Samples(tuple(samples), f"{format} {printable(root.name)}", split, report)


def _check(root: str | Path, format: str | None) -> tuple[Path, str]:
    root = Path(root)
    if not root.exists():
        raise UserError(f"{root}: no such file or folder")
    if format is None:
        format = guess_format(root)
    elif format not in _READERS:
        raise UserError(f"unknown data format {format!r}; known are {', '.join(FORMATS)}")
    elif not _READERS[format].recognises(root):
        raise UserError(f"{root}: not a data set in the format {format}; docs/data.md describes it")
    return root, format


def _resolve(root: Path, split: str, known: list[str]) -> str:
    """Return the only known split that equals or starts with ``split``."""
    if split in known:
        return split
    if len(matches := [name for name in known if split and name.startswith(split)]) == 1:
        return matches[0]
    raise NoSplitError.of(root, split, known)

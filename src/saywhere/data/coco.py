"""COCO: sentences from ``captions_*.json``, and boxes from ``instances_*.json`` with class names as phrases."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from saywhere.data.sample import Annotation, find, number, size_box, text, unique
from saywhere.errors import UserError
from saywhere.files import read_json
from saywhere.formats.coco import by_id
from saywhere.report import Report

KINDS = ("instances", "captions")


def recognises(root: Path) -> bool:
    """Return whether the folder, or its ``annotations`` folder, has captions or instances."""
    return bool(splits(root))


def splits(root: Path) -> list[str]:
    """Return what follows ``captions_`` or ``instances_`` in the file names, such as ``train2017``."""
    if not root.is_dir():
        return []
    files = [file.stem for kind in KINDS for f in ("annotations", ".") for file in (root / f).glob(f"{kind}_*.json")]
    return sorted({name.partition("_")[2] for name in files})


def read_split(root: Path, split: str, report: Report) -> list[Annotation]:
    """Return the images of one split, with their captions and the boxes of their instances, without crowds."""
    found: dict[Any, Annotation] = {}
    for kind in KINDS:
        file = find(root, ("annotations", "."), (f"{kind}_{split}.json",))
        if file is None:
            report.notes.append(f"no {kind}_{split}.json: the images have no {_MEANS[kind]}")
            continue
        content = read_json(file)
        images, entries = (_list(content, part, file) for part in ("images", "annotations"))
        _add_images(found, images, root / split, file, report)
        if kind == "captions":
            _add_captions(found, entries, report)
        else:
            _add_instances(found, entries, _classes(content, file), report)
    for annotation in found.values():
        annotation.labelled = unique(annotation.labelled)
    return list(found.values())


_MEANS = {"instances": "regions", "captions": "sentences"}


def _add_images(found: dict[Any, Annotation], images: list[Any], split: Path, file: Path, report: Report) -> None:
    """Add the images of a file to those of the other file; equal ids must mean equal images.

    Raises:
        UserError: two images have the same id.
    """
    root = split.parent
    places = (split, root / "images" / split.name, root / "images", root)
    folder = next((place for place in places if place.is_dir()), root)
    here: set[Any] = set()
    for entry in images:
        try:
            key, name = entry["id"], text(entry["file_name"])
            size = number(entry["width"]), number(entry["height"])
            if min(size) <= 0:
                raise ValueError(f"size {size}")
            known = found.setdefault(key, Annotation(name, folder / name, size=size))
            same = key not in here and known.name == name
            here.add(key)
        except (KeyError, TypeError, ValueError):
            report.problem("broken annotation", f"image {_name(entry)}")
        else:
            if not same:
                raise UserError(f"{file}: {name} and {known.name} have the id {key!r}: give each image its own")


def _add_captions(found: dict[Any, Annotation], entries: list[Any], report: Report) -> None:
    for entry in entries:
        try:
            annotation, sentence = found[entry["image_id"]], " ".join(text(entry["caption"]).split())
            if not sentence:
                raise ValueError("an empty caption")
            annotation.sentences = (*annotation.sentences, sentence)
        except (KeyError, TypeError, ValueError):
            report.problem("broken caption", f"annotation {_name(entry)}")


def _add_instances(found: dict[Any, Annotation], entries: list[Any], classes: dict[Any, str], report: Report) -> None:
    for entry in entries:
        try:
            if entry.get("iscrowd"):
                report.left_out["boxes around a crowd"] += 1
            else:
                box = size_box(entry["bbox"])
                found[entry["image_id"]].labelled.append((box, classes[entry["category_id"]]))
        except (KeyError, TypeError, ValueError, AttributeError):
            report.problem("broken region", f"annotation {_name(entry)}")
            with contextlib.suppress(KeyError, TypeError):
                found[entry["image_id"]].broken = True


def _classes(content: dict[str, Any], file: Path) -> dict[Any, str]:
    try:
        entries = by_id(_list(content, "categories", file), f"{file}: two categories")
        return {key: text(entry["name"]) for key, entry in entries.items()}
    except UserError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{file}: broken categories ({error})") from error


def _list(content: dict[str, Any], part: str, file: Path) -> list[Any]:
    if not isinstance(content.get(part), list):
        raise UserError(f"{file}: not in COCO's format, it has no list of {part!r}")
    return content[part]


def _name(entry: Any) -> str:
    return str(entry.get("id", "without an id")) if isinstance(entry, dict) else repr(entry)

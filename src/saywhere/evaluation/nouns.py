"""Nouns of true boxes: those from the decoder, from the noun classifier, and from the image's caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.models.densecap import detect
from saywhere.models.model import Model
from saywhere.models.nouns import Noun, find_nouns, is_right, kind_of, noun_tree
from saywhere.options import dataclass


@dataclass(frozen=True)
class NounResult:
    """How often the noun of a region is right, given its box.

    Attributes:
        objects: share of boxes by method: ``decoder``, its phrases; with the part ``nouns`` also ``classes``, the most
            probable one; with a captioner also ``caption``, that of the image.
        kinds: mean over the kinds of the share of their boxes.
        by_kind: for each kind the number of boxes, and the share by method.
    """

    objects: Mapping[str, float]
    kinds: Mapping[str, float]
    by_kind: Mapping[str, tuple[int, Mapping[str, float]]]


def measure(kinds: Sequence[str], right: Mapping[str, Sequence[bool]]) -> NounResult:
    """Return the shares over boxes and over kinds, given the ``kinds`` of boxes and which are ``right`` by method."""
    names = np.array(kinds)
    columns = {way: np.array(values, np.float64) for way, values in right.items()}
    rows = {name: names == name for name in sorted(set(kinds))}
    by_kind = {
        name: (int(row.sum()), {way: float(values[row].mean()) for way, values in columns.items()})
        for name, row in rows.items()
    }
    means = {way: float(np.mean([shares[way] for _, shares in by_kind.values()])) for way in columns}
    return NounResult({way: float(values.mean()) for way, values in columns.items()}, means, by_kind)


Nouns = dict[str, Sequence[Sequence[str | Noun]]]
"""The name of each region of an image, by method: one noun, none, or all nouns of a caption."""


def run(model: Model, session: Session) -> NounResult:
    """Name the true boxes of a data set, and measure how often the noun is right.

    Raises:
        UserError: the model has no dense captioner, or no image is readable.
    """
    model.require("densecap", "describe boxes")
    samples = session.read()
    boxed = {image_name(sample.image, session.folder): sample for sample in samples if len(sample.boxes)}
    boxes = {name: sample.boxes for name, sample in boxed.items()}
    sources = [source for source in session.sources(samples) if source.name in boxed]
    named: dict[str, Nouns] = {}
    seen = session.each(partial(name_boxes, model), sources, (), named.__setitem__, boxes, model.long_side)
    truths = [boxed[source.name].phrases for source in seen]
    kinds = [kind_of(noun_tree(), references[0]) for phrases in truths for references in phrases]
    result = measure(kinds, _which_are_right([named[source.name] for source in seen], truths))
    by_kind = {name: {"boxes": count, **shares} for name, (count, shares) in result.by_kind.items()}
    known = session.known(samples.name, images=len(seen), boxes=len(kinds))
    write_report(session.out, {"task": "nouns", "kinds": result.kinds, "objects": result.objects, "by_kind": by_kind,
                               **known})  # fmt: skip
    return result


def name_boxes(model: Model, images: list[LoadedImage], boxes: list[np.ndarray] | None) -> list[Nouns]:
    """Return the names of the boxes ``(N, 4)`` of each image by each method."""
    encodings, detector = model.encode(images), model.require("densecap", "describe boxes")
    described = detect(detector, encodings, boxes, writer=model.phrase_writer, calibration=model.calibration)
    found: list[Nouns] = [{"decoder": [(phrase,) for phrase in each.captions]} for each in described]
    if model.nouns is not None:
        for said, each in zip(found, described, strict=True):
            posterior = model.nouns.posteriors([each.encoding], [each.boxes], [each.embeddings])[0]
            said["classes"] = [(noun,) for noun, _ in model.nouns.name(posterior)]
    if model.captioner is not None and not model.captioner.config.describe_boxes:
        for said, caption in zip(found, model.caption(encodings, attention=False), strict=True):
            said["caption"] = [find_nouns(caption.sentence, noun_tree())] * len(said["decoder"])
    return found


def _which_are_right(named: Sequence[Nouns], truths: Sequence[Sequence[Sequence[str]]]) -> dict[str, list[bool]]:
    """Return by method whether a name of each box is right, given those of each image and its boxes' true phrases."""
    right: dict[str, list[bool]] = {}
    for by_way, phrases in zip(named, truths, strict=True):
        for way, said in by_way.items():
            right.setdefault(way, []).extend(
                any(is_right(noun_tree(), one, references) for one in names)
                for names, references in zip(said, phrases, strict=True)
            )
    return right

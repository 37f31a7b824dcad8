"""Nouns of true boxes: those from the decoder, from the noun classifier, and from the image's caption."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.models.densecap import Detections, detect
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


Nouns = Mapping[str, Sequence[Sequence[str | Noun]]]
"""The name of each region of an image, by method: one noun, none, or all nouns of a caption."""


def run(model: Model, session: Session) -> NounResult:
    """Name the true boxes of a data set, and measure how often the noun is right.

    Raises:
        UserError: the model has no dense captioner, or no image is readable.
    """
    detector = model.require("densecap", "describe boxes")
    samples = session.read()
    truths = {image_name(s.image, session.folder): s.phrases for s in samples if len(s.boxes)}
    boxes = {image_name(s.image, session.folder): s.boxes for s in samples if len(s.boxes)}
    sources = [source for source in session.sources(samples) if source.name in boxes]
    named: dict[str, Nouns] = {}

    def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Nouns]:
        encodings = model.encode(images)
        described = detect(detector, encodings, given, writer=model.phrase_writer, calibration=model.calibration)
        found = [nouns(model, each) for each in described]
        if model.captioner is None or model.captioner.config.describe_boxes:
            return found
        captions = model.caption(encodings, attention=False)
        return [
            {**each, "caption": [find_nouns(caption.sentence, noun_tree())] * len(each["decoder"])}
            for each, caption in zip(found, captions, strict=True)
        ]

    seen = session.each(ask, sources, (), named.__setitem__, boxes, model.long_side)
    tree, kinds = noun_tree(), list[str]()
    right: dict[str, list[bool]] = {}
    for source in seen:
        kinds += [kind_of(tree, references[0]) for references in truths[source.name]]
        for way, said in named[source.name].items():
            pairs = zip(said, truths[source.name], strict=True)
            right.setdefault(way, []).extend(
                any(is_right(tree, one, references) for one in names) for names, references in pairs
            )
    result = measure(kinds, right)
    by_kind = {name: {"boxes": count, **shares} for name, (count, shares) in result.by_kind.items()}
    known = session.known(samples.name, images=len(seen), boxes=len(kinds))
    write_report(session.out, {"task": "nouns", "kinds": result.kinds, "objects": result.objects, "by_kind": by_kind,
                               **known})  # fmt: skip
    return result


def nouns(model: Model, found: Detections) -> Nouns:
    """Return the names of an image's regions by each method."""
    said: Nouns = {"decoder": [(caption,) for caption in found.captions]}
    if model.nouns is None:
        return said
    posterior = model.nouns.posteriors([found.encoding], [found.boxes], [found.embeddings])[0]
    return {**said, "classes": [(noun,) for noun, _ in model.nouns.name(posterior)]}

"""Nouns of the true boxes of a data set: those of the decoder, of the classes, and of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from saywhere.evaluation.nouns.metric import NounResult, measure
from saywhere.evaluation.nouns.report import write_noun_report
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.models.detection import Detections, detect
from saywhere.models.model import Model
from saywhere.models.naming import rename
from saywhere.models.nouns import Noun, is_right, kind_of, noun_tree

Nouns = Mapping[str, Sequence[str | Noun | None]]
"""For each way what the regions of an image are called."""


def run(model: Model, session: Session) -> NounResult:
    """Name the true boxes of a data set, and measure how often the noun is right.

    Args:
        model: with a dense captioner; with the part ``classes`` their nouns are measured too.
        session: the data and the results.

    Raises:
        UserError: the model has no dense captioner, or no image can be read.
    """
    detector = model.require("densecap", "describe boxes")
    samples = session.read()
    truths = {image_name(s.image, session.folder): s.phrases for s in samples if len(s.boxes)}
    boxes = {image_name(s.image, session.folder): s.boxes for s in samples if len(s.boxes)}
    sources = [source for source in session.sources(samples) if source.name in boxes]
    named: dict[str, Nouns] = {}

    def ask(images: list[LoadedImage], given: list[np.ndarray] | None) -> list[Nouns]:
        encodings = model.encode(images)
        return [nouns(model, found) for found in detect(detector, encodings, given)]

    seen = session.each(ask, sources, (), named.__setitem__, boxes, model.long_side)
    tree, kinds = noun_tree(), list[str]()
    right: dict[str, list[bool]] = {}
    for source in seen:
        kinds += [kind_of(tree, references[0]) for references in truths[source.name]]
        for way, said in named[source.name].items():
            pairs = zip(said, truths[source.name], strict=True)
            right.setdefault(way, []).extend(is_right(tree, one, references) for one, references in pairs)
    result = measure(kinds, right)
    write_noun_report(session.out, result, session.known(samples.name, images=len(seen), boxes=len(kinds)))
    return result


def nouns(model: Model, found: Detections) -> Nouns:
    """Return what the regions of an image are called, by each way."""
    if model.classes is None or model.detector is None:
        return {"decoder": found.captions}
    config = model.detector.config
    posterior = model.classes.posteriors([found.encoding], [found.boxes], [found.embeddings])[0]
    proposed = model.classes.name(posterior, config.noun_threshold)
    settings = config.noun_calibration, config.noun_threshold
    return {
        "decoder": found.captions,
        "classes": [None if one is None else one[0] for one in proposed],
        "both": rename(model.classes, posterior, found.captions, found.confidence, *settings),
    }

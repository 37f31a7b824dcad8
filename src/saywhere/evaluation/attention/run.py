"""Attention correctness of a captioner on a data set, a line an image on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from saywhere.data.entities import MarkedImage
from saywhere.errors import UserError
from saywhere.evaluation.attention.metric import (
    AttentionCorrectness,
    Mention,
    Spread,
    entity_boxes,
    generated_mentions,
    given_mentions,
    names,
)
from saywhere.evaluation.attention.report import SENTENCES, write_attention_report
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.inference import ResultsFile, Source
from saywhere.models.captioner import Caption
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model

LINES = "attention.jsonl"
"""The file of a run: of each image the correctness of each mention."""

Row = Mapping[str, Any]


def run(
    model: Model, session: Session, generated: bool = True, beam_size: int | None = None, spread: Spread = "area"
) -> dict[str, Any]:
    """Measure the share of the attention at a word that is inside the boxes of what the word names.

    Args:
        model: with a captioner that attends to regions.
        session: the data (Flickr30k Entities) and the results.
        generated: also measure sentences that the model generates.
        beam_size: hypotheses in decoding; the model's own number if None.
        spread: how a region's weight lies on the image, see :class:`AttentionCorrectness`.

    Returns:
        the figures of :func:`total`.

    Raises:
        UserError: the model does not attend to regions, no image can be read, or no phrase has a box.
    """
    captioner = model.require("captioner", "attend to regions")
    if captioner.config.decoder != "attention":
        raise UserError(
            f"{session.model}: a captioner with the decoder {captioner.config.decoder} attends to no regions"
        )
    marked = {image_name(image.image, session.data): image for image in session.read_entities()}
    settings = {"model": model.digest(), "data": str(session.data), "split": session.split}
    settings |= {"generated": generated, "beam_size": beam_size, "spread": spread}
    session.resume(settings, LINES)
    by_file = {str(image.image): image for image in marked.values()}

    def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[dict[str, Any]]:
        encodings = zip(images, model.encode(images), strict=True)
        return [
            measure_image(model, encoding, by_file[image.name], generated, beam_size, spread)
            for image, encoding in encodings
        ]

    sources = [Source(image.image, name, image.image) for name, image in marked.items()]
    with ResultsFile(session.out / LINES, "given") as lines:
        seen = session.each(
            ask, sources, lines.done, lambda name, row: lines.append(row, name), long_side=model.long_side
        )
        figures = total([lines[source.name] for source in seen])
    known = session.known(session.data.name, beam_size=beam_size, spread=spread)
    write_attention_report(session.out, figures, known)
    return figures


def measure_image(
    model: Model, encoding: Encoding, image: MarkedImage, generated: bool, beam_size: int | None, spread: Spread
) -> dict[str, Any]:
    """Return the correctness of each mention in the ``given`` sentences of an image and in the ``generated`` one.

    ``uniform_given`` and ``uniform_generated`` are those of uniform attention over the same regions.
    """
    boxes, size = entity_boxes(image), (image.width, image.height)
    given, own = AttentionCorrectness(spread), AttentionCorrectness(spread)
    read = model.attend(encoding, [sentence.text for sentence in image.sentences])
    for sentence, caption in zip(image.sentences, read, strict=True):
        _add(given, caption, given_mentions(sentence), boxes, size)
    row: dict[str, Any] = {"given": given.found, "uniform_given": given.control}
    if generated:
        caption = model.caption(encoding, beam_size=beam_size)
        _add(own, caption, generated_mentions(caption.words, names(image)), boxes, size)
        row |= {"generated": own.found, "uniform_generated": own.control, "sentence": caption.sentence}
    return row


def _add(
    meter: AttentionCorrectness, caption: Caption, mentions: Sequence[Mention], boxes: Mapping[str, np.ndarray],
    size: tuple[float, float],
) -> None:  # fmt: skip
    assert caption.attention is not None and caption.outlines is not None
    meter.add(caption.attention, mentions, caption.outlines, boxes, size)


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the means over all mentions of all images, from 0 to 1, and how many there are.

    ``given``, ``generated``, ``uniform_given`` and ``uniform_generated`` are None without a mention.
    """
    result: dict[str, Any] = {"images": len(rows)}
    for kind in SENTENCES:
        for name in (kind, f"uniform_{kind}"):
            values = [value for row in rows for value in row.get(name, ())]
            result[name] = sum(values) / len(values) if values else None
        result[f"{kind}_mentions"] = sum(len(row.get(kind, ())) for row in rows)
    return result

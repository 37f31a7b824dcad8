"""Attention correctness: how much attention at a word lies on what it names (Areas of Attention, section 4.2).

The protocol is that of Liu et al., as in the program of Areas of Attention. For each word that names an annotated
entity, it measures the share of attention inside the entity's boxes. A given (human) sentence is fed to the model by
teacher forcing. In a generated sentence, the words are those that people used for the image's entities. The control is
uniform attention over the same regions.

There are three differences. The attention is p(r | w, h), given the word itself, instead of p(r | h). The last word of
a phrase ("a young boy") counts as its noun, where the program uses a part-of-speech tagger. A weight is spread over its
region, where the program counts it in full on every pixel (the same for grid cells).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from saywhere import boxes as geometry
from saywhere.data.flickr import MarkedImage, MarkedSentence
from saywhere.errors import UserError
from saywhere.evaluation.report import write_report
from saywhere.evaluation.session import Session, image_name
from saywhere.images import LoadedImage
from saywhere.inference import ResultsFile, Source
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.options import dataclass

POINTS = 24
"""Sample points along each side of a warped region."""


def union_pieces(boxes: np.ndarray) -> np.ndarray:
    """Return disjoint boxes ``(P, 4)`` that cover the same area as ``boxes (G, 4)`` together."""
    x, y = np.unique(boxes[:, [0, 2]]), np.unique(boxes[:, [1, 3]])
    if len(x) < 2 or len(y) < 2:
        return np.zeros((0, 4), boxes.dtype)
    rows, columns = np.meshgrid(np.arange(len(y) - 1), np.arange(len(x) - 1), indexing="ij")
    r, c = rows.ravel(), columns.ravel()
    pieces = np.stack((x[c], y[r], x[c + 1], y[r + 1]), axis=1)
    middle = (pieces[:, None, :2] + pieces[:, None, 2:]) / 2
    covered = np.any(np.all((middle > boxes[:, :2]) & (middle < boxes[:, 2:]), axis=2), axis=1)
    return pieces[covered]


def shares_inside(regions: np.ndarray, boxes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the share of each of ``regions (R, 4)`` inside the union of ``boxes (G, 4)``, and the region's area.

    Both are ``(R,)``. A region without area has share 0.
    """
    pieces, areas = union_pieces(boxes), geometry.area(regions)
    low = np.maximum(regions[:, None, :2], pieces[None, :, :2])
    high = np.minimum(regions[:, None, 2:], pieces[None, :, 2:])
    sides = np.maximum(high - low, 0)
    common = (sides[..., 0] * sides[..., 1]).sum(axis=1)
    return np.where(areas > 0, common / np.maximum(areas, np.finfo(areas.dtype).tiny), 0), areas


def warped_shares_inside(
    corners: np.ndarray, boxes: np.ndarray, width: float, height: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return shares and areas as :func:`shares_inside`, for warped regions sampled at :data:`POINTS` x :data:`POINTS`.

    ``corners (R, 4, 2)`` are those of parallelograms, in cyclic order; ``boxes (G, 4)`` are ``x1 y1 x2 y2``. Points
    outside the image are ignored; a region entirely outside has area 0.
    """
    steps = (np.arange(POINTS, dtype=corners.dtype) + 0.5) / POINTS
    v, u = np.meshgrid(steps, steps, indexing="ij")
    along, down = corners[:, 1] - corners[:, 0], corners[:, 3] - corners[:, 0]
    points = corners[:, None, 0] + u.reshape(-1, 1) * along[:, None] + v.reshape(-1, 1) * down[:, None]
    visible = ((points >= 0) & (points < np.array([width, height], corners.dtype))).all(axis=2)
    in_boxes = np.all((points[:, :, None] >= boxes[:, :2]) & (points[:, :, None] < boxes[:, 2:]), axis=3)
    inside = np.any(in_boxes, axis=2)
    seen = visible.sum(axis=1)
    whole = np.abs(along[:, 0] * down[:, 1] - along[:, 1] * down[:, 0])
    return (inside & visible).sum(axis=1) / np.maximum(seen, 1), whole * seen / POINTS**2


def correctness(weights: np.ndarray, shares: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Return the share of attention inside the boxes, from 0 to 1, for ``weights (..., R)`` of words: shape ``(...)``.

    Regions without area are ignored; it is 0 if they have all the weight.
    """
    density = weights * (areas > 0).astype(weights.dtype)
    total = density.sum(axis=-1)
    return np.where(total > 0, (density * shares).sum(axis=-1) / np.maximum(total, 1e-30), 0)


@dataclass(frozen=True)
class Mention:
    """A word that names an entity: its index in the sentence, and the entity's identifier."""

    word: int
    entity: str


def given_mentions(sentence: MarkedSentence) -> list[Mention]:
    """Return the mentions of a human sentence: the last word of each phrase that has a box."""
    return [Mention(phrase.stop - 1, phrase.entity) for phrase in sentence.phrases if phrase.box is not None]


def names(image: MarkedImage) -> dict[str, list[str]]:
    """Map the last word of each phrase of an image to the distinct entities with boxes that it names."""
    found: dict[str, list[str]] = {}
    for sentence in image.sentences:
        for mention in given_mentions(sentence):
            entities = found.setdefault(sentence.words[mention.word], [])
            entities += [] if mention.entity in entities else [mention.entity]
    return found


def generated_mentions(words: Sequence[str], named: Mapping[str, Sequence[str]]) -> list[Mention]:
    """Return the mentions of a generated sentence: each word that people used for entities, once per entity."""
    return [Mention(i, entity) for i, word in enumerate(words) for entity in named.get(word, ())]


def entity_boxes(image: MarkedImage) -> dict[str, np.ndarray]:
    """Return the box ``(1, 4)`` of each entity of an image, in pixels of the file."""
    phrases = [phrase for sentence in image.sentences for phrase in sentence.phrases]
    return {phrase.entity: phrase.box[None] for phrase in phrases if phrase.box is not None}


def measure(
    weights: ArrayLike, mentions: Sequence[Mention], regions: ArrayLike, boxes: Mapping[str, ArrayLike],
    size: tuple[float, float],
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Return the correctness of attention at each mention of a sentence, and that of uniform attention.

    Args:
        weights: ``(T, R)`` of the words, or longer. Mentions beyond T and entities without boxes are ignored.
        regions: ``(R, 4)``, or corners ``(R, 4, 2)`` of warped regions, in pixels of an image of ``size`` (w, h).
        boxes: ``(G, 4)`` per entity, in the same pixels.
    """
    attention, places = np.asarray(weights, np.float64), np.asarray(regions, np.float64)
    found, control = list[float](), list[float]()
    for mention in mentions:
        if mention.word >= len(attention) or mention.entity not in boxes:
            continue
        truth = np.asarray(boxes[mention.entity], np.float64)
        if places.ndim == 3:
            shares, areas = warped_shares_inside(places, truth, *size)
        else:
            shares, areas = shares_inside(geometry.clip(places, *size), truth)
        row = attention[mention.word]
        found.append(float(correctness(row, shares, areas)))
        control.append(float(correctness(np.ones_like(row), shares, areas)))
    return found, control


SENTENCES = ("given", "generated")
"""The sentences of the data set, and those that the model generates."""


def percent(share: float | None) -> str:
    """Return a share as a percentage, as the paper prints it, or a dash for None."""
    return "-" if share is None else f"{100 * share:.1f}"


LINES = "attention.jsonl"
"""Results file of a run: the correctness of each mention, per image."""

Row = Mapping[str, Any]


def run(model: Model, session: Session) -> dict[str, Any]:
    """Measure the share of attention at a word inside the boxes of what the word names, see :func:`total`.

    Raises:
        UserError: the model does not attend to regions, no image is readable, or no phrase has a box.
    """
    captioner = model.require("captioner", "attend to regions")
    if captioner.config.decoder != "attention":
        raise UserError(
            f"{session.model}: a captioner with the decoder {captioner.config.decoder} attends to no regions"
        )
    marked = {image_name(image.image, session.data): image for image in session.read_entities()}
    session.resume({"model": model.digest(), "data": str(session.data), "split": session.split}, LINES)
    by_file = {str(image.image): image for image in marked.values()}

    def ask(images: list[LoadedImage], _: list[np.ndarray] | None) -> list[dict[str, Any]]:
        encodings = zip(images, model.encode(images), strict=True)
        return [measure_image(model, encoding, by_file[image.name]) for image, encoding in encodings]

    sources = [Source(image.image, name, image.image) for name, image in marked.items()]
    with ResultsFile(session.out / LINES, "given") as lines:
        seen = session.each(
            ask, sources, lines.done, lambda name, row: lines.append(row, name), long_side=model.long_side
        )
        figures = total([lines[source.name] for source in seen])
    write_report(session.out, {"task": "attention", **figures, **session.known(session.data.name)})
    return figures


def measure_image(model: Model, encoding: Encoding, image: MarkedImage) -> dict[str, Any]:
    """Return the correctness of each mention in an image's ``given`` sentences and in the ``generated`` one.

    ``uniform_given`` and ``uniform_generated`` are those of uniform attention over the same regions.
    """
    boxes, size = entity_boxes(image), (image.width, image.height)
    read = model.attend(encoding, [sentence.text for sentence in image.sentences])
    own = model.caption(encoding)
    pairs = [(caption, given_mentions(said)) for caption, said in zip(read, image.sentences, strict=True)]
    row: dict[str, Any] = {"sentence": own.sentence}
    for kind, sentences in (("given", pairs), ("generated", [(own, generated_mentions(own.words, names(image)))])):
        row |= {kind: list[float](), f"uniform_{kind}": list[float]()}
        for caption, mentions in sentences:
            assert caption.attention is not None and caption.outlines is not None
            found, control = measure(caption.attention, mentions, caption.outlines, boxes, size)
            row[kind] += found
            row[f"uniform_{kind}"] += control
    return row


def total(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the means over all mentions of all images, from 0 to 1, and the numbers of mentions.

    ``given``, ``generated``, ``uniform_given`` and ``uniform_generated`` are None without mentions.
    """
    result: dict[str, Any] = {"images": len(rows)}
    for kind in SENTENCES:
        for name in (kind, f"uniform_{kind}"):
            values = [value for row in rows for value in row[name]]
            result[name] = sum(values) / len(values) if values else None
        result[f"{kind}_mentions"] = sum(len(row[kind]) for row in rows)
    return result

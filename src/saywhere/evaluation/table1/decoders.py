"""How the systems of a comparison describe the boxes of an image."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from saywhere.engines.engine import Detector
from saywhere.images import LoadedImage
from saywhere.models.detection import detect, propose_boxes, rank
from saywhere.models.encoding import Encoding
from saywhere.models.model import Model
from saywhere.networks.vision.external_proposals import Proposed
from saywhere.regions import Regions

FCLN, FREQUENT, NEAREST = "fcln", "frequent-phrase", "nearest-region"
REFINED = "-refined"
"""After the name of a control: on FCLN's final boxes."""


def rpn_proposals(detector: Detector, encoding: Encoding, nms: float, limit: int) -> Proposed:
    """Return the RPN's boxes for systems without second scores, in pixels of the image, with its probabilities."""
    boxes, logits = propose_boxes(encoding, detector.config.proposals, detector.box_coder, sys.maxsize)
    return Proposed(encoding.to_image(boxes), 1 / (1 + np.exp(-logits))).suppressed(nms, limit)


def describe_proposals(model: Model, encoding: Encoding, boxes: np.ndarray) -> Regions:
    """Return what :meth:`saywhere.Model.describe` does, but from proposals ``(N, 4)`` in pixels of the input."""
    detector = model.require("densecap", "describe proposals")
    found = detect(detector, [encoding], proposals=[boxes])[0].regions(model.calibration.box)
    return found[rank(found, detector.config.repeat_nms)]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Hold true regions of training images: their embeddings ``(N, D)`` of length 1, and a phrase of each."""

    embeddings: np.ndarray
    phrases: list[str]

    @classmethod
    def of(cls, embeddings: np.ndarray, phrases: list[str]) -> Neighbours:
        """Make them of embeddings of any length."""
        return cls(_normalised(embeddings), phrases)

    def captions(self, embeddings: np.ndarray) -> tuple[str, ...]:
        """Return the phrase of the nearest region by cosine, for each of the embeddings ``(M, D)``."""
        if not len(embeddings):
            return ()
        rows = (_normalised(embeddings) @ self.embeddings.T).argmax(axis=1)
        return tuple(self.phrases[row] for row in rows.tolist())


def _normalised(embeddings: np.ndarray) -> np.ndarray:
    rows = np.asarray(embeddings, np.float32)
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), np.float32(1e-12))


def fcln_rows(
    model: Model,
    image: LoadedImage,
    boxes: Mapping[str, Proposed],
    limit: int,
    frequent: str,
    neighbours: Neighbours,
) -> dict[tuple[str, str], Regions]:
    """Return how FCLN and the controls describe one image, by row and column.

    With the true boxes FCLN describes just these, as they stand; all other boxes are proposals to it. The controls put
    their phrases on the boxes of the baselines, with their scores; and, as ``-refined``, on FCLN's final boxes with
    FCLN's scores, where they differ from it in the language alone.

    Args:
        model: FCLN.
        image: to describe.
        boxes: of each column, in pixels of the image.
        limit: proposals of its own.
        frequent: the phrase of the first control.
        neighbours: of the second control.
    """
    encoding, detector = model.encode(image), model.require("densecap", "be FCLN")
    rows: dict[tuple[str, str], Regions] = {}
    for column, proposed in boxes.items():
        given = model.describe(encoding, proposed.boxes)
        if column == "gt":
            refined = given
        elif column == "rpn":
            own, _ = propose_boxes(encoding, detector.config.proposals, detector.box_coder, limit)
            refined = describe_proposals(model, encoding, own)
        else:
            refined = describe_proposals(model, encoding, encoding.to_input(proposed.boxes))
        rows[FCLN, column] = refined
        plain = replace(given, scores=proposed.scores)
        for regions, suffix in ((plain, ""), (refined, REFINED)):
            assert regions.features is not None
            rows[FREQUENT + suffix, column] = replace(regions, captions=(frequent,) * len(regions))
            rows[NEAREST + suffix, column] = replace(regions, captions=neighbours.captions(regions.features))
    return rows


def line(name: str, regions: Regions) -> dict[str, object]:
    """Return regions as a line of JSON, without their features."""
    return {
        "image": name,
        "width": regions.width,
        "height": regions.height,
        "boxes": [[round(v, 2) for v in box] for box in regions.boxes.tolist()],
        "scores": [] if regions.scores is None else regions.scores.tolist(),
        "captions": list(regions.captions or ()),
    }

"""What the systems of a comparison say of the boxes of a picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from saywhere.images import Picture
from saywhere.models.densecap import DenseCap
from saywhere.models.encoding import Encoding
from saywhere.models.found import rank
from saywhere.regions import Regions
from saywhere.vision.proposals import Proposed

FCLN, FREQUENT, NEAREST = "fcln", "frequent-phrase", "nearest-region"
REFINED = "-refined"
"""After the name of a control: on FCLN's final boxes."""


def rpn_proposals(model: DenseCap, encoding: Encoding, nms: float, limit: int) -> Proposed:
    """The RPN's boxes for systems without second scores, in pixels of the picture, with the RPN's probabilities."""
    rpn = model.localization([encoding.maps])[0]
    size = encoding.input_width, encoding.input_height
    boxes, logits = model.localization.propose(rpn, *size, limit=len(rpn.logits))
    return Proposed(encoding.to_picture(boxes), logits.sigmoid()).suppressed(nms, limit)


@torch.no_grad()
def describe_proposals(model: DenseCap, encoding: Encoding, boxes: Tensor) -> Regions:
    """What :meth:`DenseCap.describe` gives, but from proposals ``(N, 4)`` in pixels of the network's input."""
    found = model.find([encoding], proposals=[boxes])[0].regions(model.config.calibration)
    return found[rank(found, model.config.repeat_nms)]


@dataclass(frozen=True, eq=False)
class Neighbours:
    """True regions of training pictures: their codes ``(N, D)`` of length 1, and a phrase of each."""

    codes: Tensor
    phrases: list[str]

    @classmethod
    def of(cls, codes: Tensor, phrases: list[str]) -> Neighbours:
        """From codes of any length."""
        return cls(functional.normalize(codes.float(), dim=1), phrases)

    def captions(self, codes: Tensor) -> tuple[str, ...]:
        """The phrase of the nearest region by cosine, of each code ``(M, D)``."""
        if not len(codes):
            return ()
        rows = (functional.normalize(codes.float(), dim=1) @ self.codes.T).argmax(dim=1)
        return tuple(self.phrases[row] for row in rows.tolist())


@torch.no_grad()
def fcln_rows(
    model: DenseCap,
    picture: Picture,
    boxes: Mapping[str, Proposed],
    limit: int,
    frequent: str,
    neighbours: Neighbours,
) -> dict[tuple[str, str], Regions]:
    """What FCLN and the controls say of one picture, by row and column.

    With the true boxes FCLN describes just these, as they stand; all other boxes are proposals to it. The controls put
    their phrases on the boxes of the baselines, with their scores; and, as ``-refined``, on FCLN's final boxes with
    FCLN's scores, where they differ from it in the language alone.

    Args:
        model: FCLN.
        picture: to describe.
        boxes: of each column, in pixels of the picture.
        limit: proposals of its own.
        frequent: what the first control says.
        neighbours: what the second control knows.
    """
    encoding = model.encode(picture)
    rows: dict[tuple[str, str], Regions] = {}
    for column, proposed in boxes.items():
        given = model.describe(encoding, proposed.boxes)
        if column == "gt":
            refined = given
        else:
            own = column == "rpn"
            inputs = model.propose([encoding], limit)[0] if own else encoding.to_input(proposed.boxes)
            refined = describe_proposals(model, encoding, inputs)
        rows[FCLN, column] = refined
        plain = replace(given, scores=proposed.scores)
        for regions, suffix in ((plain, ""), (refined, REFINED)):
            codes = torch.as_tensor(regions.features)
            rows[FREQUENT + suffix, column] = replace(regions, captions=(frequent,) * len(regions))
            rows[NEAREST + suffix, column] = replace(regions, captions=neighbours.captions(codes))
    return rows


def line(name: str, regions: Regions) -> dict[str, object]:
    """Regions as a line of JSON, without their codes."""
    return {
        "image": name,
        "width": regions.width,
        "height": regions.height,
        "boxes": [[round(v, 2) for v in box] for box in regions.boxes.tolist()],
        "scores": [] if regions.scores is None else regions.scores.tolist(),
        "captions": list(regions.captions or ()),
    }

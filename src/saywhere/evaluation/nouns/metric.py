"""Which nouns are right, over objects and over kinds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class NounResult:
    """How often the noun of a region is right, given its box.

    Attributes:
        objects: share of the boxes, for each way: ``decoder``, its phrases; with the part ``nouns`` also ``classes``
            and ``both``, phrases in which they compete; with a captioner ``caption``, that of the image.
        kinds: mean over the kinds of the share of their boxes.
        by_kind: of each kind the number of boxes, and the share for each way.
    """

    objects: Mapping[str, float]
    kinds: Mapping[str, float]
    by_kind: Mapping[str, tuple[int, Mapping[str, float]]]


def measure(kinds: Sequence[str], right: Mapping[str, Sequence[bool]]) -> NounResult:
    """Return the shares over objects and over kinds.

    Args:
        kinds: of each box.
        right: for each way whether the noun of each box is right.
    """
    names = np.array(kinds)
    columns = {way: np.array(values, np.float64) for way, values in right.items()}
    rows = {name: names == name for name in sorted(set(kinds))}
    by_kind = {
        name: (int(row.sum()), {way: float(values[row].mean()) for way, values in columns.items()})
        for name, row in rows.items()
    }
    means = {way: float(np.mean([shares[way] for _, shares in by_kind.values()])) for way in columns}
    return NounResult({way: float(values.mean()) for way, values in columns.items()}, means, by_kind)

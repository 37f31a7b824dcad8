"""The colour that a thing in a box would be said to have, by its pixels and its noun.

The trunk was taught to tell kinds of things apart whatever their colour, so a phrase's colour is more often right if
the pixels are asked. ``colours.npz`` beside this file has the weights of a small network, the same for all models;
``benchmarks/colour_table.py`` trains it on boxes whose phrases name a colour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np

TABLE = Path(__file__).with_name("colours.npz")
COLOURS = {
    **{name: name for name in ("red", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")},
    **{"orange": "orange", "gray": "gray", "grey": "gray", "silver": "silver", "gold": "gold", "golden": "gold"},
    **{"beige": "beige", "tan": "beige", "turquoise": "turquoise", "teal": "turquoise"},
}
"""The colour that a word names; words for one colour are joined."""
NAMES = tuple(dict.fromkeys(COLOURS.values()))
NOT_ORANGE = frozenset({"juice", "slice", "slices", "peel", "tree", "trees", "half", "halves", "segments"})
"""Words before which "orange" is the fruit, as it is at the end of a phrase."""
STAYS_BEFORE = frozenset({"and", "or", "in", "on", "with", "of", "at", "to", "by", "from", "for", "over", "under"})
"""Words that no adjective stands before: a colour before one of them is no adjective of what follows."""
STEP = 2
"""Of an image's pixels every second is kept, across and down."""
GRID, CELLS, WHOLE = 16, 4, 8
"""Pixels sampled across a box, parts of it across, and pixels sampled across the whole image."""
SOFTNESS = 0.02
"""Squared distance at which a pixel counts for a typical colour 1/e times as much."""
OTHER = ""
"""Stands for nouns that are not in the table."""


def colour_of(words: Sequence[str], place: int) -> str | None:
    """Return the colour that a word of a phrase names; None if it names none."""
    after = words[place + 1] if place + 1 < len(words) else ""
    if words[place] == "orange" and (after == "" or after in NOT_ORANGE):
        return None
    return COLOURS.get(words[place])


def end_of_colours(words: Sequence[str], place: int) -> int:
    """Return the place behind the colours that begin at ``place``, joined by "and" or not; ``place`` without any."""
    colours = [colour_of(words, number) is not None for number in range(len(words))] + [False, False]
    stop = place
    while colours[stop] or (stop > place and words[stop : stop + 1] == ["and"] and colours[stop + 1]):
        stop += 1
    return stop


def noun_of(words: Sequence[str], place: int) -> str:
    """Return the last of the words that the colour at ``place`` stands before: what has it; "" if there is none.

    Example:
        >>> noun_of("a man in a red rain coat with a bag".split(), 4)
        'coat'
    """
    noun = OTHER
    for word in words[end_of_colours(words, place) :]:
        if word in STAYS_BEFORE or word in ("a", "an", "the", "its", "his", "her", "is", "are"):
            break
        noun = word
    return noun


def to_lab(pixels: np.ndarray) -> np.ndarray:
    """Return sRGB pixels ``(..., 3)`` uint8 as CIE L*a*b* (D65) divided by 100, float32."""
    values = np.arange(256, dtype=np.float32) / 255
    linear = np.where(values > 0.04045, ((values + 0.055) / 1.055) ** 2.4, values / 12.92).astype(np.float32)[pixels]
    to_xyz = np.array([[0.4124, 0.2126, 0.0193], [0.3576, 0.7152, 0.1192], [0.1805, 0.0722, 0.9505]], np.float32)
    xyz = linear @ (to_xyz / np.array([0.9505, 1, 1.089], np.float32))
    x, y, z = np.moveaxis(np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116), -1, 0)
    return np.stack([1.16 * y - 0.16, 5 * (x - y), 2 * (y - z)], axis=-1).astype(np.float32)


def sample(pixels: np.ndarray, box: Sequence[float] | np.ndarray, count: int) -> np.ndarray:
    """Return ``(count, count, 3)`` of the pixels ``(H, W, 3)`` in a box ``x1 y1 x2 y2``, evenly spaced."""
    x1, y1, x2, y2 = (float(value) for value in box)
    shares = (np.arange(count) + 0.5) / count
    columns = np.clip((x1 + shares * (x2 - x1)).astype(int), 0, pixels.shape[1] - 1)
    rows = np.clip((y1 + shares * (y2 - y1)).astype(int), 0, pixels.shape[0] - 1)
    return pixels[rows[:, None], columns]


def features(pixels: np.ndarray, box: Sequence[float] | np.ndarray, typical: np.ndarray) -> np.ndarray:
    """Return how often typical colours occur in a box, in its parts, and in the image: square roots of the shares.

    Args:
        pixels: ``(H, W, 3)`` uint8, of the image.
        box: ``x1 y1 x2 y2`` in these pixels.
        typical: ``(K, 3)`` colours as :func:`to_lab` gives them.
    """
    height, width, _ = pixels.shape

    def shares(found: np.ndarray) -> np.ndarray:
        """``(count, count, K)``."""
        distances = np.square(to_lab(found)[:, :, None] - typical).sum(axis=-1)
        weights = np.exp((distances.min(axis=-1, keepdims=True) - distances) / SOFTNESS)
        return weights / weights.sum(axis=-1, keepdims=True)

    inside, side = shares(sample(pixels, box, GRID)), GRID // CELLS
    parts = inside.reshape(CELLS, side, CELLS, side, -1).mean(axis=(1, 3))
    image = shares(sample(pixels, (0, 0, width, height), WHOLE))
    whole = (inside.mean(axis=(0, 1)), image.mean(axis=(0, 1)))
    return np.sqrt(np.concatenate([parts.ravel(), *whole]))


class ColourNames:
    """Natural log-probabilities of :data:`NAMES` for what is in a box.

    Args:
        table: ``typical (K, 3)``; ``nouns`` in order, the first :data:`OTHER`, with ``vectors (M, E)`` and
            ``biases (M, 15)``; and ``hidden (F + E, H)``, ``hidden_bias``, ``out (H, 15)``, ``out_bias``.
    """

    def __init__(self, table: Mapping[str, np.ndarray]) -> None:
        arrays = {name: values.astype(np.float32) for name, values in table.items() if name != "nouns"}
        self._typical, self._vectors, self._biases = (arrays[name] for name in ("typical", "vectors", "biases"))
        self._hidden, self._out = (arrays["hidden"], arrays["hidden_bias"]), (arrays["out"], arrays["out_bias"])
        self._nouns = {noun: row for row, noun in enumerate(table["nouns"].tolist())}

    def log_probs(self, pixels: np.ndarray, box: Sequence[float] | np.ndarray, noun: str) -> np.ndarray:
        """Return ``(15,)``; arguments as of :func:`features`, and the noun of what has the colour."""
        row = self._nouns.get(noun, 0)
        inputs = np.concatenate([features(pixels, box, self._typical), self._vectors[row]])
        hidden = np.maximum(inputs @ self._hidden[0] + self._hidden[1], 0)
        logits = hidden @ self._out[0] + self._out[1] + self._biases[row]
        return logits - np.logaddexp.reduce(logits)


@cache
def colour_names() -> ColourNames:
    """Return the network of :data:`TABLE`."""
    with np.load(TABLE, allow_pickle=False) as table:
        return ColourNames(dict(table))

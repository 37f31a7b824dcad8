"""A sentence with what was looked at while each of its words was said (Areas of Attention, section 4.2)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Attended:
    """A sentence, and the weights of a picture's areas for each word.

    Attributes:
        sentence: its words with spaces between them.
        words: the T words.
        weights: ``(T, R)`` p(r | h) of the R areas while each word is said; each row sums to 1.
        boxes: ``(R, 4)`` the areas in pixels of the picture, inside it; of warped areas the boxes around them.
        corners: ``(R, 4, 2)`` of warped areas in pixels of the picture, which they may leave; None if none is warped.
        width, height: of the picture.
    """

    sentence: str
    words: tuple[str, ...]
    weights: Tensor
    boxes: Tensor
    corners: Tensor | None
    width: int
    height: int

    @property
    def areas(self) -> Tensor:
        """The corners if areas are warped, else the boxes."""
        return self.boxes if self.corners is None else self.corners

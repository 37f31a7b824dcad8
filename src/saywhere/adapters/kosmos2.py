"""Kosmos-2: sentences whose phrases have boxes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from saywhere.adapters.adapter import Place, Writer
from saywhere.adapters.sources import Family

_PATCH = re.compile(r"<patch_index_(\d+)>")
_TAG = re.compile(r"</?(phrase|object|grounding|image|doc|chunk|line)>|</delimiter_of_multi_objects/>")
BEGIN_PHRASE, END_PHRASE, BEGIN_BOXES, END_BOXES = "<phrase>", "</phrase>", "<object>", "</object>"


class Kosmos2(Writer):
    """Write ``<phrase> a cat</phrase><object><patch_index_0044><patch_index_0863></object>``: two cells of a grid.

    The first is the upper left corner, the second the lower right one; several boxes have a delimiter between them.
    """

    network_class: ClassVar[str] = "Kosmos2ForConditionalGeneration"
    processor_class: ClassVar[str] = "Kosmos2Processor"
    describe_prompt: ClassVar[str] = "<grounding>Describe this image in detail:"
    caption_prompt: ClassVar[str] = "<grounding>An image of"
    most_tokens: ClassVar[int] = 256
    pads: ClassVar[bool] = False  # after padding transformers would count the positions of what is written wrongly

    def __init__(self, folder: Path, family: Family, runner: Any) -> None:
        super().__init__(folder, family, runner)
        self.side = math.isqrt(runner.processor.num_patch_index_tokens)
        self.options = {"num_image_tokens": runner.config["latent_query_num"]}

    def phrase_prompt(self, phrase: str) -> str:
        """Return the phrase in its tags, after which the boxes come."""
        return f"<grounding><phrase> {phrase}</phrase>"

    def box_prompt(self, box: Sequence[float]) -> str:
        """Return a sentence about the box that is to be continued."""
        first, last = box_cells(box, self.side)
        return f"<grounding><phrase> It</phrase><object><patch_index_{first:04}><patch_index_{last:04}></object> is"

    def read_places(self, tokens: Sequence[str]) -> list[Place]:
        """Return the boxes between tags, with the words of the phrase before them."""
        found: list[Place] = []
        words, begin, inside = (0, 0), 0, False
        cells: list[int] = []
        for number, token in enumerate(tokens):
            if token == BEGIN_PHRASE:
                words, begin = (number + 1, number + 1), number
            elif token == END_PHRASE:
                words = (words[0], number)
            elif token == BEGIN_BOXES:
                inside, cells = True, []
                if number == 0 or tokens[number - 1] != END_PHRASE:
                    words, begin = (number, number), number
            elif token == END_BOXES:
                inside = False
            elif inside and (match := _PATCH.fullmatch(token)):
                cells.append(int(match[1]))
                if len(cells) == 2:
                    found.append(Place(patch_box(cells[0], cells[1], self.side), words, (begin, number + 1)))
                    cells = []
        return found

    def is_mark(self, token: str) -> bool:
        """Return whether a token is a cell or a tag."""
        return (_PATCH.fullmatch(token) or _TAG.fullmatch(token)) is not None


def patch_box(first: int, last: int, side: int) -> tuple[float, float, float, float]:
    """Return the box of two cells of a grid of ``side`` by ``side``, as shares of the image.

    It reaches from the middle of the one to the middle of the other; if both are in one row or column, it is all of
    both cells.
    """
    (top, left), (bottom, right) = divmod(first, side), divmod(last, side)
    start, end = (0.0, 1.0) if left == right or top == bottom else (0.5, 0.5)
    return (left + start) / side, (top + start) / side, (right + end) / side, (bottom + end) / side


def box_cells(box: Sequence[float], side: int) -> tuple[int, int]:
    """Return the cells in which the upper left and the lower right corner of a box are, given as shares."""
    x1, y1 = (min(side - 1, max(0, math.floor(share * side))) for share in box[:2])
    x2, y2 = (min(side - 1, max(0, math.ceil(share * side) - 1)) for share in box[2:])
    return y1 * side + x1, y2 * side + x2


ADAPTER = Kosmos2

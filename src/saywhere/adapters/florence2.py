"""Florence-2: dense region captions, captions, and the boxes of phrases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

from saywhere.adapters.adapter import Place, Writer

BINS = 1000
"""Positions that a coordinate has, across and down."""
_LOCATION = re.compile(r"<loc_(\d+)>")


class Florence2(Writer):
    """Write a phrase and after it boxes of four location tokens each, such as ``a cat<loc_1><loc_2><loc_8><loc_9>``."""

    network_class: ClassVar[str] = "Florence2ForConditionalGeneration"
    processor_class: ClassVar[str] = "Florence2Processor"
    describe_prompt: ClassVar[str] = "Locate the objects in the image, with their descriptions."
    caption_prompt: ClassVar[str] = "What does the image describe?"
    most_tokens: ClassVar[int] = 1024
    marks: ClassVar[tuple[str, ...]] = ("<s>", "</s>", "<loc_0>", f"<loc_{BINS - 1}>")

    def phrase_prompt(self, phrase: str) -> str:
        """Return what asks for the boxes of a caption's phrases, with the phrase as the caption."""
        return f"Locate the phrases in the caption: {phrase}"

    def box_prompt(self, box: Sequence[float]) -> str:
        """Return what asks for the description of a region, which is given by location tokens."""
        places = (min(BINS - 1, max(0, int(share * BINS))) for share in box)
        return f"What does the region {''.join(f'<loc_{place}>' for place in places)} describe?"

    def read_places(self, tokens: Sequence[str]) -> list[Place]:
        """Return the boxes: every four location tokens after a phrase; a coordinate is the middle of its bin."""
        found: list[Place] = []
        start = 0
        while start < len(tokens):
            words = _run(tokens, start, marks=False)
            end = _run(tokens, words, marks=True)
            for first in range(words, end - 3, 4):
                x1, y1, x2, y2 = ((int(token[5:-1]) + 0.5) / BINS for token in tokens[first : first + 4])
                found.append(Place((x1, y1, x2, y2), (start, words), (start, first + 4)))
            start = end
        return found

    def is_mark(self, token: str) -> bool:
        """Return whether a token is a location."""
        return _LOCATION.fullmatch(token) is not None


def _run(tokens: Sequence[str], start: int, marks: bool) -> int:
    """Return the end of the run of location tokens, or of others, that begins at ``start``."""
    stop = start
    while stop < len(tokens) and (_LOCATION.fullmatch(tokens[stop]) is not None) == marks:
        stop += 1
    return stop


ADAPTER = Florence2

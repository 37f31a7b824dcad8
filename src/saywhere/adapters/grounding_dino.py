"""Grounding DINO: boxes for phrases, which are joined into one text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from saywhere import boxes as geometry
from saywhere.adapters.adapter import Located, PhraseDetector, image_of
from saywhere.engines.arrays.layers import sigmoid
from saywhere.models.encoding import Encoding


class GroundingDino(PhraseDetector):
    """Score each token of ``a cat. a dog.`` for each box; a phrase's score is the mean over its tokens."""

    network_class: ClassVar[str] = "GroundingDinoForObjectDetection"
    processor_class: ClassVar[str] = "GroundingDinoProcessor"
    threshold: ClassVar[float] = 0.25
    marks: ClassVar[tuple[str, ...]] = ("[CLS]", "[SEP]", ".")
    pads: ClassVar[bool] = False  # its backbone sees the padding, which changes the answers

    @property
    def length(self) -> int:
        """Maximum number of tokens in a text."""
        return self.runner.config.get("max_text_len", 256)

    def groups(self, phrases: Sequence[str]) -> list[list[str]]:
        found: list[list[str]] = []
        left = 0
        for phrase in phrases:
            need = len(self.runner.token_ids(_plain(phrase))) + 1
            if need > left:
                found.append([])
                left = self.length - 2  # without the first and last special token
            found[-1].append(phrase)
            left -= need
        return found

    def detect(self, encodings: Sequence[Encoding], phrases: list[list[str]]) -> list[Located]:
        """Return the boxes of each image as fractions of it, and the mean score of each phrase's tokens."""
        texts = [" ".join(f"{_plain(phrase)}." for phrase in own) for own in phrases]
        images = [image_of(encoding) for encoding in encodings]
        out = self.runner.detect(images, texts, self.length, padding=True)
        tokens = [self.runner.tokens(row) for row in out.token_ids.tolist()]
        found: list[Located] = []
        for own, names, of_tokens, where in zip(phrases, tokens, sigmoid(out.logits), out.boxes, strict=True):
            spans = token_spans(names[: of_tokens.shape[1]], len(own))
            columns = [of_tokens[:, start:stop].mean(axis=1) for start, stop in spans]
            found.append((geometry.from_center(where), np.stack(columns, axis=1)))
        return found


def token_spans(tokens: Sequence[str], count: int) -> list[tuple[int, int]]:
    """Return the token range ``(start, stop)`` of each of ``count`` phrases, each followed by a full stop.

    A phrase whose tokens were truncated gets the last token.
    """
    found: list[tuple[int, int]] = []
    start = 1  # after the special first token
    for number in range(start, len(tokens)):
        if tokens[number] == ".":
            found.append((start, number))
            start = number + 1
    found += [(start, len(tokens))] * (count - len(found))
    return [(min(a, len(tokens) - 1), max(b, min(a, len(tokens) - 1) + 1)) for a, b in found[:count]]


def _plain(phrase: str) -> str:
    """Return a phrase in lower case, without punctuation that would end it."""
    return " ".join(re.sub(r"[.?]", " ", phrase).lower().split())


ADAPTER = GroundingDino

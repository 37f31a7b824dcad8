"""OWLv2: boxes for phrases, which are encoded one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from saywhere import boxes as geometry
from saywhere.adapters.adapter import Located, PhraseDetector, image_of
from saywhere.engines.arrays.layers import sigmoid
from saywhere.models.encoding import Encoding

PHRASES = 100
"""Maximum number of phrases in one pass."""


class Owlv2(PhraseDetector):
    """Score each box by each phrase's vector; only the first 16 tokens of a phrase count."""

    network_class: ClassVar[str] = "Owlv2ForObjectDetection"
    processor_class: ClassVar[str] = "Owlv2Processor"
    threshold: ClassVar[float] = 0.1

    def groups(self, phrases: Sequence[str]) -> list[list[str]]:
        return [list(phrases[start : start + PHRASES]) for start in range(0, len(phrases), PHRASES)]

    def detect(self, encodings: Sequence[Encoding], phrases: list[list[str]]) -> list[Located]:
        """Return the boxes of each image as fractions of it, and the scores of each phrase.

        The network sees a square with the image in its upper left corner; its boxes are fractions of the square.
        """
        length = self.runner.config["text_config"]["max_position_embeddings"]
        out = self.runner.detect([image_of(encoding) for encoding in encodings], phrases, length)
        found: list[Located] = []
        for encoding, own, of_phrases, where in zip(encodings, phrases, sigmoid(out.logits), out.boxes, strict=True):
            side = max(encoding.width, encoding.height)
            shares = np.array([side / encoding.width, side / encoding.height] * 2, np.float32)
            found.append((geometry.from_center(where) * shares, of_phrases[:, : len(own)]))
        return found


ADAPTER = Owlv2

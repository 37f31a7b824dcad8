"""What comes of aligning a sentence with a picture: vectors of both, and phrases with areas."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from saywhere.models.mrf import decode_chain, segments
from saywhere.regions import Regions

Box = tuple[float, float, float, float]


@dataclass(frozen=True, eq=False)
class PictureVectors:
    """A picture as the search sees it.

    Attributes:
        width, height: of the picture as a viewer shows it.
        boxes: ``(R, 4)`` of its areas in its pixels, the whole picture first.
        vectors: ``(R, D)``.
        name: of the picture.
        scores: ``(R,)`` logits that there is something, see :class:`saywhere.vision.areas.Areas`.
    """

    width: int
    height: int
    boxes: Tensor
    vectors: Tensor
    name: str
    scores: Tensor | None = None

    def __len__(self) -> int:
        return len(self.boxes)


@dataclass(frozen=True, eq=False)
class SentenceVectors:
    """A sentence as the search sees it: its score with a picture is the sum over the rows of the best area (Eq. 8).

    Attributes:
        words: as they were read.
        vectors: ``(T, D)`` of each word; there is one row more if the model has a vector for the sentence as a whole.
    """

    words: tuple[str, ...]
    vectors: Tensor

    def __len__(self) -> int:
        return len(self.vectors)


class AlignedPhrase(NamedTuple):
    """Neighbouring words on one area.

    Attributes:
        words: the text.
        start, stop: number of its first word in the sentence, and of the word after its last.
        area: number of the area.
        box: of the area, in pixels of the picture.
        score: the mean over the words of their product with the area (Eq. 11).
    """

    words: str
    start: int
    stop: int
    area: int
    box: Box
    score: float


@dataclass(frozen=True, eq=False)
class Alignment:
    """A sentence on a picture.

    Attributes:
        image: name of the picture.
        width, height: its size as a viewer shows it.
        words: of the sentence, as they were read.
        boxes: ``(R, 4)`` of the areas in pixels of the picture, the whole picture first.
        products: ``(T, R)`` of each word with each area (Eq. 11), and what is added for the areas themselves.
        phrases: the sentence in order, cut where the area changes.
    """

    image: str
    width: int
    height: int
    words: tuple[str, ...]
    boxes: Tensor
    products: Tensor
    phrases: tuple[AlignedPhrase, ...]

    def with_beta(self, beta: float) -> Alignment:
        """The same words and areas, aligned with another affinity (Eq. 12)."""
        return make_alignment(self.image, self.width, self.height, self.words, self.boxes, self.products, beta)

    def locate(self, start: int, stop: int) -> Tensor:
        """The box ``(4,)`` of the words from ``start`` to ``stop``: the area whose products with them sum to most."""
        return self.boxes[int(self.products[start:stop].sum(dim=0).argmax())]

    def snippets(self) -> list[tuple[Box, str]]:
        """Boxes and the words that fell on them: what a speaker for regions is trained on (section 3.2)."""
        return [(phrase.box, phrase.words) for phrase in self.phrases]

    def regions(self) -> Regions:
        """The phrases as regions with captions, in the order of the sentence."""
        boxes = torch.tensor([phrase.box for phrase in self.phrases]).reshape(-1, 4)
        captions = tuple(phrase.words for phrase in self.phrases)
        return Regions(self.width, self.height, boxes, captions=captions, image=self.image)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: ``image, width, height, sentence, phrases``, each phrase with ``words, box, score``."""
        phrases = [
            {"words": p.words, "start": p.start, "stop": p.stop, "box": [round(v, 2) for v in p.box],
             "score": round(p.score, 5)}
            for p in self.phrases
        ]  # fmt: skip
        sentence = " ".join(self.words)
        return {"image": self.image, "width": self.width, "height": self.height, "sentence": sentence,
                "phrases": phrases}  # fmt: skip


def make_alignment(
    image: str, width: int, height: int, words: tuple[str, ...], boxes: Tensor, products: Tensor, beta: float
) -> Alignment:
    """Align ``words`` with ``boxes (R, 4)`` by their ``products (T, R)`` and the chain of Eqs. 10 to 12."""
    chain = decode_chain(
        products[None], torch.ones(1, len(words), dtype=torch.bool, device=products.device), None, beta
    )
    corners = boxes.tolist()
    phrases = tuple(
        AlignedPhrase(
            " ".join(words[start:stop]), start, stop, area, tuple(corners[area]),
            float(products[start:stop, area].mean()),
        )
        for start, stop, area in segments(chain.areas[0].tolist())
    )  # fmt: skip
    return Alignment(image, width, height, words, boxes, products, phrases)

"""Florence-2: dense region captions, captions and the boxes of phrases, all generated as text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from saywhere.adapters.adapter import Adapter, Located, image_of, to_pixels
from saywhere.models.encoding import AT_ONCE, Encoding
from saywhere.options import dataclass
from saywhere.regions import Regions

BINS = 1000
"""Number of bins of a coordinate, across and down."""
_LOCATION = re.compile(r"<loc_(\d+)>")


class Place(NamedTuple):
    """A box in a generated text.

    Attributes:
        box: ``x1 y1 x2 y2`` as fractions of the image's width and height.
        words: token range ``(start, stop)`` of the phrase before it; empty if there is none.
        tokens: token range of phrase and box together.
    """

    box: tuple[float, float, float, float]
    words: tuple[int, int]
    tokens: tuple[int, int]

    @property
    def is_box(self) -> bool:
        """Whether the corners are in the right order."""
        x1, y1, x2, y2 = self.box
        return x2 > x1 and y2 > y1


@dataclass(frozen=True, eq=False)
class Text:
    """T generated tokens: their ids, names and natural log-probabilities ``(T,)``."""

    token_ids: Sequence[int]
    tokens: Sequence[str]
    log_probs: np.ndarray

    def score(self, start: int, stop: int) -> float:
        """Return the geometric mean of the probabilities of some tokens; 0 if there are none."""
        return float(np.exp(self.log_probs[start:stop].mean())) if stop > start else 0.0


class Florence2(Adapter):
    """Generate phrases followed by boxes of four location tokens, such as ``a cat<loc_1><loc_2><loc_8><loc_9>``."""

    network_class: ClassVar[str] = "Florence2ForConditionalGeneration"
    processor_class: ClassVar[str] = "Florence2Processor"
    describe_prompt: ClassVar[str] = "Locate the objects in the image, with their descriptions."
    caption_prompt: ClassVar[str] = "What does the image describe?"
    most_tokens: ClassVar[int] = 1024
    caption_tokens: ClassVar[int] = 64
    threshold: ClassVar[float] = 1e-6  # any phrase that it generates a box for
    marks: ClassVar[tuple[str, ...]] = ("<s>", "</s>", "<loc_0>", f"<loc_{BINS - 1}>")

    def phrase_prompt(self, phrase: str) -> str:
        """Return the prompt for the boxes of a caption's phrases, with the phrase as the caption."""
        return f"Locate the phrases in the caption: {phrase}"

    def box_prompt(self, box: Sequence[float]) -> str:
        """Return the prompt for the description of a region, given by location tokens."""
        places = (min(BINS - 1, max(0, int(share * BINS))) for share in box)
        return f"What does the region {''.join(f'<loc_{place}>' for place in places)} describe?"

    def read_places(self, tokens: Sequence[str]) -> list[Place]:
        """Return the boxes, each four location tokens after a phrase; a coordinate is the middle of its bin."""
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
        """Return whether a token is a location token."""
        return _LOCATION.fullmatch(token) is not None

    def describe(self, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike] | None = None) -> list[Regions]:
        """Return the regions generated for each image, or for given boxes ``(N, 4)`` a phrase each.

        A score is the geometric mean of the token probabilities, of words and box, or for a given box of the words.

        Raises:
            UserError: boxes have another shape, or are outside their image.
        """
        if boxes is not None:
            return self._describe_boxes(encodings, [e.check(b) for e, b in zip(encodings, boxes, strict=True)])
        texts = self.write(encodings, [self.describe_prompt] * len(encodings), self.most_tokens)
        return [self._regions(encoding, text) for encoding, text in zip(encodings, texts, strict=True)]

    def _regions(self, encoding: Encoding, text: Text) -> Regions:
        named = [(place, self.words(text, *place.words)) for place in self.read_places(text.tokens) if place.is_box]
        kept = [(place, words) for place, words in named if words]
        boxes = to_pixels(encoding, np.array([place.box for place, _ in kept], np.float32))
        scores = np.array([text.score(*place.tokens) for place, _ in kept], np.float32)
        captions = tuple(words for _, words in kept)
        return Regions(encoding.width, encoding.height, boxes, scores, captions, image=encoding.image)

    def _describe_boxes(self, encodings: Sequence[Encoding], boxes: Sequence[np.ndarray]) -> list[Regions]:
        jobs = [(encoding, box) for encoding, own in zip(encodings, boxes, strict=True) for box in own]
        prompts = [self.box_prompt((box / np.array([e.width, e.height] * 2)).tolist()) for e, box in jobs]
        texts = self.write([encoding for encoding, _ in jobs], prompts, self.caption_tokens)
        ends = [next((i for i, t in enumerate(text.tokens) if self.is_mark(t)), len(text.tokens)) for text in texts]
        said = iter([(self.words(text, 0, end), text.score(0, end)) for text, end in zip(texts, ends, strict=True)])
        found: list[Regions] = []
        for encoding, own in zip(encodings, boxes, strict=True):
            rows = [next(said) for _ in own]
            scores, captions = np.array([score for _, score in rows], np.float32), tuple(words for words, _ in rows)
            found.append(Regions(encoding.width, encoding.height, own, scores, captions, image=encoding.image))
        return found

    def caption(self, encodings: Sequence[Encoding], beam_size: int | None = None) -> list[str]:
        """Return a sentence for each image."""
        prompts = [self.caption_prompt] * len(encodings)
        texts = self.write(encodings, prompts, self.caption_tokens, beam_size or 1)
        return [self.words(text, 0, len(text.tokens)) for text in texts]

    def locate(self, encodings: Sequence[Encoding], phrases: Sequence[Sequence[str]]) -> list[Located]:
        """Return for each image the box and the score of each phrase: the first box generated for it."""
        jobs = [(encoding, phrase) for encoding, own in zip(encodings, phrases, strict=True) for phrase in own]
        prompts = [self.phrase_prompt(" ".join(re.sub("[<>]", " ", phrase).split())) for _, phrase in jobs]
        texts = iter(self.write([encoding for encoding, _ in jobs], prompts, self.caption_tokens))
        found: list[Located] = []
        for encoding, own in zip(encodings, phrases, strict=True):
            rows = [self._first(next(texts)) for _ in own]
            boxes = to_pixels(encoding, np.array([box for box, _ in rows], np.float32))
            found.append((boxes, np.array([score for _, score in rows], np.float32)))
        return found

    def _first(self, text: Text) -> tuple[tuple[float, ...], float]:
        """Return the box that a text begins with and its score; without one the whole image and 0."""
        first = next(iter(self.read_places(text.tokens)), None)
        if first is None or first.tokens[0] > 0 or not first.is_box:
            return (0.0, 0.0, 1.0, 1.0), 0.0
        return first.box, text.score(*first.tokens)

    def words(self, text: Text, start: int, stop: int) -> str:
        """Return some of the tokens as plain text, without location tokens."""
        rows = zip(text.token_ids[start:stop], text.tokens[start:stop], strict=True)
        kept = [token_id for token_id, token in rows if not self.is_mark(token)]
        return " ".join(self.runner.decode(kept).split())

    def write(
        self, encodings: Sequence[Encoding], prompts: Sequence[str], most_tokens: int, beam_size: int = 1
    ) -> list[Text]:
        """Generate a text for each prompt, ``AT_ONCE`` at a time, greedily or by beam search.

        With beam search the log-probabilities are 0.
        """
        found: dict[int, Text] = {}
        for start in range(0, len(prompts), AT_ONCE):
            some = range(start, min(start + AT_ONCE, len(prompts)))
            images, asked = [image_of(encodings[i]) for i in some], [prompts[i] for i in some]
            with self.lock:
                rows = self.runner.write(images, asked, most_tokens, beam_size)
            found |= zip(some, [self._text(*row) for row in rows], strict=True)
        return [found[i] for i in range(len(prompts))]

    def _text(self, token_ids: list[int], log_probs: np.ndarray) -> Text:
        kept = [i for i, token_id in enumerate(token_ids) if token_id not in self.runner.silent]
        own = [token_ids[i] for i in kept]
        return Text(own, self.runner.tokens(own), log_probs[kept])


def _run(tokens: Sequence[str], start: int, marks: bool) -> int:
    """Return the end of the run of location tokens (``marks``), or of other tokens, that begins at ``start``."""
    stop = start
    while stop < len(tokens) and (_LOCATION.fullmatch(tokens[stop]) is not None) == marks:
        stop += 1
    return stop


ADAPTER = Florence2

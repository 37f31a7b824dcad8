"""Models that write where things are: a language model whose text names places by tokens."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike

from saywhere.adapters.adapter import Adapter, Located, image_of, to_pixels
from saywhere.adapters.sources import Family
from saywhere.models.encoding import AT_ONCE, Encoding
from saywhere.regions import Regions


class Place(NamedTuple):
    """A box that stands in a text.

    Attributes:
        box: ``x1 y1 x2 y2`` as shares of the image's width and height.
        words: the tokens, from and to, of the phrase before it; the same number twice if there is none.
        tokens: all tokens, from and to, that the phrase and the box take.
    """

    box: tuple[float, float, float, float]
    words: tuple[int, int]
    tokens: tuple[int, int]

    @property
    def is_box(self) -> bool:
        """Whether the corners are in their order."""
        x1, y1, x2, y2 = self.box
        return x2 > x1 and y2 > y1


@dataclass(frozen=True, eq=False)
class Text:
    """T tokens that a model wrote: their ids, names and natural log-probabilities ``(T,)``."""

    token_ids: Sequence[int]
    tokens: Sequence[str]
    log_probs: np.ndarray

    def score(self, start: int, stop: int) -> float:
        """Return the geometric mean of the probabilities of some tokens; 0 of none."""
        return float(np.exp(self.log_probs[start:stop].mean())) if stop > start else 0.0


class _Recorder:
    """Note the log-probability of the likeliest token of each row at each step, which greedy decoding takes."""

    def __init__(self) -> None:
        self.steps: list[Any] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.steps.append(scores.float().log_softmax(dim=-1).amax(dim=-1))
        return scores


class Writer(Adapter):
    """A family that describes, captions and locates by writing.

    Attributes:
        describe_prompt, caption_prompt: what is asked of an image.
        most_tokens, caption_tokens: of an answer.
        pads: whether prompts of several lengths may be answered together.
    """

    describe_prompt: ClassVar[str]
    caption_prompt: ClassVar[str]
    most_tokens: ClassVar[int]
    caption_tokens: ClassVar[int] = 64
    pads: ClassVar[bool] = True
    threshold: ClassVar[float] = 1e-6  # whatever it writes a box for

    def __init__(self, folder: Path, family: Family, device: Any) -> None:
        super().__init__(folder, family, device)
        tokenizer = self.processor.tokenizer
        self._silent = {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id}

    @abstractmethod
    def phrase_prompt(self, phrase: str) -> str:
        """Return what asks for the box of a phrase."""

    @abstractmethod
    def box_prompt(self, box: Sequence[float]) -> str:
        """Return what asks for the words of a box, which is given as shares of the image's width and height."""

    @abstractmethod
    def read_places(self, tokens: Sequence[str]) -> list[Place]:
        """Return the boxes that stand among tokens."""

    @abstractmethod
    def is_mark(self, token: str) -> bool:
        """Return whether a token is part of a place, and no word."""

    def prepare(self, images: list[Any], prompts: list[str]) -> Any:
        """Return the network's inputs for images and what is asked of each."""
        return self.processor(images=images, text=prompts, padding=True, return_tensors="pt")

    def describe(self, encodings: Sequence[Encoding], boxes: Sequence[ArrayLike] | None = None) -> list[Regions]:
        """Return the regions that the model writes of each image, or a phrase for each of given boxes ``(N, 4)``.

        A score is the geometric mean of the probabilities of the tokens, of words and box, or of the words alone of a
        given box.

        Raises:
            UserError: boxes of another shape, or outside their image.
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
        """Return for each image the box and the score of each phrase: the first box that the model writes for it."""
        jobs = [(encoding, phrase) for encoding, own in zip(encodings, phrases, strict=True) for phrase in own]
        prompts = [self.phrase_prompt(without_marks(phrase)) for _, phrase in jobs]
        texts = iter(self.write([encoding for encoding, _ in jobs], prompts, self.caption_tokens))
        found: list[Located] = []
        for encoding, own in zip(encodings, phrases, strict=True):
            rows = [self._first(next(texts)) for _ in own]
            boxes = to_pixels(encoding, np.array([box for box, _ in rows], np.float32))
            found.append((boxes, np.array([score for _, score in rows], np.float32)))
        return found

    def _first(self, text: Text) -> tuple[tuple[float, ...], float]:
        """The box that a text begins with and its score; the whole image and 0 if it begins with none."""
        first = next(iter(self.read_places(text.tokens)), None)
        if first is None or first.tokens[0] > 0 or not first.is_box:
            return (0.0, 0.0, 1.0, 1.0), 0.0
        return first.box, text.score(*first.tokens)

    def words(self, text: Text, start: int, stop: int) -> str:
        """Return some of the tokens as plain text, without marks."""
        rows = zip(text.token_ids[start:stop], text.tokens[start:stop], strict=True)
        kept = [token_id for token_id, token in rows if not self.is_mark(token)]
        return " ".join(self.processor.tokenizer.decode(kept, skip_special_tokens=True).split())

    def write(
        self, encodings: Sequence[Encoding], prompts: Sequence[str], most_tokens: int, beam_size: int = 1
    ) -> list[Text]:
        """Return what the model writes after each prompt, ``AT_ONCE`` at a time; greedy, or by beam search.

        With beam search the log-probabilities are 0.
        """
        found: dict[int, Text] = {}
        for some in self._batches(prompts):
            with self.lock, torch.inference_mode():
                texts = self._write([encodings[i] for i in some], [prompts[i] for i in some], most_tokens, beam_size)
            found |= zip(some, texts, strict=True)
        return [found[i] for i in range(len(prompts))]

    def _batches(self, prompts: Sequence[str]) -> Iterator[list[int]]:
        """The numbers of the prompts that are answered together."""
        groups: dict[int, list[int]] = {}
        for number, prompt in enumerate(prompts):
            length = 0 if self.pads else len(self.processor.tokenizer(prompt)["input_ids"])
            groups.setdefault(length, []).append(number)
        for group in groups.values():
            yield from (group[start : start + AT_ONCE] for start in range(0, len(group), AT_ONCE))

    def _write(self, encodings: Sequence[Encoding], prompts: list[str], most_tokens: int, beam_size: int) -> list[Text]:
        inputs = self.prepare([image_of(encoding) for encoding in encodings], prompts).to(self.device)
        recorder = _Recorder()
        sequences = self.network.generate(
            **inputs,
            max_new_tokens=most_tokens,
            num_beams=beam_size,
            do_sample=False,
            early_stopping=beam_size > 1,
            logits_processor=[recorder] if beam_size == 1 else [],
        )
        if beam_size > 1:
            start = 1 if self.network.config.is_encoder_decoder else inputs["input_ids"].shape[1]
            rows = sequences[:, start:].tolist()
            return [self._text(row, np.zeros(len(row), np.float32)) for row in rows]
        log_probs = torch.stack(recorder.steps, dim=1).cpu().numpy()
        rows = sequences[:, -log_probs.shape[1] :].tolist()
        return [self._text(row, own) for row, own in zip(rows, log_probs, strict=True)]

    def _text(self, token_ids: list[int], log_probs: np.ndarray) -> Text:
        kept = [i for i, token_id in enumerate(token_ids) if token_id not in self._silent]
        own = [token_ids[i] for i in kept]
        return Text(own, self.processor.tokenizer.convert_ids_to_tokens(own), log_probs[kept])


def without_marks(text: str) -> str:
    """Return a user's text without the brackets of which the models' own marks are made."""
    return " ".join(re.sub("[<>]", " ", text).split())

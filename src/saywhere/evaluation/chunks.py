"""Phrases cut by the chunker against those that people marked."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from saywhere.errors import UserError
from saywhere.models.chunker import Chunker, spans
from saywhere.training.chunker import TaggedSentence


@dataclass(frozen=True)
class ChunkScores:
    """Precision and recall of phrases, against phrases that people marked.

    Attributes:
        precision: share of the phrases found whose first and last word are those of a marked phrase.
        recall: share of the marked phrases that are found.
        visible_f1: F1 of the phrases that name something visible.
        phrases: number of marked phrases.
        sentences: number of sentences.
        milliseconds: of a processor that a sentence takes.
    """

    precision: float
    recall: float
    visible_f1: float
    phrases: int
    sentences: int
    milliseconds: float

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        return _f1(self.precision, self.recall)


def measure(chunker: Chunker, sentences: Sequence[TaggedSentence]) -> ChunkScores:
    """Cut sentences, and compare the phrases with those that are marked.

    Raises:
        UserError: no phrase is marked.
    """
    start = time.process_time()
    cut = [chunker.chunk(sentence.text) for sentence in sentences]
    seconds = time.process_time() - start
    found = {(i, p.start, p.stop, p.visible) for i, phrases in enumerate(cut) for p in phrases}
    marked = {(i, *span) for i, sentence in enumerate(sentences) for span in spans(sentence.tags)}
    if not marked:
        raise UserError("no phrase of the sentences is marked")
    precision, recall = _shares({each[:3] for each in found}, {each[:3] for each in marked})
    visible = _shares({each for each in found if each[3]}, {each for each in marked if each[3]})
    per_sentence = 1000 * seconds / len(sentences)
    return ChunkScores(precision, recall, _f1(*visible), len(marked), len(sentences), per_sentence)


def _shares(found: Collection[object], marked: Collection[object]) -> tuple[float, float]:
    right = len(set(found) & set(marked))
    return right / max(len(found), 1), right / max(len(marked), 1)


def _f1(precision: float, recall: float) -> float:
    return 2 * precision * recall / max(precision + recall, 1e-9)

"""Word vectors from files in the text format of GloVe: a word and its numbers a line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from saywhere.errors import UserError
from saywhere.text import Vocabulary


def read_word_vectors(path: str | Path, vocabulary: Vocabulary) -> dict[int, Tensor]:
    """Return the vectors ``(E,)`` of the words of ``vocabulary`` that the file has, by token id.

    Lines of other words are skipped. A first line of two numbers (the header of word2vec's text format) is skipped too.

    Raises:
        UserError: no such file, a line that is no vector or one of another length, or not one word in common.
    """
    wanted = {word: number for number, word in enumerate(vocabulary.tokens) if word in vocabulary}
    found: dict[int, Tensor] = {}
    size = 0
    try:
        with Path(path).open(encoding="utf-8-sig", errors="replace", newline="\n") as lines:
            for count, line in enumerate(lines, start=1):
                word, _, rest = line.rstrip().partition(" ")
                if word not in wanted or (count == 1 and rest.count(" ") == 0):
                    continue
                vector = _numbers(rest, f"{path}:{count}")
                if size and len(vector) != size:
                    raise UserError(f"{path}:{count}: {len(vector)} numbers, where the lines before have {size}")
                size = len(vector)
                found[wanted[word]] = vector
    except OSError as error:
        raise UserError(f"{path} cannot be read as word vectors: {error.strerror}") from error
    if not found:
        raise UserError(f"{path} has not one of the {len(wanted)} words of the vocabulary: is it a GloVe text file?")
    return found


def _numbers(text: str, place: str) -> Tensor:
    try:
        values = np.array(text.split(), dtype=np.float32)
    except ValueError:
        raise UserError(f"{place} is not a word and its numbers: {text[:40]!r}") from None
    if len(values) == 0 or not np.isfinite(values).all():
        raise UserError(f"{place} has no vector, or one with a number that is not finite")
    return torch.from_numpy(values)


def load_word_vectors(weight: Tensor, vectors: dict[int, Tensor]) -> None:
    """Put ``vectors`` into the rows of ``weight (V, E)``; the other rows get their spread (padding stays as it is).

    Raises:
        UserError: the vectors have another size than the model's.
    """
    rows = torch.stack(list(vectors.values()))
    if rows.shape[1] != weight.shape[1]:
        raise UserError(f"the word vectors have {rows.shape[1]} numbers: set model.word_size={rows.shape[1]}")
    with torch.no_grad():
        padding = weight[0].clone()
        weight.mul_(rows.std() / weight[1:].std().clamp(min=1e-6))
        weight[torch.tensor(list(vectors))] = rows.to(weight)
        weight[0] = padding

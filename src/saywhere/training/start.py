"""Fine-tuning: weights of a trained model as the beginning of another run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from saywhere.errors import UserError
from saywhere.models import checkpoint
from saywhere.text import RESERVED, Vocabulary


@dataclass(frozen=True)
class Start:
    """What a model took over from another.

    Attributes:
        parts: tensors taken over, whole or the rows of common words.
        left: names of the tensors that stay as they were made.
        words: words of the new vocabulary that the other knows, and how many there are.
    """

    parts: int
    left: tuple[str, ...]
    words: tuple[int, int]

    def __str__(self) -> str:
        known, all_words = self.words
        new = f"; new: {', '.join(self.left)}" if self.left else ""
        return f"{self.parts} tensors taken over, {known} of {all_words} words known{new}"


def start_from(model: nn.Module, vocabulary: Vocabulary, name: str) -> Start:
    """Give ``model`` the weights of the checkpoint ``name`` (a folder or a bundled model) wherever they fit.

    A tensor fits if both models have it in one shape. Of tensors with a row for each word, the rows of words that both
    vocabularies have are taken over.

    Raises:
        UserError: there is no such model, or it has nothing in common with this one.
    """
    other = checkpoint.load(name)
    rows = common_rows(other.vocabulary, vocabulary)
    start = take_over(model.state_dict(), other.state_dict(), rows, (len(other.vocabulary), len(vocabulary)))
    if not start.parts:
        raise UserError(f"training.start: {name} has no weights that fit this model")
    return start


def common_rows(old: Vocabulary, new: Vocabulary) -> Tensor:
    """``(2, K)``: the numbers of the K tokens that both vocabularies have, in the old one and in the new one."""
    numbers = {token: number for number, token in enumerate(old.tokens)}
    pairs = [(numbers[token], number) for number, token in enumerate(new.tokens) if token in numbers]
    return torch.tensor(pairs).T


@torch.no_grad()
def take_over(new: Mapping[str, Tensor], old: Mapping[str, Tensor], rows: Tensor, words: tuple[int, int]) -> Start:
    """Copy what fits from the tensors ``old`` into the tensors ``new``.

    Args:
        new, old: tensors by name.
        rows: see :func:`common_rows`.
        words: sizes of the old and of the new vocabulary.
    """
    left: list[str] = []
    for name, target in new.items():
        source = old.get(name)
        if source is None or source.ndim != target.ndim:
            left.append(name)
        elif of_words(name) and (len(source), len(target)) == words and source.shape[1:] == target.shape[1:]:
            target[rows[1]] = source[rows[0]].to(target)
        elif source.shape == target.shape:
            target.copy_(source)
        else:
            left.append(name)
    return Start(len(new) - len(left), tuple(left), (rows.shape[1] - len(RESERVED), words[1] - len(RESERVED)))


def of_words(name: str) -> bool:
    """Whether a tensor has a row for each word: a speaker's or reader's word vectors, and a speaker's output."""
    return name.endswith(("words.weight", "output.weight", "output.bias"))

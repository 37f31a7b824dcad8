"""From strings to word numbers and back."""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from saywhere.errors import UserError

PAD, START, END, UNKNOWN = range(4)
RESERVED = ("<pad>", "<start>", "<end>", "<unk>")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")
_LEAD_IN = re.compile(
    r"^(?:(?:there|here) (?:is|are|was|were)|(?:this|that|it) (?:is|seems to be|appears to be|looks like)"
    r"|(?:these|those) are|(?:a|the) (?:picture|photo|image) of) +",
    re.IGNORECASE,
)


def tokenize(text: str) -> list[str]:
    """Lower-case words without punctuation: ``"A man's T-shirt."`` gives ``a man's t shirt``."""
    return _WORD.findall(unicodedata.normalize("NFKC", text).replace("’", "'").lower())


def strip_lead_in(text: str) -> str:
    """The phrase without a referring opening such as "there is" or "this seems to be" (DenseCap, section 4)."""
    stripped = _LEAD_IN.sub("", text.strip(), count=1)
    return stripped or text.strip()


class Vocabulary:
    """Words and their numbers; 0 to 3 are padding, START, END and the unknown word.

    Args:
        counts: how often each word was seen; the order of its items gives the numbers from 4 on.
    """

    def __init__(self, counts: dict[str, int]):
        if clash := [word for word in RESERVED if word in counts]:
            raise ValueError(f"reserved token {clash[0]!r} cannot be a word of the vocabulary")
        self.counts = dict(counts)
        self.tokens = (*RESERVED, *self.counts)
        self._index = {token: i for i, token in enumerate(self.tokens)}

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 1, max_words: int | None = None) -> Vocabulary:
        """Words of ``texts`` seen at least ``min_count`` times, most frequent first, at most ``max_words``."""
        counts = Counter(word for text in texts for word in tokenize(text))
        kept = [(word, n) for word, n in counts.items() if n >= min_count]
        kept.sort(key=lambda item: (-item[1], item[0]))
        return cls(dict(kept[:max_words]))

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, word: str) -> bool:
        return word in self.counts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Vocabulary) and self.tokens == other.tokens and self.counts == other.counts

    def __repr__(self) -> str:
        return f"Vocabulary({len(self.counts)} words)"

    def encode(self, text: str) -> list[int]:
        """Word numbers of ``text``, without START and END; unknown words become ``UNKNOWN``."""
        return [self._index.get(word, UNKNOWN) for word in tokenize(text)]

    def decode(self, numbers: Iterable[int], unknown: str = RESERVED[UNKNOWN]) -> str:
        """The text of word numbers up to the first END; padding and START are left out, UNKNOWN is ``unknown``."""
        words = []
        for number in numbers:
            if number == END:
                break
            if number not in (PAD, START):
                words.append(unknown if number == UNKNOWN else self.tokens[number])
        return " ".join(words)

    def save(self, path: str | Path) -> None:
        """Write the words and their counts as JSON."""
        data = {"reserved": RESERVED, "counts": self.counts}
        Path(path).write_text(json.dumps(data, ensure_ascii=False, indent=0), encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> Vocabulary:
        """Read what :meth:`save` wrote; ``UserError`` names a file that is missing or something else."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
            if tuple(data["reserved"]) != RESERVED:
                raise ValueError("unknown reserved tokens")
            return cls({str(word): int(n) for word, n in data["counts"].items()})
        except OSError as error:
            raise UserError(f"{path} cannot be read as a vocabulary: {error.strerror}") from error
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise UserError(f"{path} is not a saywhere vocabulary: {error}") from error


def pad(sequences: Sequence[Sequence[int]]) -> Tensor:
    """Word numbers as one ``(N, T)`` long tensor, filled up with ``PAD`` on the right."""
    length = max((len(s) for s in sequences), default=0)
    rows = [[*sequence, *[PAD] * (length - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.long).reshape(len(sequences), length)

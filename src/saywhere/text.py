"""Words: texts to token ids and back, and the English of generated texts."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from saywhere.report import counted

PAD, START, END, UNKNOWN = range(4)
RESERVED = ("<pad>", "<start>", "<end>", "<unk>")

ARTICLE = re.compile(
    r"(?<!\S)an?(?= (?!(?:an?|and)\b)((?!eu|ewe|onc?e|uk|uni[cfoqstv]|ur[ai]|us(?:[abeiu]|\b)|ut[eio]|u\b)[aeiou]"
    r"|8|1[18]\b|heir|hono|hones|hour|[fhlmnrsx]\b|hd|lcd|mp3|rv|suv|xray)?)"
)
"""An "a" or "an" before a word. Its group matches if the word begins with a vowel sound: by its spelling, and by the
exceptions that occur in captions ("a uniform", "a one way sign", "an hour", "an 18 wheeler", "an x ray")."""

STUTTER = re.compile(r"(?<!\S)(?!yo )(\S+)(?: (?:and )?\1(?!\S))+")
"""A word repeated at once, except "yo yo"."""

INSIDE = frozenset({
    "area", "bathroom", "bedroom", "city", "desert", "kitchen", "parking lot", "room", "town", "yard",
})  # fmt: skip
"""Places that English says things are in, not on or in front of."""
UPON = frozenset({"beach", "floor", "ground", "lawn", "runway", "sidewalk", "tennis court", "trail"})
"""Places that English says things are on, not in or in front of."""
SEATED = frozenset({
    "boy", "boys", "child", "children", "couple", "family", "girl", "girls", "guy", "guys", "kid", "kids", "ladies",
    "lady", "man", "men", "people", "person", "woman", "women",
})  # fmt: skip
"""Those who sit at a table or desk, not on it."""
UNCOUNTED = frozenset({
    "clothes", "clothing", "eyes", "flowers", "furniture", "gear", "hair", "jeans", "leaves", "luggage", "oranges",
    "shorts", "spots", "stairs", "sunglasses", "tracks", "trees",
})  # fmt: skip
"""Nouns without "a" and "an"."""
COUNTING = frozenset({"couple", "dozen", "few"})
"""Words between "a" and such a noun that need the article: "a few trees"."""
AFLOAT = frozenset({"boat", "boats", "ship", "ships", "sailboat", "sailboats", "water"})
"""What is in front of a city or beach, and not in or on it."""
LOOKING = frozenset({"look", "looking", "looks"})
"""Those who look "on a city" are not in it."""
PHRASE_ENDS = frozenset({
    "a", "about", "above", "across", "against", "along", "an", "and", "are", "around", "at", "behind", "below",
    "beneath", "beside", "between", "by", "carrying", "doing", "down", "eating", "flying", "for", "from", "has",
    "have", "holding", "in", "inside", "into", "is", "lie", "lies", "looking", "near", "next", "of", "off", "on",
    "onto", "or", "outside", "over", "playing", "riding", "running", "sit", "sits", "sitting", "stand", "standing",
    "stands", "taking", "that", "the", "through", "to", "toward", "towards", "under", "up", "walking", "wearing",
    "which", "while", "who", "with",
})  # fmt: skip
"""Words that end a phrase with an article."""

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def two_digits(probability: float) -> str:
    """Format a probability for people: two digits, and never 1.00, because no box is certain."""
    return f"{min(probability, 0.99):.2f}"


def tokenize(text: str) -> list[str]:
    """Split a text into lower-case words without punctuation: ``"A man's T-shirt."`` gives ``a man's t shirt``."""
    return _WORD.findall(_normalize(text))


def with_articles(text: str) -> str:
    """Correct "a" and "an" in a generated text to fit the following word.

    Example:
        >>> with_articles("an man in a orange uniform on an unicycle")
        'a man in an orange uniform on a unicycle'
    """
    return ARTICLE.sub(lambda found: "an" if found[1] else "a", text)


def without_stutter(text: str) -> str:
    """Remove immediate repetitions of words from a generated text.

    Example:
        >>> without_stutter("a red and red car in front of a green green field")
        'a red car in front of a green field'
    """
    return STUTTER.sub(r"\1", text)


def with_usage(text: str) -> str:
    """Correct prepositions and articles of a generated text that English does not use with the noun that follows.

    Example:
        >>> with_usage("two people sitting on a table in front of a kitchen")
        'two people sitting at a table in a kitchen'
        >>> with_usage("a train on a train tracks")
        'a train on train tracks'
    """
    words = text.split()
    for start in reversed([i for i, word in enumerate(words) if word in ("a", "an", "the")]):
        stop = next((i for i in range(start + 1, len(words)) if words[i] in PHRASE_ENDS), len(words))
        names = {words[stop - 1], " ".join(words[stop - 2 : stop])}
        counted = any(word in COUNTING or word.endswith("'s") for word in words[start:stop])  # "a woman's hair"
        verb = words[stop : stop + 1] in (["a"], ["an"], ["the"])  # "a train leaves a station"
        if words[start] != "the" and stop - start <= 3 and names & UNCOUNTED and not (counted or verb):
            del words[start]
        before, long = words[start - 1 : start], " ".join(words[max(start - 3, 0) : start])
        front = long == "in front of" and AFLOAT.isdisjoint(words[:start])
        top = long == "on top of" or (before == ["on"] and LOOKING.isdisjoint(words[max(start - 3, 0) : start]))
        if names & INSIDE and (front or (top and "area" not in names)):
            words[start - (1 if before == ["on"] else 3) : start] = ["in"]
        elif names & UPON and front and not _are_upon(words[: start - 3]):
            words[start - 3 : start] = ["on"]
        elif before == ["in"] and names & {"sidewalk", "tennis court"}:
            words[start - 1] = "on"
        elif before == ["on"] and names & {"table", "desk"} and _are_seated(words[: start - 1]):
            words[start - 1] = "at"
    corrected = with_articles(" ".join(words))
    return corrected if corrected == text else with_usage(corrected)


def _are_upon(words: Sequence[str]) -> bool:
    """Return whether the words before "in front of a lawn" end with what something is on: "a dog on the grass"."""
    return [word for word in words if word in PHRASE_ENDS - {"a", "an", "the", "and"}][-1:] == ["on"]


def _are_seated(words: Sequence[str]) -> bool:
    """Return whether the words before "on a table" end with somebody who sits: "a man in a suit is sitting"."""
    if words[-1:] not in (["sit"], ["sits"], ["sitting"]):
        return False
    before = [i for i, word in enumerate(words) if word in SEATED]
    if not before:
        return False
    between = words[before[-1] + 1 : -1]
    clothes = between[:1] in (["in"], ["wearing"])  # and nobody else between: "a man in a hat with a cat sitting"
    others = PHRASE_ENDS - {"a", "an", "the", "and", "that", "who", "is", "are"}
    return others.isdisjoint(between[1:]) if clothes else set(between) <= {"that", "who", "is", "are"}


def split_words(text: str) -> tuple[list[str], list[str]]:
    """Return the words of :func:`tokenize`, and the texts before each word and after the last.

    Example:
        >>> split_words("A dog, a cat.")
        (['a', 'dog', 'a', 'cat'], ['', ' ', ', ', ' ', '.'])
    """
    normal = _normalize(text)
    return _WORD.findall(normal), _WORD.split(normal)


def _normalize(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("’", "'").lower()


class Vocabulary:
    """Words and their token ids; 0 to 3 are padding, START, END and the unknown word.

    Args:
        counts: number of occurrences of each word; ids from 4 on follow the order of the items.
    """

    def __init__(self, counts: dict[str, int]):
        if clash := [word for word in RESERVED if word in counts]:
            raise ValueError(f"reserved token {clash[0]!r} cannot be a word of the vocabulary")
        self.counts = dict(counts)
        self.tokens = (*RESERVED, *self.counts)
        self._index = {token: i for i, token in enumerate(self.tokens)}

    @classmethod
    def build(cls, texts: Iterable[str], min_count: int = 1, max_words: int | None = None) -> Vocabulary:
        """Keep the ``max_words`` most frequent words of ``texts`` that occur ``min_count`` times or more."""
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

    def __hash__(self) -> int:
        return hash(self.tokens)

    def __repr__(self) -> str:
        return f"Vocabulary({counted(len(self.counts), 'word')})"

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without START and END; unknown words become ``UNKNOWN``."""
        return [self._index.get(word, UNKNOWN) for word in tokenize(text)]

    def number(self, word: str) -> int:
        """Return the token id of a word; ``UNKNOWN`` if it is not in the vocabulary."""
        return self._index.get(word, UNKNOWN)

    def decode(self, token_ids: Iterable[int], unknown: str = RESERVED[UNKNOWN]) -> str:
        """Return the text of token ids up to the first END, without padding and START; UNKNOWN becomes ``unknown``."""
        words = []
        for token in token_ids:
            if token == END:
                break
            if token not in (PAD, START):
                words.append(unknown if token == UNKNOWN else self.tokens[token])
        return " ".join(words)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form: reserved tokens, and words with their counts."""
        return {"reserved": list(RESERVED), "counts": self.counts}

    @classmethod
    def from_dict(cls, data: Any) -> Vocabulary:
        """Read the result of :meth:`to_dict`; ``ValueError`` for anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("counts"), dict):
            raise ValueError("no mapping with counts of words")
        if data.get("reserved") != list(RESERVED):
            raise ValueError("unknown reserved tokens")
        if bad := [word for word, n in data["counts"].items() if type(n) is not int]:
            raise ValueError(f"the count of {bad[0]!r} is not a whole number")
        return cls(data["counts"])


def pad(sequences: Sequence[Sequence[int]]) -> np.ndarray:
    """Stack token ids into one ``(N, T)`` int64 array, with ``PAD`` on the right."""
    length = max((len(s) for s in sequences), default=0)
    rows = [[*sequence, *[PAD] * (length - len(sequence))] for sequence in sequences]
    return np.array(rows, np.int64).reshape(len(sequences), length)

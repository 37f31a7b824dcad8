"""Phrases of a sentence, cut as people cut them: a tagger that learnt from the markup of Flickr30k Entities.

Each word gets one of five tags: outside of phrases, the first or a later word of a phrase, or the same of a phrase that
names nothing visible ("him", "each other", "the background"). An averaged perceptron (Collins, 2002) tags from left to
right, from the words around, their last letters, the punctuation before them and the two tags before. A feature is the
hash of its text, so that the weights are one array ``(buckets, 5)`` without a list of words. Nouns that the captions of
its training hardly have are found by the tree of nouns: see :func:`complete`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.models.nouns import AFTER, BEFORE_NOUNS, COLOUR_NAMES, STARTS, find_names, noun_tree
from saywhere.text import split_words

TRAINED = Path(__file__).parents[1] / "pretrained" / "chunker.npz"
"""The weights that ship with the package."""
OUTSIDE, BEGIN, INSIDE, BEGIN_HIDDEN, INSIDE_HIDDEN = range(5)
TAGS = 5
NONE = 9
"""The tag before the first word."""
INSIDES = {INSIDE: (BEGIN, INSIDE), INSIDE_HIDDEN: (BEGIN_HIDDEN, INSIDE_HIDDEN)}
"""For each tag of a later word those that may stand before it."""

PLACES = frozenset({"left", "right", "middle", "center", "centre", "top", "bottom", "side", "corner", "edge"})
"""Places in an image, which are no things in it."""


class Phrase(NamedTuple):
    """A phrase of a sentence.

    Attributes:
        start, stop: number of its first word in the sentence, and of the word after its last.
        visible: whether it names something that an image can show.
    """

    words: str
    start: int
    stop: int
    visible: bool


@dataclass(frozen=True, eq=False)
class Chunker:
    """Cut sentences into phrases.

    Attributes:
        weights: ``(B, 5)`` of the features by their hash, for each tag; B is a power of two.

    Example:
        >>> [phrase.words for phrase in Chunker.load().chunk("a man in a red shirt and a dog on the grass")]
        ['a man', 'a red shirt', 'a dog', 'the grass']
    """

    weights: np.ndarray

    @classmethod
    def load(cls, path: Path = TRAINED) -> Chunker:
        """Read the weights that :meth:`save` wrote; ``UserError`` if the file is missing or something else."""
        return _load(path)

    def save(self, path: Path) -> None:
        """Write the weights in half precision; not compressed, to be read in no time."""
        half = self.weights.astype(np.float16)
        write_atomically(path, lambda stream: np.savez(stream, weights=half))

    def chunk(self, text: str) -> list[Phrase]:
        """Return the phrases of a text in order; there may be none."""
        words, gaps = split_words(text)
        if not words:
            return []
        read = ["and" if word == "or" else word for word in words]  # which captions hardly have
        tags, _ = self.tag(hash_words(read, gaps, len(self.weights)), read)
        found = parted(joined(complete(spans(tags), words, gaps), gaps), words, gaps)
        found = [(a, b, visible and not _is_place(words[a:b])) for a, b, visible in found]
        return [Phrase(" ".join(words[a:b]), a, b, visible) for a, b, visible in found]

    def tag(self, rows: np.ndarray, words: Sequence[str]) -> tuple[list[int], list[np.ndarray]]:
        """Return the tag of each of the T words, and the rows of the weights that decided it.

        ``rows (T, F)`` are of the features that do not depend on tags, of :func:`hash_words`.
        """
        tags, used = [NONE, NONE], []
        buckets = len(self.weights)
        for i, word in enumerate(words):
            following = words[i + 1] if i + 1 < len(words) else ">"
            second, last = tags[-2:]
            history = [f"t {last}", f"tt {second}{last}", f"tw {last} {word}", f"tr {last} {following}"]
            chosen = np.concatenate((rows[i], _hash([*history, f"ttw {second}{last} {word}"], buckets)))
            sums = self.weights[chosen].sum(axis=0, dtype=np.float32)
            for inside, before in INSIDES.items():
                if tags[-1] not in before:
                    sums[inside] = -np.inf
            tags.append(int(sums.argmax()))
            used.append(chosen)
        return tags[2:], used


@lru_cache(maxsize=1)
def _load(path: Path) -> Chunker:
    try:
        with np.load(path) as stored:
            weights = stored["weights"]
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from error
    except Exception as error:  # of other files numpy and zipfile raise anything, such as EOFError
        raise UserError(f"{path} is not a chunker") from error
    if weights.ndim != 2 or weights.shape[1] != TAGS or len(weights).bit_count() != 1 or weights.dtype != np.float16:
        raise UserError(f"{path} is not a chunker: its weights are {weights.shape} of {weights.dtype}")
    return Chunker(weights)


def hash_words(words: Sequence[str], gaps: Sequence[str], buckets: int) -> np.ndarray:
    """Return the hashes ``(T, F)`` of the features of T words that do not depend on tags.

    ``gaps`` stand before each word and after the last, see :func:`saywhere.text.split_words`; ``buckets`` is a power of
    two.
    """
    padded = ["<", "<", *words, ">", ">"]
    marks = [_mark(gap) for gap in gaps]
    rows = [_hash(_features(*padded[i : i + 5], *marks[i : i + 2]), buckets) for i in range(len(words))]
    return np.array(rows, np.int64)


def _mark(gap: str) -> str:
    return "," if any(letter in ",;:.!?()" for letter in gap) else "-" if "-" in gap else ""


def _features(second: str, left: str, word: str, right: str, fourth: str, before: str, after: str) -> list[str]:
    return [
        "bias", f"w {word}", f"l {left}", f"r {right}", f"k {second}", f"q {fourth}",
        f"w3 {word[-3:]}", f"w2 {word[-2:]}", f"l3 {left[-3:]}", f"r3 {right[-3:]}",
        f"lw {left} {word}", f"wr {word} {right}", f"lr {left} {right}", f"kl {second} {left}", f"rq {right} {fourth}",
        f"lwr {left} {word} {right}", f"m {before}{after}", f"mw {before}|{after} {word}",
    ]  # fmt: skip


def _hash(features: Sequence[str], buckets: int) -> list[int]:
    return [zlib.crc32(feature.encode()) & (buckets - 1) for feature in features]


def spans(tags: Sequence[int]) -> list[tuple[int, int, bool]]:
    """Return the phrases that tags mark: first word, word after the last, and whether it is visible."""
    found: list[tuple[int, int, bool]] = []
    for i, tag in enumerate(tags):
        if tag in (BEGIN, BEGIN_HIDDEN):
            found.append((i, i + 1, tag == BEGIN))
        elif tag in INSIDES and found:
            found[-1] = (found[-1][0], i + 1, found[-1][2])
    return found


def joined(found: Sequence[tuple[int, int, bool]], gaps: Sequence[str]) -> list[tuple[int, int, bool]]:
    """Return phrases of which none ends within words that hyphens join: of "a jack-o-lantern" one, not two."""
    whole: list[tuple[int, int, bool]] = []
    for start, stop, visible in found:
        while start and gaps[start] == "-":
            start -= 1
        while stop < len(gaps) - 1 and gaps[stop] == "-":
            stop += 1
        if whole and start < whole[-1][1]:
            first, _, seen = whole.pop()
            start, visible = min(first, start), visible or seen
        whole.append((start, stop, visible))
    return whole


def parted(
    found: Sequence[tuple[int, int, bool]], words: Sequence[str], gaps: Sequence[str]
) -> list[tuple[int, int, bool]]:
    """Return phrases that are cut at punctuation between two names of the tree: of "dog, cat" two phrases.

    A colour is no name here: "an orange, white and blue shirt" is one phrase.
    """
    marked = [i for i, gap in enumerate(gaps) if _mark(gap) == ","]
    if not any(start < i < stop for start, stop, _ in found for i in marked):
        return [*found]
    parts: list[tuple[int, int, bool]] = []
    names = [name for name in find_names(words, noun_tree()) if words[name.stop - 1] not in COLOUR_NAMES]
    for start, stop, visible in found:
        last = max((name.start for name in names if name.stop <= stop), default=start)
        cuts = [name.stop for name in names if name.stop in marked and start < name.stop <= last]
        parts += [(a, b, visible) for a, b in itertools.pairwise((start, *cuts, stop))]
    return parts


def _is_place(words: Sequence[str]) -> bool:
    """Whether a phrase says where in an image something is, and names nothing: "the left"."""
    return words[-1] in PLACES and all(word in STARTS | PLACES for word in words)


def complete(
    found: Sequence[tuple[int, int, bool]], words: Sequence[str], gaps: Sequence[str]
) -> list[tuple[int, int, bool]]:
    """Return phrases with the nouns of the tree that they were cut off from: of "a" and "sheep" the phrase "a sheep".

    A name of several words is in one phrase. A phrase that ends with a word such as "a", or has only such words and
    adjectives, takes in the name right behind it. A name in no phrase is one with the words such as "a" before it; and
    by itself where it stands behind punctuation, or a text begins with it.
    """
    spanned = list(found)
    for name in find_names(words, noun_tree()):
        start, stop = name.start, name.stop
        if any(first < start and stop <= last for first, last, _ in spanned):
            continue
        while start and words[start - 1] in BEFORE_NOUNS and _mark(gaps[start]) != ",":
            start -= 1
        ends = {last: first for first, last, _ in spanned}
        if (first := ends.get(start)) is not None and words[start - 1] in STARTS and _mark(gaps[start]) != ",":
            start = first
        touched = [span for span in spanned if span[0] < stop and start < span[1]]
        if touched and touched[0][0] <= start and stop <= touched[0][1]:
            continue
        first_part, last_part = (i in (0, len(words)) or _mark(gaps[i]) == "," for i in (start, stop))
        alone = first_part and (last_part or words[stop] in AFTER | {"and", "or"})
        if touched or alone or words[start] in STARTS:
            whole = min([start, *(span[0] for span in touched)]), max([stop, *(span[1] for span in touched)]), True
            spanned = sorted([span for span in spanned if span not in touched] + [whole])
    return spanned

"""Noun phrases of a sentence, as annotators cut them: a tagger trained on the markup of Flickr30k Entities.

Each word gets one of five tags: outside of phrases; first or later word of a phrase; or first or later word of a phrase
that names nothing visible ("him", "each other", "the background"). An averaged perceptron (Collins, 2002) tags from
left to right. Its features are the neighbouring words, their last letters, the punctuation and the previous two tags.
Features are hashed, so the weights are one array ``(buckets, 5)`` without a word list. Nouns that are rare in the
training captions come from the noun tree: see :func:`complete`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np

from saywhere.errors import UserError
from saywhere.files import write_atomically
from saywhere.models.nouns import (
    AFTER,
    BEFORE_NOUNS,
    COLOURS,
    SINGULAR,
    STARTS,
    Head,
    find_names,
    is_participle,
    noun_tree,
)
from saywhere.options import dataclass
from saywhere.text import split_words

TRAINED = Path(__file__).parents[1] / "pretrained" / "chunker.npz"
"""The weights that ship with the package."""
OUTSIDE, BEGIN, INSIDE, BEGIN_HIDDEN, INSIDE_HIDDEN = range(5)
TAGS = 5
NONE = 9
"""Tag before the first word."""
INSIDES = {INSIDE: (BEGIN, INSIDE), INSIDE_HIDDEN: (BEGIN_HIDDEN, INSIDE_HIDDEN)}
"""The tags that may precede each tag of a later word."""

SEPARATORS = frozenset("&/|+")
"""Signs between things."""
PLACES = frozenset({"left", "right", "middle", "center", "centre", "top", "bottom", "side", "corner", "edge"})
"""Words for places in an image, as opposed to things in it."""


class Span(NamedTuple):
    """Words of a sentence from ``start`` up to ``stop``, and whether they name something that an image can show."""

    start: int
    stop: int
    visible: bool


class Phrase(NamedTuple):
    """A phrase of a sentence.

    Attributes:
        start, stop: indices in the sentence of the first word and of the word after the last.
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
        weights: ``(B, 5)`` weights of each hashed feature for each tag; B is a power of two.

    Example:
        >>> [phrase.words for phrase in Chunker.load().chunk("a man in a red shirt and a dog on the grass")]
        ['a man', 'a red shirt', 'a dog', 'the grass']
    """

    weights: np.ndarray

    @classmethod
    def load(cls, path: Path = TRAINED) -> Chunker:
        """Read weights written by :meth:`save`; ``UserError`` if the file is missing or not a chunker."""
        return _load(path)

    def save(self, path: Path) -> None:
        """Write the weights in half precision, uncompressed so that they load fast."""
        half = self.weights.astype(np.float16)
        write_atomically(path, lambda stream: np.savez(stream, weights=half))

    def chunk(self, text: str) -> list[Phrase]:
        """Return the phrases of a text in order; possibly none."""
        words, gaps = split_words(text)
        if not words:
            return []
        gaps = separated(words, gaps)
        read = ["and" if word == "or" else word for word in words]  # "or" is rare in captions
        tags, _ = self.tag(hash_words(read, gaps, len(self.weights)), read)
        found = spans(tags)
        for mend in (complete, join_colours, join_hyphens, part):
            found = mend(found, words, gaps)
        return [_phrase(span, words, gaps) for span in found]

    def tag(self, rows: np.ndarray, words: Sequence[str]) -> tuple[list[int], list[np.ndarray]]:
        """Return the tag of each of the T words, and for each the rows of the weights that were summed.

        ``rows`` are ``(T, F)`` hashes of the features that do not depend on tags, from :func:`hash_words`.
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
    except Exception as error:  # for other files numpy and zipfile raise anything, such as EOFError
        raise UserError(f"{path} is not a chunker") from error
    if weights.ndim != 2 or weights.shape[1] != TAGS or len(weights).bit_count() != 1 or weights.dtype != np.float16:
        raise UserError(f"{path} is not a chunker: its weights are {weights.shape} of {weights.dtype}")
    return Chunker(weights)


def hash_words(words: Sequence[str], gaps: Sequence[str], buckets: int) -> np.ndarray:
    """Return the hashes ``(T, F)`` of those features of T words that do not depend on tags.

    ``gaps`` are the T + 1 texts between words, see :func:`saywhere.text.split_words`; ``buckets`` is a power of two.
    """
    padded = ["<", "<", *words, ">", ">"]
    marks = [_mark(gap) for gap in gaps]
    rows = [_hash(_features(*padded[i : i + 5], *marks[i : i + 2]), buckets) for i in range(len(words))]
    return np.array(rows, np.int64)


def separated(words: Sequence[str], gaps: Sequence[str]) -> list[str]:
    """Replace signs that mean "and" or "or" by commas: "dogs & cats", "cars/bikes", not "H&M" or "red/white"."""
    found = list(gaps)
    for i, gap in enumerate(gaps[1:-1], 1):
        both = words[i - 1], words[i]
        if not SEPARATORS.isdisjoint(gap) and all(len(w) > 2 and w.isalpha() and w not in COLOURS for w in both):
            found[i] = ", "
    return found


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


def spans(tags: Sequence[int]) -> list[Span]:
    """Return the phrases that tags mark."""
    found: list[Span] = []
    for i, tag in enumerate(tags):
        if tag in (BEGIN, BEGIN_HIDDEN):
            found.append(Span(i, i + 1, tag == BEGIN))
        elif tag in INSIDES and found:
            found[-1] = found[-1]._replace(stop=i + 1)
    return found


def join_colours(found: Sequence[Span], words: Sequence[str], gaps: Sequence[str]) -> list[Span]:
    """Join a phrase that only says a colour with the next one: "an orange" and "white cat" are one thing."""
    names, whole = _uncoloured(words), list[Span]()
    for span in found:
        if whole and _goes_on(whole[-1], span, words, gaps):
            last = whole[-1]
            if not any(last.start <= name.start < last.stop for name in names):
                whole[-1] = Span(last.start, span.stop, last.visible or span.visible)
                continue
        whole.append(span)
    return whole


def _goes_on(last: Span, span: Span, words: Sequence[str], gaps: Sequence[str]) -> bool:
    """Return whether two phrases with "and" or "or" between them are like "an orange" and "white cat"."""
    between = words[last.stop : span.start] in (["and"], ["or"])
    colours = words[last.stop - 1] in COLOURS and words[span.start] in COLOURS and words[span.stop - 1] not in COLOURS
    return between and colours and not any(map(_mark, gaps[last.stop : span.start + 1]))


def join_hyphens(found: Sequence[Span], _words: Sequence[str], gaps: Sequence[str]) -> list[Span]:
    """Extend phrases to whole hyphenated words: "a jack-o-lantern" is one phrase, not two."""
    whole: list[Span] = []
    for start, stop, visible in found:
        while start and gaps[start] == "-":
            start -= 1
        while stop < len(gaps) - 1 and gaps[stop] == "-":
            stop += 1
        if whole and start < whole[-1].stop:
            last = whole.pop()
            start, visible = min(last.start, start), visible or last.visible
        whole.append(Span(start, stop, visible))
    return whole


def part(found: Sequence[Span], words: Sequence[str], gaps: Sequence[str]) -> list[Span]:
    """Split phrases at punctuation between two names of the noun tree: "dog, cat" becomes two phrases.

    Colours do not count as names: "an orange, white and blue shirt" stays one phrase.
    """
    marked = [i for i, gap in enumerate(gaps) if _mark(gap) == ","]
    if not any(span.start < i < span.stop for span in found for i in marked):
        return [*found]
    parts, names = list[Span](), _uncoloured(words)
    for start, stop, visible in found:
        last = max((name.start for name in names if name.stop <= stop), default=start)
        cuts = [name.stop for name in names if name.stop in marked and start < name.stop <= last]
        parts += [Span(a, b, visible) for a, b in itertools.pairwise((start, *cuts, stop))]
    return parts


def _uncoloured(words: Sequence[str]) -> list[Head]:
    """Return the names of the noun tree that are not colours."""
    return [name for name in find_names(words, noun_tree()) if words[name.stop - 1] not in COLOURS]


def _phrase(span: Span, words: Sequence[str], gaps: Sequence[str]) -> Phrase:
    """Return the phrase of a span: an item of a list is visible, a place in the image is not."""
    own = words[span.start : span.stop]
    visible = (span.visible or _is_item(words, gaps, span.start, span.stop)) and not _is_place(own)
    return Phrase(" ".join(own), span.start, span.stop, visible)


def _is_item(words: Sequence[str], gaps: Sequence[str], start: int, stop: int) -> bool:
    """Return whether a phrase is a noun of the tree in a list: it stands between punctuation or the text's ends."""
    alone = (not start or _mark(gaps[start]) == ",") and (stop == len(words) or _mark(gaps[stop]) == ",")
    return alone and stop - start < len(words) and noun_tree().head(words[start:stop]).noun is not None


def _is_place(words: Sequence[str]) -> bool:
    """Return whether a phrase only says where in the image something is: "the left"."""
    return words[-1] in PLACES and all(word in STARTS | PLACES for word in words)


def _reach(words: Sequence[str], gaps: Sequence[str], start: int, participles: bool = False) -> int:
    """Return the first of the adjectives, words such as "a" and, if asked, participles right before ``start``."""
    while start and _mark(gaps[start]) != ",":
        before = words[start - 1]
        form = is_participle(before) or (before.endswith("ing") and before not in AFTER)
        if before not in BEFORE_NOUNS and not (participles and form and words[start] not in STARTS):
            break
        start -= 1
    return start


def complete(found: Sequence[Span], words: Sequence[str], gaps: Sequence[str]) -> list[Span]:
    """Extend phrases to the nouns of the tree that they were cut off from: "a" and "sheep" become "a sheep".

    A name of several words ends up in one phrase. A phrase takes in the name behind it if it ends with a word such as
    "a", or if it begins with one and names nothing yet: "a broken" and "window", unless the name may be a verb, as in
    "a biker bikes". A name in no phrase forms one with the words such as "a" before it. Without these it must begin the
    text or follow punctuation, or a phrase and "and", and must not run into another noun.
    """
    spanned, names = list(found), find_names(words, noun_tree())
    for name in names:
        if any(span.start < name.start and name.stop <= span.stop for span in spanned):
            continue
        start, stop = _start(name, names, spanned, words, gaps), name.stop
        touched = [span for span in spanned if span.start < stop and start < span.stop]
        if touched and touched[0].start <= start and stop <= touched[0].stop:
            continue
        if touched or words[start] in STARTS or _stands_alone(start, stop, spanned, words, gaps):
            first, last = min([start, *(span.start for span in touched)]), max([stop, *(span.stop for span in touched)])
            spanned = sorted([*(span for span in spanned if span not in touched), Span(first, last, True)])
    return spanned


def _start(
    name: Head, names: Sequence[Head], spanned: Sequence[Span], words: Sequence[str], gaps: Sequence[str]
) -> int:
    """Return where the phrase of a name begins: at words that belong to it, or at the phrase that it completes."""
    lead = _reach(words, gaps, name.start, participles=True)
    begins = lead == 0 or _mark(gaps[lead]) == "," or words[lead] in STARTS
    start = lead if begins else _reach(words, gaps, name.start)
    first = next((span.start for span in spanned if span.stop == start), None)
    if first is None or _mark(gaps[start]) == ",":
        return start
    unnamed = words[first] in STARTS and not any(first <= other.start < start for other in names)
    is_noun = is_participle(words[start - 1]) or (words[first] in SINGULAR and not name.plural)
    return first if words[start - 1] in STARTS or (unnamed and is_noun) else start


def _stands_alone(start: int, stop: int, spanned: Sequence[Span], words: Sequence[str], gaps: Sequence[str]) -> bool:
    """Return whether words that no phrase touches can be one: after a stop, or a phrase and "and"; before no noun."""
    first, last = (i in (0, len(words)) or _mark(gaps[i]) == "," for i in (start, stop))
    first |= words[start - 1] in ("and", "or") and any(span.stop == start - 1 for span in spanned)
    return first and (last or words[stop] in AFTER | {"and", "or"})

